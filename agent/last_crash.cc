// SPDX-License-Identifier: Apache-2.0
#include "agent/last_crash.h"

#include <sys/stat.h>

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/crash.h"
#include "common/os/fd.h"

namespace dtrain::agent {
namespace {

std::optional<Crash> Read(const std::string& path) {
  auto text = os::ReadSmallFile(path);
  struct stat about {};
  if (!text.ok() || stat(path.c_str(), &about) != 0) return std::nullopt;
  return Crash{Escape(absl::StripAsciiWhitespace(*text), 512),
               about.st_mtim.tv_sec * int64_t{1'000'000'000} + about.st_mtim.tv_nsec};
}

}  // namespace

std::optional<Crash> WatchForCrashes(const std::string& state_directory) {
  const std::string path = state_directory + "/last_crash", told = path + ".told";
  if (auto crash = Read(path)) {
    log::Error(absl::StrCat("there was a crash: ", crash->text));
    // Kept for who looks for it, and not told again.
    (void)std::rename(path.c_str(), told.c_str());
  }
  if (absl::Status watching = os::RecordCrashes(path); !watching.ok()) {
    log::Warn(absl::StrCat("a crash of this agent could not be recorded: ", watching.message()));
  }
  return Read(told);
}

}  // namespace dtrain::agent
