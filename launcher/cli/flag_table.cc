// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/flag_table.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

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

namespace {

// Letters to insert, drop, replace or swap with their neighbour to get from `a` to `b`.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::string Nearest(absl::string_view word, const std::vector<std::string>& known) {
  if (word.size() > 64) return "";
  std::string best;
  size_t best_distance = word.size() / 3 + 1;  // a word of 2 letters may have one wrong
  if (word.size() <= 1) return "";
  for (const std::string& name : known) {
    size_t distance = EditDistance(word, name);
    if (distance < best_distance || (distance == best_distance && best.empty())) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace dtrain::cli
