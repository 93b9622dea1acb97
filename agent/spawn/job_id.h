// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::spawn {

// What an agent knows a job by. Its launcher chooses the id: two users may choose the same.
struct JobKey {
  uid_t uid = 0;
  std::string job_id;
  uint32_t attempt = 0;
  auto operator<=>(const JobKey&) const = default;
};
std::string Describe(const JobKey& key);  // "job J.0 of uid 1000"

// Whether a job's id can be part of a file name, as all that dtrain makes can.
bool IsPlainJobId(absl::string_view job_id);

}  // namespace dtrain::spawn
