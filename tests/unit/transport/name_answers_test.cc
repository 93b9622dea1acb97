// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "launcher/transport/name_lookup.h"

namespace dtrain::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(NameAnswersTest, BeforeTheFirstAnswerThereIsNoLimit) {
  EXPECT_FALSE(NameAnswers().Patience().has_value());
}

TEST(NameAnswersTest, ThreeSecondsWhereOthersWereAnsweredAtOnce) {
  NameAnswers answers;
  answers.Add(milliseconds(2));
  EXPECT_EQ(answers.Patience(), seconds(3));
}

// A dead first name server costs every name five seconds; none of them may be lost to it.
TEST(NameAnswersTest, TwiceTheSlowestWhereTheServersAreSlow) {
  NameAnswers answers;
  answers.Add(milliseconds(5005));
  answers.Add(milliseconds(4));
  EXPECT_EQ(answers.Patience(), milliseconds(10010));
}

// What /etc/hosts says is no answer of a name server.
TEST(NameAnswersTest, FindsNamesAndAliasesInAHostsFile) {
  const char* const file =
      "127.0.0.1 localhost\n"
      "# 10.0.0.8 gpu08\n"
      "10.0.0.1\tgpu01.example  GPU01 # gpu02\r\n"
      "\n"
      "10.0.0.3 gpu03";
  for (const char* known : {"localhost", "gpu01", "gpu01.EXAMPLE", "gpu03"}) {
    EXPECT_TRUE(NamesHost(file, known)) << known;
  }
  for (const char* unknown : {"gpu02", "gpu08", "10.0.0.1", "gpu0", ""}) {
    EXPECT_FALSE(NamesHost(file, unknown)) << unknown;
  }
}

}  // namespace
}  // namespace dtrain::transport
