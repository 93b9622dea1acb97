// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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
