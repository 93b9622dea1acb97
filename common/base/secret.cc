// SPDX-License-Identifier: Apache-2.0
#include "common/base/secret.h"

#include <cstddef>

namespace dtrain {

bool SameSecret(absl::string_view a, absl::string_view b) {
  // How long a token is, is no secret.
  if (a.size() != b.size()) return false;
  // Volatile, or the compiler might leave the loop at the first difference.
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = difference | static_cast<unsigned char>(static_cast<unsigned char>(a[i]) ^
                                                         static_cast<unsigned char>(b[i]));
  }
  return difference == 0;
}

}  // namespace dtrain
