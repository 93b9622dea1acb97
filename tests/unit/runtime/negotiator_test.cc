// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/negotiator.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::runtime {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The other ranks, 1 and on, have said in advance what they offer and list.
class Others : public Communicator {
 public:
  Others(std::vector<std::vector<int32_t>> offers, std::vector<std::vector<PendingList>> rounds)
      : offers_(std::move(offers)), rounds_(std::move(rounds)) {}

  int rank() const override { return 0; }
  int size() const override { return static_cast<int>(offers_.size()) + 1; }
  void Abort(const Error& /*reason*/) override {}

  MaybeError Run(const Collective& what, std::chrono::milliseconds /*timeout*/,
                 Spent& /*spent*/) override {
    if (what.kind == Collective::Kind::kAllreduce) {
      auto* const lowest = static_cast<int32_t*>(what.output);
      for (const auto& offer : offers_) {
        EXPECT_EQ(offer.size(), what.count);
        for (size_t i = 0; i < offer.size(); ++i) lowest[i] = std::min(lowest[i], offer[i]);
      }
      return std::nullopt;
    }
    rooms.push_back((what.count - ListWords(0)) / kRowWords);
    auto* at = static_cast<int64_t*>(what.output);
    std::memcpy(at, what.input, what.count * sizeof(int64_t));
    for (const PendingList& list : rounds_.at(rooms.size() - 1)) {
      const std::vector<int64_t> words = PackList(list, rooms.back());
      EXPECT_EQ(words.size(), what.count);
      std::memcpy(at += what.count, words.data(), what.count * sizeof(int64_t));
    }
    return std::nullopt;
  }

  std::vector<size_t> rooms;  // of the lists, as they were exchanged

 private:
  const std::vector<std::vector<int32_t>> offers_;
  const std::vector<std::vector<PendingList>> rounds_;
};

class NegotiatorTest : public testing::Test {
 protected:
  Operation* Make(const std::string& name, dtrain_op op = DTRAIN_SUM) {
    Operation& operation = *made_.emplace_back(std::make_unique<Operation>());
    operation.group = &group_;
    operation.name = name;
    operation.what.kind = Collective::Kind::kAllreduce;
    operation.what.count = made_.size();
    operation.what.op = op;
    operation.via = Via::kDevice;
    operation.added = std::chrono::steady_clock::now();
    operation.SetPending(KeyOf(name, 0));
    return &operation;
  }

  Others& Meet(std::vector<std::vector<int32_t>> offers,
               std::vector<std::vector<PendingList>> rounds) {
    auto others = std::make_unique<Others>(std::move(offers), std::move(rounds));
    Others& all = *others;
    group_.size = all.size();
    group_.members.clear();
    for (int r = 0; r < group_.size; ++r) group_.members.push_back(r);
    group_.timeout.store(std::chrono::hours(1));
    group_.communicator = std::move(others);
    return all;
  }

  static std::vector<Pending> Of(const std::vector<Operation*>& operations) {
    std::vector<Pending> all;
    for (const Operation* operation : operations) all.push_back(operation->pending);
    return all;
  }

  // As another rank lists them.
  static PendingList Listed(const std::vector<Operation*>& operations) {
    PendingList list;
    list.pending = Of(operations);
    list.joined = operations.empty();
    if (!list.joined) list.name = operations[0]->name;
    return list;
  }

  Group group_;
  Negotiator negotiator_;
  Spent spent_;

 private:
  std::vector<std::unique_ptr<Operation>> made_;
};

TEST_F(NegotiatorTest, WhatAllHaveInOneOrderNeedsNoLists) {
  const std::vector<Operation*> mine = {Make("a"), Make("b")};
  const Others& others = Meet({MakeOffer(Of(mine))}, {});
  auto verdict = negotiator_.Agree(group_, mine, false, spent_);
  ASSERT_TRUE(verdict.ok());
  EXPECT_EQ(verdict->run, mine);
  EXPECT_EQ(mine[0]->via, Via::kDevice);
  EXPECT_THAT(others.rooms, IsEmpty());
}

// Rank 1 has fewer, and rank 2 has joined: rank 0 does not list what it alone has.
TEST_F(NegotiatorTest, WithARankThatHasJoinedOnlyWhatIsAgreedOnIsListed) {
  Operation *const a = Make("a"), *const b = Make("b", DTRAIN_MAX), *const c = Make("c");
  Operation* const d = Make("d");
  const std::vector<Operation*> three = {a, b, c};
  const Others& others = Meet({MakeOffer(Of(three)), MakeJoinedOffer()},
                              {{Listed(three), Listed({})}, {Listed({b}), Listed({})}});
  auto verdict = negotiator_.Agree(group_, {a, b, c, d}, true, spent_);
  ASSERT_TRUE(verdict.ok());
  EXPECT_THAT(others.rooms, ElementsAre(3, 1)) << "those, and one for the text";
  EXPECT_THAT(verdict->run, ElementsAre(a, c));
  EXPECT_EQ(a->via, Via::kStaged);
  EXPECT_EQ(c->via, Via::kStaged);
  EXPECT_EQ(d->via, Via::kDevice);
  ASSERT_EQ(verdict->refused.size(), 1u);
  EXPECT_EQ(verdict->refused[0].operation, b);
  EXPECT_THAT(verdict->refused[0].error.message,
              AllOf(HasSubstr("ranks 0, 1 for allreduce max of 2 int32"), HasSubstr("\"b\""),
                    HasSubstr("rank 2 for dtrain_join")));
}

