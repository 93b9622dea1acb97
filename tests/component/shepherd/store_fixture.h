// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include <fstream>
#include <string>

#include "common/os/process_tree.h"
#include "dtrain/v1/store.pb.h"
#include "harness.h"

namespace dtrain::shepherd {

// A shepherd of rank 0's node, which serves keys and values to the ranks.
class StoreFixture : public ShepherdTest {
 protected:
  // A port that listens, as the agent of a job's first node holds it.
  uint16_t HoldPort() {
    os::UniqueFd held(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    socklen_t size = sizeof(at);
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    EXPECT_EQ(bind(held.get(), address, size), 0);
    EXPECT_EQ(listen(held.get(), SOMAXCONN), 0);
    EXPECT_EQ(getsockname(held.get(), address, &size), 0);
    const uint16_t port = ntohs(at.sin_port);
    held_[port] = std::move(held);
    return port;
  }
  // Of a node with `workers` ranks, beside `others` that have one each.
  v1::JobPart MeetingPart(int workers, int others, const std::string& script) {
    v1::JobPart part = Part(workers, {"/bin/bash", "-c", script});
    part.set_node_count(static_cast<uint32_t>(1 + others));
    part.set_world_size(static_cast<uint32_t>(workers + others));
    part.mutable_network()->set_master_address("127.0.0.1");
    part.mutable_network()->set_rendezvous_port(HoldPort());
    for (int i = 0; i <= others; ++i) {
      v1::MeetingNode& node = *part.mutable_meeting()->add_nodes();
      node.set_host(absl::StrCat("node", i));
      node.set_ranks(i == 0 ? static_cast<uint32_t>(workers) : 1);
      if (i > 0) node.add_addresses(absl::StrCat("192.0.2.", i));
    }
    return part;
  }
  // A helper of the shepherd; 0: it does not run.
  pid_t HelperPid(const std::string& command) const {
    for (const os::ProcessInfo& info : os::Descendants(shepherd_pid_)) {
      std::ifstream file(absl::StrCat("/proc/", info.pid, "/comm"));
      std::string name;
      if (std::getline(file, name) && name == command) return info.pid;
    }
    return 0;
  }
  static os::UniqueFd Connect(uint32_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(port));
    os::UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    return client;
  }
};

}  // namespace dtrain::shepherd
