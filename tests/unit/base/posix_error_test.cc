// SPDX-License-Identifier: Apache-2.0
#include "common/base/posix_error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace dtrain {
namespace {

TEST(PosixError, SaysWhatWasTriedAndWhyItFailed) {
  absl::Status status = PosixError(ENOENT, "open /etc/nothing");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "open /etc/nothing: No such file or directory");
}

TEST(PosixError, KnowsNoTextForAnUnknownNumber) {
  EXPECT_EQ(PosixErrorText(99999), "unknown error");
}

}  // namespace
}  // namespace dtrain
