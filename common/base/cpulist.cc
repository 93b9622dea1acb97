// SPDX-License-Identifier: Apache-2.0
#include "common/base/cpulist.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"

namespace dtrain {

absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text) {
  constexpr int kMaxCpu = 65535;
  std::vector<int> cpus;
  absl::string_view stripped = absl::StripAsciiWhitespace(text);
  if (stripped.empty()) return cpus;
  // A mark for each cpu, so that a long list of wide overlapping ranges costs no memory.
  std::vector<bool> listed(kMaxCpu + 1);
  int highest = -1;
  for (absl::string_view item : absl::StrSplit(stripped, ',')) {
    std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(item, absl::MaxSplits('-', 1));
    int low = 0;
    int high = 0;
    bool ok = absl::SimpleAtoi(ends.first, &low);
    high = low;
    if (ok && item.find('-') != absl::string_view::npos) ok = absl::SimpleAtoi(ends.second, &high);
    if (!ok || low < 0 || high < low || high > kMaxCpu) {
      return absl::InvalidArgumentError(absl::StrCat("not a cpu list: \"", Escape(text), "\""));
    }
    std::fill(listed.begin() + low, listed.begin() + high + 1, true);
    highest = std::max(highest, high);
  }
  for (int cpu = 0; cpu <= highest; ++cpu) {
    if (listed[cpu]) cpus.push_back(cpu);
  }
  return cpus;
}

std::string FormatCpuList(const std::vector<int>& cpus) {
  std::string out;
  for (size_t i = 0; i < cpus.size();) {
    size_t j = i;
    while (j + 1 < cpus.size() && cpus[j + 1] == cpus[j] + 1) ++j;
    absl::StrAppend(&out, out.empty() ? "" : ",", cpus[i]);
    if (j > i) absl::StrAppend(&out, "-", cpus[j]);
    i = j + 1;
  }
  return out;
}

}  // namespace dtrain
