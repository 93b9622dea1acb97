// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/pinning.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

namespace dtrain::runtime {
namespace {

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES", kDevice[] = "DTRAIN_DEVICE";

std::string_view TextOf(const Variables& variables, const char* name) {
  const char* text = variables(name);
  return text == nullptr ? "" : text;
}

bool IsUuid(std::string_view text) {
  return text.substr(0, 4) == "GPU-" || text.substr(0, 4) == "MIG-";
}

// All of them, or none.
std::vector<std::string> UuidsOf(std::string_view list) {
  std::vector<std::string> uuids;
  while (!list.empty()) {
    const std::string_view one = list.substr(0, list.find(','));
    if (!IsUuid(one)) return {};
    uuids.emplace_back(one);
    list.remove_prefix(std::min(list.size(), one.size() + 1));
  }
  return uuids;
}

}  // namespace

Pinning ReadPinning(const Variables& start, const Variables& now) {
  Pinning pinning;
  pinning.visible = UuidsOf(TextOf(start, kVisible));
  const std::string_view number = TextOf(start, kDevice);
  const std::string_view sees = TextOf(now, kVisible);
  pinning.stands = number == TextOf(now, kDevice);
  // The launcher writes UUIDs.
  pinning.renumbered = pinning.stands && !sees.empty() &&
                       (sees != TextOf(start, kVisible) || pinning.visible.empty());
  size_t at = 0;
  const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), at);
  if (error == std::errc() && at < pinning.visible.size()) pinning.own = pinning.visible[at];
  return pinning;
}

Variables StartVariables() {
  std::ifstream file("/proc/self/environ", std::ios::binary);
  return VariablesOf({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
}

Variables VariablesOf(std::string block) {
  const auto shared = std::make_shared<const std::string>(std::move(block));
  return [shared](const char* name) -> const char* {
    const size_t length = std::strlen(name);
    const char* const end = shared->data() + shared->size();
    for (const char* at = shared->data(); at < end; at += std::strlen(at) + 1) {
      if (std::strncmp(at, name, length) == 0 && at[length] == '=') return at + length + 1;
    }
    return nullptr;
  };
}

// A slice has a UUID of another kind, and some drivers name it like a GPU.
bool SameGpu(std::string_view one, std::string_view other) {
  if (!IsUuid(one) || !IsUuid(other)) return one == other;
  one.remove_prefix(4);
  other.remove_prefix(4);
  const size_t common = std::min(one.size(), other.size());
  return common > 0 && one.substr(0, common) == other.substr(0, common);
}

}  // namespace dtrain::runtime
