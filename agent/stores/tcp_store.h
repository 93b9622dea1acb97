// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/stores/tcp_wire.h"

namespace dtrain::stores {

// Of all ranks together: a program that puts without end must not fill the node's memory.
struct TcpLimits {
  size_t bytes = 512 << 20;
  size_t keys = 1 << 20;
  size_t reply = 64 << 20;  // of one request
};
// For a job of so many ranks, on a node with so many bytes of memory.
TcpLimits LimitsFor(size_t ranks, size_t memory);

// What PyTorch's TCPStore keeps for its clients: values and queues by key, and who waits for which
// keys. Keys have no owner: what a client has put stays when it goes. Pure.
//
// Source: torch/csrc/distributed/c10d/TCPStore.cpp (torch 1.13, 2.0) and TCPStoreLibUvBackend.cpp.
class TcpStore {
 public:
  explicit TcpStore(TcpLimits limits = {}) : limits_(limits) {}

  using Client = uint64_t;
  struct Reply {
    Client to = 0;
    std::shared_ptr<const std::string> bytes;
  };
  struct Outcome {
    std::vector<Reply> replies;  // to `from` and to others
    // What `from` wants and cannot have. PyTorch knows no answer to that: its connection is closed.
    absl::Status refused;
  };
  Outcome Handle(Client from, TcpRequest request);
  // Its connection is closed.
  void Leave(Client client);

  // Of all that is kept, roughly as in memory.
  size_t bytes() const { return bytes_; }
  size_t keys() const { return values_.size(); }
  size_t waiting() const { return waits_.size(); }

 private:
  struct Wait {
    uint64_t ticket = 0;  // by which those who wait for a key are ordered
    std::set<std::string> missing;
  };
  // Of WATCH_KEY.
  enum class Change : char { kUpdated, kCreated, kDeleted, kRegistered, kAppended };

  absl::Status Dispatch(Client from, TcpRequest& request);
  void AnswerSimply(Client from, const TcpRequest& request);
  absl::Status Put(const std::string& key, std::string value);
  absl::Status Append(const std::string& key, const std::string& more);
  absl::Status CompareSet(Client from, TcpRequest& request);
  absl::Status Add(Client from, const std::string& key, int64_t delta);
  absl::Status MultiGet(Client from, const std::vector<std::string>& keys);
  absl::Status MultiSet(std::vector<std::string>& texts);
  absl::Status AwaitKeys(Client from, const std::vector<std::string>& keys);
  absl::Status Barrier(Client from, const std::string& key, int64_t size);
  absl::Status Watch(Client from, const std::string& key);
  absl::Status QueuePush(const std::string& key, std::string value);
  absl::Status ListKeys(Client from);
  void QueuePop(Client from, const std::string& key);
  void Delete(Client from, const std::string& key);

  const std::string& ValueOf(const std::string& key) const;
  bool Exists(const std::string& key) const;
  bool AllExist(const std::vector<std::string>& keys) const;
  absl::Status Register(Client from, std::set<std::string> missing);
  void Forget(Client client);
  void Wake(const std::string& key, bool one = false);
  void TellWatchers(const std::string& key, Change change, const std::string& before,
                    const std::string& now);
  void Answer(Client to, std::string bytes);
  absl::Status Room(size_t more) const;

  TcpLimits limits_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;  // none that is empty
  std::map<Client, Wait> waits_;
  std::map<std::string, std::map<uint64_t, Client>> waiters_;  // of each key, by their tickets
  std::map<std::string, std::set<Client>> watchers_;
  std::map<Client, std::set<std::string>> watched_;
  uint64_t last_ticket_ = 0;
  size_t bytes_ = 0;
  std::vector<Reply> replies_;  // of the request at hand
};

}  // namespace dtrain::stores
