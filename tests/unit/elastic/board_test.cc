// SPDX-License-Identifier: Apache-2.0
// What the doors of a round are told, and what a run may say.
#include "launcher/elastic/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtrain::elastic {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class BoardTest : public testing::Test {
 public:
  // Of runs 1, 2, ... with two workers each.
  std::vector<Board::Send> OpenBoard(uint64_t round, uint32_t runs) {
    OpenRound open;
    open.round = round;
    const std::vector<HostSeats> seats = Assign(std::vector<uint32_t>(runs, 2), {});
    for (uint32_t i = 0; i < runs; ++i) open.seats.emplace(RunId(i + 1), seats[i]);
    round_ = round;
    return board_.Open(open);
  }
  v1::ElasticUp Up(uint64_t round) {
    v1::ElasticUp up;
    up.set_round(round);
    return up;
  }
  absl::StatusOr<Board::Heard> Remove(uint32_t run, uint64_t id) {
    v1::ElasticUp up = Up(round_);
    up.mutable_removed()->set_scope("p");
    up.mutable_removed()->set_key("k");
    up.mutable_removed()->set_id(id);
    return board_.OnUp(RunId(run), up);
  }
  absl::StatusOr<Board::Heard> Apply(uint32_t run, uint64_t id) {
    v1::ElasticUp up = Up(round_);
    up.set_applied(id);
    return board_.OnUp(RunId(run), up);
  }
  // "1: put s/k=v"
  static std::vector<std::string> Texts(const std::vector<Board::Send>& sends) {
    std::vector<std::string> texts;
    for (const Board::Send& send : sends) {
      std::string what;
      const v1::ElasticDown& down = send.down;
      if (down.has_open()) what = absl::StrCat("open ", down.open().seats_size());
      if (down.has_put()) {
        what = absl::StrCat("put ", down.put().scope(), "/", down.put().key(), "=",
                            down.put().value());
      }
      if (down.has_removed()) {
        what = absl::StrCat("remove ", down.removed().scope(), "/", down.removed().key(), " as ",
                            down.removed().id());
      }
      if (down.kind_case() == v1::ElasticDown::kAppliedEverywhere) {
        what = absl::StrCat("done ", down.applied_everywhere());
      }
      texts.push_back(absl::StrCat(send.to.value(), ": ", what, " in ", down.round()));
    }
    return texts;
  }
  static std::vector<std::string> Texts(const absl::StatusOr<Board::Heard>& heard) {
    if (!heard.ok()) return {std::string(heard.status().message())};
    EXPECT_FALSE(heard->event);
    return Texts(heard->sends);
  }

  Board board_;
  uint64_t round_ = 0;
};

TEST_F(BoardTest, ARoundIsOpenedAtEachDoor) {
  const std::vector<Board::Send> sends = OpenBoard(1, 2);
  EXPECT_THAT(Texts(sends), ElementsAre("1: open 2 in 1", "2: open 2 in 1"));
  EXPECT_EQ(sends[1].down.open().seats(1).rank(), 3U);
  EXPECT_EQ(sends[1].down.open().seats(1).cross_rank(), 1U);
}

TEST_F(BoardTest, AValueGoesToAllOthers) {
  OpenBoard(1, 3);
  v1::ElasticUp up = Up(1);
  up.mutable_put()->set_scope("global");
  up.mutable_put()->set_key("2");
  up.mutable_put()->set_value("x");
  EXPECT_THAT(Texts(board_.OnUp(RunId(2), up)),
              ElementsAre("1: put global/2=x in 1", "3: put global/2=x in 1"));
}

TEST_F(BoardTest, ARemovalIsDoneWhenAllOthersHaveAppliedIt) {
  OpenBoard(1, 3);
  EXPECT_THAT(Texts(Remove(2, 7)),
              ElementsAre("1: remove p/k as 1 in 1", "3: remove p/k as 1 in 1"));
  EXPECT_THAT(Texts(Remove(1, 7)),
              ElementsAre("2: remove p/k as 2 in 1", "3: remove p/k as 2 in 1"));
  EXPECT_THAT(Texts(Apply(3, 1)), IsEmpty());
  EXPECT_THAT(Texts(Apply(3, 2)), IsEmpty());
  EXPECT_THAT(Texts(Apply(2, 2)), ElementsAre("1: done 7 in 1"));
  EXPECT_THAT(Texts(Apply(1, 1)), ElementsAre("2: done 7 in 1"));
  EXPECT_THAT(Texts(Remove(2, 7)),  // its number is free again
              ElementsAre("1: remove p/k as 3 in 1", "3: remove p/k as 3 in 1"));
}

