// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/text.h"

// Values of flags. Errors are InvalidArgument and say what the text is not and what it may be;
// which flag it was, the caller adds. Set and Choose put the value into a variable. Pure.

namespace dtrain::cli {

absl::StatusOr<uint64_t> ParseNumber(absl::string_view text, uint64_t min, uint64_t max);

// "30" and "30s", "2m", "500ms", "1h", "1.5s"; at most a year.
absl::StatusOr<Duration> ParseDuration(absl::string_view text);

// Bytes: "4096", "64K", "64KiB", "1.5G"; units are powers of 1024.
absl::StatusOr<uint64_t> ParseSize(absl::string_view text);

// "0,8-15": numbers and ranges of them, from `min` to `max`.
absl::StatusOr<std::vector<std::pair<uint32_t, uint32_t>>> ParseRanges(absl::string_view text,
                                                                       uint32_t max);

// true, false, yes, no, on, off, 1, 0 in any case.
absl::StatusOr<bool> ParseBool(absl::string_view text);

using View = absl::string_view;

inline absl::Status Set(View value, std::string& out) {
  if (value.empty()) return absl::InvalidArgumentError("it is empty");
  if (absl::StrContains(value, View("\0", 1))) {
    return absl::InvalidArgumentError("it holds a NUL byte");
  }
  out.assign(value.data(), value.size());
  return absl::OkStatus();
}

inline absl::Status Set(View value, bool& out) {
  absl::StatusOr<bool> parsed = ParseBool(value);
  if (!parsed.ok()) return parsed.status();
  out = *parsed;
  return absl::OkStatus();
}

inline absl::Status Set(View value, Duration min, Duration& out) {
  absl::StatusOr<Duration> parsed = ParseDuration(value);
  if (!parsed.ok()) return parsed.status();
  if (*parsed < min) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(min).count();
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Escape(value, 60), "\" is too short; it must be at least ",
                     ms % 1000 == 0 ? absl::StrCat(ms / 1000, "s") : absl::StrCat(ms, "ms")));
  }
  out = *parsed;
  return absl::OkStatus();
}

template <typename Number>
absl::Status Set(View value, uint64_t min, uint64_t max, Number& out) {
  absl::StatusOr<uint64_t> parsed = ParseNumber(value, min, max);
  if (!parsed.ok()) return parsed.status();
  out = static_cast<uint32_t>(*parsed);
  return absl::OkStatus();
}

template <typename Enum>
struct Choice {
  View name;
  Enum value;
};

template <typename Enum, size_t n>
std::vector<View> Names(const Choice<Enum> (&choices)[n]) {
  std::vector<View> names;
  for (const Choice<Enum>& choice : choices) names.push_back(choice.name);
  return names;
}

template <typename Enum, typename Out, size_t n>
absl::Status Choose(View value, const Choice<Enum> (&choices)[n], Out& out) {
  for (const Choice<Enum>& choice : choices) {
    if (choice.name == value) {
      out = choice.value;
      return absl::OkStatus();
    }
  }
  std::vector<View> names = Names(choices);
  View last = names.back();
  names.pop_back();
  return absl::InvalidArgumentError(absl::StrCat("\"", Escape(value, 60), "\" is not ",
                                                 absl::StrJoin(names, ", "), " or ", last));
}

}  // namespace dtrain::cli
