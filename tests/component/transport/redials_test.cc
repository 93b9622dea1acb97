// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/redials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "common/loop/loop.h"

namespace dtrain::transport {
namespace {

using testing::AllOf;
using testing::Ge;
using testing::Le;

constexpr int kLinks = 1000;

TEST(RedialsTest, SoManyTryAtATimeAndAllInTheirTurn) {
  loop::Loop loop;
  Redials redials(loop, 1);
  std::map<int, Redials::Place> places;
  std::vector<int> order;
  size_t under_way = 0, most = 0;
  for (int i = 0; i < kLinks; ++i) {
    places[i] = redials.Enter([&, i] {
      order.push_back(i);
      most = std::max(most, ++under_way);
      // It has an answer some turns later.
      loop.Post([&, i] {
        --under_way;
        places.erase(i);
        if (places.empty()) loop.Stop();
      });
    });
  }
  EXPECT_EQ(order.size(), 0u) << "never from inside";
  loop.Run();
  ASSERT_EQ(order.size(), static_cast<size_t>(kLinks));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(most, Redials::kMost);
}

TEST(RedialsTest, WhoGivesUpIsNotCalledAndHoldsNoPlace) {
  loop::Loop loop;
  Redials redials(loop, 1);
  std::vector<Redials::Place> places;
  std::set<int> called;
  for (int i = 0; i < static_cast<int>(Redials::kMost) + 2; ++i) {
    places.push_back(redials.Enter([&called, i] { called.insert(i); }));
  }
  EXPECT_FALSE(redials.TryEnter());
  places[0] = {};               // let in, not called yet
  places[Redials::kMost] = {};  // that made room for this one, which gives up, too
  loop.Post([&] { loop.Post([&] { loop.Stop(); }); });
  loop.Run();
  EXPECT_EQ(called.count(0), 0u);
  EXPECT_EQ(called.count(static_cast<int>(Redials::kMost)), 0u);
  EXPECT_EQ(called.size(), Redials::kMost) << "the last has the place";
  EXPECT_FALSE(redials.TryEnter());
  places.clear();
  std::vector<Redials::Place> again;
  for (size_t i = 0; i < Redials::kMost; ++i) {
    again.push_back(redials.TryEnter());
    EXPECT_TRUE(again.back()) << i;
  }
  EXPECT_FALSE(redials.TryEnter());
}

// To machines that are gone: those that can be reached must not wait for them.
TEST(RedialsTest, ATryThatHangsHoldsNobodyUpForLong) {
  loop::Loop loop;
  Redials redials(loop, 1);
  const TimePoint begin = loop.Now();
  std::vector<Redials::Place> hang;
  for (size_t i = 0; i < Redials::kMost; ++i) hang.push_back(redials.Enter([] {}));
  TimePoint in;
  const Redials::Place other = redials.Enter([&] {
    in = loop.Now();
    loop.Stop();
  });
  loop.Run();
  EXPECT_GE(in, begin + Redials::kLongestTry);
  hang.clear();  // they do not count twice
  std::vector<Redials::Place> all;
  for (size_t i = 1; i < Redials::kMost; ++i) all.push_back(redials.TryEnter());
  EXPECT_TRUE(all.back());
  EXPECT_FALSE(redials.TryEnter());
}

TEST(RedialsTest, APlaceMayOutliveThem) {
  loop::Loop loop;
  Redials::Place place;
  {
    Redials redials(loop, 1);
    place = redials.TryEnter();
  }
  EXPECT_TRUE(place);
}

TEST(RedialsTest, PausesGrowAndDiffer) {
  loop::Loop loop;
  Redials redials(loop, 1);
  EXPECT_EQ(redials.Pause(0), Duration::zero());
  Duration whole = Redials::kFirstPause;
  for (int failed = 1; failed < 40; ++failed) {
    std::set<Duration> seen;
    for (int i = 0; i < 50; ++i) {
      const Duration pause = redials.Pause(failed);
      EXPECT_THAT(pause, AllOf(Ge(whole / 2), Le(whole))) << failed;
      seen.insert(pause);
    }
    EXPECT_GT(seen.size(), 40u);
    whole = std::min<Duration>(whole * 2, Redials::kLongestPause);
  }
  // A lease of a second must see several tries.
  const Duration limit = std::chrono::milliseconds(125);
  for (int failed = 1; failed < 10; ++failed) {
    EXPECT_THAT(redials.Pause(failed, limit), AllOf(Ge(limit / 2), Le(limit)));
  }
}

}  // namespace
}  // namespace dtrain::transport
