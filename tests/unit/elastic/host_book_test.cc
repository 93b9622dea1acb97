// SPDX-License-Identifier: Apache-2.0
// Which hosts may be used, in which order, and when one that failed is back.
#include "launcher/elastic/host_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dtrain::elastic {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

class HostBookTest : public testing::Test {
 public:
  std::vector<std::string> Usable() {
    std::vector<std::string> hosts;
    for (const HostSlots& each : book_.usable()) hosts.push_back(each.host);
    return hosts;
  }
  void MakeBook(Duration low, Duration high, uint64_t seed = 1) {
    book_ = HostBook(CoolDown{low, high}, seed);
    book_.Found(now_, {{"a", 2}, {"b", 2}});
  }
  // How long `a` is out from now on; it has been back since then.
  Duration DenyAndWait() {
    book_.Deny(now_, "a", TimePoint::min());
    const TimePoint begin = now_;
    now_ = book_.NextDeadline();
    EXPECT_EQ(book_.OnTime(now_ - milliseconds(1)), kNoChange);
    EXPECT_EQ(book_.OnTime(now_), kHostsAdded);
    EXPECT_EQ(book_.NextDeadline(), kNever);
    return now_ - begin;
  }

  HostBook book_{std::nullopt, 1};
  TimePoint now_{seconds(1000)};
};

TEST_F(HostBookTest, SaysWhatHasChanged) {
  EXPECT_EQ(book_.Found(now_, {{"a", 2}}), kHostsAdded);
  EXPECT_EQ(book_.Found(now_, {{"a", 2}, {"b", 2}}), kHostsAdded);
  EXPECT_EQ(book_.Found(now_, {{"b", 2}}), kHostsRemoved);
  EXPECT_EQ(book_.Found(now_, {{"b", 1}, {"c", 1}}), kHostsAdded | kHostsRemoved);
  EXPECT_EQ(book_.Found(now_, {{"b", 1}, {"c", 1}}), kNoChange);
  EXPECT_EQ(book_.Found(now_, {{"c", 1}, {"b", 1}}), kNoChange);
  EXPECT_EQ(book_.Found(now_, {{"b", 3}, {"c", 1}}), kHostsAdded);
  EXPECT_EQ(book_.Found(now_, {}), kHostsRemoved);
  EXPECT_THAT(book_.usable(), IsEmpty());
}

TEST_F(HostBookTest, HostsKeepTheirOrder) {
  book_.Found(now_, {{"a", 1}, {"b", 1}, {"c", 1}});
  EXPECT_THAT(Usable(), ElementsAre("a", "b", "c"));
  book_.Found(now_, {{"e", 1}, {"d", 1}, {"c", 1}, {"b", 1}});
  EXPECT_THAT(Usable(), ElementsAre("b", "c", "e", "d"));
  book_.Found(now_, {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}});
  EXPECT_THAT(Usable(), ElementsAre("b", "c", "e", "d", "a"));
}

TEST_F(HostBookTest, AHostTwiceAndAHostWithoutSlots) {
  EXPECT_EQ(book_.Found(now_, {{"a", 1}, {"b", 2}, {"a", 3}, {"c", 0}}), kHostsAdded);
  EXPECT_THAT(book_.usable(), ElementsAre(HostSlots{"a", 3}, HostSlots{"b", 2}));
  EXPECT_EQ(book_.Found(now_, {{"a", 3}, {"b", 2}}), kNoChange);
  EXPECT_EQ(book_.Found(now_, {{"a", 3}, {"b", 0}}), kHostsRemoved);
}

TEST_F(HostBookTest, WithoutARangeADeniedHostIsOutForEver) {
  book_.Found(now_, {{"a", 2}, {"b", 2}});
  book_.Deny(now_, "a", TimePoint::min());
  EXPECT_THAT(Usable(), ElementsAre("b"));
  EXPECT_TRUE(book_.IsDeniedForEver("a"));
  EXPECT_FALSE(book_.IsDeniedForEver("b"));
  EXPECT_EQ(book_.NextDeadline(), kNever);
  now_ += hours(1000);
  EXPECT_EQ(book_.OnTime(now_), kNoChange);
  EXPECT_EQ(book_.Found(now_, {{"b", 2}}), kHostsRemoved);
  book_.Found(now_, {{"a", 2}, {"b", 2}});
  EXPECT_THAT(Usable(), ElementsAre("b"));
}

TEST_F(HostBookTest, TheFirstTimeIsTwoToThreeTimesTheLowerLimit) {
  std::set<Duration> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    MakeBook(seconds(10), hours(1), seed);
    const Duration wait = DenyAndWait();
    EXPECT_GE(wait, seconds(20));
    EXPECT_LT(wait, seconds(30));
    seen.insert(wait);
  }
  EXPECT_GT(seen.size(), 150U);
  EXPECT_LT(*seen.begin(), seconds(21));
  EXPECT_GT(*seen.rbegin(), seconds(29));
}

TEST_F(HostBookTest, ItDoubles) {
  MakeBook(seconds(10), hours(1));
  for (const int low : {20, 40, 80, 160}) {
    const Duration wait = DenyAndWait();
    EXPECT_GE(wait, seconds(low));
    EXPECT_LT(wait, seconds(low + 10));
  }
}

