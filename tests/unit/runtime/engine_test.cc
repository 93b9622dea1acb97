// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/outline.h"
#include "runtime/boot/bootstrap.h"
#include "runtime/engine/backend.h"
#include "runtime/engine/fusion.h"
#include "runtime/engine/group.h"
#include "runtime/engine/launch_order.h"
#include "runtime/engine/matching.h"
#include "runtime/engine/statement.h"

namespace dtrain::runtime {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

Collective Sum(size_t count, dtrain_type type = DTRAIN_FLOAT32, dtrain_op op = DTRAIN_SUM) {
  Collective what;
  what.kind = Collective::Kind::kAllreduce;
  what.count = count;
  what.type = type;
  what.op = op;
  return what;
}

// As the queue does it: those without a name by their order.
std::vector<Pending> Made(const std::vector<std::pair<std::string, Collective>>& operations) {
  std::vector<Pending> pending;
  uint64_t ordinal = 0;
  for (const auto& [name, what] : operations) {
    pending.push_back(
        {KeyOf(name, ordinal), SignatureOf(what, ""), 0, Via::kHost, OutlineOf(what)});
    ordinal += name.empty() ? 1 : 0;
  }
  return pending;
}

std::vector<Pending> Unnamed(const std::vector<Collective>& operations) {
  std::vector<std::pair<std::string, Collective>> named;
  for (const Collective& what : operations) named.emplace_back("", what);
  return Made(named);
}

// What the ranks' all-reduce makes of their offers.
std::vector<int32_t> Lowest(const std::vector<std::vector<Pending>>& by_rank,
                            size_t most = kMostOffered) {
  std::vector<int32_t> lowest = MakeOffer(by_rank[0], most);
  for (const auto& pending : by_rank) {
    const std::vector<int32_t> offer = MakeOffer(pending, most);
    for (size_t i = 0; i < offer.size(); ++i) lowest[i] = std::min(lowest[i], offer[i]);
  }
  return lowest;
}

TEST(OfferTest, AllRanksRunWhatAllHaveReady) {
  const auto three = Unnamed({Sum(1), Sum(2), Sum(3)});
  const Agreement agreement = ReadOffers(Lowest({three, Unnamed({Sum(1), Sum(2)}), three}));
  EXPECT_EQ(agreement.count, 2u);
  EXPECT_FALSE(agreement.differs) << "what is not ready everywhere does not count yet";
}

TEST(OfferTest, EndsBeforeTheFirstWhoseBuffersAreElsewhere) {
  auto one = Unnamed({Sum(1), Sum(2), Sum(3)});
  one[1].via = Via::kDevice;
  auto other = one;
  EXPECT_EQ(ReadOffers(Lowest({one, other})).count, 3u) << "one of them on GPUs, two on the host";
  other[2].via = Via::kStaged;
  EXPECT_EQ(ReadOffers(Lowest({one, other})).count, 2u);
  other[0].via = Via::kDevice;
  EXPECT_TRUE(ReadOffers(Lowest({one, other})).differs) << "they must list what they have";
}

PendingList Stuck(std::vector<Pending> pending) { return {false, true, false, std::move(pending)}; }

PendingList Running(std::vector<Pending> pending) {
  return {false, false, false, std::move(pending)};
}

std::vector<uint64_t> KeysOf(const std::vector<Pending>& all) {
  std::vector<uint64_t> keys;
  for (const Pending& one : all) keys.push_back(one.key);
  return keys;
}

std::vector<Via> ViasOf(const std::vector<Pending>& all) {
  std::vector<Via> vias;
  for (const Pending& one : all) vias.push_back(one.via);
  return vias;
}

// Of two ranks' blocking calls: an offer of one and, where that does not do, a list of one.
std::optional<Via> ViaOfCalls(const Pending& one, const Pending& other) {
  const std::vector<int32_t> lowest = Lowest({{one}, {other}}, 1);
  EXPECT_EQ(lowest.size(), OfferWords(1));
  if (!ReadOffers(lowest).differs) return one.via;
  EXPECT_EQ(ReadOffers(lowest).most, 1u);
  const Matches matches = Match({Stuck({one}), Stuck({other})});
  EXPECT_EQ(matches.common.empty(), matches.hopeless || !matches.differing.empty());
  if (matches.common.empty()) return std::nullopt;
  return matches.common[0].via;
}

TEST(CallTest, IsTheSameOrNot) {
  const auto call = [](const Collective& what, Via via) {
    return Pending{7, SignatureOf(what, ""), 0, via};
  };
  const Pending one = call(Sum(1), Via::kDevice);
  for (const Via via : {Via::kDevice, Via::kStaged, Via::kHost}) {
    EXPECT_EQ(ViaOfCalls(call(Sum(1), via), call(Sum(1), via)), via);
    EXPECT_EQ(ViaOfCalls(one, call(Sum(1), via)), via == Via::kDevice ? via : Via::kStaged);
  }
  EXPECT_EQ(ViaOfCalls(one, call(Sum(2), Via::kDevice)), std::nullopt);
  EXPECT_EQ(ViaOfCalls(one, call(Sum(1, DTRAIN_INT32), Via::kDevice)), std::nullopt);
  Pending later = one;
  later.key = 8;
  EXPECT_EQ(ViaOfCalls(one, later), std::nullopt) << "not the same call, but one like it";
}

// Registered memory that is not used alike: the same collective, by other means.
TEST(CallTest, IsStagedWhereTheRanksUseRegisteredMemoryDifferently) {
  const auto both = [](uint64_t a, uint64_t b) {
    const uint64_t signature = SignatureOf(Sum(1), "");
    return ViaOfCalls({7, signature, a, Via::kDevice}, {7, signature, b, Via::kDevice});
  };
  EXPECT_EQ(both(5, 5), Via::kDevice);
  EXPECT_EQ(both(0, 5), Via::kStaged);
  EXPECT_EQ(both(6, 5), Via::kStaged);
  EXPECT_EQ(both(uint64_t{5} << 32, uint64_t{6} << 32), Via::kStaged);
}

TEST(OfferTest, EndsBeforeTheFirstThatUsesRegisteredMemoryDifferently) {
  auto one = Unnamed({Sum(1), Sum(2), Sum(3)}), other = one;
  for (auto* pending : {&one, &other}) (*pending)[0].registered = 5;
  EXPECT_EQ(ReadOffers(Lowest({one, other})).count, 3u);
  other[1].registered = 6;
  EXPECT_EQ(ReadOffers(Lowest({one, other})).count, 1u);
  other[0].registered = 0;
  EXPECT_TRUE(ReadOffers(Lowest({one, other})).differs) << "they must list what they have";
}

TEST(OfferTest, EndsBeforeTheFirstOperationThatDiffers) {
  const auto one = Unnamed({Sum(1), Sum(2), Sum(3), Sum(4)});
  for (const auto& other :
       {Unnamed({Sum(1), Sum(2), Sum(7), Sum(4)}), Unnamed({Sum(1), Sum(2), Sum(3, DTRAIN_INT32)}),
        Unnamed({Sum(1), Sum(2), Sum(3, DTRAIN_FLOAT32, DTRAIN_MAX), Sum(4)}),
        Unnamed({Sum(1), Sum(2), Sum(4), Sum(3)})}) {
    EXPECT_EQ(ReadOffers(Lowest({one, other})).count, 2u);
    EXPECT_EQ(ReadOffers(Lowest({other, one, one})).count, 2u);
    EXPECT_FALSE(ReadOffers(Lowest({one, other})).differs);
  }
}

TEST(OfferTest, RanksThatBeginDifferentlyMustListWhatTheyHave) {
  const Agreement agreement =
      ReadOffers(Lowest({Unnamed({Sum(1)}), Unnamed({Sum(2), Sum(2), Sum(2)})}));
  EXPECT_TRUE(agreement.differs);
  EXPECT_EQ(agreement.count, 0u);
  EXPECT_EQ(agreement.most, 3u) << "as long as the longest list";
}

TEST(OfferTest, TheNameIsPartOfIt) {
  const auto a = Made({{"a", Sum(4)}}), b = Made({{"b", Sum(4)}}), none = Made({{"", Sum(4)}});
  EXPECT_TRUE(ReadOffers(Lowest({a, b})).differs);
  EXPECT_TRUE(ReadOffers(Lowest({a, none})).differs);
  EXPECT_EQ(ReadOffers(Lowest({a, a})).count, 1u);
}

TEST(OfferTest, ARankThatHasJoinedGoesAlongWithTheOthers) {
  const auto two = Unnamed({Sum(1), Sum(2)});
  const auto with_joined = [](std::vector<int32_t> lowest) {
    const std::vector<int32_t> offer = MakeJoinedOffer();
    for (size_t i = 0; i < offer.size(); ++i) lowest[i] = std::min(lowest[i], offer[i]);
    return ReadOffers(lowest);
  };
  const Agreement agreement = with_joined(Lowest({two, two}));
  EXPECT_EQ(agreement.count, 2u);
  EXPECT_TRUE(agreement.joined);
  EXPECT_FALSE(agreement.all_joined);
  EXPECT_EQ(with_joined(Lowest({two, Unnamed({Sum(1), Sum(3)})})).count, 1u);
  const Agreement differing = with_joined(Lowest({two, Unnamed({Sum(3)})}));
  EXPECT_TRUE(differing.differs);
  EXPECT_EQ(differing.most, 2u);
  EXPECT_TRUE(with_joined(MakeJoinedOffer()).all_joined);
  EXPECT_FALSE(ReadOffers(Lowest({two, two})).joined);
}

TEST(OfferTest, TakesNoMoreThanFit) {
  const auto many = Unnamed(std::vector<Collective>(kMostOffered + 5, Sum(9)));
  EXPECT_EQ(ReadOffers(Lowest({many, many})).count, kMostOffered);
}

TEST(MatchTest, FindsWhatAllRanksHaveInTheOrderOfTheFirst) {
  const auto zero = Made({{"c", Sum(3)}, {"a", Sum(1)}, {"b", Sum(2)}});
  const auto one = Made({{"b", Sum(2)}, {"d", Sum(4)}, {"c", Sum(3)}});
  const Matches matches = Match({Stuck(zero), Stuck(one)});
  EXPECT_THAT(KeysOf(matches.common), ElementsAre(KeyOf("c", 0), KeyOf("b", 0)));
  EXPECT_TRUE(matches.differing.empty());
  EXPECT_FALSE(matches.hopeless);
}

TEST(MatchTest, ThoseWithBuffersElsewhereMatchAndAreStagedAndNoOthersAre) {
  auto one = Made({{"a", Sum(1)}, {"b", Sum(2)}, {"c", Sum(3)}});
  for (size_t i = 0; i < 2; ++i) one[i].via = Via::kDevice;
  auto other = one;
  one[1].registered = 7;
  Matches matches = Match({Stuck(one), Stuck(other), Stuck(one)});
  EXPECT_EQ(matches.common.size(), 3u);
  EXPECT_TRUE(matches.differing.empty());
  EXPECT_THAT(ViasOf(matches.common), ElementsAre(Via::kDevice, Via::kStaged, Via::kHost));
  other[0].via = Via::kHost;
  other[1].signature += 1;
  matches = Match({Stuck(one), Stuck(other), Stuck(one)});
  EXPECT_THAT(ViasOf(matches.common), ElementsAre(Via::kStaged, Via::kHost))
      << "the one that differs is out";
}

TEST(MatchTest, ThoseWithoutANameGoByTheirPositionAmongThose) {
  const auto zero = Made({{"", Sum(1)}, {"x", Sum(9)}, {"", Sum(2)}});
  const auto one = Made({{"x", Sum(9)}, {"", Sum(1)}, {"", Sum(2)}});
  EXPECT_EQ(Match({Stuck(zero), Stuck(one)}).common.size(), 3u);
}

TEST(MatchTest, TheSameNameForDifferentThingsIsTold) {
  for (const Collective& other :
       {Sum(2), Sum(1, DTRAIN_INT32), Sum(1, DTRAIN_FLOAT32, DTRAIN_MAX)}) {
    const Matches matches = Match(
        {Stuck(Made({{"a", Sum(1)}, {"b", Sum(5)}})), Stuck(Made({{"b", Sum(5)}, {"a", other}}))});
    EXPECT_THAT(matches.differing, ElementsAre(KeyOf("a", 0)));
    EXPECT_THAT(KeysOf(matches.common), ElementsAre(KeyOf("b", 0)));
  }
  Collective broadcast = Sum(1);
  broadcast.kind = Collective::Kind::kBroadcast;
  EXPECT_THAT(Match({Stuck(Made({{"a", Sum(1)}})), Stuck(Made({{"a", broadcast}}))}).differing,
              ElementsAre(KeyOf("a", 0)));
  broadcast.root = 1;
  Collective from_zero = broadcast;
  from_zero.root = 0;
  EXPECT_NE(SignatureOf(broadcast, ""), SignatureOf(from_zero, ""));
  EXPECT_NE(SignatureOf(broadcast, "(2, 3)"), SignatureOf(broadcast, "(3, 2)"));
  EXPECT_NE(SignatureOf(broadcast, "(2, 3)"), SignatureOf(broadcast, ""));
}

TEST(MatchTest, IsHopelessOnlyWhenNoRankCanHaveMore) {
  const auto a = Made({{"a", Sum(1)}}), b = Made({{"b", Sum(1)}});
  EXPECT_TRUE(Match({Stuck(a), Stuck(b)}).hopeless);
  EXPECT_FALSE(Match({Stuck(a), Running(b)}).hopeless);
  EXPECT_FALSE(Match({Stuck(a), Stuck(a)}).hopeless);
  const PendingList joined{true, false, false, {}};
  EXPECT_TRUE(Match({Stuck(a), joined, Stuck(b)}).hopeless);
  EXPECT_THAT(KeysOf(Match({joined, Stuck(b)}).common), ElementsAre(KeyOf("b", 0)));
}

PendingList Joined() { return {true, false, false, {}}; }

TEST(MatchTest, ARankThatHasJoinedSharesSumsAndAveragesOfTheHost) {
  Collective gather = Sum(1);
  gather.kind = Collective::Kind::kAllgather;
  auto made = Made({{"sum", Sum(3)},
                    {"least", Sum(1, DTRAIN_FLOAT32, DTRAIN_MIN)},
                    {"gather", gather},
                    {"average", Sum(5, DTRAIN_FLOAT64, DTRAIN_AVG)}});
  for (Pending& one : made) one.via = Via::kDevice;
  const Matches alone = Match({Stuck(made), Stuck(made)});
  EXPECT_EQ(alone.common.size(), 4u);
  EXPECT_THAT(ViasOf(alone.common), Each(Via::kDevice));
  const Matches matches = Match({Joined(), Stuck(made), Stuck(made)});
  EXPECT_THAT(KeysOf(matches.common), ElementsAre(KeyOf("sum", 0), KeyOf("average", 0)));
  EXPECT_THAT(ViasOf(matches.common), Each(Via::kStaged));
  EXPECT_THAT(matches.differing, ElementsAre(KeyOf("least", 0), KeyOf("gather", 0)));
  const auto average = CollectiveOf(matches.common[1].outline);
  ASSERT_TRUE(average.has_value());
  EXPECT_EQ(average->count, 5u);
  EXPECT_EQ(average->type, DTRAIN_FLOAT64);
  EXPECT_EQ(average->op, DTRAIN_AVG);
}

// A collective that no rank of this version makes spoils nothing but itself.
TEST(MatchTest, AnUnknownCollectiveIsRefusedOnlyByRanksThatHaveJoinedAndAlone) {
  auto made = Made({{"a", Sum(1)}, {"unknown", Sum(1)}, {"b", Sum(1)}});
  made[1].outline.kind = 99;
  EXPECT_EQ(Match({Stuck(made), Stuck(made)}).common.size(), 3u);
  const Matches matches = Match({Stuck(made), Joined(), Stuck(made)});
  EXPECT_THAT(KeysOf(matches.common), ElementsAre(KeyOf("a", 0), KeyOf("b", 0)));
  EXPECT_THAT(matches.differing, ElementsAre(KeyOf("unknown", 0)));
  EXPECT_THAT(CompareFirst({Stuck({made[1]}), Joined()}),
              AllOf(HasSubstr("rank 0 for an unknown collective"), HasSubstr("dtrain_join")));
}

TEST(MatchTest, WhatHasWaitedTooLongCountsOnlyWhereNothingElseCanRun) {
  PendingList late = Running(Made({{"a", Sum(1)}}));
  late.overdue = true;
  EXPECT_TRUE(Match({late, Running(Made({{"b", Sum(1)}}))}).overdue);
  EXPECT_FALSE(Match({late, Running(Made({{"a", Sum(1)}}))}).overdue);
}

TEST(ListTest, SurvivesTheTripAndRefusesWhatNoRankSays) {
  PendingList list = Stuck(Made({{"a", Sum(1)}, {"", Sum(2)}}));
  list.pending[1].registered = 9;
  list.pending[1].via = Via::kStaged;
  list.name = "a";
  list.shape = "(2, 3)";
  const std::vector<int64_t> words = PackList(list, 5);
  EXPECT_EQ(words.size(), ListWords(5));
  const auto back = UnpackList(words);
  ASSERT_TRUE(back.has_value());
  EXPECT_TRUE(back->stuck && !back->joined && !back->overdue);
  ASSERT_EQ(back->pending.size(), 2u);
  EXPECT_EQ(back->pending[1].key, list.pending[1].key);
  EXPECT_EQ(back->pending[1].signature, list.pending[1].signature);
  EXPECT_EQ(back->pending[1].registered, 9u);
  EXPECT_EQ(back->pending[1].via, Via::kStaged);
  EXPECT_EQ(back->pending[1].outline, OutlineOf(Sum(2)));
  EXPECT_EQ(back->name, "a");
  EXPECT_EQ(back->shape, "(2, 3)");
  EXPECT_TRUE(UnpackList(PackList(Joined(), 3))->joined);
  for (const int64_t count : {int64_t{-1}, int64_t{6}, INT64_MAX, int64_t{0}}) {
    std::vector<int64_t> bad = words;
    bad[1] = count;
    EXPECT_FALSE(UnpackList(bad).has_value()) << count;
  }
  std::vector<int64_t> bad = words;
  bad[ListWords(0) + 3] = 3;
  EXPECT_FALSE(UnpackList(bad).has_value()) << "no way is called that";
  bad = words;
  bad[ListWords(1)] = bad[ListWords(0)];
  EXPECT_FALSE(UnpackList(bad).has_value()) << "nobody waits twice for one";
  EXPECT_FALSE(UnpackList({}).has_value());
}

// Whatever the orders, all ranks come to the same verdict, and it is about what all of them have.
TEST(MatchTest, AnyOrdersLeadToTheSameSet) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int run = 0; run < 300; ++run) {
    std::vector<PendingList> lists(2 + random() % 3);
    std::map<uint64_t, size_t> holders;
    for (PendingList& list : lists) {
      std::vector<std::pair<std::string, Collective>> made;
      for (int i = 0; i < 12; ++i) {
        if (random() % 3 != 0) made.emplace_back("t" + std::to_string(i), Sum(1));
      }
      made.emplace_back("always", Sum(1));
      std::shuffle(made.begin(), made.end(), random);
      list = Running(Made(made));
      for (const Pending& pending : list.pending) ++holders[pending.key];
    }
    const Matches matches = Match(lists);
    const std::vector<uint64_t> keys = KeysOf(matches.common);
    const std::set<uint64_t> common(keys.begin(), keys.end());
    EXPECT_EQ(common.size(), matches.common.size());
    for (const auto& [key, ranks] : holders) {
      EXPECT_EQ(common.count(key), ranks == lists.size() ? 1u : 0u);
    }
  }
}

