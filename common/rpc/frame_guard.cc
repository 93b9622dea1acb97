// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/frame_guard.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::rpc {
namespace {

// RFC 9113, sections 3.4, 4.1 and 6.
constexpr size_t kPrefaceBytes = 24;
constexpr size_t kHeadBytes = 9;
constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kResetStream = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kAck = 1;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kPadded = 8;
// gRPC's own: whether it is compressed, then its length.
constexpr size_t kMessageHeadBytes = 5;
// What a message costs that has only begun.
constexpr size_t kMessageCost = 256;
constexpr uint8_t kContinuation = 9;
// gRPC takes 8 KiB of headers of a call, and a launcher has a tenth of that.
constexpr size_t kMostOfBlock = 64 << 10;
// A launcher has two calls, which it takes back when it is interrupted. 128 connections that do
// what they may are then some 200 MB, for some seconds.
constexpr size_t kMostResets = 100;

}  // namespace

FrameGuard::FrameGuard(std::shared_ptr<SharedLimit> unfinished)
    : skip_(kPrefaceBytes), unfinished_(std::move(unfinished)) {}

FrameGuard::~FrameGuard() {
  if (unfinished_ != nullptr) unfinished_->Remove(counted_);
}

absl::Status FrameGuard::Take(absl::string_view bytes) {
  while (!bytes.empty()) {
    const size_t wanted = skip_ > 0 ? skip_ : kHeadBytes - head_.size();
    const absl::string_view piece = bytes.substr(0, std::min(wanted, bytes.size()));
    bytes.remove_prefix(piece.size());
    if (skip_ > 0) {
      skip_ -= piece.size();
      if (data_ == 0) continue;
      data_ -= piece.size();
      if (absl::Status fine = OnData(piece); !fine.ok()) return fine;
      if (data_ == 0 && ends_stream_) Forget(stream_);
      continue;
    }
    head_.append(piece.data(), piece.size());
    if (head_.size() < kHeadBytes) continue;
    absl::Status fine = OnHead();
    head_.clear();
    if (!fine.ok()) return fine;
  }
  return absl::OkStatus();
}

absl::Status FrameGuard::OnHead() {
  const auto byte = [this](size_t i) { return static_cast<uint8_t>(head_[i]); };
  const uint8_t kind = byte(3);
  skip_ = size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2);
  const uint32_t stream =
      (uint32_t{byte(5)} << 24 | uint32_t{byte(6)} << 16 | uint32_t{byte(7)} << 8 | byte(8)) &
      0x7fffffff;
  if (kind == kData) {
    if ((byte(4) & kPadded) != 0) {
      return absl::ResourceExhaustedError("its data is padded, as no gRPC client's is");
    }
    data_ = skip_;
    stream_ = stream;
    ends_stream_ = (byte(4) & kEndStream) != 0;
    if (data_ == 0 && ends_stream_) Forget(stream_);
  }
  if (kind == kResetStream) Forget(stream);
  if (kind == kSettings && (byte(4) & kAck) != 0) acknowledged_ = true;
  if (kind == kHeaders && !acknowledged_ && ++unacknowledged_ > kMostCalls) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it began more than ", kMostCalls, " calls at once"));
  }
  if (kind == kHeaders) block_ = 0;
  if (kind == kHeaders || kind == kContinuation) block_ += kHeadBytes + skip_;
  if (block_ > kMostOfBlock) {
    return absl::ResourceExhaustedError("the headers of its call have no end");
  }
  if (kind == kResetStream && ++resets_ > kMostResets) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has taken back more than ", kMostResets, " calls"));
  }
  return absl::OkStatus();
}

absl::Status FrameGuard::OnData(absl::string_view bytes) {
  while (!bytes.empty()) {
    auto [place, is_new] = messages_.try_emplace(stream_);
    Message& message = place->second;
    absl::Status fine = is_new ? Count(message, kMessageCost) : absl::OkStatus();
    const bool in_head = message.head.size() < kMessageHeadBytes;
    const size_t wanted = in_head ? kMessageHeadBytes - message.head.size() : message.left;
    const absl::string_view piece = bytes.substr(0, std::min(wanted, bytes.size()));
    bytes.remove_prefix(piece.size());
    if (in_head) {
      message.head.append(piece.data(), piece.size());
      if (fine.ok() && message.head.size() < kMessageHeadBytes) continue;
      // A thousand times as long when it is unpacked, for which gRPC 1.51 knows no limit.
      if (fine.ok() && message.head[0] != 0) {
        fine = absl::ResourceExhaustedError("its message is compressed, as no launcher's is");
      }
      for (size_t i = 1; i < message.head.size(); ++i) {
        message.left = message.left << 8 | static_cast<uint8_t>(message.head[i]);
      }
      if (fine.ok() && message.left > kMostMessage) {
        fine = absl::ResourceExhaustedError(absl::StrCat(
            "its message has ", message.left, " bytes; ", kMostMessage, " are taken at most"));
      }
    } else {
      message.left -= piece.size();
      fine.Update(Count(message, piece.size()));
    }
    if (!fine.ok()) return fine;
    if (message.left == 0) Forget(stream_);
  }
  return absl::OkStatus();
}

absl::Status FrameGuard::Count(Message& message, size_t bytes) {
  if (unfinished_ == nullptr) return absl::OkStatus();
  if (!unfinished_->Add(bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "its user's unfinished messages have more than ", unfinished_->most(), " bytes"));
  }
  message.counted += bytes;
  counted_ += bytes;
  return absl::OkStatus();
}

void FrameGuard::Forget(uint32_t stream) {
  const auto message = messages_.find(stream);
  if (message == messages_.end()) return;
  if (unfinished_ != nullptr) unfinished_->Remove(message->second.counted);
  counted_ -= message->second.counted;
  messages_.erase(message);
}

}  // namespace dtrain::rpc
