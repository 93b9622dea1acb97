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

}  // namespace
}  // namespace dtrain::transport
