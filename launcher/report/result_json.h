// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "launcher/report/facts.h"

namespace dtrain::report {

// The version of the document's form; fields may be added without a new one.
inline constexpr int kResultSchema = 1;

// "success", "worker", "node" ...
const char* VerdictName(job::Verdict::Kind kind);

// How the job went, as --result-json writes it (docs/output.md lists the fields). Valid UTF-8
// whatever the workers wrote. Pure.
std::string ResultJson(const JobFacts& facts, absl::string_view job_id, TimePoint now);

}  // namespace dtrain::report
