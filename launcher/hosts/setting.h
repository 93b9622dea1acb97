// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::hosts {

// What a `key=value` behind a host sets.
enum class Setting { kSlots, kMaxSlots, kUser, kPort, kGpus };

// All spellings of Open MPI, MPICH and DeepSpeed; '-' and '_' are the same.
std::optional<Setting> FindSetting(absl::string_view key);

// "did you mean slots=?" when a key is near, else the list of keys.
std::string SettingAdvice(absl::string_view key);

}  // namespace dtrain::hosts