TEST(PlanTest, PutsTheSameTypeAndOperationTogetherUpToTheThreshold) {
  const std::vector<Collective> agreed = {
      Sum(10), Sum(10, DTRAIN_FLOAT64), Sum(10), Sum(10), Sum(10, DTRAIN_FLOAT64, DTRAIN_MAX),
      Sum(10)};
  EXPECT_THAT(PlanBatches(agreed, 120),
              ElementsAre(ElementsAre(0, 2, 3), ElementsAre(1), ElementsAre(4), ElementsAre(5)));
  EXPECT_EQ(PlanBatches(agreed, 0).size(), agreed.size());
  EXPECT_EQ(PlanBatches({Sum(0), Sum(0)}, 0).size(), 2) << "nor do empty ones travel together";
}

TEST(PlanTest, OtherKindsGoAlone) {
  Collective gather = Sum(1);
  gather.kind = Collective::Kind::kAllgather;
  EXPECT_THAT(PlanBatches({Sum(1), gather, gather, Sum(1)}, size_t{1} << 30),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1), ElementsAre(2)));
}

TEST(PlanTest, LargeOnesGoAlone) {
  const size_t large = kLargestFused / 4 + 1;
  EXPECT_THAT(PlanBatches({Sum(1), Sum(large), Sum(1)}, size_t{1} << 30),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
}

TEST(PlanTest, EachOperationIsInExactlyOneBatchOfItsKind) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int run = 0; run < 300; ++run) {
    std::vector<Collective> agreed(1 + random() % 40);
    for (Collective& what : agreed) {
      what = Sum(random() % 300, random() % 2 != 0 ? DTRAIN_INT32 : DTRAIN_FLOAT64,
                 random() % 2 != 0 ? DTRAIN_SUM : DTRAIN_MIN);
    }
    const size_t threshold = random() % 3000;
    std::set<size_t> seen;
    for (const auto& batch : PlanBatches(agreed, threshold)) {
      size_t bytes = 0;
      ASSERT_FALSE(batch.empty());
      for (const size_t i : batch) {
        EXPECT_TRUE(seen.insert(i).second);
        EXPECT_EQ(agreed[i].type, agreed[batch[0]].type);
        EXPECT_EQ(agreed[i].op, agreed[batch[0]].op);
        bytes += agreed[i].count * (agreed[i].type == DTRAIN_INT32 ? 4 : 8);
      }
      EXPECT_TRUE(batch.size() == 1 || bytes <= threshold);
    }
    EXPECT_EQ(seen.size(), agreed.size());
  }
}

