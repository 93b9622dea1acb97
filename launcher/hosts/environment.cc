// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/environment.h"

#include <utility>

namespace dtrain::hosts {

std::optional<Variable> FirstSet(const EnvLookup& env, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    std::optional<std::string> value = env(name);
    if (value && !value->empty()) return Variable{name, *std::move(value)};
  }
  return std::nullopt;
}

std::string Get(const EnvLookup& env, const std::string& name) { return env(name).value_or(""); }

}  // namespace dtrain::hosts
