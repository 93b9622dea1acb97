// SPDX-License-Identifier: Apache-2.0
// The one between two ends: its rules one by one, and then a conversation through it in which
// connections break and it dies, again and again.
#include "common/link/frame_relay.h"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtrain::link {
namespace {

using From = FrameRelay::From;
using std::chrono::milliseconds;

constexpr Caps kForth{120, 300, 6000, 10};
constexpr Caps kBack{80, 200, 6000, 7};

Frame RelayedFrame(uint64_t sequence, std::string text, bool more = false) {
  Frame frame;
  frame.header.channel = Channel::kJob;
  frame.header.keep = sequence > 0;
  frame.header.more = more;
  frame.header.sequence = sequence;
  frame.header.size = static_cast<uint32_t>(text.size());
  frame.payload = SharedBytes(std::move(text));
  return frame;
}

class FrameRelayTest : public ::testing::Test {
 protected:
  void Meet() {
    relay_.Attach();
    auto last = relay_.OnAttached();
    ASSERT_TRUE(last.ok() && *last);
  }
  void Put(From from, const Frame& frame) {
    const absl::Status passed = relay_.Pass(from, frame);
    EXPECT_TRUE(passed.ok()) << passed;
  }
  std::vector<std::string> Taken(From end) {
    std::vector<std::string> out;
    while (auto frame = relay_.NextTo(end)) out.emplace_back(frame->payload.view());
    return out;
  }
  using Texts = std::vector<std::string>;

  FrameRelay relay_{Channel::kJob, kForth, kBack};
};

TEST_F(FrameRelayTest, FramesPassAsTheyAre) {
  Meet();
  Put(From::kFront, RelayedFrame(1, "be", true));
  Put(From::kFront, RelayedFrame(0, "state"));
  Put(From::kFront, RelayedFrame(2, "gin"));
  Put(From::kBack, RelayedFrame(7, "yes"));
  EXPECT_EQ(Taken(From::kBack), (Texts{"be", "state", "gin"}));
  auto frame = relay_.NextTo(From::kFront);
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.sequence, 7u);
  EXPECT_EQ(frame->payload.view(), "yes");
  EXPECT_EQ(relay_.queued_bytes(From::kBack), 0u);
}

TEST_F(FrameRelayTest, NothingComesBeforeTheEndsHaveMet) {
  EXPECT_FALSE(relay_.OnAttached().ok()) << "nobody has asked for it";
  relay_.Attach();
  EXPECT_FALSE(relay_.attached());
  EXPECT_FALSE(relay_.Pass(From::kFront, RelayedFrame(1, "x")).ok());
  ASSERT_TRUE(*relay_.OnAttached());
  EXPECT_TRUE(relay_.attached());
  EXPECT_FALSE(relay_.OnAttached().ok()) << "twice";
}

// A frame of a byte costs more than its bytes.
TEST_F(FrameRelayTest, ItsMemoryIsThatOfAllFramesWithWhatEachTakes) {
  Meet();
  EXPECT_EQ(relay_.memory(From::kFront), 0u);
  Put(From::kBack, RelayedFrame(1, "x"));
  Put(From::kBack, RelayedFrame(0, "state"));
  EXPECT_EQ(relay_.memory(From::kFront), 2 * (kHeaderBytes + kRelayOverhead) + 6);
  EXPECT_EQ(relay_.memory(From::kBack), 0u);
  Taken(From::kFront);
  EXPECT_EQ(relay_.memory(From::kFront), 0u);
}

// A shepherd has no word in what the agent says.
TEST_F(FrameRelayTest, NobodySpeaksOnAnothersChannel) {
  Meet();
  Frame frame = RelayedFrame(1, "x");
  frame.header.channel = Channel::kAgent;
  EXPECT_TRUE(absl::IsDataLoss(relay_.Pass(From::kBack, frame)));
  EXPECT_TRUE(absl::IsDataLoss(relay_.Pass(From::kFront, frame)));
}

// The back end does not know that the front end is gone.
TEST_F(FrameRelayTest, WithoutAFrontEndFramesAreDropped) {
  Meet();
  Put(From::kBack, RelayedFrame(1, "one"));
  relay_.Detach();
  Put(From::kBack, RelayedFrame(2, "two"));
  EXPECT_EQ(Taken(From::kFront), Texts{});
  // It has nothing of them, and gets both.
  Meet();
  Put(From::kBack, RelayedFrame(1, "one"));
  Put(From::kBack, RelayedFrame(2, "two"));
  EXPECT_EQ(Taken(From::kFront), (Texts{"one", "two"}));
}

