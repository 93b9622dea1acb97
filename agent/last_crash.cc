// SPDX-License-Identifier: Apache-2.0
#include "agent/last_crash.h"

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/crash.h"
#include "common/os/fd.h"

namespace dtrain::agent {

void WatchForCrashes(const std::string& state_directory) {
  const std::string path = state_directory + "/last_crash";
  if (auto text = os::ReadSmallFile(path); text.ok()) {
    log::Error(absl::StrCat("there was a crash: ", Escape(absl::StripAsciiWhitespace(*text), 512)));
    // Kept for who looks for it, and not told again.
    (void)std::rename(path.c_str(), (path + ".told").c_str());
  }
  if (absl::Status watching = os::RecordCrashes(path); !watching.ok()) {
    log::Warn(absl::StrCat("a crash of this agent could not be told: ", watching.message()));
  }
}

}  // namespace dtrain::agent
