// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/options.h"

#include <charconv>
#include <cstring>

namespace dtrain::runtime {
namespace {

Error Bad(const char* name, const char* value, const char* expected) {
  return {DTRAIN_ERROR_ENVIRONMENT,
          std::string(name) + "=" + Printable(value) + " is not " + expected};
}

MaybeError ReadFlag(const Variables& get, const char* name, bool& value) {
  const char* text = get(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  if (std::strcmp(text, "0") != 0 && std::strcmp(text, "1") != 0) return Bad(name, text, "0 or 1");
  value = *text == '1';
  return std::nullopt;
}

}  // namespace

Result<NcclOptions> ReadNcclOptions(const Variables& get, const Variables& start) {
  NcclOptions options;
  options.pinning = ReadPinning(start, get);
  if (MaybeError error = ReadFlag(get, "DTRAIN_SHARE_GPU", options.share_gpu)) return *error;
  const char* text = get("DTRAIN_DEVICE");
  if (text != nullptr && *text != '\0') {
    int number = -1;
    const char* end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, number);
    if (error != std::errc() || rest != end || number < 0) {
      return Bad("DTRAIN_DEVICE", text, "a number from 0");
    }
    options.device = number;
  }
  text = get("DTRAIN_NCCL_INIT_SECONDS");
  if (text != nullptr && *text != '\0') {
    double seconds = 0;
    const char* end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, seconds);
    if (error != std::errc() || rest != end || !(seconds >= 0.1 && seconds <= 86400)) {
      return Bad("DTRAIN_NCCL_INIT_SECONDS", text, "a number of seconds between 0.1 and 86400");
    }
    options.init_timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
    options.init_timeout_per_rank = std::chrono::milliseconds(0);
  }
  return options;
}

}  // namespace dtrain::runtime
