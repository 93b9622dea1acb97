// SPDX-License-Identifier: Apache-2.0
#include "common/os/environment.h"

#include <unistd.h>

namespace dtrain::os {

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) env.emplace_back(*entry);
  return env;
}

}  // namespace dtrain::os
