// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/allocation.h"

namespace dtrain::hosts {

struct Variable {
  std::string name;
  std::string value;
};

// The first of these variables that is set and not empty.
std::optional<Variable> FirstSet(const EnvLookup& env, const std::vector<std::string>& names);

// The value of a variable; empty when it is not set.
std::string Get(const EnvLookup& env, const std::string& name);

}  // namespace dtrain::hosts
