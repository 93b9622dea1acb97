// SPDX-License-Identifier: Apache-2.0
#include "launcher/journal/frame.h"

#include <boost/crc.hpp>

#include "common/base/check.h"

namespace dtrain::journal {
namespace {

uint32_t Crc32c(uint8_t type, absl::string_view payload) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_byte(type);
  crc.process_bytes(payload.data(), payload.size());
  return crc.checksum();
}

void Put32(uint32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

uint32_t Get32(absl::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

}  // namespace

void AppendFrame(uint8_t type, absl::string_view payload, std::string* out) {
  DTRAIN_CHECK(!payload.empty() && payload.size() <= kMostPayload);
  Put32(static_cast<uint32_t>(payload.size()), out);
  out->push_back(static_cast<char>(type));
  Put32(Crc32c(type, payload), out);
  out->append(payload.data(), payload.size());
}

std::optional<Frame> CutFrame(absl::string_view bytes) {
  if (bytes.size() <= kFrameHead) return std::nullopt;
  const size_t size = Get32(bytes);
  if (size == 0 || size > kMostPayload || size > bytes.size() - kFrameHead) return std::nullopt;
  return Frame{static_cast<uint8_t>(bytes[4]), Get32(bytes.substr(5)),
               bytes.substr(kFrameHead, size)};
}

bool Frame::IsCorrect() const { return crc == Crc32c(type, payload); }

}  // namespace dtrain::journal
