// SPDX-License-Identifier: Apache-2.0
#include "agent/auth/account_map.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"

namespace dtrain::auth {
namespace {

// What useradd takes, and dtrain-pki; directories of accounts (LDAP, AD) have longer ones with @.
bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= 256 && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' ||
                  c == '-' || c == '@' || c == '$';
         });
}

}  // namespace

absl::StatusOr<AccountMap> AccountMap::Parse(absl::string_view text) {
  AccountMap out;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::vector<absl::string_view> sides = absl::StrSplit(line, '=');
    const absl::string_view name = absl::StripAsciiWhitespace(sides[0]);
    const absl::string_view account =
        sides.size() == 2 ? absl::StripAsciiWhitespace(sides[1]) : absl::string_view();
    if (!IsName(name) || !IsName(account)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": \"", Escape(line),
                                                     "\" is not of the form NAME = ACCOUNT"));
    }
    if (!out.accounts_.emplace(name, account).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", Escape(name), " has an account already"));
    }
  }
  return out;
}

std::string AccountMap::AccountFor(absl::string_view certificate_name) const {
  const auto found = accounts_.find(certificate_name);
  return found == accounts_.end() ? std::string(certificate_name) : found->second;
}

}  // namespace dtrain::auth
