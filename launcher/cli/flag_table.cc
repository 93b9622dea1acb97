// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/flag_table.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace dtrain::cli {

absl::string_view FlagName(const Flag& flag) {
  for (absl::string_view name : absl::StrSplit(flag.names, ',')) {
    if (name.substr(0, 2) == "--") return name.substr(2);
  }
  return "";
}

std::vector<Flag> HostFlags() {
  std::vector<Flag> flags;
  for (const char* name : {"hostfile", "hosts", "agent", "agent-port", "tls-dir", "ssh-config",
                           "ssh-port", "rsh", "connect-timeout", "config", "no-config"}) {
    flags.push_back(LaunchFlags()[static_cast<size_t>(FindLong(LaunchFlags(), name))]);
    flags.back().group = "Hosts";
  }
  return flags;
}

int FindLong(const std::vector<Flag>& flags, absl::string_view name) {
  std::string wanted = absl::StrCat("--", absl::StrReplaceAll(name, {{"_", "-"}}));
  for (size_t i = 0; i < flags.size(); ++i) {
    for (absl::string_view known : absl::StrSplit(flags[i].names, ',')) {
      if (known == wanted) return static_cast<int>(i);
    }
  }
  return -1;
}

int FindShort(const std::vector<Flag>& flags, char letter) {
  for (size_t i = 0; i < flags.size(); ++i) {
    for (absl::string_view known : absl::StrSplit(flags[i].names, ',')) {
      if (known.size() == 2 && known[1] == letter) return static_cast<int>(i);
    }
  }
  return -1;
}

std::vector<std::string> LongNames(const std::vector<Flag>& flags) {
  std::vector<std::string> names;
  for (const Flag& flag : flags) {
    for (absl::string_view name : absl::StrSplit(flag.names, ',')) {
      if (name.substr(0, 2) == "--") names.emplace_back(name.substr(2));
    }
  }
  return names;
}

}  // namespace dtrain::cli
