// SPDX-License-Identifier: Apache-2.0
// Several jobs whose frames one agent relays, over real sockets: what it holds for launchers and
// shepherds that do not read is bounded, and nobody else waits for them.
#include "agent/session/relay_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/session/shepherd_channel.h"
#include "common/base/clock.h"
#include "common/link/link_core.h"
#include "common/link/party.h"
#include "common/os/fd.h"
#include "tests/component/session/no_processes.h"

namespace dtrain::session {
namespace {

using link::LinkCore;
using link::SharedBytes;
using ::testing::HasSubstr;

constexpr size_t kMessage = 64 << 10;
// Of a frame of such a message in a relay.
constexpr size_t kFrameMemory = kMessage + link::kHeaderBytes + link::kRelayOverhead;

// A job: its shepherd behind a socket, and its launcher, which is asked to read or does not.
class RelayedJob {
 public:
  RelayedJob(loop::Loop& loop, std::shared_ptr<RelayRoom> room) : loop_(loop) {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    auto processes = std::make_unique<NoProcesses>(std::move(pair->first));
    processes_ = processes.get();
    channel_ = std::make_unique<ShepherdChannel>(loop_, std::move(processes));
    channel_->ShareRoom(std::move(room));
    ShepherdChannel::Handlers handlers;
    handlers.on_attached = [this](const v1::Party& shepherd) {
      EXPECT_TRUE(launcher_.Open(loop_.Now(), link::FromProto(shepherd)).ok());
      attached = true;
    };
    // As over gRPC: it takes what has come a little later.
    handlers.on_frame = [this] {
      if (reads) loop_.Post([this] { Read(); });
    };
    handlers.on_gone = [this](std::string why) { gone = std::move(why); };
    channel_->Listen(std::move(handlers));
    shepherd_channel_ = std::make_unique<loop::FrameChannel>(
        loop_, std::move(pair->second),
        [this](absl::string_view text, os::UniqueFd fd) { OnRequest(text, std::move(fd)); },
        [](const absl::Status&) {});
  }

  void Attach() {
    launcher_.Close();
    attached = false;
    ASSERT_TRUE(channel_->Attach(link::OwedBy(launcher_), std::chrono::seconds(15)).ok());
  }
  void Detach() {
    launcher_.Close();
    attached = false;
    channel_->Detach();
  }
  // The shepherd has something to say: so many messages.
  void Say(int messages) {
    for (int i = 0; i < messages; ++i) {
      ASSERT_TRUE(shepherd_.Send(SharedBytes(std::string(kMessage, 'x'))).ok());
    }
    if (carrier_ != nullptr) carrier_->Pump();
  }
  // The launcher takes a frame, and what it owes goes forth.
  bool ReadOne() {
    auto frame = channel_->NextToLauncher();
    if (!frame) return false;
    auto message = launcher_.OnFrame(loop_.Now(), *frame);
    EXPECT_TRUE(message.ok()) << message.status();
    if (message.ok() && message->has_value()) ++heard;
    while (auto owed = launcher_.Next(loop_.Now())) EXPECT_TRUE(channel_->Pass(*owed).ok());
    return true;
  }
  void Read() {
    while (attached && ReadOne()) {
    }
  }
  // The launcher sends as much as it may.
  absl::Status Order(int messages) {
    for (int i = 0; i < messages; ++i) {
      EXPECT_TRUE(launcher_.Send(SharedBytes(std::string(kMessage, 'x'))).ok());
    }
    while (auto frame = launcher_.Next(loop_.Now())) {
      if (absl::Status passed = channel_->Pass(*frame); !passed.ok()) return passed;
    }
    return absl::OkStatus();
  }
  void StopReading() { carrier_->SetPaused(true); }  // the shepherd
  void EndShepherd() { processes_->ended("killed by signal 9"); }
  // Messages that the shepherd still has.
  uint64_t unsent() const { return shepherd_.last() - shepherd_.given(); }
  uint64_t given() const { return shepherd_.given(); }
  bool was_killed() const { return processes_->was_killed; }

  bool reads = false;
  bool attached = false;
  int heard = 0;    // messages, by the launcher
  int ordered = 0;  // by the shepherd
  std::string gone;

