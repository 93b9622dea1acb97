// SPDX-License-Identifier: Apache-2.0
#include "common/base/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace dtrain {
namespace {

struct Note {
  uint64_t number = 0;
  int text = 0;
  void set_sequence(uint64_t n) { number = n; }
  uint64_t sequence() const { return number; }
  size_t ByteSizeLong() const { return size; }
  size_t size = 1;
};

TEST(OutboxTest, NumbersFromOneAndForgetsWhatWasAcknowledged) {
  Outbox<Note> outbox;
  EXPECT_EQ(outbox.Add({0, 7}).number, 1u);
  outbox.Add({0, 8});
  outbox.Add({0, 9});
  outbox.Acknowledge(2);
  ASSERT_EQ(outbox.kept().size(), 1u);
  EXPECT_EQ(outbox.kept().front().text, 9);
  outbox.Acknowledge(1);  // an old one, late
  EXPECT_EQ(outbox.kept().size(), 1u);
  EXPECT_EQ(outbox.last(), 3u);
}

TEST(OutboxTest, IsFullByCountOrByBytes) {
  Outbox<Note> many;
  for (size_t i = 0; i < Outbox<Note>::kMostMessages; ++i) {
    ASSERT_FALSE(many.full());
    many.Add({});
  }
  EXPECT_TRUE(many.full());
  many.Acknowledge(1);
  EXPECT_FALSE(many.full());

  Outbox<Note> large;
  large.Add({.size = Outbox<Note>::kMostBytes - 1});
  EXPECT_FALSE(large.full());
  large.Add({});
  EXPECT_TRUE(large.full());
  large.Acknowledge(1);
  EXPECT_FALSE(large.full());
}

TEST(InboxTest, TakesTheNextOneOnly) {
  Inbox inbox;
  EXPECT_FALSE(inbox.Take(2));  // what is before it comes again
  EXPECT_TRUE(inbox.Take(1));
  EXPECT_FALSE(inbox.Take(1));
  EXPECT_TRUE(inbox.Take(2));
  EXPECT_TRUE(inbox.Take(0));  // has no number
  EXPECT_EQ(inbox.last(), 2u);
}

// Connections that break anywhere: everything arrives once and in order.
TEST(OutboxTest, NothingIsLostOrDoubledHoweverConnectionsBreak) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 dice(seed);
  for (int round = 0; round < 200; ++round) {
    Outbox<Note> outbox;
    Inbox inbox;
    std::vector<int> arrived;
    auto deliver = [&](const Note& note) {
      if (inbox.Take(note.sequence())) arrived.push_back(note.text);
    };
    for (int i = 0; i < 50; ++i) {
      const Note sent = outbox.Add({0, i});
      if (dice() % 3 != 0) deliver(sent);  // else the connection broke on the way
      if (dice() % 4 == 0) {
        for (const Note& note : outbox.kept()) {
          if (note.sequence() > inbox.last()) deliver(note);
        }
      }
      if (dice() % 5 == 0) outbox.Acknowledge(inbox.last());
    }
    for (const Note& note : outbox.kept()) deliver(note);
    ASSERT_EQ(arrived.size(), 50u);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(arrived[static_cast<size_t>(i)], i);
  }
}

}  // namespace
}  // namespace dtrain
