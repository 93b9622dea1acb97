// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/link/log_frame.h"
#include "common/loop/loop.h"
#include "common/loop/stray_descriptors.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::session {

// The agent's end of a socket over which a shepherd sends output. It reads one frame more than it
// has been asked for, and acknowledges those that were taken: what its reader does not take stays
// in the shepherd's spool. The shepherd is not trusted. Loop thread.
class LogSource {
 public:
  struct Handlers {
    // Once after each Next, perhaps before that returns, unless it is over.
    absl::AnyInvocable<void(const v1::LogPosition& at, link::SharedBytes data)> on_piece;
    // Once, after a Next, and nothing after it. UNAVAILABLE: the shepherd, or the session, has
    // ended before. DATA_LOSS: it sent what no shepherd of ours does. May destroy this, and so may
    // on_piece.
    absl::AnyInvocable<void(absl::StatusOr<v1::LogsEnd>)> on_over;
  };

  LogSource(loop::Loop& loop, os::UniqueFd socket, Handlers handlers);
  ~LogSource();
  LogSource(const LogSource&) = delete;
  LogSource& operator=(const LogSource&) = delete;

  // The piece before is taken, and the next one is wanted.
  void Next();
  // The session ends.
  void End(absl::Status why) { Over(std::move(why)); }

 private:
  void Await();
  void Turn();
  bool ReadSome();
  absl::Status TakeHeader();
  absl::StatusOr<link::LogFrame> TakeFrame();
  void Take(absl::StatusOr<link::LogFrame> next);
  void Give(absl::StatusOr<link::LogFrame> next);
  void Over(absl::StatusOr<v1::LogsEnd> how);

  loop::StrangersSocket socket_;
  loop::FdWatch watch_;
  // One of them that destroys this still runs to its end.
  const std::shared_ptr<Handlers> handlers_;
  bool over_ = false;
  bool awaits_ = false;
  bool wanted_ = false;
  // The next frame, read ahead; or why there is none.
  std::optional<absl::StatusOr<link::LogFrame>> ahead_;
  uint64_t taken_ = 0;
  bool owes_ack_ = false;
  bool stuck_ = false;  // it takes no acknowledgement
  // The frame that is being read.
  std::array<char, link::kHeaderBytes> header_bytes_;
  std::optional<link::Header> header_;
  std::shared_ptr<char[]> payload_;
  size_t filled_ = 0;  // of either
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
