// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/shepherd/pmi_line.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The PMI-1 server of one node's workers. Pure: lines in, lines out. Puts are kept here until all
// local ranks are in the barrier, then travel up with it; gets are answered from what came down.
class PmiServer {
 public:
  explicit PmiServer(const v1::JobPart& part);

  struct Reply {
    uint32_t rank;
    std::string line;  // with the newline
  };
  // Close this rank's connection: it does not speak PMI.
  struct Drop {
    uint32_t rank;
    std::string why;
  };
  // The rank asked for the job's abort, and is to exit by itself.
  struct Abort {
    uint32_t rank;
    int code;  // for the job to exit with
  };
  using Action = std::variant<Reply, Drop, Abort, v1::FenceEnter>;
  using Actions = std::vector<Action>;

  // A line from a worker, without its newline.
  Actions OnLine(uint32_t rank, absl::string_view line);
  // The worker's process has ended: no barrier waits for it.
  Actions OnGone(uint32_t rank);
  // All nodes are in. Ignored when it is not the one we wait for.
  Actions OnFenceRelease(const v1::FenceRelease& release);

 private:
  struct Client {
    bool waits = false;  // in the barrier
    bool gone = false;   // its process has ended
    // Greetings so far, and whether a goodbye followed the last one. libdtrain may join again on
    // the same connection, which PMI-1 does not know: see kRejoinKey.
    uint32_t joins = 0;
    bool left = false;
    bool dropped = false;    // sent what is no PMI; a barrier waits for its end all the same
    bool spawning = false;   // inside "mcmd=spawn" ... "endcmd"
    bool last_spawn = true;  // the block that the reply comes after
    std::string spawn_total;
    bool aborted = false;
  };
  Actions OnRequest(uint32_t rank, Client& client, const PmiRequest& request);
  static Action Refuse(Client& client, uint32_t rank, std::string why);
  Actions OnSpawnLine(uint32_t rank, Client& client, absl::string_view line);
  static std::string Init(Client& client, const PmiRequest& request);
  // Whether the barrier that others are in waits for this client, too.
  bool IsAwaited(const Client& client) const;
  std::string Put(const PmiRequest& request);
  std::string Get(const PmiRequest& request) const;
  // The fence, when the last of the living has entered.
  Actions MaybeEnter();

  const std::string kvs_name_;
  const uint32_t universe_size_;
  const std::string process_mapping_;
  std::map<uint32_t, Client> clients_;
  std::map<std::string, std::string> values_;   // what get answers from
  std::map<std::string, std::string> pending_;  // put since the last fence
  size_t pending_bytes_ = 0;
  uint32_t sequence_ = 0;
  bool entered_ = false;  // the node is in fence `sequence_`
};

}  // namespace dtrain::shepherd