TEST(LaunchOrderTest, TheEarliestComesFirstAndOfTwoAtOneTimeTheLowerGroup) {
  LaunchOrder order;
  std::optional<LaunchOrder::Turn> second(std::in_place, order, 2), first(std::in_place, order, 1);
  EXPECT_LT(second->proposal(), first->proposal());
  std::vector<int> came;
  std::thread thread([&] {
    second->Await(9);  // as its ranks have agreed
    came.push_back(2);
  });
  first->Await(9);
  came.push_back(1);
  first.reset();
  thread.join();
  EXPECT_THAT(came, ElementsAre(1, 2));
  EXPECT_GT(LaunchOrder::Turn(order, 3).proposal(), 9);
}

// As it comes over the wire.
PendingList Asked(const Collective& what, const std::string& name, const std::string& shape) {
  PendingList list = Stuck({{1, SignatureOf(what, shape), 0, Via::kHost, OutlineOf(what)}});
  list.name = name;
  list.shape = shape;
  return UnpackList(PackList(list, 2)).value_or(Joined());
}

TEST(DisagreementTest, NamesTheRanksAndWhatTheyAskFor) {
  std::vector<PendingList> all;
  for (const Collective& what : {Sum(10), Sum(11), Sum(10)}) all.push_back(Asked(what, "", ""));
  EXPECT_THAT(CompareFirst(all), AllOf(HasSubstr("ranks 0, 2 for allreduce sum of 10 float32"),
                                       HasSubstr("rank 1 for allreduce sum of 11 float32")));
  EXPECT_THAT(CompareFirst(all, {7, 4, 9}),
              AllOf(HasSubstr("ranks 7, 9 for "), HasSubstr("rank 4 for ")));
  all[2].pending[0].key = 2;  // unnamed ones, of which one rank has made more
  EXPECT_THAT(CompareFirst(all), HasSubstr("ranks 0, 2 for "));
  all[1] = all[2] = Joined();
  EXPECT_THAT(CompareFirst(all), HasSubstr("ranks 1, 2 for dtrain_join"));
}