TEST_F(FrameRelayTest, WhatTheBackEndSentBeforeItsLastAnswerIsForNobody) {
  relay_.Attach();
  relay_.Attach();  // another connection
  ASSERT_FALSE(*relay_.OnAttached());
  Put(From::kBack, RelayedFrame(1, "early"));
  ASSERT_TRUE(*relay_.OnAttached());
  Put(From::kBack, RelayedFrame(1, "again"));
  EXPECT_EQ(Taken(From::kFront), Texts{"again"});
}

TEST_F(FrameRelayTest, WhatWaitedForAnotherConnectionIsDropped) {
  Meet();
  Put(From::kFront, RelayedFrame(1, "a", true));
  Put(From::kBack, RelayedFrame(1, "b"));
  Meet();
  EXPECT_EQ(Taken(From::kFront), Texts{});
  EXPECT_EQ(Taken(From::kBack), Texts{});
}

// A launcher that reads nothing, and a shepherd that heeds no window.
TEST_F(FrameRelayTest, MoreThanTheWindowIsAnError) {
  Meet();
  const std::string piece(kMostPayload, 'x');
  ASSERT_TRUE(relay_.Pass(From::kBack, RelayedFrame(1, piece)).ok());
  EXPECT_TRUE(absl::IsDataLoss(relay_.Pass(From::kBack, RelayedFrame(2, piece))));
}

// Of a byte each: they take more memory than the window has bytes.
TEST_F(FrameRelayTest, MoreSmallFramesThanMayBeUnderWayAreAnError) {
  FrameRelay relay(Channel::kJob, kToShepherd, kToLauncher);
  relay.Attach();
  ASSERT_TRUE(*relay.OnAttached());
  uint64_t next = 1;
  for (; next <= kMostUnacked; ++next) {
    ASSERT_TRUE(relay.Pass(From::kFront, RelayedFrame(next, "x")).ok());
  }
  EXPECT_TRUE(absl::IsDataLoss(relay.Pass(From::kFront, RelayedFrame(next, "x"))));
}

TEST_F(FrameRelayTest, OfWhatIsNotKeptTheNewestStay) {
  Meet();
  Put(From::kBack, RelayedFrame(1, "kept"));
  for (char c = 'a'; c <= 'z'; ++c) Put(From::kBack, RelayedFrame(0, std::string(kMostUnkept, c)));
  EXPECT_LE(relay_.queued_bytes(From::kFront), 5 * (kMostUnkept + kHeaderBytes));
  std::string firsts;
  for (const std::string& text : Taken(From::kFront)) firsts += text[0];
  EXPECT_EQ(firsts, "kwxyz");
  EXPECT_EQ(relay_.queued_bytes(From::kFront), 0u);
  EXPECT_TRUE(absl::IsDataLoss(
      relay_.Pass(From::kBack, RelayedFrame(0, std::string(kMostUnkept + 1, 'x')))));
}