TEST_F(NegotiatorTest, RanksThatBeginDifferentlyListAllTheyHave) {
  Operation *const a = Make("a"), *const b = Make("b"), *const c = Make("c");
  const Others& others =
      Meet({MakeOffer(Of({b, a, c})), MakeJoinedOffer()}, {{Listed({b, a, c}), Listed({})}});
  auto verdict = negotiator_.Agree(group_, {a, b}, true, spent_);
  ASSERT_TRUE(verdict.ok());
  EXPECT_THAT(others.rooms, ElementsAre(3)) << "as many as the rank with the most has";
  EXPECT_THAT(verdict->run, ElementsAre(a, b));
  EXPECT_THAT(verdict->refused, IsEmpty());
}

TEST_F(NegotiatorTest, ARankThatHasJoinedHearsWhatTheOthersRun) {
  Operation *const a = Make("a"), *const b = Make("b", DTRAIN_MAX), *const c = Make("c");
  const std::vector<Operation*> all = {a, b, c};
  const Others& alike = Meet({MakeOffer(Of(all))}, {{Listed(all)}, {Listed({b})}});
  auto joined = negotiator_.AgreeAsJoined(group_);
  ASSERT_TRUE(joined.ok());
  EXPECT_FALSE(joined->all);
  EXPECT_THAT(alike.rooms, ElementsAre(3, 1));
  ASSERT_EQ(joined->run.size(), 2u);
  EXPECT_EQ(joined->run[0].what.count, a->what.count);
  EXPECT_EQ(joined->run[1].what.count, c->what.count);
  EXPECT_EQ(joined->run[1].via, Via::kStaged);

  const Others& differ = Meet({MakeOffer(Of({a, c})), MakeOffer(Of(all)), MakeOffer(Of({c}))},
                              {{Listed({a, c}), Listed(all), Listed({c})}});
  joined = negotiator_.AgreeAsJoined(group_);
  ASSERT_TRUE(joined.ok());
  EXPECT_THAT(differ.rooms, ElementsAre(3));
  ASSERT_EQ(joined->run.size(), 1u);
  EXPECT_EQ(joined->run[0].what.count, c->what.count);

  Meet({MakeJoinedOffer()}, {});
  joined = negotiator_.AgreeAsJoined(group_);
  ASSERT_TRUE(joined.ok());
  EXPECT_TRUE(joined->all);
}

TEST_F(NegotiatorTest, BlockingCallsAreListedOnlyWhereTheyDiffer) {
  Operation* const mine = Make("");
  mine->number = 5;
  mine->SetPending(5);
  bool stuck = true;
  const auto call_meets = [&](const Pending& theirs, std::vector<size_t> rooms) {
    PendingList list;
    list.stuck = stuck;
    list.pending = {theirs};
    const Others& others = Meet({MakeOffer(list.pending, 1)}, {{list}, {list}});
    MaybeError error = negotiator_.AgreeOnCall(group_, *mine, spent_);
    EXPECT_EQ(others.rooms, rooms);
    return error;
  };
  Pending theirs = mine->pending;
  EXPECT_FALSE(call_meets(theirs, {}));
  EXPECT_EQ(mine->via, Via::kDevice);
  theirs.registered = 7;
  EXPECT_FALSE(call_meets(theirs, {1}));
  EXPECT_EQ(mine->via, Via::kStaged);

  theirs.signature += 1;
  theirs.outline.count = 77;
  MaybeError error = call_meets(theirs, {1, 1});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_MISMATCH);
  EXPECT_THAT(error->message, HasSubstr("rank 0 for allreduce sum of 1 int32; rank 1 for "
                                        "allreduce sum of 77 int32"));
  theirs.key = 6;
  error = call_meets(theirs, {1});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_MISMATCH);
  stuck = false;  // as no rank of this version says
  error = call_meets(theirs, {1});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_INTERNAL);
}

TEST_F(NegotiatorTest, AListWithAKeyTwiceIsRefused) {
  Operation *const a = Make("a"), *const b = Make("b");
  Meet({MakeOffer(Of({b, b}))}, {{Listed({b, b})}});
  auto verdict = negotiator_.Agree(group_, {a, b}, true, spent_);
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.error().code, DTRAIN_ERROR_INTERNAL);
  EXPECT_THAT(verdict.error().message, HasSubstr("rank 1 lists its collectives in an unknown"));
}

}  // namespace
}  // namespace dtrain::runtime