TEST(DisagreementTest, TellsTheNamesApartAlsoWhereTheyAreTooLongToBeWhole) {
  const auto text = [](const std::vector<std::string>& names) {
    std::vector<PendingList> all;
    for (const std::string& name : names) {
      Collective what = Sum(10);
      what.name = NameHash(name);
      all.push_back(Asked(what, name, ""));
    }
    return CompareFirst(all);
  };
  EXPECT_THAT(text({"a", "b", "a", ""}),
              AllOf(HasSubstr("ranks 0, 2 for allreduce sum of 10 float32 \"a\"; "),
                    HasSubstr("rank 1 for allreduce sum of 10 float32 \"b\"; "),
                    EndsWith("rank 3 for allreduce sum of 10 float32")));
  const std::string end(200, 'x');
  EXPECT_THAT(text({"a" + end + ".weight", "b" + end + ".weight"}),
              AllOf(HasSubstr("rank 0 for "), HasSubstr("; rank 1 for "), HasSubstr("\"...xxx"),
                    HasSubstr("xxx.weight\"")));
}

TEST(DisagreementTest, TellsShapesApartAlsoWhereTheyAreTooLongToBeWhole) {
  const auto text = [](const std::vector<std::string>& shapes) {
    std::vector<PendingList> all;
    for (const std::string& shape : shapes) all.push_back(Asked(Sum(6), "w", shape));
    return CompareFirst(all);
  };
  EXPECT_THAT(text({"(2, 3)", "(3, 2)", "(2, 3)", ""}),
              AllOf(HasSubstr("ranks 0, 2 for allreduce sum of 6 float32 of shape (2, 3) \"w\"; "),
                    HasSubstr("rank 1 for allreduce sum of 6 float32 of shape (3, 2) \"w\"; "),
                    EndsWith("rank 3 for allreduce sum of 6 float32 \"w\"")));
  const std::string end(100, '1');
  EXPECT_THAT(text({"(2" + end, "(3" + end}),
              AllOf(HasSubstr("rank 0 for "), HasSubstr("; rank 1 for ")));
}

