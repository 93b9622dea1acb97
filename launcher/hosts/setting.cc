// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/setting.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace dtrain::hosts {
namespace {

struct Spelling {
  absl::string_view key;
  Setting setting;
};

constexpr Spelling kSpellings[] = {
    {"slots", Setting::kSlots},         {"slot", Setting::kSlots},
    {"count", Setting::kSlots},         {"counts", Setting::kSlots},
    {"cpu", Setting::kSlots},           {"cpus", Setting::kSlots},
    {"max_slots", Setting::kMaxSlots},  {"max_slot", Setting::kMaxSlots},
    {"slots_max", Setting::kMaxSlots},  {"slot_max", Setting::kMaxSlots},
    {"max_cpus", Setting::kMaxSlots},   {"max_cpu", Setting::kMaxSlots},
    {"cpus_max", Setting::kMaxSlots},   {"cpu_max", Setting::kMaxSlots},
    {"max_counts", Setting::kMaxSlots}, {"max_count", Setting::kMaxSlots},
    {"counts_max", Setting::kMaxSlots}, {"count_max", Setting::kMaxSlots},
    {"user", Setting::kUser},           {"username", Setting::kUser},
    {"user_name", Setting::kUser},      {"port", Setting::kPort},
    {"gpus", Setting::kGpus},           {"agent", Setting::kAgent},
};

// Insertions, deletions, replacements and swaps of neighbours between two short words.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      size_t& best = table[i][j];
      if (i == 0 || j == 0) {
        best = i + j;
        continue;
      }
      best = std::min({table[i - 1][j] + 1, table[i][j - 1] + 1,
                       table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        best = std::min(best, table[i - 2][j - 2] + 1);
      }
    }
  }
  return table.back().back();
}

}  // namespace

std::optional<Setting> FindSetting(absl::string_view key) {
  constexpr size_t kLongest = 16;
  if (key.size() > kLongest) return std::nullopt;
  std::string normal = absl::StrReplaceAll(key, {{"-", "_"}});
  for (const Spelling& spelling : kSpellings) {
    if (spelling.key == normal) return spelling.setting;
  }
  return std::nullopt;
}

std::string SettingAdvice(absl::string_view key) {
  constexpr size_t kNear = 2;
  constexpr size_t kLongest = 16;
  absl::string_view nearest;
  size_t best = kNear + 1;
  for (const Spelling& spelling : kSpellings) {
    if (key.size() > kLongest) break;
    // A word of which more than half is gone is another word.
    size_t distance = Distance(key, spelling.key);
    if (distance < best && distance * 2 <= spelling.key.size()) {
      best = distance;
      nearest = spelling.key;
    }
  }
  if (!nearest.empty()) return absl::StrCat("did you mean ", nearest, "=?");
  return "known keys are slots=, max_slots=, port=, user=, gpus= and agent=";
}

}  // namespace dtrain::hosts