 private:
  static LinkCore::Options OptionsOf(bool launcher) {
    LinkCore::Options options;
    options.epoch = launcher ? 1 : 2;
    options.out = launcher ? link::kToShepherd : link::kToLauncher;
    options.in = launcher ? link::kToLauncher : link::kToShepherd;
    return options;
  }
  void OnRequest(absl::string_view text, os::UniqueFd fd) {
    v1::ShepherdRequest request;
    ASSERT_TRUE(request.ParseFromString(std::string(text)));
    if (!request.has_attach()) return;
    carrier_.reset();
    shepherd_.Close();
    v1::ShepherdEvent answer;
    *answer.mutable_attached() = link::OwedBy(shepherd_);
    ASSERT_TRUE(shepherd_.Open(loop_.Now(), link::FromProto(request.attach().launcher())).ok());
    carrier_ = std::make_unique<link::SocketCarrier>(
        loop_, std::move(fd),
        link::CarrierHandlers{[this] { return shepherd_.Next(loop_.Now()); },
                              [this](const link::Frame& frame) {
                                auto message = shepherd_.OnFrame(loop_.Now(), frame);
                                ASSERT_TRUE(message.ok()) << message.status();
                                if (message->has_value()) ++ordered;
                              },
                              [](const absl::Status&) {}});
    ASSERT_TRUE(shepherd_channel_->Send(answer.SerializeAsString()).ok());
    carrier_->Pump();
  }

  loop::Loop& loop_;
  NoProcesses* processes_ = nullptr;  // the channel's
  LinkCore launcher_{OptionsOf(true)};
  LinkCore shepherd_{OptionsOf(false)};
  std::unique_ptr<ShepherdChannel> channel_;
  std::unique_ptr<loop::FrameChannel> shepherd_channel_;
  std::unique_ptr<link::SocketCarrier> carrier_;
};

class RelayRoomTest : public ::testing::Test {
 protected:
  std::unique_ptr<RelayedJob> JobIn(const std::shared_ptr<RelayRoom>& room) {
    auto job = std::make_unique<RelayedJob>(loop_, room);
    job->Attach();
    EXPECT_TRUE(Until([&] { return job->attached; }));
    return job;
  }
  bool Until(const std::function<bool()>& holds) {
    const TimePoint end = Clock::now() + std::chrono::seconds(20);
    while (!holds()) {
      if (loop_.context().run_one_until(end) == 0) return holds();
    }
    return true;
  }
  // All that can happen now has: nothing else comes with a timer that is due.
  void Settle() {
    for (size_t ran = 2; ran > 1;) {
      bool due = false;
      loop::Timer timer(loop_);
      timer.At(loop_.Now(), [&] { due = true; });
      for (ran = 0; !due && !loop_.context().stopped();) ran += loop_.context().run_one();
      ran += loop_.context().poll();
    }
  }

