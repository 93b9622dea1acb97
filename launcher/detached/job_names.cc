// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/job_names.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"

namespace dtrain::detached {
namespace {

constexpr size_t kLongestWord = 128;

}  // namespace

bool IsWord(absl::string_view text) {
  return !text.empty() && text.size() <= kLongestWord && text[0] != '.' && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
                  c == '_';
         });
}

absl::Status CheckWord(absl::string_view what, absl::string_view text) {
  if (IsWord(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " \"", Escape(text), "\": it may have up to ", kLongestWord,
      " letters, digits, '.', '-' and '_', and must begin with a letter, a digit or '_'"));
}

bool BeginsWith(absl::string_view id, absl::string_view text) {
  return !text.empty() &&
         (absl::StartsWith(id, text) || absl::StartsWith(absl::StripPrefix(id, "dtrain-"), text));
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename());
  }
  if (!error || error == std::errc::no_such_file_or_directory) return names;
  return absl::UnavailableError(absl::StrCat("list ", folder, ": ", error.message()));
}

}  // namespace dtrain::detached
