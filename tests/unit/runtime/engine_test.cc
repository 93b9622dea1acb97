// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/boot/bootstrap.h"
#include "runtime/engine/backend.h"
#include "runtime/engine/fusion.h"
#include "runtime/engine/group.h"

namespace dtrain::runtime {
namespace {

using testing::AllOf;
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

// What the ranks' all-reduce makes of their offers.
std::vector<int32_t> Lowest(const std::vector<std::vector<Collective>>& ready_by_rank) {
  std::vector<int32_t> lowest = MakeOffer(ready_by_rank[0]);
  for (const auto& ready : ready_by_rank) {
    const std::vector<int32_t> offer = MakeOffer(ready);
    for (size_t i = 0; i < offer.size(); ++i) lowest[i] = std::min(lowest[i], offer[i]);
  }
  return lowest;
}

TEST(AgreementTest, IsOnWhatAllRanksHaveReady) {
  const std::vector<Collective> three = {Sum(1), Sum(2), Sum(3)};
  const Agreement agreement = ReadOffers(Lowest({three, {Sum(1), Sum(2)}, three}));
  EXPECT_EQ(agreement.count, 2u);
  EXPECT_EQ(agreement.differs, std::nullopt) << "what is not ready everywhere does not count yet";
}

TEST(AgreementTest, FindsTheFirstOperationThatDiffers) {
  const std::vector<Collective> one = {Sum(1), Sum(2), Sum(3), Sum(4)};
  for (const std::vector<Collective>& other :
       {std::vector<Collective>{Sum(1), Sum(2), Sum(7), Sum(4)},
        {Sum(1), Sum(2), Sum(3, DTRAIN_INT32), Sum(4)},
        {Sum(1), Sum(2), Sum(3, DTRAIN_FLOAT32, DTRAIN_MAX), Sum(4)},
        {Sum(1), Sum(2), Sum(4), Sum(3)}}) {
    EXPECT_EQ(ReadOffers(Lowest({one, other})).differs, std::optional<size_t>(2));
    EXPECT_EQ(ReadOffers(Lowest({other, one, one})).differs, std::optional<size_t>(2));
  }
}

TEST(AgreementTest, TheNameIsPartOfIt) {
  std::vector<Collective> one(3, Sum(4)), other = one;
  one[1].name = NameHash("a");
  other[1].name = NameHash("b");
  EXPECT_EQ(ReadOffers(Lowest({one, other})).differs, std::optional<size_t>(1));
  EXPECT_EQ(ReadOffers(Lowest({one, one})).differs, std::nullopt);
  other[1].name = 0;
  EXPECT_EQ(ReadOffers(Lowest({one, other})).differs, std::optional<size_t>(1)) << "none";
}

TEST(AgreementTest, ARankThatHasJoinedGoesAlongWithTheOthers) {
  const std::vector<Collective> two = {Sum(1), Sum(2)};
  const auto with_joined = [](std::vector<int32_t> lowest) {
    const std::vector<int32_t> offer = MakeJoinedOffer();
    for (size_t i = 0; i < offer.size(); ++i) lowest[i] = std::min(lowest[i], offer[i]);
    return ReadOffers(lowest);
  };
  const Agreement agreement = with_joined(Lowest({two, two}));
  EXPECT_EQ(agreement.count, 2u);
  EXPECT_EQ(agreement.differs, std::nullopt);
  EXPECT_TRUE(agreement.joined);
  EXPECT_FALSE(agreement.all_joined);
  EXPECT_EQ(with_joined(Lowest({two, {Sum(1), Sum(3)}})).differs, std::optional<size_t>(1));
  EXPECT_TRUE(with_joined(MakeJoinedOffer()).all_joined);
  EXPECT_FALSE(ReadOffers(Lowest({two, two})).joined);
}

TEST(AgreementTest, TakesNoMoreThanFit) {
  const std::vector<Collective> many(kMostAgreed + 5, Sum(9));
  EXPECT_EQ(ReadOffers(Lowest({many, many})).count, kMostAgreed);
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

TEST(DisagreementTest, NamesTheRanksAndWhatTheyAskFor) {
  std::vector<int64_t> all;
  for (const Collective& what : {Sum(10), Sum(11), Sum(10)}) {
    int64_t words[kStatementWords];
    PackStatement(what, "", words);
    all.insert(all.end(), words, words + kStatementWords);
  }
  EXPECT_THAT(DescribeDisagreement(all),
              AllOf(HasSubstr("ranks 0, 2 for allreduce sum of 10 float32"),
                    HasSubstr("rank 1 for allreduce sum of 11 float32")));
  PackJoined(&all[kStatementWords]);
  EXPECT_THAT(DescribeDisagreement(all), HasSubstr("rank 1 for dtrain_join"));
}

TEST(DisagreementTest, TellsTheNamesApartAlsoWhereTheyAreTooLongToBeWhole) {
  const auto statements = [](const std::vector<std::string>& names) {
    std::vector<int64_t> all(names.size() * kStatementWords);
    for (size_t r = 0; r < names.size(); ++r) {
      Collective what = Sum(10);
      what.name = NameHash(names[r]);
      PackStatement(what, names[r], &all[r * kStatementWords]);
    }
    return DescribeDisagreement(all);
  };
  EXPECT_THAT(statements({"a", "b", "a", ""}),
              AllOf(HasSubstr("ranks 0, 2 for allreduce sum of 10 float32 \"a\"; "),
                    HasSubstr("rank 1 for allreduce sum of 10 float32 \"b\"; "),
                    EndsWith("rank 3 for allreduce sum of 10 float32")));
  const std::string end(200, 'x');
  EXPECT_THAT(
      statements({"a" + end + ".weight", "b" + end + ".weight"}),
      AllOf(HasSubstr("rank 0 for "), HasSubstr("; rank 1 for "), HasSubstr("xxx.weight\"")));
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
  for (const std::string& why : why_not) hellos.push_back({wanted, why, 1, 2, "n"});
  return hellos;
}

TEST(HelloTest, SurvivesTheTrip) {
  Hello back;
  EXPECT_TRUE(DecodeHello(EncodeHello({BackendChoice::kNccl, "no\nGPU", 77, 5, "a b"}), back));
  EXPECT_EQ(back.wanted, BackendChoice::kNccl);
  EXPECT_EQ(back.no_nccl, "no?GPU");
  EXPECT_EQ(back.fusion_threshold, 77u);
  EXPECT_EQ(back.cycle_us, 5);
  EXPECT_EQ(back.node, "a b");
  for (const char* bad : {"", "dtrain-1\n0\n\n1\n2\nn", "dtrain-2", "dtrain-2\n9\n\n1\n2\nn",
                          "dtrain-2\n0\n\nx\n2\nn"}) {
    EXPECT_FALSE(DecodeHello(bad, back)) << bad;
  }
}

TEST(BackendTest, IsNcclWhenEveryRankCanAndCpuElse) {
  EXPECT_TRUE(*ChooseNccl(Hellos(BackendChoice::kAuto, {"", ""})));
  EXPECT_FALSE(*ChooseNccl(Hellos(BackendChoice::kAuto, {"", "no GPU"})));
  EXPECT_FALSE(*ChooseNccl(Hellos(BackendChoice::kCpu, {"", ""})));
}

TEST(BackendTest, SaysWhyNcclThatWasAskedForCannotBe) {
  const auto choice = ChooseNccl(Hellos(BackendChoice::kNccl, {"", "", "there is no GPU"}));
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.error().code, DTRAIN_ERROR_DEVICE);
  EXPECT_THAT(choice.error().message, HasSubstr("rank 2 cannot use NCCL: there is no GPU"));
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
