// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <csignal>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"

namespace dtrain {
namespace {

TEST(SignalName, KnowsAllThatTheSystemKnows) {
  for (int signal = 0; signal <= SIGRTMAX; ++signal) {
    const char* name = sigabbrev_np(signal);
    EXPECT_EQ(SignalName(signal), name == nullptr ? "" : absl::StrCat("SIG", name)) << signal;
  }
}

}  // namespace
}  // namespace dtrain
