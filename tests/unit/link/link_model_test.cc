// SPDX-License-Identifier: Apache-2.0
// Two cores and a connection that breaks at any byte. After every step the invariants of docs/adr/
// 0028 are checked, (I1) to (I8), from what is seen outside.
#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/link/link_core.h"
#include "gtest/gtest.h"

namespace dtrain::link {
namespace {

using std::chrono::milliseconds;

constexpr Caps kCaps{120, 300, 6000, 10};

// One end, and what it must have seen. `wire` are the bytes on their way to the other end.
struct End {
  explicit End(const LinkCore::Options& options) : core(options) {}

  LinkCore core;
  FrameReader reader;
  std::string wire;
  bool attached = false;  // believes to have a connection
  std::vector<std::string> sent;
  std::vector<std::string> got;
  // What it gave.
  struct Given {
    uint64_t highest = 0;
    uint64_t next = 0;  // on this connection
    uint64_t ack = 0;
  } given;
  // Frames that are not kept: by kind, the newest said and taken, and the kept pieces that went
  // before the one that waits.
  std::array<int, kKinds> said{};
  std::array<int, kKinds> heard{};
  std::array<std::optional<int>, kKinds> pieces_before;
  // What it took and has not acknowledged.
  uint64_t owed_frames = 0;
  std::optional<TimePoint> owed_since;
};

class LinkModel : public ::testing::Test {
 protected:
  void Begin(uint32_t seed, bool forgets) {
    random_.seed(seed);
    forgets_ = forgets;
    same_conversation_ = true;
    now_ = TimePoint(std::chrono::hours(1));
    epochs_ = 0;
    budget_.emplace(9000);
    left_ = Make();
    right_ = Make();
  }
  std::unique_ptr<End> Make() {
    LinkCore::Options options;
    options.channel = Channel::kAgent;
    options.epoch = ++epochs_;
    options.out = kCaps;
    options.in = kCaps;
    options.forgets = forgets_;
    options.beat = milliseconds(4000);
    options.budget = &*budget_;
    return std::make_unique<End>(options);
  }
  uint32_t Pick(uint32_t below) {
    return std::uniform_int_distribution<uint32_t>(0, below - 1)(random_);
  }

