// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/result.h"
#include "runtime/nccl/member.h"

namespace dtrain::runtime {

// The ranks of a group as a tree of TCP connections on which only bad news travels: NCCL itself
// tells a rank nothing of another one that has given up, when they share a machine. A connection
// that ends without a goodbye is news as well. Made by one thread, then used by one other.
class Alarm {
 public:
  // Listens on `ip`, numeric.
  static Result<std::unique_ptr<Alarm>> Listen(const std::string& ip);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  uint16_t port() const { return port_; }
  const std::string& token() const { return token_; }  // 16 bytes; who has it is of the job

  // Connects to the parent and waits for the children. All members listen.
  MaybeError Connect(int rank, const std::vector<Member>& members, Deadline deadline);

  // What to wait for, before Check has something to read.
  void AddTo(std::vector<pollfd>& entries) const;
  // News from the neighbours, or of one that is gone. Does not block.
  MaybeError Check();
  // Tells the neighbours, who pass it on. Does not block.
  void Raise(const Error& error);
  // Tells the neighbours, who pass it on, that `me` ("rank 3 (host b)") leaves the job after `runs`
  // collectives. Does not block.
  void TellLeaving(const std::string& me, uint32_t runs);
  // Of those that leave, the one with the fewest; empty: nobody does.
  const std::string& leaver() const { return leaver_; }
  uint32_t leavers_runs() const { return leavers_runs_; }
  // From here on, this rank's end is no news.
  void SayGoodbye();

 private:
  struct Link {
    int fd = -1;
    std::string peer;  // "rank 3 (host b)"
    std::string received;
  };

  Alarm(int fd, uint16_t port, std::string token)
      : listener_(fd), port_(port), token_(std::move(token)) {}
  MaybeError ConnectToParent(int rank, const std::vector<Member>& members, Deadline deadline);
  MaybeError AwaitChildren(int rank, const std::vector<Member>& members, Deadline deadline);
  std::optional<int> Greet(int fd, Deadline deadline);
  MaybeError Read(Link& link);
  // Takes one message out of what has come. Nothing to take: false.
  bool Take(Link& link, MaybeError& error);
  void Hear(const Link& from, const std::string& text);
  void Send(int32_t code, const std::string& text, const Link* but);

  int listener_;
  const uint16_t port_;
  const std::string token_;
  std::vector<Link> links_;
  std::string leaver_;
  uint32_t leavers_runs_ = 0;
};

}  // namespace dtrain::runtime