  loop::Loop loop_;
  std::shared_ptr<RelayRoom> room_ = std::make_shared<RelayRoom>(1 << 20, 1 << 20);
};

TEST_F(RelayRoomTest, AShepherdWaitsForALauncherThatDoesNotRead) {
  auto job = JobIn(room_);
  job->Say(48);
  Settle();
  EXPECT_GT(room_->held().back, room_->most().back);
  EXPECT_LE(room_->held().back, room_->most().back + kFrameMemory);
  EXPECT_GT(job->unsent(), 16u);
  job->reads = true;
  job->Read();
  ASSERT_TRUE(Until([&] { return job->heard == 48; }));
  EXPECT_EQ(room_->held().back, 0u);
  EXPECT_FALSE(job->was_killed());
}

// With the agent's own numbers.
TEST_F(RelayRoomTest, AllJobsOfAUserHoldSixtyFourMebibytes) {
  const auto room = std::make_shared<RelayRoom>();
  std::vector<std::unique_ptr<RelayedJob>> jobs;
  for (int i = 0; i < 24; ++i) jobs.push_back(JobIn(room));
  // Less than its window: 90 MiB in all.
  for (auto& job : jobs) job->Say(60);
  Settle();
  EXPECT_GT(room->held().back, room->most().back);
  EXPECT_LE(room->held().back, room->most().back + jobs.size() * kFrameMemory);
  for (auto& job : jobs) {
    job->reads = true;
    job->Read();
  }
  for (auto& job : jobs) {
    ASSERT_TRUE(Until([&] { return job->heard == 60; }));
  }
}

TEST_F(RelayRoomTest, AnotherUsersJobGoesOn) {
  auto job = JobIn(room_);
  auto other = JobIn(std::make_shared<RelayRoom>(1 << 20, 1 << 20));
  other->reads = true;
  job->Say(48);
  Settle();
  other->Say(200);
  ASSERT_TRUE(Until([&] { return other->heard == 200; }));
  EXPECT_EQ(job->heard, 0);
}

// What fills the room may stay for as long as its launcher likes.
TEST_F(RelayRoomTest, AnotherJobOfTheSameUserGoesOn) {
  auto job = JobIn(room_);
  auto other = JobIn(room_);
  other->reads = true;
  job->Say(48);
  Settle();
  ASSERT_FALSE(room_->fits_back());
  other->Say(200);
  ASSERT_TRUE(Until([&] { return other->heard == 200; }));
  EXPECT_FALSE(room_->fits_back());
  EXPECT_EQ(job->heard, 0);
}

TEST_F(RelayRoomTest, TwoJobsThatBothWaitDoNotWaitForEachOther) {
  auto one = JobIn(room_);
  auto two = JobIn(room_);
  one->Say(48);
  two->Say(48);
  Settle();
  EXPECT_GT(one->unsent(), 0u);
  EXPECT_GT(two->unsent(), 0u);
  EXPECT_LE(room_->held().back, room_->most().back + 2 * kFrameMemory);
  two->reads = true;
  two->Read();
  ASSERT_TRUE(Until([&] { return two->heard == 48; }));
  EXPECT_EQ(one->heard, 0);
  one->reads = true;
  one->Read();
  ASSERT_TRUE(Until([&] { return one->heard == 48; }));
}

TEST_F(RelayRoomTest, ALauncherThatComesAgainWhileItsShepherdWaitsMissesNothing) {
  auto job = JobIn(room_);
  job->Say(48);
  Settle();
  ASSERT_GT(job->unsent(), 0u);
  job->ReadOne();
  job->Attach();  // the one before was not seen to go
  ASSERT_TRUE(Until([&] { return job->attached; }));
  Settle();
  EXPECT_GT(room_->held().back, room_->most().back);
  job->Detach();
  EXPECT_EQ(room_->held().back, 0u);
  Settle();
  job->Attach();
  ASSERT_TRUE(Until([&] { return job->attached; }));
  job->reads = true;
  job->Read();
  ASSERT_TRUE(Until([&] { return job->heard == 48; }));
  EXPECT_EQ(room_->held().back, 0u);
}

// Without a launcher nothing is held, and the shepherd does not wait for one.
TEST_F(RelayRoomTest, AShepherdDoesNotWaitForALauncherThatIsGone) {
  auto job = JobIn(room_);
  job->Say(48);
  Settle();
  ASSERT_GT(job->unsent(), 0u);
  job->Detach();
  ASSERT_TRUE(Until([&] { return job->unsent() == 0; }));
}

TEST_F(RelayRoomTest, WhatAShepherdSaidBeforeItsEndIsHeardThoughItHadToWait) {
  auto job = JobIn(std::make_shared<RelayRoom>(1, 1 << 20));
  job->Say(2);
  Settle();
  ASSERT_EQ(job->unsent(), 0u);
  job->EndShepherd();
  EXPECT_EQ(job->gone, "killed by signal 9");
  job->Read();
  EXPECT_EQ(job->heard, 2);
}

TEST_F(RelayRoomTest, AJobThatIsGoneGivesItsRoomBack) {
  auto job = JobIn(room_);
  job->Say(48);
  Settle();
  job.reset();
  EXPECT_EQ(room_->held().back, 0u);
  EXPECT_EQ(room_->held().forth, 0u);
}

TEST_F(RelayRoomTest, ALauncherWhoseShepherdDoesNotReadIsEndedWithAReason) {
  auto job = JobIn(room_);
  auto other = JobIn(room_);
  job->StopReading();
  const absl::Status ended = job->Order(48);
  EXPECT_TRUE(absl::IsResourceExhausted(ended)) << ended;
  EXPECT_THAT(std::string(ended.message()), HasSubstr("1048576 bytes"));
  EXPECT_LE(room_->held().forth, room_->most().forth + kFrameMemory);
  // One whose shepherd reads does not pay for it.
  for (int i = 1; i <= 48; ++i) {
    ASSERT_TRUE(other->Order(1).ok());
    ASSERT_TRUE(Until([&] { return other->ordered == i; }));
  }
  job.reset();
  EXPECT_TRUE(other->Order(8).ok());
  ASSERT_TRUE(Until([&] { return other->ordered == 56; }));
}

}  // namespace
}  // namespace dtrain::session