TEST(SplitTest, RanksByKeyThenByRank) {
  // color, key by rank
  const std::vector<int32_t> table = {5, 1, -1, 0, 5, 0, 2, 7, 5, 0};
  EXPECT_THAT(SplitByColor(table, 0, 3).members, ElementsAre(2, 4, 0));
  EXPECT_EQ(SplitByColor(table, 0, 3).id, 4u);
  EXPECT_THAT(SplitByColor(table, 3, 3).members, ElementsAre(3));
  EXPECT_EQ(SplitByColor(table, 3, 3).id, 3u);
  EXPECT_TRUE(SplitByColor(table, 1, 3).members.empty());
  EXPECT_EQ(SplitByColor(table, 1, 3).id, 0u);
  EXPECT_EQ(SplitByColor(table, 1, 3).groups, 2u);
}

TEST(EncodeTextTest, AnyBytesSurviveAsOneWord) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  for (size_t n = 0; n <= all.size(); ++n) {
    const std::string bytes = all.substr(all.size() - n);
    const std::string text = EncodeText(bytes);
    EXPECT_EQ(text.find_first_of(" =\n"), std::string::npos);
    std::string back = "x";
    EXPECT_TRUE(DecodeText(text, back));
    EXPECT_EQ(back, bytes);
  }
  std::string unused;
  for (const char* bad : {"A", "AA A", "AAAAA", "A=", "\xff\xff"}) {
    EXPECT_FALSE(DecodeText(bad, unused)) << bad;
  }
}

