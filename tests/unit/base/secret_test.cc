// SPDX-License-Identifier: Apache-2.0
#include "common/base/secret.h"

#include <gtest/gtest.h>

#include <string>

namespace dtrain {
namespace {

TEST(SameSecret, ComparesAllBytes) {
  const std::string secret = "0123456789abcdef";
  EXPECT_TRUE(SameSecret(secret, "0123456789abcdef"));
  EXPECT_TRUE(SameSecret("", ""));
  EXPECT_FALSE(SameSecret(secret, ""));
  EXPECT_FALSE(SameSecret(secret, "0123456789abcde"));
  EXPECT_FALSE(SameSecret(secret, "0123456789abcdef0"));
  for (size_t i = 0; i < secret.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string wrong = secret;
      wrong[i] = static_cast<char>(wrong[i] ^ (1 << bit));
      EXPECT_FALSE(SameSecret(secret, wrong));
    }
  }
  EXPECT_FALSE(SameSecret(std::string("a\0b", 3), std::string("a\0c", 3)));
}

}  // namespace
}  // namespace dtrain
