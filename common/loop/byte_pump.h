// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"

namespace dtrain::loop {

// Copies bytes one way between two descriptors that epoll takes (pipes, sockets), as fast as the
// slower side; holds at most one buffer. Owns neither; both are made non-blocking. Loop thread.
class BytePump {
 public:
  // `on_end` is called once: OK at end of file from `from`, after the last byte was written; an
  // error when either side broke. The owner then closes or shuts down what it wants.
  BytePump(Loop& loop, int from, int to, absl::AnyInvocable<void(absl::Status)> on_end);
  // Sees every byte before it is passed on. An error from it is the pump's end.
  using Inspector = absl::AnyInvocable<absl::Status(absl::string_view)>;
  void Inspect(Inspector inspector) { inspector_ = std::move(inspector); }
  // `from` is a socket whose other end is a stranger's. DATA_LOSS: he has sent a descriptor.
  void DistrustSender() { sender_is_strange_ = true; }

  BytePump(const BytePump&) = delete;
  BytePump& operator=(const BytePump&) = delete;

 private:
  void Read();
  void Write();

  const int from_;
  const int to_;
  FdWatch from_watch_;
  FdWatch to_watch_;
  const std::unique_ptr<char[]> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  absl::AnyInvocable<void(absl::Status)> on_end_;
  Inspector inspector_;
  bool sender_is_strange_ = false;
};

}  // namespace dtrain::loop