  void SendKept(End& end) {
    const size_t size = Pick(8) == 0 ? kCaps.message : Pick(35);
    std::string text = absl::StrCat(end.sent.size(), ":");
    text.resize(std::max(text.size(), size), static_cast<char>('a' + Pick(26)));
    if (Pick(40) == 0) text.clear();
    if (end.core.room() < kCaps.message) return;  // as a shepherd does
    ASSERT_TRUE(end.core.Send(SharedBytes(text)).ok());
    end.sent.push_back(text);
  }
  void SendState(End& end) {
    const size_t kind = Pick(kKinds);
    auto replaced = end.core.SendUnkept(kind, SharedBytes(absl::StrCat(kind, ++end.said[kind])));
    ASSERT_TRUE(replaced.ok());
    // (I8) the newest of a kind replaces the older.
    ASSERT_EQ(replaced->has_value(), end.pieces_before[kind].has_value());
    if (replaced->has_value()) {
      ASSERT_EQ((*replaced)->view(), absl::StrCat(kind, end.said[kind] - 1));
    } else {
      end.pieces_before[kind] = 0;
    }
  }
  void CheckGiven(End& end, const Frame& frame) {
    const Header& header = frame.header;
    ASSERT_EQ(header.size, frame.payload.size());
    ASSERT_GE(header.ack, end.given.ack);
    ASSERT_EQ(header.ack, end.core.received());
    end.given.ack = header.ack;
    end.owed_frames = 0;
    end.owed_since.reset();
    if (header.keep) {
      // (I1) and (I5): one by one, from what the peer lacks on.
      ASSERT_EQ(header.sequence, end.given.next);
      ASSERT_LE(header.sequence, end.given.highest + 1);
      ++end.given.next;
      end.given.highest = std::max(end.given.highest, header.sequence);
      for (std::optional<int>& before : end.pieces_before) {
        ASSERT_LE(before ? ++*before : 0, 1);  // (I8)
      }
    } else if (frame.payload.size() > 0) {
      end.pieces_before[static_cast<size_t>(frame.payload.view()[0] - '0')].reset();
    }
  }
  // As a carrier does, which takes `room` bytes.
  void Pump(End& end, size_t room = 200) {
    while (end.wire.size() < room) {
      std::optional<Frame> frame = end.core.Next(now_);
      if (!frame) {
        // (I6)
        ASSERT_LT(end.owed_frames, kAckFrames);
        if (end.owed_since && end.core.state() == LinkCore::State::kUp) {
          ASSERT_LT(now_ - *end.owed_since, kAckDelay);
        }
        return;
      }
      CheckGiven(end, *frame);
      const auto header = EncodeHeader(frame->header);
      absl::StrAppend(&end.wire, absl::string_view(header.data(), header.size()),
                      frame->payload.view());
      if (!end.attached) end.wire.clear();
    }
  }
  void Move(End& from, End& to, size_t bytes) {
    if (!from.attached || !to.attached) return;
    bytes = std::min(bytes, from.wire.size());
    to.reader.Add(absl::string_view(from.wire).substr(0, bytes));
    from.wire.erase(0, bytes);
    for (;;) {
      auto frame = to.reader.Next();
      ASSERT_TRUE(frame.ok()) << frame.status();
      if (!frame->has_value()) return;
      Take(to, **frame);
    }
  }
  void Take(End& end, const Frame& frame) {
    auto message = end.core.OnFrame(now_, frame);
    ASSERT_TRUE(message.ok()) << message.status();
    if (frame.header.keep) {
      ++end.owed_frames;
      if (!end.owed_since) end.owed_since = now_;
      if (message->has_value()) end.got.emplace_back((*message)->view());
    } else if (message->has_value()) {
      const absl::string_view text = (*message)->view();
      const size_t kind = static_cast<size_t>(text[0] - '0');
      const int number = std::stoi(std::string(text.substr(1)));
      ASSERT_GT(number, end.heard[kind]);
      end.heard[kind] = number;
    }
  }
  // The connection is gone; each end notices by itself.
  void Cut(End& end) {
    left_->attached = right_->attached = false;
    left_->wire.clear();
    right_->wire.clear();
    left_->reader = right_->reader = FrameReader();
    end.core.Close();
  }
  void Opened(End& end) {
    end.attached = true;
    end.given.next = end.core.given() + 1;
    end.given.ack = 0;
    end.owed_frames = 0;
    end.owed_since.reset();
  }
  // Left greets, right answers, and left goes on with the answer, if it comes.
  void Connect(bool answer_comes) {
    left_->core.Close();
    right_->core.Close();
    Cut(*left_);
    const Party greeting = left_->core.Owed();
    const Party answer = right_->core.Owed();
    OpenOne(*right_, greeting);
    Pump(*right_);
    if (!answer_comes) {
      right_->wire.clear();
      right_->attached = false;
      return;
    }
    OpenOne(*left_, answer);
    same_conversation_ = true;
  }
  void OpenOne(End& end, const Party& party) {
    absl::Status opened = end.core.Open(now_, party);
    if (absl::IsAborted(opened)) {
      ASSERT_TRUE(forgets_ && &end == left_.get() && !same_conversation_);
      // The conversation begins again.
      end.sent.clear();
      end.got.clear();
      end.given = {};
      end.pieces_before = {};
      end.heard = {};
      opened = end.core.Open(now_, party);
    }
    ASSERT_TRUE(opened.ok()) << opened;
    Opened(end);
  }
  // The right end's process is another now.
  void ReplaceRight() {
    Cut(*right_);
    left_->core.Close();
    right_ = Make();
    same_conversation_ = false;
    Connect(Pick(2) == 0);
  }

