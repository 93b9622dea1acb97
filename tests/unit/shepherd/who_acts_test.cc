// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/who_acts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::shepherd {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr bool kHandler = true, kNone = false, kShell = true;

struct Case {
  const char* what;
  std::vector<Kin> all;
  std::vector<pid_t> act;
};

TEST(WhoActs, IsWhoeverCanSaveAndWhoLeadsThere) {
  const Case cases[] = {
      {"nobody has a handler: the group", {{1, 0, kNone}, {2, 1, kNone}}, {}},
      {"a program with DataLoader workers, which have one",
       {{1, 0, kHandler}, {2, 1, kHandler}, {3, 1, kHandler}},
       {1}},
      {"a program whose queue has a feeder without one", {{1, 0, kHandler}, {2, 1, kNone}}, {1}},
      {"a shell, `tee` and the program",
       {{1, 0, kNone, kShell}, {2, 1, kNone}, {3, 1, kHandler}, {4, 3, kHandler}},
       {1, 3}},
      {"a shell with a trap runs it once its program has ended",
       {{1, 0, kHandler, kShell}, {2, 1, kNone}},
       {}},
      {"a shell with a trap, and a program that saves",
       {{1, 0, kHandler, kShell}, {2, 1, kHandler}, {3, 2, kNone}},
       {1, 2}},
      {"a script in a script, which would go on with its next line",
       {{1, 0, kNone, kShell}, {2, 1, kNone, kShell}, {3, 2, kHandler}, {4, 2, kNone}},
       {1, 2, 3}},
      {"a launcher without a handler, with two programs that save",
       {{1, 0, kNone}, {2, 1, kHandler}, {3, 1, kHandler}},
       {1, 2, 3}},
      {"another rank's", {{1, 0, kNone}, {2, 0, kHandler}, {3, 2, kHandler}}, {}},
      {"a rank that has ended", {{2, 1, kHandler}}, {}},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(WhoActs(1, c.all), testing::UnorderedElementsAreArray(c.act)) << c.what;
  }
}

TEST(WhoActs, APictureThatGoesRoundAndATreeWithoutEndAreNoTrouble) {
  EXPECT_THAT(WhoActs(1, {{1, 2, kNone}, {2, 1, kNone}}), IsEmpty());
  EXPECT_THAT(WhoActs(1, {{1, 1, kNone}, {2, 1, kHandler}}), UnorderedElementsAre(1, 2));
  std::vector<Kin> deep;
  for (pid_t pid = 1; pid < 100000; ++pid) deep.push_back({pid, pid - 1, pid == 99999});
  EXPECT_THAT(WhoActs(1, deep), IsEmpty());
}

}  // namespace
}  // namespace dtrain::shepherd
