// SPDX-License-Identifier: Apache-2.0
#include "common/link/log_frame.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace dtrain::link {
namespace {

constexpr size_t kSizeBytes = 2;

absl::Status Invalid(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("invalid frame of output: ", what));
}

}  // namespace

std::string EncodeLogHead(const v1::LogHead& head) {
  const std::string bytes = head.SerializeAsString();
  DTRAIN_CHECK(bytes.size() <= kMostLogHead);
  std::string out;
  out.push_back(static_cast<char>(bytes.size() & 0xff));
  out.push_back(static_cast<char>(bytes.size() >> 8));
  return out + bytes;
}

absl::StatusOr<LogFrame> DecodeLogFrame(const Frame& frame) {
  if (frame.header.channel != Channel::kLogs) return Invalid("it is of another channel");
  if (frame.header.keep) return Invalid("it is numbered");
  const absl::string_view bytes = frame.payload.view();
  if (bytes.size() < kSizeBytes) return Invalid("it has no head");
  const size_t size = static_cast<uint8_t>(bytes[0]) | size_t{static_cast<uint8_t>(bytes[1])} << 8;
  if (size > kMostLogHead || size > bytes.size() - kSizeBytes) {
    return Invalid(absl::StrCat("its head has ", size, " bytes"));
  }
  LogFrame out;
  if (!out.head.ParseFromArray(bytes.data() + kSizeBytes, static_cast<int>(size))) {
    return Invalid("its head cannot be read");
  }
  out.data = frame.payload.Sub(kSizeBytes + size, bytes.size());
  switch (out.head.kind_case()) {
    case v1::LogHead::kAt:
      if (out.data.size() == 0) return Invalid("it has no bytes");
      break;
    case v1::LogHead::kEnd:
      if (out.data.size() > 0) return Invalid("the end has bytes");
      break;
    case v1::LogHead::KIND_NOT_SET:
      return Invalid("its head says nothing");
  }
  if (out.data.size() > kMostLogData) {
    return Invalid(absl::StrCat(out.data.size(), " bytes, at most ", kMostLogData));
  }
  if (out.head.at().offset() > UINT64_MAX - out.data.size()) return Invalid("its offset");
  return out;
}

Frame LogAck(uint64_t frames) {
  Frame out;
  out.header.channel = Channel::kLogs;
  out.header.ack = frames;
  return out;
}

}  // namespace dtrain::link