// A launcher that does not read costs its agent the same for each frame, however many wait.
TEST_F(FrameRelayTest, WhatIsNotKeptIsDroppedAtOnceBehindAFullWindow) {
  FrameRelay relay(Channel::kJob, kToShepherd, kToLauncher);
  relay.Attach();
  ASSERT_TRUE(*relay.OnAttached());
  uint64_t sequence = 0;
  while (sequence < kMostUnacked) {
    ASSERT_TRUE(relay.Pass(From::kBack, RelayedFrame(++sequence, "x")).ok());
  }
  const Frame unkept = RelayedFrame(0, std::string(1 << 10, 'u'));
  const std::clock_t begin = std::clock();
  for (int i = 0; i < 500'000; ++i) ASSERT_TRUE(relay.Pass(From::kBack, unkept).ok());
  // Each would go past 32,768 others: a minute.
  EXPECT_LT(std::clock() - begin, 10 * CLOCKS_PER_SEC);
  for (uint64_t next = 1; next <= sequence; ++next) {
    ASSERT_EQ(relay.NextTo(From::kFront)->header.sequence, next);
  }
}

TEST_F(FrameRelayTest, ABareAcknowledgementReplacesTheOneBeforeIt) {
  Meet();
  for (uint64_t ack = 1; ack <= 1000; ++ack) {
    Frame bare;
    bare.header.channel = Channel::kJob;
    bare.header.ack = ack;
    Put(From::kBack, bare);
  }
  EXPECT_EQ(relay_.queued_bytes(From::kFront), kHeaderBytes);
  EXPECT_EQ(relay_.NextTo(From::kFront)->header.ack, 1000u);
}

// ---- a whole conversation ------------------------------------------------------------------

// What is on its way: a frame, or the words by which the ends meet: Hello and Attach up to the back
// end, Attached and Welcome down from it.
struct Words {
  Party party;
};
using Item = std::variant<Frame, Words>;

struct RelayedEnd {
  explicit RelayedEnd(const LinkCore::Options& options) : core(options) {}
  LinkCore core;
  std::vector<std::string> sent, got;
};

class RelayModel : public ::testing::Test {
 protected:
  static LinkCore::Options OptionsOf(uint64_t epoch, const Caps& out, const Caps& in) {
    LinkCore::Options options;
    options.channel = Channel::kJob;
    options.epoch = epoch;
    options.out = out;
    options.in = in;
    options.beat = milliseconds(4000);
    return options;
  }
  uint32_t Pick(uint32_t below) {
    return std::uniform_int_distribution<uint32_t>(0, below - 1)(random_);
  }

  void SendSome(RelayedEnd& end, const Caps& caps) {
    if (end.core.room() < caps.message) return;
    std::string text = absl::StrCat(end.sent.size(), ":");
    text.resize(std::max<size_t>(text.size(), Pick(6) == 0 ? caps.message : Pick(30)), 'x');
    ASSERT_TRUE(end.core.Send(SharedBytes(text)).ok());
    end.sent.push_back(std::move(text));
    if (Pick(5) == 0) {
      ASSERT_TRUE(end.core.SendUnkept(Pick(4), SharedBytes("state")).ok());
    }
  }
  void PumpEnd(RelayedEnd& end, std::deque<Item>& out) {
    while (out.size() < 4) {
      auto frame = end.core.Next(now_);
      if (!frame) return;
      out.push_back(*std::move(frame));
    }
  }
  void PumpRelay() {
    if (!relay_) return;
    while (back_in_.size() < 4) {
      auto frame = relay_->NextTo(From::kBack);
      if (!frame) break;
      back_in_.push_back(*std::move(frame));
    }
    while (front_linked_ && front_in_.size() < 4) {
      auto frame = relay_->NextTo(From::kFront);
      if (!frame) break;
      front_in_.push_back(*std::move(frame));
    }
  }
  void TakeAt(RelayedEnd& end, const Frame& frame) {
    auto message = end.core.OnFrame(now_, frame);
    ASSERT_TRUE(message.ok()) << message.status();
    if (frame.header.keep && message->has_value()) end.got.emplace_back((*message)->view());
  }
  void RelayFrom(From from, Frame frame) {
    const absl::Status passed = relay_->Pass(from, std::move(frame));
    ASSERT_TRUE(passed.ok()) << passed;
  }

  // One item arrives somewhere.
  void Deliver(std::deque<Item>& queue) {
    if (queue.empty()) return;
    Item item = std::move(queue.front());
    queue.pop_front();
    const auto* words = std::get_if<Words>(&item);
    if (&queue == &front_out_) {
      if (words == nullptr) {
        return RelayFrom(From::kFront, std::get<Frame>(std::move(item)));
      }
      relay_->Attach();
      attached_ = connection_;
      back_in_.push_back(*words);
    } else if (&queue == &back_in_) {
      if (words == nullptr) return TakeAt(*back_, std::get<Frame>(item));
      back_->core.Close();
      back_out_.push_back(Words{back_->core.Owed()});
      ASSERT_TRUE(back_->core.Open(now_, words->party).ok());
    } else if (&queue == &back_out_) {
      if (words == nullptr) {
        return RelayFrom(From::kBack, std::get<Frame>(std::move(item)));
      }
      auto last = relay_->OnAttached();
      ASSERT_TRUE(last.ok()) << last.status();
      if (*last && connected_ && attached_ == connection_) {
        front_linked_ = true;
        front_in_.push_back(*words);
      }
    } else {
      if (words == nullptr) return TakeAt(*front_, std::get<Frame>(item));
      ASSERT_TRUE(front_->core.Open(now_, words->party).ok());
    }
  }

  // The front end's connection breaks; the one between may hear of it, or of the next one first.
  void Cut(bool heard) {
    front_->core.Close();
    front_in_.clear();
    front_out_.clear();
    connected_ = front_linked_ = false;
    if (relay_ && heard) relay_->Detach();
  }
  void Connect() {
    if (connected_ || !relay_) return;
    connected_ = true;
    ++connection_;
    front_out_.push_back(Words{front_->core.Owed()});
  }
  void Die() {
    Cut(false);
    relay_.reset();
    back_in_.clear();
    back_out_.clear();
    back_->core.Close();
    ++lives_;
  }
  void Step() {
    const uint32_t choice = Pick(1000);
    if (choice < 150) return SendSome(*front_, kForth);
    if (choice < 300) return SendSome(*back_, kBack);
    if (choice < 500) return PumpAll();
    if (choice < 940) {
      std::deque<Item>* queues[] = {&front_out_, &front_in_, &back_out_, &back_in_};
      return Deliver(*queues[Pick(4)]);
    }
    if (choice < 970) {
      now_ += milliseconds(Pick(1500));
      return;
    }
    if (choice < 980) return Cut(Pick(2) == 0);
    if (choice < 996) {
      if (!relay_) relay_.emplace(Channel::kJob, kForth, kBack);
      return Connect();
    }
    if (Pick(3) == 0) Die();
  }
  void PumpAll() {
    if (connected_) PumpEnd(*front_, front_out_);
    if (relay_) PumpEnd(*back_, back_out_);
    PumpRelay();
  }
  void CheckEnds() {
    for (auto [from, to] : {std::pair(&*front_, &*back_), std::pair(&*back_, &*front_)}) {
      ASSERT_LE(to->got.size(), from->sent.size());
      if (!to->got.empty()) {
        ASSERT_EQ(to->got.back(), from->sent[to->got.size() - 1]);
      }
      ASSERT_LE(from->core.acked(), to->core.received());
    }
  }
  void Drain() {
    if (!relay_) relay_.emplace(Channel::kJob, kForth, kBack);
    Connect();
    for (int i = 0; i < 4000; ++i) {
      PumpAll();
      for (auto* queue : {&front_out_, &front_in_, &back_out_, &back_in_}) Deliver(*queue);
      if (i < 3900) now_ += milliseconds(20);
    }
    ASSERT_EQ(front_->got, back_->sent);
    ASSERT_EQ(back_->got, front_->sent);
    ASSERT_EQ(front_->core.kept_bytes() + back_->core.kept_bytes(), 0u);
    ASSERT_EQ(relay_->queued_bytes(From::kFront) + relay_->queued_bytes(From::kBack), 0u);
  }
  void RunRandom(uint32_t seed, int steps) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    random_.seed(seed);
    front_.emplace(OptionsOf(1, kForth, kBack));
    back_.emplace(OptionsOf(2, kBack, kForth));
    relay_.emplace(Channel::kJob, kForth, kBack);
    for (auto* queue : {&front_out_, &front_in_, &back_out_, &back_in_}) queue->clear();
    connected_ = front_linked_ = false;
    for (int i = 0; i < steps && !HasFatalFailure(); ++i) {
      Step();
      CheckEnds();
    }
    if (!HasFatalFailure()) Drain();
  }

  std::mt19937 random_;
  TimePoint now_{std::chrono::hours(1)};
  std::optional<RelayedEnd> front_, back_;
  std::optional<FrameRelay> relay_;
  // As connections are: in order. A front end that is gone leaves nothing behind.
  std::deque<Item> front_out_, front_in_, back_out_, back_in_;
  bool connected_ = false;  // the front end
  int connection_ = 0;
  int attached_ = 0;           // the last that the one between has heard of
  bool front_linked_ = false;  // … and was told
  int lives_ = 0;
};

TEST_F(RelayModel, AConversationSurvivesBreaksAndDeaths) {
  RunRandom(std::random_device{}(), 200'000);
  EXPECT_GT(front_->sent.size(), 100u);
  EXPECT_GT(back_->sent.size(), 100u);
  EXPECT_GT(lives_, 50);
  RecordProperty("sent", static_cast<int>(front_->sent.size() + back_->sent.size()));
  RecordProperty("lives", lives_);
}

TEST_F(RelayModel, ManyShortLives) {
  const uint32_t seed = std::random_device{}();
  for (uint32_t i = 0; i < 200 && !HasFatalFailure(); ++i) RunRandom(seed + i, 400);
}

}  // namespace
}  // namespace dtrain::link
