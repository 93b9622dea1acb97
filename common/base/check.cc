// SPDX-License-Identifier: Apache-2.0
#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace dtrain {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "dtrain: internal error: %s:%d: %s\n", file, line, condition);
  std::abort();
}

}  // namespace dtrain
