// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dtrain::inventory {

// Where the kernel's file trees are; tests give trees of their own.
struct Roots {
  std::string sysfs = "/sys";
  std::string procfs = "/proc";
  std::string devfs = "/dev";
};

}  // namespace dtrain::inventory
