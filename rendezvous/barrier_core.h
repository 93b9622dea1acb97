// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace dtrain::rendezvous {

// Which launch a node believes to join.
struct JoinKey {
  std::string job_id;
  uint32_t attempt = 0;
  std::string incarnation;  // random bytes of one launcher process

  bool operator==(const JoinKey&) const = default;
};

// What tells one machine from another. Containers share a boot id but not a network namespace.
struct Machine {
  std::string boot_id;
  uint64_t network_namespace = 0;

  bool operator==(const Machine&) const = default;
};

struct MissingNode {
  NodeId node;
  std::string host;
  std::string waiting_for;
};

// Who has reported in. Pure. Nothing starts until complete().
class BarrierCore {
 public:
  // `shared`: several hosts may be one machine, as containers with the network of their host are.
  BarrierCore(JoinKey key, std::vector<std::string> hosts, bool shared = false);

  // Admits `node` (an index of the hosts). The same join again is fine: a reply may have been
  // lost. Fails, changing nothing, for another job, attempt or launcher, for a node that has become
  // another machine, for two names of one machine, and, once complete, for whoever is not in yet.
  // The message does not name the host, but for two names of one machine.
  absl::Status Join(NodeId node, const JoinKey& key, const Machine& machine);

  // What a node that has not joined does now, for messages.
  void SetWaitingFor(NodeId node, std::string what);

  bool complete() const { return joined_ == members_.size(); }
  size_t joined() const { return joined_; }
  bool has_joined(NodeId node) const;
  std::vector<MissingNode> missing() const;

 private:
  struct Member {
    std::string host;
    std::string waiting_for;
    bool joined = false;
    Machine machine;
  };
  absl::Status CheckKey(const JoinKey& key) const;

  JoinKey key_;
  const bool shared_;
  std::vector<Member> members_;
  std::map<std::pair<std::string, uint64_t>, uint32_t> machines_;  // who joined as which node
  size_t joined_ = 0;
};

// "node1 (ssh authentication), node2 (connection) and 14 more"
std::string FormatMissing(const std::vector<MissingNode>& missing, size_t limit = 8);

// "node1, node2 and 14 more"
std::string FormatHosts(const std::vector<std::string>& hosts, size_t limit = 8);

}  // namespace dtrain::rendezvous
