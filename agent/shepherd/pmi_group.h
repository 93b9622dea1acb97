// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/shepherd/pmi_line.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The job's key-value space as one node knows it, for clients of either PMI: what its ranks have
// put, visible to them at once, and what came down with the fences. Bounded.
class PmiStore {
 public:
  // Null: it is in. Otherwise why not, in one word.
  const char* Put(const std::string& key, const std::string& value);
  // Null when it is not there. Valid until the next call.
  const std::string* Find(const std::string& key) const;
  // Moves what was put since the last fence to this one.
  void Take(v1::FenceEnter* enter);
  // What all nodes have put.
  void Add(const v1::FenceRelease& release);

 private:
  std::map<std::string, std::string> values_;   // what Find answers from
  std::map<std::string, std::string> pending_;  // put since the last fence
  size_t pending_bytes_ = 0;
};

struct PmiReply {
  uint32_t rank;
  std::string message;  // as it goes out: a line with its newline, or a frame
};
// Close this rank's connection: it does not speak PMI.
struct PmiDrop {
  uint32_t rank;
  std::string why;
};
// The rank asked for the job's abort, and is to exit by itself.
struct PmiAbort {
  uint32_t rank;
  std::optional<int> code;  // for the job to exit with; PMI-2's clients leave it to their exit
};
using PmiAction = std::variant<PmiReply, PmiDrop, PmiAbort, v1::FenceEnter>;
using PmiActions = std::vector<PmiAction>;

// One worker, as its messages have made it.
struct PmiClient {
  uint32_t program = 0;    // which of the job's it runs
  std::string at_release;  // what it waits for in the fence; empty: it is not in one
  bool gone = false;       // its process has ended
  // Greetings so far, and whether a goodbye followed the last one. libdtrain may join again on
  // the same connection, which PMI-1 does not know: see kRejoinKey.
  uint32_t joins = 0;
  bool left = false;
  bool is_dtrain = false;  // libdtrain, by the key that it asks for; may end without a goodbye
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

// What the workers of a node have in common, whichever version of PMI each of them speaks: the
// job's keys, and the fence. Puts are kept until all local ranks are in the fence, then travel up
// with it. Pure.
class PmiGroup {
 public:
  explicit PmiGroup(const v1::JobPart& part);

  const std::string& kvs_name() const { return kvs_name_; }
  uint32_t world_size() const { return world_size_; }
  uint32_t universe_size() const { return universe_size_; }
  const std::string& process_mapping() const { return process_mapping_; }

  std::map<uint32_t, PmiClient>& clients() { return clients_; }
  const PmiClient& client(uint32_t rank) const { return clients_.at(rank); }
  v1::WorkerExit::World WorldOf(uint32_t rank) const;

  // As those of PmiStore.
  const char* Put(const std::string& key, const std::string& value) {
    return store_.Put(key, value);
  }
  const std::string* Find(const std::string& key) const;

  static PmiAction Refuse(PmiClient& client, uint32_t rank, std::string why);
  static void Join(PmiClient& client, bool frames);
  // With the client's last answer; the fence may have waited for it alone.
  PmiActions Leave(uint32_t rank, PmiClient& client, std::string answer);
  PmiActions EnterFence(uint32_t rank, PmiClient& client, std::string at_release);
  // As PmiServer's.
  PmiActions OnGone(uint32_t rank);
  PmiActions OnFenceRelease(const v1::FenceRelease& release);

 private:
  // Whether the fence that others are in waits for this client, too.
  bool IsAwaited(const PmiClient& client) const;
  // The fence, when the last of the living has entered.
  PmiActions MaybeEnter();

  const std::string kvs_name_;
  const uint32_t world_size_;
  const uint32_t universe_size_;
  const std::string process_mapping_;
  std::map<uint32_t, PmiClient> clients_;
  PmiStore store_;
  uint32_t sequence_ = 0;
  bool entered_ = false;  // the node is in fence `sequence_`
};

}  // namespace dtrain::shepherd
