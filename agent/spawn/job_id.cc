// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/job_id.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace dtrain::spawn {
namespace {

constexpr size_t kLongest = 64;

}  // namespace

std::string Describe(const JobKey& key) {
  return absl::StrCat("job ", Escape(key.job_id, 64), ".", key.attempt, " of uid ", key.uid);
}

bool IsPlainJobId(absl::string_view job_id) {
  const auto plain = [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; };
  return !job_id.empty() && job_id.size() <= kLongest &&
         std::all_of(job_id.begin(), job_id.end(), plain);
}

}  // namespace dtrain::spawn
