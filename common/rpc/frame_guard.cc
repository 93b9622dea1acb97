// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/frame_guard.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace dtrain::rpc {
namespace {

// RFC 9113, sections 3.4, 4.1 and 6.
constexpr size_t kPrefaceBytes = 24;
constexpr size_t kHeadBytes = 9;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kResetStream = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kAck = 1;
constexpr uint8_t kContinuation = 9;
// gRPC takes 8 KiB of headers of a call, and a launcher has a tenth of that.
constexpr size_t kMostOfBlock = 64 << 10;
// A launcher has two calls, which it takes back when it is interrupted. 128 connections that do
// what they may are then some 200 MB, for some seconds.
constexpr size_t kMostResets = 100;

}  // namespace

FrameGuard::FrameGuard() : skip_(kPrefaceBytes) {}

absl::Status FrameGuard::Take(absl::string_view bytes) {
  while (!bytes.empty()) {
    const size_t wanted = skip_ > 0 ? skip_ : kHeadBytes - head_.size();
    const absl::string_view piece = bytes.substr(0, std::min(wanted, bytes.size()));
    bytes.remove_prefix(piece.size());
    if (skip_ > 0) {
      skip_ -= piece.size();
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

}  // namespace dtrain::rpc
