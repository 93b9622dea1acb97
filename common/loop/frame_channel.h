// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/loop/stray_descriptors.h"
#include "common/os/unique_fd.h"

namespace dtrain::loop {

// Frames over a unix stream socket: a 4-byte little-endian length, then that many bytes; a frame
// may carry one file descriptor. Used between an agent and its shepherd. Loop thread.
//
// The peer is trusted to be ours (a socketpair, or checked by SO_PEERCRED), but not to be well:
// a frame over kMaxFrame, a torn frame, a descriptor too many or an error ends the channel with one
// call of on_closed.
class FrameChannel {
 public:
  // Above the longest message, the part of a job that a shepherd gives an account of to an agent
  // that adopts it.
  static constexpr size_t kMaxFrame = 64 << 20;

  using OnFrame = absl::AnyInvocable<void(absl::string_view frame, os::UniqueFd fd)>;
  using OnClosed = absl::AnyInvocable<void(absl::Status why)>;  // OK: orderly end of file
  // Whether the peer may send any.
  enum class Descriptors { kTaken, kRefused };

  // `most`: bytes of a frame from the peer.
  FrameChannel(Loop& loop, os::UniqueFd socket, OnFrame on_frame, OnClosed on_closed,
               Descriptors from_peer = Descriptors::kTaken, size_t most = kMaxFrame);
  ~FrameChannel();
  FrameChannel(const FrameChannel&) = delete;
  FrameChannel& operator=(const FrameChannel&) = delete;

  // Queues a frame; it is written as the peer takes it. `fd` is duplicated. Nothing happens after
  // the channel closed. RESOURCE_EXHAUSTED: it is over kMaxFrame, and was not queued.
  absl::Status Send(absl::string_view frame, int fd = -1);
  // Bytes that wait to be written: what a sender of much data paces itself by.
  size_t queued_bytes() const { return queued_bytes_; }
  // Frames among them that carry a descriptor.
  size_t queued_descriptors() const { return queued_descriptors_; }
  // Called, once, when queued_bytes falls to zero again.
  void OnDrained(Task task);
  // Writes what it can without waiting, for a process about to exit.
  void FlushNow();
  // Reads the bytes that wait by now, for when the peer process is known to have ended: it hands
  // over its last frames and the close before it returns. Not from inside a callback.
  void ReadToEnd();

 private:
  struct Outgoing {
    std::string bytes;
    size_t written = 0;
    os::UniqueFd fd;
  };
  void Read();
  bool ReadOnce();  // false: nothing there now, or the channel closed
  ssize_t ReceiveAll();
  bool ParseFrames();
  void Write();
  void Close(absl::Status why);

  Loop& loop_;
  StrangersSocket socket_;
  FdWatch watch_;
  OnFrame on_frame_;
  OnClosed on_closed_;
  const Descriptors from_peer_;
  const size_t most_;
  bool closed_ = false;
  bool writing_ = false;
  uint64_t received_ = 0;  // bytes
  std::string in_;
  std::deque<os::UniqueFd> in_fds_;
  std::deque<Outgoing> out_;
  size_t queued_bytes_ = 0;
  size_t queued_descriptors_ = 0;
  Task on_drained_;
  std::shared_ptr<bool> alive_;
};

}  // namespace dtrain::loop
