// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/job_id.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"

namespace dtrain::spawn {
namespace {

constexpr size_t kLongest = 64;

}  // namespace

bool IsPlainJobId(absl::string_view job_id) {
  const auto plain = [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; };
  return !job_id.empty() && job_id.size() <= kLongest &&
         std::all_of(job_id.begin(), job_id.end(), plain);
}

}  // namespace dtrain::spawn
