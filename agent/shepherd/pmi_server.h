// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/shepherd/pmi_line.h"
#include "agent/shepherd/pmi_store.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The PMI server of one node's workers, each of which speaks PMI-1 or PMI-2, as its greeting says.
// Pure: messages in, messages out. Puts are kept here until all local ranks are in the fence
// (PMI-1's barrier), then travel up with it; gets are answered from what came down.
class PmiServer {
 public:
  explicit PmiServer(const v1::JobPart& part);

  struct Reply {
    uint32_t rank;
    std::string message;  // as it goes out: a line with its newline, or a frame
  };
  // Close this rank's connection: it does not speak PMI.
  struct Drop {
    uint32_t rank;
    std::string why;
  };
  // The rank asked for the job's abort, and is to exit by itself.
  struct Abort {
    uint32_t rank;
    std::optional<int> code;  // for the job to exit with; PMI-2's clients leave it to their exit
  };
  using Action = std::variant<Reply, Drop, Abort, v1::FenceEnter>;
  using Actions = std::vector<Action>;

  // From a worker: a frame, with its header, if SpeaksFrames; otherwise a line without its newline.
  Actions OnMessage(uint32_t rank, absl::string_view message);
  // What its next message is.
  bool SpeaksFrames(uint32_t rank) const;
  // Whether it has ever greeted.
  bool HasJoined(uint32_t rank) const;
  // The worker's process has ended: no fence waits for it.
  Actions OnGone(uint32_t rank);
  // All nodes are in. Ignored when it is not the one we wait for.
  Actions OnFenceRelease(const v1::FenceRelease& release);

 private:
  struct Client {
    uint32_t program = 0;    // which of the job's it runs
    std::string at_release;  // what it waits for in the fence; empty: it is not in one
    bool gone = false;       // its process has ended
    // Greetings so far, and whether a goodbye followed the last one. libdtrain may join again on
    // the same connection, which PMI-1 does not know: see kRejoinKey.
    uint32_t joins = 0;
    bool left = false;
    bool dropped = false;    // sent what is no PMI; a fence waits for its end all the same
    bool spawning = false;   // inside "mcmd=spawn" ... "endcmd"
    bool last_spawn = true;  // the block that the reply comes after
    std::string spawn_total;
    bool aborted = false;
    // PMI-2.
    bool frames = false;              // it has greeted so
    bool fully_joined = false;        // after fullinit
    std::vector<PmiRequest> waiting;  // for node attributes
  };
  Actions OnRequest(uint32_t rank, Client& client, const PmiRequest& request);
  static Action Refuse(Client& client, uint32_t rank, std::string why);
  Actions OnSpawnLine(uint32_t rank, Client& client, absl::string_view line);
  static std::string Init(Client& client, const PmiRequest& request);
  // PMI-2: pmi2_requests.cc.
  Actions OnFrame(uint32_t rank, Client& client, absl::string_view frame);
  Actions Fullinit(uint32_t rank, Client& client, const PmiRequest& request);
  Actions JobGetid(uint32_t rank, Client& client, const PmiRequest& request);
  Actions KvsPut(uint32_t rank, Client& client, const PmiRequest& request);
  Actions KvsGet(uint32_t rank, Client& client, const PmiRequest& request);
  Actions KvsFence(uint32_t rank, Client& client, const PmiRequest& request);
  Actions GetJobAttribute(uint32_t rank, Client& client, const PmiRequest& request);
  Actions PutNodeAttribute(uint32_t rank, Client& client, const PmiRequest& request);
  Actions GetNodeAttribute(uint32_t rank, Client& client, const PmiRequest& request);
  Actions NoNameService(uint32_t rank, Client& client, const PmiRequest& request);
  Actions NotSupported(uint32_t rank, Client& client, const PmiRequest& request);
  Actions AbortAll(uint32_t rank, Client& client, const PmiRequest& request);
  Actions Finalize(uint32_t rank, Client& client, const PmiRequest& request);
  // Both versions.
  static void Join(Client& client, bool frames);
  // With the client's last answer; the fence may have waited for it alone.
  Actions Leave(uint32_t rank, Client& client, std::string answer);
  Actions EnterFence(uint32_t rank, Client& client, std::string at_release);
  const std::string* Find(const std::string& key) const;
  // Whether the fence that others are in waits for this client, too.
  bool IsAwaited(const Client& client) const;
  std::string Put(const PmiRequest& request);
  std::string Get(const PmiRequest& request) const;
  // The fence, when the last of the living has entered.
  Actions MaybeEnter();

  const std::string kvs_name_;
  const uint32_t world_size_;
  const uint32_t universe_size_;
  const std::string process_mapping_;
  std::map<uint32_t, Client> clients_;
  PmiStore store_;
  std::map<std::string, std::string> node_attributes_;
  size_t node_attribute_bytes_ = 0;
  uint32_t sequence_ = 0;
  bool entered_ = false;  // the node is in fence `sequence_`
};

}  // namespace dtrain::shepherd
