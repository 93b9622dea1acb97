// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

// How a file that only grows is cut into pieces that show whether they are whole:
//
//   u32 size     of the payload
//   u8  type
//   u32 CRC-32C  of type and payload
//   payload
//
// All numbers are little-endian. Pure.
namespace dtrain::journal {

inline constexpr size_t kFrameHead = 9;
// Above the state of a job with 10,000 ranks.
inline constexpr size_t kMostPayload = 16 << 20;

struct Frame {
  uint8_t type = 0;
  uint32_t crc = 0;
  absl::string_view payload;

  size_t size() const { return kFrameHead + payload.size(); }
  bool IsCorrect() const;  // by its CRC
};

// `payload` has 1 to kMostPayload bytes.
void AppendFrame(uint8_t type, absl::string_view payload, std::string* out);

// What begins at `bytes` if it is a frame; nothing: no whole one can begin there. An empty payload
// is none: zeros, which a crash may leave at the end of a file, are not frames.
std::optional<Frame> CutFrame(absl::string_view bytes);

}  // namespace dtrain::journal