  void Check(const End& from, const End& to) {
    ASSERT_LE(from.core.acked(), to.core.received());  // (I2)
    ASSERT_LE(to.core.received(), from.core.given());
    ASSERT_LE(from.core.given(), from.core.last());
    ASSERT_LE(to.got.size(), from.sent.size());  // (I3)
    for (; checked_[&from] < to.got.size(); ++checked_[&from]) {
      ASSERT_EQ(to.got[checked_[&from]], from.sent[checked_[&from]]);
    }
    ASSERT_LE(from.core.kept_bytes(), kCaps.kept);  // (I4)
    ASSERT_LT(from.core.unacked_bytes(), kCaps.window + kHeaderBytes + kCaps.piece);
  }
  void CheckBoth() {
    if (same_conversation_) {
      Check(*left_, *right_);
      Check(*right_, *left_);
    }
    ASSERT_LE(budget_->bytes(), budget_->most());
    // No bytes are shared here: the budget is what both keep.
    ASSERT_EQ(budget_->bytes(), left_->core.kept_bytes() + right_->core.kept_bytes());
  }
  // (I7)
  void Drain() {
    Connect(true);
    for (int round = 0; round < 1000; ++round) {
      Pump(*left_);
      Pump(*right_);
      Move(*left_, *right_, 1000);
      Move(*right_, *left_, 1000);
      if (round % 10 == 9) now_ += kAckDelay;
      if (left_->core.kept_bytes() + right_->core.kept_bytes() == 0) break;
    }
    ASSERT_EQ(left_->core.kept_bytes(), 0u);
    ASSERT_EQ(right_->core.kept_bytes(), 0u);
    ASSERT_EQ(budget_->bytes(), 0u);
    ASSERT_EQ(right_->got, left_->sent);
    ASSERT_EQ(left_->got, right_->sent);
  }
  void Step(uint32_t choice) {
    End& one = Pick(2) == 0 ? *left_ : *right_;
    End& other = &one == left_.get() ? *right_ : *left_;
    if (choice < 25) return SendKept(one);
    if (choice < 35) return SendState(one);
    if (choice < 60) return Pump(one);
    if (choice < 90) return Move(one, other, 1 + Pick(80));
    if (choice < 94) {
      now_ += milliseconds(Pick(1500));
      return Pump(one);
    }
    if (choice < 96) return Cut(one);
    if (choice < 99) return Connect(Pick(4) != 0);
    if (forgets_ && Pick(10) == 0) {
      checked_.clear();
      return ReplaceRight();
    }
  }
  void RunRandom(uint32_t seed, bool forgets, int steps) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", forgets " << forgets);
    Begin(seed, forgets);
    Connect(true);
    for (int i = 0; i < steps && !HasFatalFailure(); ++i) {
      Step(Pick(100));
      CheckBoth();
    }
    if (!HasFatalFailure()) Drain();
  }

  std::mt19937 random_;
  bool forgets_ = false;
  // False: the right end is another, and the left has not heard of it.
  bool same_conversation_ = true;
  TimePoint now_;
  uint64_t epochs_ = 0;
  std::optional<KeptBytes> budget_;
  std::unique_ptr<End> left_;
  std::unique_ptr<End> right_;
  std::map<const End*, size_t> checked_;
};

TEST_F(LinkModel, AHundredThousandSteps) {
  RunRandom(std::random_device{}(), false, 100'000);
  EXPECT_GT(left_->sent.size(), 1000u);
  EXPECT_GT(right_->heard[0], 100);
}

TEST_F(LinkModel, AHundredThousandStepsWithSuccessors) {
  RunRandom(std::random_device{}(), true, 100'000);
  EXPECT_GT(epochs_, 20u);
}

TEST_F(LinkModel, ManyShortLives) {
  const uint32_t seed = std::random_device{}();
  for (uint32_t i = 0; i < 300 && !HasFatalFailure(); ++i) {
    checked_.clear();
    RunRandom(seed + i, i % 2 == 0, 100);
  }
}

// A short conversation, with a break after each of its bytes, and another after each of the next.
TEST_F(LinkModel, ABreakAtEachByte) {
  const auto talk = [this](size_t bytes) {
    size_t moved = 0;
    for (int idle = 0; idle < 2 && moved < bytes && !HasFatalFailure();) {
      Pump(*left_, 1000);
      Pump(*right_, 1000);
      const size_t before = moved;
      for (End* from : {left_.get(), right_.get()}) {
        if (from->wire.empty() || moved == bytes) continue;
        Move(*from, from == left_.get() ? *right_ : *left_, 1);
        ++moved;
        CheckBoth();
      }
      idle = moved == before ? idle + 1 : 0;
    }
    return moved;
  };
  size_t all = 0;
  for (size_t first = 0; first <= all; ++first) {
    for (size_t second = 0; second <= all; second += 1 + second / 3) {
      checked_.clear();
      Begin(1, false);
      for (size_t size : {0, 7, 25, 10, 31}) {
        for (End* end : {left_.get(), right_.get()}) {
          end->sent.emplace_back(size, static_cast<char>('a' + size));
          ASSERT_TRUE(end->core.Send(SharedBytes(end->sent.back())).ok());
        }
      }
      Connect(true);
      all = std::max(all, talk(first));
      if (first == 0 && second == 0) all = talk(10'000);
      Connect(first % 2 == 0);
      if (first % 2 != 0) Connect(true);
      talk(second);
      Drain();
      ASSERT_FALSE(HasFatalFailure()) << "breaks after " << first << " and " << second << " bytes";
    }
  }
  EXPECT_GT(all, 400u);
}

}  // namespace
}  // namespace dtrain::link
