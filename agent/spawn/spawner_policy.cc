// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/spawner_policy.h"

#include "common/os/private_file.h"
#include "spawner/policy.h"

namespace dtrain::spawn {

bool AllowsRoot(const std::string& config) {
  const absl::StatusOr<std::string> text = os::ReadTrustedFile(config);
  spawner::Policy policy;
  return text.ok() && spawner::ParsePolicy(*text, &policy).empty() && policy.allow_root;
}

}  // namespace dtrain::spawn