std::vector<Hello> Hellos(BackendChoice wanted, const std::vector<std::string>& why_not) {
  std::vector<Hello> hellos;
  for (const std::string& why : why_not) hellos.push_back({wanted, why, 1, 2});
  return hellos;
}

TEST(HelloTest, SurvivesTheTrip) {
  Hello back;
  EXPECT_TRUE(DecodeHello(EncodeHello({BackendChoice::kNccl, "no\nGPU", 77, 5}), back));
  EXPECT_EQ(back.wanted, BackendChoice::kNccl);
  EXPECT_EQ(back.no_nccl, "no?GPU");
  EXPECT_EQ(back.fusion_threshold, 77u);
  EXPECT_EQ(back.cycle_us, 5);
  for (const char* bad : {"", "0", "9\n\n1\n2", "0\n\nx\n2", "0\n\n1\nx", "0\n\n1\n2\n"}) {
    EXPECT_FALSE(DecodeHello(bad, back)) << bad;
  }
}

TEST(BackendTest, IsNcclWhenEveryRankCanAndCpuWhenNoneCan) {
  EXPECT_TRUE(*ChooseNccl(Hellos(BackendChoice::kAuto, {"", ""})));
  EXPECT_FALSE(*ChooseNccl(Hellos(BackendChoice::kAuto, {"no GPU", "no GPU"})));
  EXPECT_FALSE(*ChooseNccl(Hellos(BackendChoice::kCpu, {"", ""})));
}

