// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/link/shared_bytes.h"

// What travels on a link, the same bytes on every carrier: a header of 24 bytes, then the payload.
//
//   u32 size       of the payload, at most kMostPayload
//   u8  channel
//   u8  flags      1 KEEP: sent again until it is acknowledged; 2 MORE: the message goes on
//   u16 0
//   u64 sequence   1, 2, 3 …; 0 without KEEP
//   u64 ack        the last sequence taken from the other side, on every frame
//
// All numbers are little-endian. A frame without KEEP and payload says only what it acknowledges,
// and that its sender lives. Pure.
namespace dtrain::link {

inline constexpr size_t kHeaderBytes = 24;
inline constexpr size_t kMostPayload = 1 << 20;
// Longer messages go in pieces of this size: what is more urgent waits for one of them at most.
inline constexpr size_t kPieceBytes = 256 << 10;

enum class Channel : uint8_t {
  kAgent = 0,  // launcher and agent
  kJob = 1,    // launcher and shepherd
  kLogs = 2,
};

struct Header {
  uint32_t size = 0;
  Channel channel = Channel::kAgent;
  bool keep = false;
  bool more = false;
  uint64_t sequence = 0;
  uint64_t ack = 0;
};

struct Frame {
  Header header;  // whose size is the payload's
  SharedBytes payload;

  size_t wire_size() const { return kHeaderBytes + payload.size(); }
};

std::array<char, kHeaderBytes> EncodeHeader(const Header& header);
// DATA_LOSS: no sender of ours writes that. `bytes` are kHeaderBytes.
absl::StatusOr<Header> DecodeHeader(absl::string_view bytes);
// For carriers that deliver whole messages: exactly one frame.
absl::StatusOr<Frame> DecodeFrame(const SharedBytes& bytes);

// Cuts a stream of bytes into frames. Holds one unfinished frame at most, beside what was added
// last. After an error it says the same again.
class FrameReader {
 public:
  void Add(absl::string_view bytes) { in_.append(bytes.data(), bytes.size()); }
  // The next frame that is whole; nothing: more bytes are needed. DATA_LOSS as DecodeHeader.
  absl::StatusOr<std::optional<Frame>> Next();
  // The stream ends between two frames if it ends here.
  bool between_frames() const { return in_.size() == taken_; }

 private:
  std::string in_;
  size_t taken_ = 0;
};

// A message of `size` bytes is cut into so many pieces of `piece` bytes; the last may be shorter.
size_t PieceCount(size_t size, size_t piece);
SharedBytes PieceOf(const SharedBytes& message, size_t index, size_t piece);

// Puts the pieces together again. No message gets longer than `most`.
class Assembler {
 public:
  explicit Assembler(size_t most) : most_(most) {}
  // The whole message with its last piece. DATA_LOSS: it is too long, or a piece has no bytes.
  absl::StatusOr<std::optional<SharedBytes>> Take(const SharedBytes& piece, bool more);
  void Clear();
  size_t bytes() const { return message_.size(); }
  // The next piece continues a message.

 private:
  const size_t most_;
  std::string message_;
  bool begun_ = false;
};

}  // namespace dtrain::link
