// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/notice.h"

#include "absl/strings/str_cat.h"
#include "common/manifest/sha256.h"

namespace dtrain::stores {
namespace {

constexpr size_t kMacBytes = manifest::kHashBytes;
static_assert(kNoticeHead == kMacBytes + 4);

std::string LittleEndian(uint32_t number) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}

// BINUNICODE.
std::string PickledText(absl::string_view text) {
  return absl::StrCat("X", LittleEndian(static_cast<uint32_t>(text.size())), text);
}

}  // namespace

// Protocol 2, which any Python 3 reads: an object without calling its __init__, and its two
// members. The length is in the worker's own byte order, which is little-endian wherever dtrain
// runs.
std::string NoticeBytes(absl::string_view key, uint32_t timestamp, uint8_t change) {
  const std::string body =
      absl::StrCat("\x80\x02", "chorovod.runner.elastic.worker\nHostsUpdatedRequest\n", ")\x81}(",
                   PickledText("timestamp"), "J", LittleEndian(timestamp), PickledText("res"), "K",
                   std::string(1, static_cast<char>(change)), "ub.");
  return absl::StrCat(manifest::HmacSha256(key, body),
                      LittleEndian(static_cast<uint32_t>(body.size())), body);
}

std::optional<size_t> AnswerSize(absl::string_view head) {
  if (head.size() != kNoticeHead) return std::nullopt;
  uint32_t size = 0;
  for (size_t i = kNoticeHead; i-- > kMacBytes;) {
    size = size << 8 | static_cast<unsigned char>(head[i]);
  }
  if (size > kMostAnswer) return std::nullopt;
  return size;
}

bool IsAnswer(absl::string_view key, absl::string_view bytes) {
  const std::optional<size_t> size = AnswerSize(bytes.substr(0, kNoticeHead));
  if (!size || bytes.size() != kNoticeHead + *size) return false;
  return bytes.substr(0, kMacBytes) == manifest::HmacSha256(key, bytes.substr(kNoticeHead));
}

}  // namespace dtrain::stores
