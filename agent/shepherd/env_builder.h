// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace dtrain::shepherd {

// One worker's environment as it is put together.
class EnvBuilder {
 public:
  // `given`: names the user gave with -x; must stay.
  EnvBuilder(const std::set<std::string>& given, std::map<std::string, std::string> vars)
      : given_(given), vars_(std::move(vars)) {}

  void Set(absl::string_view name, const absl::AlphaNum& value) {
    std::string key(name);
    if (given_.count(key) == 0) vars_[key] = std::string(value.Piece());
  }
  // For what the user may have set in any way.
  void SetIfUnset(absl::string_view name, const absl::AlphaNum& value) {
    vars_.try_emplace(std::string(name), std::string(value.Piece()));
  }
  bool Has(absl::string_view name) const { return vars_.count(std::string(name)) > 0; }
  // Adds to a list with commas, also to one that the user gave.
  void Extend(absl::string_view name, absl::string_view entry) {
    std::string& list = vars_[std::string(name)];
    for (absl::string_view each : absl::StrSplit(list, ',')) {
      each = absl::StripAsciiWhitespace(each);
      if (each == entry || each == "*") return;
    }
    absl::StrAppend(&list, list.empty() ? "" : ",", entry);
  }
  const std::map<std::string, std::string>& vars() const { return vars_; }

  std::vector<std::string> Take() const {
    std::vector<std::string> out;
    for (const auto& [name, value] : vars_) out.push_back(absl::StrCat(name, "=", value));
    return out;
  }

 private:
  const std::set<std::string>& given_;
  std::map<std::string, std::string> vars_;
};

}  // namespace dtrain::shepherd
