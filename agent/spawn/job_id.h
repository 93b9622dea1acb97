// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"

namespace dtrain::spawn {

// Whether a job's id can be part of a file name, as all that dtrain makes can.
bool IsPlainJobId(absl::string_view job_id);

}  // namespace dtrain::spawn
