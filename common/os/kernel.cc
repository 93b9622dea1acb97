// SPDX-License-Identifier: Apache-2.0
#include "common/os/kernel.h"

#include <sys/utsname.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::os {
namespace {

// RHEL 8's. Nothing older has been tried; what is newer has fallbacks.
constexpr std::pair<unsigned, unsigned> kOldest = {4, 18};

}  // namespace

std::string TooOld(absl::string_view release) {
  std::pair<unsigned, unsigned> version;
  const std::string text(release);
  if (std::sscanf(text.c_str(), "%4u.%4u", &version.first, &version.second) != 2) return "";
  if (version >= kOldest) return "";
  return absl::StrCat("Linux ", version.first, ".", version.second, ", dtrain needs ",
                      kOldest.first, ".", kOldest.second);
}

std::string KernelTooOld() {
  utsname name = {};
  return uname(&name) == 0 ? TooOld(name.release) : "";
}

}  // namespace dtrain::os
