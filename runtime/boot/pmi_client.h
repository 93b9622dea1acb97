// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/result.h"

namespace dtrain::runtime {

// The value of `key` in a PMI-1 line ("cmd=get_result rc=0 value=a=b"), nullopt when it has none.
std::optional<std::string_view> PmiField(std::string_view line, std::string_view key);

// The worker's end of the PMI-1 protocol: put, get and barrier over an inherited socket. Blocking,
// every wait bounded by a deadline; used by one thread at a time. Not usable after a failure.
class PmiClient {
 public:
  // Takes ownership of `fd` and greets the server.
  static Result<PmiClient> Connect(int fd, Deadline deadline);
  PmiClient(PmiClient&& other) noexcept;
  PmiClient& operator=(PmiClient&& other) noexcept;
  ~PmiClient();

  // Longest value that Put takes, so that any line stays within PMI-1's 1024 bytes.
  size_t value_limit() const { return value_limit_; }

  // Visible to the other ranks after the next Barrier. No spaces or newlines.
  MaybeError Put(std::string_view key, std::string_view value, Deadline deadline);
  // nullopt: no rank has put it.
  Result<std::optional<std::string>> Get(std::string_view key, Deadline deadline);
  // Likewise for several keys. dtrain's own server gets the next requests before it has answered:
  // one at a time, most of the time would go into waking each other.
  Result<std::vector<std::optional<std::string>>> GetAll(const std::vector<std::string>& keys,
                                                         Deadline deadline);
  // Returns when every rank of the job has called it, or `look`, which it calls now and then,
  // returns an error.
  using Look = std::function<MaybeError()>;
  MaybeError Barrier(Deadline deadline, const Look& look = nullptr);
  // Says a clean goodbye; without it the launcher takes the process for crashed. Closes, unless
  // the server lets a process join again.
  MaybeError Finalize(Deadline deadline);

  // Whether the server takes a new greeting after a goodbye, on the same connection. PMI-1 has no
  // such thing; dtrain's server announces it by a key of its own.
  bool can_rejoin() const { return can_rejoin_; }
  MaybeError Rejoin(Deadline deadline) { return Greet(deadline); }

 private:
  explicit PmiClient(int fd) : fd_(fd) {}
  MaybeError Greet(Deadline deadline);
  MaybeError Send(std::string_view line, Deadline deadline);
  MaybeError SendBytes(std::string_view bytes, Deadline deadline);
  Result<std::optional<std::string>> ReceiveValue(const std::string& request, Deadline deadline);
  Result<std::string> Receive(std::string_view request, Deadline deadline);
  // One request and its reply, which must be of kind `reply` and carry no error code.
  Result<std::string> Ask(const std::string& request, std::string_view reply, Deadline deadline);
  MaybeError WaitFor(short events, std::string_view what, Deadline deadline);

  int fd_;
  std::string kvs_name_;
  Look look_;  // during a barrier
  size_t value_limit_ = 0;
  bool can_rejoin_ = false;
  std::string received_;  // bytes after the last complete line
};

}  // namespace dtrain::runtime
