// SPDX-License-Identifier: Apache-2.0
#include "common/link/frame.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dtrain::link {
namespace {

constexpr uint8_t kKeep = 1;
constexpr uint8_t kMore = 2;

void Store(uint64_t value, size_t bytes, char* out) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(value >> (8 * i));
}

uint64_t Load(const char* in, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(in[i])) << (8 * i);
  }
  return value;
}

absl::Status Invalid(absl::string_view what, uint64_t value, absl::string_view rule) {
  return absl::DataLossError(absl::StrCat("invalid frame: ", what, " ", value, ", ", rule));
}

}  // namespace

std::array<char, kHeaderBytes> EncodeHeader(const Header& header) {
  std::array<char, kHeaderBytes> out;
  Store(header.size, 4, out.data());
  Store(static_cast<uint8_t>(header.channel), 1, out.data() + 4);
  Store((header.keep ? kKeep : 0) | (header.more ? kMore : 0), 1, out.data() + 5);
  Store(0, 2, out.data() + 6);
  Store(header.sequence, 8, out.data() + 8);
  Store(header.ack, 8, out.data() + 16);
  return out;
}

absl::StatusOr<Header> DecodeHeader(absl::string_view bytes) {
  if (bytes.size() != kHeaderBytes) {
    return Invalid("header size", bytes.size(), "must be 24");
  }
  const uint64_t size = Load(bytes.data(), 4);
  const uint64_t channel = Load(bytes.data() + 4, 1);
  const uint64_t flags = Load(bytes.data() + 5, 1);
  const uint64_t reserved = Load(bytes.data() + 6, 2);
  Header header;
  header.sequence = Load(bytes.data() + 8, 8);
  header.ack = Load(bytes.data() + 16, 8);
  if (size > kMostPayload) return Invalid("size", size, "at most 1048576");
  if (channel > static_cast<uint8_t>(Channel::kLogs)) return Invalid("channel", channel, "unknown");
  if ((flags & ~uint64_t{kKeep | kMore}) != 0) return Invalid("flags", flags, "unknown");
  if (reserved != 0) return Invalid("reserved bytes", reserved, "must be 0");
  header.size = static_cast<uint32_t>(size);
  header.channel = static_cast<Channel>(channel);
  header.keep = (flags & kKeep) != 0;
  header.more = (flags & kMore) != 0;
  if (header.keep != (header.sequence != 0)) {
    return Invalid("sequence", header.sequence, header.keep ? "with KEEP" : "without KEEP");
  }
  if (header.more && !header.keep) return Invalid("flags", flags, "MORE without KEEP");
  if (header.more && size == 0) return Invalid("size", size, "with MORE");
  return header;
}

absl::StatusOr<Frame> DecodeFrame(const SharedBytes& bytes) {
  if (bytes.size() < kHeaderBytes) return Invalid("length", bytes.size(), "at least 24");
  absl::StatusOr<Header> header = DecodeHeader(bytes.view().substr(0, kHeaderBytes));
  if (!header.ok()) return header.status();
  if (bytes.size() != kHeaderBytes + header->size) {
    return Invalid("length", bytes.size(), absl::StrCat("with size ", header->size));
  }
  return Frame{*header, bytes.Sub(kHeaderBytes, header->size)};
}

absl::StatusOr<std::optional<Frame>> FrameReader::Next() {
  const absl::string_view rest = absl::string_view(in_).substr(taken_);
  if (rest.size() >= kHeaderBytes) {
    absl::StatusOr<Header> header = DecodeHeader(rest.substr(0, kHeaderBytes));
    if (!header.ok()) return header.status();
    if (rest.size() >= kHeaderBytes + header->size) {
      SharedBytes payload(std::string(rest.substr(kHeaderBytes, header->size)));
      taken_ += kHeaderBytes + header->size;
      return Frame{*header, std::move(payload)};
    }
  }
  in_.erase(0, std::exchange(taken_, 0));
  return std::nullopt;
}

size_t PieceCount(size_t size, size_t piece) {
  return std::max<size_t>(1, size / piece + (size % piece != 0 ? 1 : 0));
}

SharedBytes PieceOf(const SharedBytes& message, size_t index, size_t piece) {
  return message.Sub(index * piece, piece);
}

absl::StatusOr<std::optional<SharedBytes>> Assembler::Take(const SharedBytes& piece, bool more) {
  if (piece.size() > most_ - message_.size()) {
    return absl::DataLossError(absl::StrCat("a message of more than ", most_, " bytes"));
  }
  if (piece.size() == 0 && (more || begun_)) {
    return absl::DataLossError("a piece of a message has no bytes");
  }
  if (!begun_ && !more) return piece;
  begun_ = true;
  message_.append(piece.view().data(), piece.size());
  if (more) return std::nullopt;
  SharedBytes whole(std::move(message_));
  Clear();
  return whole;
}

void Assembler::Clear() {
  message_ = std::string();
  begun_ = false;
}

}  // namespace dtrain::link
