// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::hosts {

// Which agent a host's line asks for: one that ssh brings, or a resident one over TCP.
enum class Way { kUnsaid, kSsh, kTcp };

// What a `key=value` behind a host sets.
enum class Setting { kSlots, kMaxSlots, kUser, kPort, kGpus, kAgent };

// All spellings of Open MPI, MPICH and DeepSpeed; '-' and '_' are the same.
std::optional<Setting> FindSetting(absl::string_view key);

// "did you mean slots=?" when a key is near, else the list of keys.
std::string SettingAdvice(absl::string_view key);

}  // namespace dtrain::hosts