TEST_F(BoardTest, TheOnlyHostWaitsForNobody) {
  OpenBoard(1, 1);
  EXPECT_THAT(Texts(Remove(1, 5)), ElementsAre("1: done 5 in 1"));
  EXPECT_THAT(Texts(Remove(1, 5)), ElementsAre("1: done 5 in 1"));
}

TEST_F(BoardTest, ADroppedRunCountsAsHavingApplied) {
  OpenBoard(1, 3);
  Remove(1, 5).IgnoreError();
  Remove(2, 6).IgnoreError();
  Remove(3, 8).IgnoreError();
  EXPECT_THAT(Texts(Apply(2, 1)), IsEmpty());
  EXPECT_THAT(Texts(board_.Drop(RunId(3))), ElementsAre("1: done 5 in 1"));
  EXPECT_THAT(Texts(board_.Drop(RunId(3))), IsEmpty());
  EXPECT_THAT(Texts(Apply(1, 2)), ElementsAre("2: done 6 in 1"));
  EXPECT_THAT(Texts(Apply(1, 3)), IsEmpty());  // that of the dropped run
  EXPECT_THAT(Texts(Remove(3, 1)), IsEmpty());
}

TEST_F(BoardTest, ARoundForgetsTheOneBefore) {
  OpenBoard(1, 2);
  Remove(1, 5).IgnoreError();
  OpenBoard(2, 3);
  v1::ElasticUp up = Up(1);
  up.set_applied(1);
  EXPECT_THAT(Texts(board_.OnUp(RunId(2), up)), IsEmpty());
  up.mutable_put()->set_key("late");
  EXPECT_THAT(Texts(board_.OnUp(RunId(2), up)), IsEmpty());
  EXPECT_THAT(Texts(Apply(2, 1)), ElementsAre("removal 1 does not exist"));
  EXPECT_THAT(Texts(Remove(1, 5)),
              ElementsAre("2: remove p/k as 2 in 2", "3: remove p/k as 2 in 2"));
}

TEST_F(BoardTest, WhatItDoesNotCarryIsForTheCore) {
  v1::ElasticUp up = Up(0);
  up.set_waiting(2);
  auto heard = board_.OnUp(RunId(1), up);
  ASSERT_TRUE(heard.ok() && heard->event);
  EXPECT_EQ(std::get<DoorWaits>(*heard->event).run, RunId(1));
  EXPECT_EQ(std::get<DoorWaits>(*heard->event).clients, 2U);
  OpenBoard(1, 2);
  EXPECT_FALSE(board_.OnUp(RunId(1), up)->event);  // its door has been opened meanwhile
  EXPECT_TRUE(board_.OnUp(RunId(9), up)->event);
  up = Up(1);
  up.set_waiting(1);
  EXPECT_FALSE(board_.OnUp(RunId(1), up)->event);
  up.set_asked(1);
  heard = board_.OnUp(RunId(2), up);
  ASSERT_TRUE(heard.ok() && heard->event);
  EXPECT_EQ(std::get<SeatAsked>(*heard->event).run, RunId(2));
  EXPECT_EQ(std::get<SeatAsked>(*heard->event).local_rank, 1U);
  up.mutable_registered()->set_local_rank(1);
  up.mutable_registered()->set_not_understood("why");
  heard = board_.OnUp(RunId(2), up);
  ASSERT_TRUE(heard.ok() && heard->event);
  EXPECT_EQ(std::get<Registered>(*heard->event).not_understood, "why");
  up.mutable_noticed()->set_timestamp(3);
  up.mutable_noticed()->set_failed("refused");
  heard = board_.OnUp(RunId(2), up);
  ASSERT_TRUE(heard.ok() && heard->event);
  EXPECT_EQ(std::get<NoticeDone>(*heard->event).timestamp, 3U);
  EXPECT_EQ(std::get<NoticeDone>(*heard->event).failed, "refused");
  OpenBoard(2, 1);
  up.set_asked(0);
  EXPECT_FALSE(board_.OnUp(RunId(1), up)->event);  // of the round before
  up.set_round(2);
  EXPECT_FALSE(board_.OnUp(RunId(2), up)->event);  // not in the round
  EXPECT_TRUE(board_.OnUp(RunId(1), up)->event);
}

