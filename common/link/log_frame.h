// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/link/frame.h"
#include "dtrain/v1/shepherd.pb.h"

// What the frames of channel 2 hold, by which a shepherd sends output to its agent (ReadLogs): the
// size of a LogHead (u16, little-endian), the LogHead, and the bytes. The head can be read, and
// another put in its place, without touching the bytes. Frames are not kept; the reader
// acknowledges how many it has taken, which gives the shepherd room for more. Pure.
namespace dtrain::link {

// Of the bytes in one frame: large enough that the cost per frame is nothing beside the copies.
inline constexpr size_t kMostLogData = 512 << 10;
// Of a head, the words of its `lost` included.
inline constexpr size_t kMostLogHead = 4 << 10;
// Frames that may be unacknowledged. What is written meanwhile gathers in the spool, so that a
// reader that is slower than many short lines gets them in few frames.
inline constexpr uint64_t kLogWindow = 4;

struct LogFrame {
  v1::LogHead head;
  SharedBytes data;
};

// What comes before the bytes.
std::string EncodeLogHead(const v1::LogHead& head);
// DATA_LOSS: no shepherd of ours sends that.
absl::StatusOr<LogFrame> DecodeLogFrame(const Frame& frame);

// A reader's word that it has taken so many frames.
Frame LogAck(uint64_t frames);

}  // namespace dtrain::link
