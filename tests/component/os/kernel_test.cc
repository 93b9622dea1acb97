// SPDX-License-Identifier: Apache-2.0
#include "common/os/kernel.h"

#include <gtest/gtest.h>

namespace dtrain::os {
namespace {

TEST(Kernel, OldReleasesAreNamedWithWhatIsNeeded) {
  EXPECT_EQ(TooOld("4.15.0-213-generic"), "Linux 4.15, dtrain needs 4.18");
  EXPECT_EQ(TooOld("3.10.0-1160.el7.x86_64"), "Linux 3.10, dtrain needs 4.18");
  EXPECT_EQ(TooOld("4.9"), "Linux 4.9, dtrain needs 4.18");
}

TEST(Kernel, NewOnesAndUnknownOnesAreNot) {
  for (const char* release : {"4.18.0-553.el8_10.x86_64", "4.19", "5.4.0-200-generic",
                              "6.1.0-18-amd64", "10.0", "", "generic"}) {
    EXPECT_EQ(TooOld(release), "") << release;
  }
  EXPECT_EQ(KernelTooOld(), "");
}

}  // namespace
}  // namespace dtrain::os