// A worker may say where it hears of changes before its door opens, and after its round is over.
TEST_F(BoardTest, AWorkersAddressIsOfNoRound) {
  v1::ElasticUp up = Up(0);
  up.mutable_registered()->set_local_rank(0);
  auto heard = board_.OnUp(RunId(1), up);
  ASSERT_TRUE(heard.ok() && heard->event);
  EXPECT_EQ(std::get<Registered>(*heard->event).run, RunId(1));
  OpenBoard(1, 2);
  OpenBoard(2, 2);
  for (const uint64_t round : {0, 1, 2}) {
    up.set_round(round);
    heard = board_.OnUp(RunId(1), up);
    EXPECT_TRUE(heard.ok() && heard->event) << round;
  }
}

// Each is sent to all other hosts.
TEST_F(BoardTest, AHostMayPutSoMuchInARound) {
  OpenBoard(1, 2);
  v1::ElasticUp up = Up(1);
  up.mutable_put()->set_scope("global");
  up.mutable_put()->set_value(std::string(8 << 20, 'x'));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(board_.OnUp(RunId(1), up).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(board_.OnUp(RunId(1), up).status()));
  EXPECT_TRUE(board_.OnUp(RunId(2), up).ok());
  OpenBoard(2, 2);
  up.set_round(2);
  EXPECT_TRUE(board_.OnUp(RunId(1), up).ok());
}

TEST_F(BoardTest, WhatARunMustNotSayIsAnError) {
  EXPECT_FALSE(board_.OnUp(RunId(1), Up(0)).ok());
  v1::ElasticUp up = Up(0);
  up.set_asked(0);
  EXPECT_FALSE(board_.OnUp(RunId(1), up).ok());
  up.mutable_put()->set_key("k");
  EXPECT_FALSE(board_.OnUp(RunId(1), up).ok());
  up = Up(1);
  up.set_waiting(1);
  EXPECT_FALSE(board_.OnUp(RunId(1), up).ok());  // no round was opened
  OpenBoard(1, 2);
  EXPECT_FALSE(board_.OnUp(RunId(1), Up(1)).ok());
  EXPECT_FALSE(board_.OnUp(RunId(1), Up(2)).ok());
  up = Up(1);
  up.set_asked(2);
  EXPECT_FALSE(board_.OnUp(RunId(1), up).ok());
  up.mutable_registered()->set_local_rank(2);
  EXPECT_FALSE(board_.OnUp(RunId(1), up).ok());
  up.mutable_noticed()->set_local_rank(2);
  EXPECT_FALSE(board_.OnUp(RunId(1), up).ok());
  EXPECT_FALSE(Apply(1, 0).ok());
  EXPECT_FALSE(Apply(1, 1).ok());
  EXPECT_TRUE(Remove(1, 5).ok());
  EXPECT_FALSE(Remove(1, 5).ok());
  EXPECT_FALSE(Apply(1, 1).ok());  // its own
  EXPECT_FALSE(Apply(2, 2).ok());
  EXPECT_TRUE(Apply(2, 1).ok());
  EXPECT_TRUE(Apply(2, 1).ok());  // done, and forgotten
}

TEST_F(BoardTest, ARunCannotFillItsMemory) {
  OpenBoard(1, 2);
  for (uint64_t id = 0; id < kMostRemovals; ++id) ASSERT_TRUE(Remove(1, id).ok());
  EXPECT_EQ(Remove(1, kMostRemovals).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Remove(2, 1).ok());
  ASSERT_TRUE(Apply(2, 1).ok());
  EXPECT_TRUE(Remove(1, kMostRemovals).ok());
}

}  // namespace
}  // namespace dtrain::elastic
