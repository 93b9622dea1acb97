// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/shepherd/log_stream.h"
#include "common/link/frame.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::shepherd {

// The shepherd's end of a socket for one reader of output. Bytes go from a spool into a pipe, and
// from there into the socket when it takes them, without a copy where the kernel can do that. Loop
// thread.
class LogSocket {
 public:
  struct Handlers {
    // For the next frame: Load and Send it, if there is one. False: there is none now.
    absl::AnyInvocable<bool()> next;
    absl::AnyInvocable<void(uint64_t frames)> on_ack;
    absl::AnyInvocable<void()> on_closed;  // once; may destroy this
  };

  static absl::StatusOr<std::unique_ptr<LogSocket>> Make(loop::Loop& loop, os::UniqueFd socket,
                                                         Handlers handlers);
  ~LogSocket();
  LogSocket(const LogSocket&) = delete;
  LogSocket& operator=(const LogSocket&) = delete;

  // There may be a next frame.
  void Pump();
  // In `next`: up to `room` bytes of the stream, for the frame that Send begins.
  absl::StatusOr<size_t> Load(const LogStream& stream, uint64_t offset, size_t room);
  void Send(const v1::LogHead& head);

 private:
  LogSocket(loop::Loop& loop, os::UniqueFd socket, std::pair<os::UniqueFd, os::UniqueFd> pipe,
            Handlers handlers);
  bool WriteOnce();
  void Unload();
  void Read();
  void Close();

  os::UniqueFd socket_;
  const os::UniqueFd pipe_out_, pipe_in_;
  loop::FdWatch watch_;
  // One of them that destroys this still runs to its end.
  const std::shared_ptr<Handlers> handlers_;
  std::string head_;      // before what is in the pipe
  size_t loaded_ = 0;     // in the pipe
  bool waiting_ = false;  // until the socket takes more
  bool closed_ = false;
  link::FrameReader acks_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::shepherd
