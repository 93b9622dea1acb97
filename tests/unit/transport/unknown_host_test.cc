// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "launcher/transport/ssh_link.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {
namespace {

// A15
TEST(UnknownHostTest, IsToldFromAllElseThatIsNotFound) {
  const absl::Status unknown = UnknownHostError("resolve the name x");
  EXPECT_TRUE(IsUnknownHost(unknown));
  EXPECT_TRUE(IsUnknownHost(Unshared(unknown)));
  EXPECT_EQ(Unshared(unknown).message(), "resolve the name x");
  EXPECT_FALSE(IsUnknownHost(absl::NotFoundError("open /no/file")));
  EXPECT_FALSE(IsUnknownHost(absl::OkStatus()));
}

}  // namespace
}  // namespace dtrain::transport
