// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/values.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"

namespace dtrain::cli {
namespace {

absl::Status Bad(absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("\"", Escape(text, 60), "\" is not ", what));
}

bool IsNumber(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// Splits "1.5GiB" into 1.5 and "GiB". False unless it begins with plain decimal digits: no sign,
// no exponent, no "inf".
bool SplitUnit(absl::string_view text, double& number, absl::string_view& unit) {
  size_t end = 0;
  while (end < text.size() && (absl::ascii_isdigit(text[end]) || text[end] == '.')) ++end;
  unit = text.substr(end);
  return end > 0 && absl::ascii_isdigit(text[0]) && absl::SimpleAtod(text.substr(0, end), &number);
}

struct Unit {
  absl::string_view name;
  double factor;
};

constexpr Unit kTimeUnits[] = {{"", 1e9},   {"s", 1e9},    {"ms", 1e6},   {"us", 1e3},
                               {"m", 6e10}, {"min", 6e10}, {"h", 3.6e12}, {"d", 8.64e13}};
constexpr double kYear = 365 * 8.64e13;

}  // namespace

absl::StatusOr<uint64_t> ParseNumber(absl::string_view text, uint64_t min, uint64_t max) {
  uint64_t value = 0;
  if (!IsNumber(text) || !absl::SimpleAtoi(text, &value) || value < min || value > max) {
    return Bad(text, absl::StrCat("a whole number from ", min, " to ", max));
  }
  return value;
}

absl::StatusOr<Duration> ParseDuration(absl::string_view text) {
  double number = 0;
  absl::string_view unit;
  if (SplitUnit(text, number, unit)) {
    for (const Unit& known : kTimeUnits) {
      if (unit != known.name) continue;
      if (number * known.factor > kYear) return Bad(text, "a time of at most 365 days");
      auto nanos = static_cast<int64_t>(number * known.factor + 0.5);
      return std::chrono::duration_cast<Duration>(std::chrono::nanoseconds(nanos));
    }
  }
  return Bad(text, "a time such as 30, 30s, 500ms, 2m or 1h");
}

absl::StatusOr<uint64_t> ParseSize(absl::string_view text) {
  double number = 0;
  absl::string_view unit;
  if (SplitUnit(text, number, unit)) {
    double factor = 1;
    constexpr absl::string_view kLetters = "kmgt";
    if (!unit.empty() && !absl::EqualsIgnoreCase(unit, "b")) {
      size_t power = kLetters.find(absl::ascii_tolower(unit[0]));
      absl::string_view rest = unit.substr(1);
      bool known =
          power != absl::string_view::npos &&
          (rest.empty() || absl::EqualsIgnoreCase(rest, "b") || absl::EqualsIgnoreCase(rest, "ib"));
      factor = 0;
      if (known) {
        factor = 1024;
        while (power-- > 0) factor *= 1024;
      }
    }
    if (factor > 0 && number * factor <= 1e18) return static_cast<uint64_t>(number * factor);
  }
  return Bad(text, "a size such as 1048576, 64K, 256M or 2G");
}

absl::StatusOr<std::vector<std::pair<uint32_t, uint32_t>>> ParseRanges(absl::string_view text,
                                                                       uint32_t max) {
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    const size_t dash = item.find('-');
    const auto from = ParseNumber(item.substr(0, dash), 0, max);
    const auto to =
        dash == absl::string_view::npos ? from : ParseNumber(item.substr(dash + 1), 0, max);
    if (!from.ok() || !to.ok() || *from > *to) {
      return Bad(item, absl::StrCat("a number such as 8 or a range such as 0-7, up to ", max));
    }
    ranges.emplace_back(static_cast<uint32_t>(*from), static_cast<uint32_t>(*to));
  }
  return ranges;
}

absl::StatusOr<bool> ParseBool(absl::string_view text) {
  for (absl::string_view yes : {"true", "yes", "on", "1"}) {
    if (absl::EqualsIgnoreCase(text, yes)) return true;
  }
  for (absl::string_view no : {"false", "no", "off", "0"}) {
    if (absl::EqualsIgnoreCase(text, no)) return false;
  }
  return Bad(text, "true or false");
}

}  // namespace dtrain::cli
