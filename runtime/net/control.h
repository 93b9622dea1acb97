// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/result.h"
#include "runtime/net/socket.h"

namespace dtrain::runtime {

// One TCP connection to each other node for everything but collectives: why a rank has failed, or
// that it leaves the job. One thread waits for news; any thread may send it.
class Control {
 public:
  struct News {
    enum Kind { kFailed, kLeaving, kLost };
    Kind kind = kLost;
    int node = -1;
    Error error{DTRAIN_OK, {}};  // kFailed: the reason; kLost: what happened to the connection
    Leaver leaver;               // kLeaving
    uint32_t number = 0;         // kFailed: of the collective that failed, or the next one
  };

  // `sockets[n]` leads to node n, and is none for this node.
  static Result<std::unique_ptr<Control>> Make(std::vector<Socket> sockets);
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // The next news from another node; nullopt at the deadline and after Stop. Each connection is
  // reported lost once.
  std::optional<News> Await(Deadline deadline);
  void Stop();  // any thread

  // To all other nodes, as far as they can be told without waiting. Each at most once: then they
  // have room for it. Any thread.
  void TellFailure(const Error& reason, uint32_t number);
  void TellLeaving(const Leaver& leaver);
  // Waits until the other machines have received what was sent, then ends the connections. Any
  // thread.
  void Finish(Deadline deadline);
  void Shutdown();  // at once; any thread

 private:
  struct Line {
    Socket socket;
    bool open = false;
    std::string received;
  };

  Control() = default;
  void Read(int node);
  bool Take(int node);
  void Lose(int node, const std::string& why);
  void Tell(uint32_t kind, uint32_t value, uint32_t extra, std::string_view text);

  std::vector<Line> lines_;  // by node
  std::deque<News> news_;
  Socket stop_;       // an eventfd
  std::mutex mutex_;  // one message after the other
};

}  // namespace dtrain::runtime