TEST(BackendTest, SaysWhyNcclThatWasAskedForCannotBe) {
  const auto choice = ChooseNccl(Hellos(BackendChoice::kNccl, {"", "", "there is no GPU"}));
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.error().code, DTRAIN_ERROR_DEVICE);
  EXPECT_THAT(choice.error().message, HasSubstr("rank 2 cannot use NCCL: there is no GPU"));
}

// N9
TEST(BackendTest, IsAnErrorThatNamesTheRankWhereOnlySomeCan) {
  const auto choice = ChooseNccl(Hellos(BackendChoice::kAuto, {"no GPU", "", "no driver"}));
  ASSERT_FALSE(choice.ok());
  EXPECT_THAT(choice.error().message,
              HasSubstr("rank 0 cannot use NCCL, but rank 1 can: no GPU. Fix that, or set "
                        "DTRAIN_BACKEND=cpu"));
}

TEST(BackendTest, RanksThatWereToldDifferentThingsAreNamed) {
  auto hellos = Hellos(BackendChoice::kAuto, {"", "", ""});
  hellos[2].wanted = BackendChoice::kCpu;
  const auto choice = ChooseNccl(hellos);
  ASSERT_FALSE(choice.ok());
  EXPECT_THAT(choice.error().message, HasSubstr("auto on rank 0, but cpu on rank 2"));
}

}  // namespace
}  // namespace dtrain::runtime
