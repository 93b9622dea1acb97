// SPDX-License-Identifier: Apache-2.0
#include "agent/auth/refusal_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::auth {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;

constexpr TimePoint kStart{std::chrono::hours(1)};

TEST(RefusalLog, OncePerPeerAndMinute) {
  RefusalLog log;
  EXPECT_THAT(log.Line(kStart, "10.0.0.7", "it does not speak TLS"),
              Optional(std::string("refused 10.0.0.7: it does not speak TLS")));
  EXPECT_EQ(log.Line(kStart + seconds(1), "10.0.0.7", "it does not speak TLS"), std::nullopt);
  EXPECT_EQ(log.Line(kStart + seconds(59), "10.0.0.7", "another reason"), std::nullopt);
  EXPECT_NE(log.Line(kStart + seconds(59), "10.0.0.8", "it does not speak TLS"), std::nullopt);
  EXPECT_THAT(
      log.Line(kStart + minutes(1), "10.0.0.7", "it presented no certificate"),
      Optional(std::string("refused 10.0.0.7: it presented no certificate (and 2 more of it "
                           "since the last line)")));
  EXPECT_THAT(log.Line(kStart + minutes(5), "10.0.0.7", "x"),
              Optional(std::string("refused 10.0.0.7: x")));
}

TEST(RefusalLog, ManyPeersShareALineAndAreForgotten) {
  RefusalLog log;
  size_t lines = 0;
  for (int i = 0; i < 100000; ++i) {
    const TimePoint now = kStart + milliseconds(i / 10);
    if (log.Line(now, absl::StrCat("10.1.", i / 256, ".", i % 256), "x").has_value()) ++lines;
  }
  EXPECT_EQ(lines, 1024u + 1);  // and the shared one
  EXPECT_LE(log.size(), 1025u);
  // A minute later there is room again, for who comes anew too.
  EXPECT_THAT(log.Line(kStart + minutes(3), "10.9.9.9", "x"), Optional(HasSubstr("10.9.9.9")));
  EXPECT_LE(log.size(), 2u);
}

TEST(RefusalLog, SharedLinesTellHowMany) {
  RefusalLog log;
  for (int i = 0; i < 1024; ++i) (void)log.Line(kStart, absl::StrCat("peer", i), "x");
  EXPECT_THAT(log.Line(kStart + seconds(1), "new1", "x"), Optional(std::string("refused new1: x")));
  EXPECT_EQ(log.Line(kStart + seconds(2), "new2", "x"), std::nullopt);
  EXPECT_EQ(log.Line(kStart + seconds(3), "new3", "x"), std::nullopt);
}

TEST(RefusalLog, LinesOfAnotherFormAreCountedByWhoAndWhat) {
  RefusalLog log;
  EXPECT_THAT(log.Bound(kStart, "bob StopJob", "audit: denied"),
              Optional(std::string("audit: denied")));
  EXPECT_EQ(log.Bound(kStart, "bob StopJob", "audit: denied"), std::nullopt);
  EXPECT_NE(log.Bound(kStart, "bob ReadLog", "audit: denied"), std::nullopt);
  EXPECT_THAT(log.Bound(kStart + minutes(1), "bob StopJob", "audit: denied"),
              Optional(std::string("audit: denied (and 1 more of it since the last line)")));
}

TEST(RefusalLog, WhatPeersSayIsEscaped) {
  RefusalLog log;
  EXPECT_THAT(log.Line(kStart, "a\nb", "c\x1b[31m\nd"), Optional(Not(HasSubstr("\n"))));
}

}  // namespace
}  // namespace dtrain::auth
