// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_reading.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::status {
namespace {

using Then = LogReading::Then;

v1::LogPiece Piece(uint64_t offset, const std::string& data, uint64_t size, bool ended = false) {
  v1::LogPiece piece;
  piece.set_offset(offset);
  piece.set_data(data);
  piece.set_size(size);
  piece.set_ended(ended);
  return piece;
}

struct Reading {
  explicit Reading(bool follow) : reading(v1::ReadLogRequest(), follow) {}
  // What is shown, and asked for then.
  void Shows(v1::LogPiece piece, const std::string& text, Then then, uint64_t next) {
    auto step = reading.OnPiece(std::move(piece));
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->text, text);
    EXPECT_EQ(step->then, then);
    EXPECT_EQ(reading.request().offset(), next);
  }
  void Refuses(v1::LogPiece piece) {
    EXPECT_TRUE(absl::IsDataLoss(reading.OnPiece(std::move(piece)).status()));
  }
  LogReading reading;
};

TEST(LogReading, GoesOnWhereItWas) {
  Reading r(true);
  EXPECT_FALSE(r.reading.begun());
  r.Shows(Piece(0, "abc", 5), "abc", Then::kAsk, 3);
  EXPECT_TRUE(r.reading.begun());
  r.Shows(Piece(3, "de", 5), "de", Then::kPause, 5);
  r.Shows(Piece(5, "", 5), "", Then::kPause, 5);
  r.Shows(Piece(5, "f", 6, true), "f", Then::kEnd, 6);
}

// A rank may write faster than anybody reads.
TEST(LogReading, WithoutFollowingItEndsWhereTheOutputDid) {
  Reading r(false);
  r.Shows(Piece(0, "abc", 5), "abc", Then::kAsk, 3);
  r.Shows(Piece(3, "def", 90), "def", Then::kEnd, 6);
}

TEST(LogReading, WhatIsGoneIsCountedOnceReadingHasBegun) {
  Reading r(true);
  r.Shows(Piece(4, "e", 6), "e", Then::kAsk, 5);
  r.Shows(Piece(9, "j", 10), "[dtrain: 4 bytes are no longer available]\nj", Then::kPause, 10);
}

// The agent was started anew, and has yet to hear how much there is.
TEST(LogReading, AStreamThatSeemsShorterIsWaitedFor) {
  Reading r(true);
  r.Shows(Piece(0, "abc", 3), "abc", Then::kPause, 3);
  r.Shows(Piece(0, "", 0), "", Then::kPause, 3);
  r.Shows(Piece(3, "d", 4), "d", Then::kPause, 4);
}

TEST(LogReading, AnswersToAnotherQuestionAreRefused) {
  Reading r(true);
  r.Shows(Piece(0, "abc", 3), "abc", Then::kPause, 3);
  r.Refuses(Piece(0, "abc", 3));
  r.Refuses(Piece(3, "de", 4));
  r.Refuses(Piece(UINT64_MAX, "de", UINT64_MAX));
  r.Refuses(Piece(3, "", 4));  // or it would be asked for ever
}

}  // namespace
}  // namespace dtrain::status
