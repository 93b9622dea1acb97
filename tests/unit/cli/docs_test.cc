// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "launcher/cli/flag_table.h"
#include "tests/support/paths.h"

namespace dtrain::cli {
namespace {

TEST(DocsTest, TheLaunchPageExplainsEveryFlagByEachOfItsNames) {
  std::ifstream in(dtrain::SourcePath("docs/launch.md"));
  ASSERT_TRUE(in.good());
  std::stringstream page;
  page << in.rdbuf();
  for (const std::string& name : LongNames(LaunchFlags())) {
    EXPECT_NE(page.str().find(absl::StrCat("--", name)), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace dtrain::cli