TEST_F(HostBookTest, ItIsClamped) {
  MakeBook(seconds(10), seconds(45));
  EXPECT_LT(DenyAndWait(), seconds(30));
  DenyAndWait();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(DenyAndWait(), seconds(45));
  MakeBook(seconds(10), seconds(10));
  EXPECT_EQ(DenyAndWait(), seconds(10));
}

TEST_F(HostBookTest, EachHostCountsForItself) {
  MakeBook(seconds(10), hours(1));
  DenyAndWait();
  DenyAndWait();
  book_.Deny(now_, "b", TimePoint::min());
  EXPECT_LT(book_.NextDeadline() - now_, seconds(30));
}

TEST_F(HostBookTest, AFailureInTheMeantimeProlongsNothing) {
  MakeBook(seconds(10), hours(1));
  book_.Deny(now_, "a", TimePoint::min());
  const TimePoint back = book_.NextDeadline();
  book_.Deny(now_ + seconds(15), "a", TimePoint::min());
  EXPECT_EQ(book_.NextDeadline(), back);
  EXPECT_EQ(book_.OnTime(back), kHostsAdded);
  now_ = back;
  const Duration second = DenyAndWait();  // only the second that counts
  EXPECT_GE(second, seconds(40));
  EXPECT_LT(second, seconds(50));
}

TEST_F(HostBookTest, OneThatIsBackFollowsTheOthers) {
  MakeBook(seconds(10), hours(1));
  book_.Deny(now_, "a", TimePoint::min());
  book_.Found(now_, {{"a", 2}, {"b", 2}, {"c", 2}});
  EXPECT_THAT(Usable(), ElementsAre("b", "c"));
  now_ = book_.NextDeadline();
  EXPECT_EQ(book_.Found(now_, {{"a", 2}, {"b", 2}, {"c", 2}}), kHostsAdded);
  EXPECT_THAT(Usable(), ElementsAre("b", "c", "a"));
}

TEST_F(HostBookTest, TwoThatAreBackAtOnceComeInTheOrderOfTheList) {
  MakeBook(seconds(10), seconds(10));
  book_.Found(now_, {{"b", 2}, {"a", 2}, {"c", 1}});
  book_.Deny(now_, "a", TimePoint::min());
  book_.Deny(now_, "b", TimePoint::min());
  EXPECT_EQ(book_.OnTime(now_ + seconds(10)), kHostsAdded);
  EXPECT_THAT(Usable(), ElementsAre("c", "b", "a"));
}

TEST_F(HostBookTest, OneThatIsNotThereIsBackWhenItIsFound) {
  MakeBook(seconds(10), seconds(10));
  book_.Deny(now_, "a", TimePoint::min());
  book_.Found(now_, {{"b", 2}});
  EXPECT_EQ(book_.OnTime(now_ + seconds(10)), kNoChange);
  EXPECT_EQ(book_.Found(now_ + seconds(11), {{"a", 2}, {"b", 2}}), kHostsAdded);
  EXPECT_THAT(Usable(), ElementsAre("b", "a"));
}

TEST_F(HostBookTest, ALostHostIsOutUntilItsWorkersHaveEnded) {
  MakeBook(seconds(10), seconds(10));
  book_.Deny(now_, "a", now_ + seconds(90));
  EXPECT_EQ(book_.NextDeadline(), now_ + seconds(90));
  EXPECT_EQ(book_.OnTime(now_ + seconds(10)), kNoChange);
  EXPECT_EQ(book_.OnTime(now_ + seconds(90)), kHostsAdded);
}

TEST_F(HostBookTest, NotBeforeIsNoFailure) {
  MakeBook(seconds(10), hours(1));
  book_.NotBefore(now_, "a", now_);
  EXPECT_THAT(Usable(), ElementsAre("a", "b"));
  book_.NotBefore(now_, "a", now_ + seconds(7));
  book_.NotBefore(now_, "a", now_ + seconds(5));
  EXPECT_THAT(Usable(), ElementsAre("b"));
  EXPECT_FALSE(book_.IsDeniedForEver("a"));
  EXPECT_EQ(book_.NextDeadline(), now_ + seconds(7));
  now_ += seconds(7);
  EXPECT_EQ(book_.OnTime(now_), kHostsAdded);
  EXPECT_LT(DenyAndWait(), seconds(30));  // the first that counts
}

TEST_F(HostBookTest, AnotherAttemptTriesHostsAgainThatWereDeniedForEver) {
  HostBook book(std::nullopt, 1);
  book.Found(TimePoint(), {{"a", 1}, {"b", 1}});
  book.Deny(TimePoint(), "a", TimePoint() + std::chrono::seconds(9));
  book.OnAttempt();
  EXPECT_FALSE(book.IsDeniedForEver("a"));
  EXPECT_EQ(book.OnTime(TimePoint() + std::chrono::seconds(8)), kNoChange);
  EXPECT_EQ(book.OnTime(TimePoint() + std::chrono::seconds(9)), kHostsAdded);
  EXPECT_EQ(book.usable().size(), 2U);
}

}  // namespace
}  // namespace dtrain::elastic
