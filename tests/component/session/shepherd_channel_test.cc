// SPDX-License-Identifier: Apache-2.0
// The agent between a launcher and a shepherd, both of which the test plays over real sockets. The
// shepherd is its user's, and may be anything.
#include "agent/session/shepherd_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/link/link_core.h"
#include "common/link/party.h"
#include "common/os/fd.h"
#include "tests/component/session/no_processes.h"

namespace dtrain::session {
namespace {

using link::Frame;
using link::LinkCore;
using link::SharedBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

LinkCore::Options OptionsOf(bool launcher) {
  LinkCore::Options options;
  options.epoch = launcher ? 1 : 2;
  options.out = launcher ? link::kToShepherd : link::kToLauncher;
  options.in = launcher ? link::kToLauncher : link::kToShepherd;
  return options;
}

SharedBytes Exit(uint32_t rank) {
  v1::JobEvent event;
  event.mutable_exit()->set_rank(rank);
  return SharedBytes(event.SerializeAsString());
}
SharedBytes Signal(int number) {
  v1::JobRequest request;
  request.mutable_signal()->set_signal(number);
  return SharedBytes(request.SerializeAsString());
}

class ShepherdChannelTest : public ::testing::Test {
 protected:
  ShepherdChannelTest() {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    auto processes = std::make_unique<NoProcesses>(std::move(pair->first));
    processes_ = processes.get();
    shepherd_fd_ = std::move(pair->second);
    channel_.emplace(loop_, std::move(processes));
    ShepherdChannel::Handlers handlers;
    handlers.on_event = [this](const v1::ShepherdEvent& event) {
      events_.push_back(event.kind_case());
    };
    handlers.on_attached = [this](const v1::Party& shepherd) {
      EXPECT_TRUE(launcher_.Open(loop_.Now(), link::FromProto(shepherd)).ok());
      attached_ = true;
    };
    handlers.on_frame = [this] { PumpLauncher(); };
    handlers.on_gone = [this](std::string why) { gone_ = std::move(why); };
    channel_->Listen(std::move(handlers));
  }

  // The launcher, without a connection to the agent: its frames are handed over at once.
  void Attach() {
    launcher_.Close();
    attached_ = false;
    ASSERT_TRUE(channel_->Attach(link::OwedBy(launcher_), std::chrono::seconds(15)).ok());
  }
  void PumpLauncher() {
    while (auto frame = channel_->NextToLauncher()) {
      auto message = launcher_.OnFrame(loop_.Now(), *frame);
      ASSERT_TRUE(message.ok()) << message.status();
      if (!message->has_value()) continue;
      v1::JobEvent event;
      ASSERT_TRUE(event.ParseFromString(std::string((*message)->view())));
      heard_.push_back(static_cast<int>(event.exit().rank()));
    }
    while (auto frame = launcher_.Next(loop_.Now())) {
      ASSERT_TRUE(channel_->Pass(*frame).ok());
    }
  }

  // The shepherd listens: answers each Attach.
  void StartShepherd() {
    shepherd_channel_ = std::make_unique<loop::FrameChannel>(
        loop_, std::move(shepherd_fd_),
        [this](absl::string_view text, os::UniqueFd fd) { OnRequest(text, std::move(fd)); },
        [](const absl::Status&) {});
  }
  void OnRequest(absl::string_view text, os::UniqueFd fd) {
    v1::ShepherdRequest request;
    ASSERT_TRUE(request.ParseFromString(std::string(text)));
    ++requests_;
    if (!request.has_attach()) return;
    EXPECT_EQ(request.attach().silence_ms(), 15'000u);
    ASSERT_TRUE(fd);
    link_.reset();
    shepherd_.Close();
    v1::ShepherdEvent answer;
    *answer.mutable_attached() = link::OwedBy(shepherd_);
    ASSERT_TRUE(shepherd_.Open(loop_.Now(), link::FromProto(request.attach().launcher())).ok());
    if (raw_) {
      raw_fd_ = std::move(fd);
      while (auto frame = shepherd_.Next(loop_.Now())) {
        const auto header = link::EncodeHeader(frame->header);
        std::string bytes(header.data(), header.size());
        absl::StrAppend(&bytes, frame->payload.view());
        ASSERT_EQ(write(raw_fd_.get(), bytes.data(), bytes.size()),
                  static_cast<ssize_t>(bytes.size()));
      }
    } else {
      link_ = std::make_unique<link::SocketCarrier>(
          loop_, std::move(fd),
          link::CarrierHandlers{[this] { return shepherd_.Next(loop_.Now()); },
                                [this](const Frame& frame) { OnShepherdFrame(frame); },
                                [](const absl::Status&) {}});
    }
    ASSERT_TRUE(shepherd_channel_->Send(answer.SerializeAsString()).ok());
    if (link_ != nullptr) link_->Pump();
  }
  void OnShepherdFrame(const Frame& frame) {
    auto message = shepherd_.OnFrame(loop_.Now(), frame);
    ASSERT_TRUE(message.ok()) << message.status();
    if (!message->has_value()) return;
    v1::JobRequest request;
    ASSERT_TRUE(request.ParseFromString(std::string((*message)->view())));
    signals_.push_back(request.signal().signal());
    requests_when_heard_ = requests_;
  }
  void SayExit(uint32_t rank) {
    ASSERT_TRUE(shepherd_.Send(Exit(rank)).ok());
    if (link_ != nullptr) link_->Pump();
  }
  void SaySignal(int number) {
    ASSERT_TRUE(launcher_.Send(Signal(number)).ok());
    PumpLauncher();
  }

  bool Until(const std::function<bool()>& holds) {
    const TimePoint end = Clock::now() + std::chrono::seconds(20);
    while (!holds()) {
      if (loop_.context().run_one_until(end) == 0) return holds();
    }
    return true;
  }

  loop::Loop loop_;
  NoProcesses* processes_ = nullptr;  // the channel's
  std::optional<ShepherdChannel> channel_;
  LinkCore launcher_{OptionsOf(true)};
  LinkCore shepherd_{OptionsOf(false)};
  os::UniqueFd shepherd_fd_;
  std::unique_ptr<loop::FrameChannel> shepherd_channel_;
  std::unique_ptr<link::SocketCarrier> link_;
  bool raw_ = false;  // what comes with Attach is left to the test
  os::UniqueFd raw_fd_;
  bool attached_ = false;
  int requests_ = 0;
  int requests_when_heard_ = 0;
  std::vector<int> heard_, signals_;
  std::vector<v1::ShepherdEvent::KindCase> events_;
  std::string gone_;
};

TEST_F(ShepherdChannelTest, FramesPassBothWaysOnceTheShepherdHasAnswered) {
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  SayExit(3);
  SaySignal(7);
  ASSERT_TRUE(Until([&] { return !heard_.empty() && !signals_.empty(); }));
  EXPECT_THAT(heard_, ElementsAre(3));
  EXPECT_THAT(signals_, ElementsAre(7));
}

// Each time on another socket, with what was under way on the one before lost.
TEST_F(ShepherdChannelTest, ALauncherThatComesAgainAndAgainMissesNothingAndHearsNothingTwice) {
  StartShepherd();
  std::vector<int> expected;
  for (int i = 0; i < 50; ++i) {
    Attach();
    if (i % 3 == 0) {
      ASSERT_TRUE(Until([&] { return attached_; }));
    }
    expected.push_back(i);
    SayExit(static_cast<uint32_t>(i));
    SaySignal(i);
    if (i % 5 == 0) channel_->Detach();
  }
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  PumpLauncher();
  ASSERT_TRUE(Until([&] { return heard_.size() == 50 && signals_.size() == 50; }));
  EXPECT_EQ(heard_, expected);
  EXPECT_EQ(signals_, expected);
}

TEST_F(ShepherdChannelTest, WhatIsSaidWhileTheLauncherIsAwayIsSaidAgain) {
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  launcher_.Close();
  channel_->Detach();
  SayExit(4);
  EXPECT_TRUE(heard_.empty());
  Attach();
  ASSERT_TRUE(Until([&] { return !heard_.empty(); }));
  EXPECT_THAT(heard_, ElementsAre(4));
}

// Frames have a socket of their own; what they follow from must not be overtaken.
TEST_F(ShepherdChannelTest, FramesWaitForWhatWasSaidBesideThem) {
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  v1::ShepherdRequest large;
  large.mutable_keep_running()->mutable_hello()->set_probe_token(std::string(1 << 20, 'x'));
  ASSERT_TRUE(channel_->Send(large).ok());
  const int before = requests_;
  SaySignal(9);
  ASSERT_TRUE(Until([&] { return !signals_.empty(); }));
  EXPECT_EQ(requests_when_heard_, before + 1);
}

// Two sockets are read in any order.
TEST_F(ShepherdChannelTest, AFrameThatIsSeenBeforeTheAnswerIsNotLost) {
  raw_ = true;
  SayExit(5);
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return !heard_.empty(); }));
  EXPECT_THAT(heard_, ElementsAre(5));
}

TEST_F(ShepherdChannelTest, WhatIsNoFrameIsNotWhatAShepherdSends) {
  raw_ = true;
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  ASSERT_EQ(write(raw_fd_.get(), std::string(24, 'x').c_str(), 24), 24);
  ASSERT_TRUE(Until([&] { return !gone_.empty(); }));
  EXPECT_TRUE(processes_->was_killed);
  EXPECT_THAT(gone_, HasSubstr("invalid frame"));
}

// It would speak as the agent.
TEST_F(ShepherdChannelTest, AFrameOfAnotherChannelIsNotEither) {
  raw_ = true;
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  link::Header header;
  header.channel = link::Channel::kAgent;
  header.keep = true;
  header.sequence = 1;
  const auto bytes = link::EncodeHeader(header);
  ASSERT_EQ(write(raw_fd_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ASSERT_TRUE(Until([&] { return !gone_.empty(); }));
  EXPECT_TRUE(processes_->was_killed);
  EXPECT_THAT(gone_, HasSubstr("a frame of channel 0 came for channel 1"));
}

// The agent does not read it: the launcher sees that it is wrong.
TEST_F(ShepherdChannelTest, WhatIsInAFrameIsTheEndsAffair) {
  raw_ = true;
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  link::Header header;
  header.channel = link::Channel::kJob;
  header.keep = true;
  header.sequence = 5;
  header.size = 3;
  std::string bytes(link::EncodeHeader(header).data(), link::kHeaderBytes);
  bytes += "\xff\xff\xff";
  std::optional<Frame> passed;
  ShepherdChannel::Handlers handlers;
  handlers.on_frame = [&] { passed = channel_->NextToLauncher(); };
  channel_->Listen(std::move(handlers));
  ASSERT_EQ(write(raw_fd_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ASSERT_TRUE(Until([&] { return passed.has_value(); }));
  EXPECT_EQ(passed->header.sequence, 5u);
  EXPECT_EQ(passed->payload.view(), "\xff\xff\xff");
  EXPECT_FALSE(processes_->was_killed);
}

TEST_F(ShepherdChannelTest, OneThatClaimsWhatNobodyHasSentIsKilled) {
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  v1::ShepherdEvent answer;
  answer.mutable_attached()->set_epoch(2);
  ASSERT_TRUE(shepherd_channel_->Send(answer.SerializeAsString()).ok());
  ASSERT_TRUE(Until([&] { return !gone_.empty(); }));
  EXPECT_TRUE(processes_->was_killed);
  EXPECT_THAT(gone_, HasSubstr("answered what was not asked"));
}

// What it sends might be any file or device, and cost the agent a read that never returns.
TEST_F(ShepherdChannelTest, OneThatSendsADescriptorIsKilled) {
  StartShepherd();
  v1::ShepherdEvent event;
  event.mutable_report();
  ASSERT_TRUE(shepherd_channel_->Send(event.SerializeAsString(), STDERR_FILENO).ok());
  ASSERT_TRUE(Until([&] { return !gone_.empty(); }));
  EXPECT_TRUE(processes_->was_killed);
  EXPECT_THAT(gone_, HasSubstr("descriptor"));
  EXPECT_TRUE(events_.empty());
}

// Each is work for the loop of all.
TEST_F(ShepherdChannelTest, OneThatNeverStopsIsKilled) {
  StartShepherd();
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(shepherd_channel_->Send(v1::ShepherdEvent().SerializeAsString()).ok());
  }
  ASSERT_TRUE(Until([&] { return !gone_.empty(); }));
  EXPECT_TRUE(processes_->was_killed);
  EXPECT_THAT(gone_, HasSubstr("it sent 10001 messages"));
}

// What it says of itself the agent keeps, beside all other jobs'.
TEST_F(ShepherdChannelTest, OneThatReportsWithoutMeasureIsKilled) {
  StartShepherd();
  v1::ShepherdEvent event;
  event.mutable_report()->mutable_job()->add_argv(std::string(5 << 20, 'x'));
  ASSERT_TRUE(shepherd_channel_->Send(event.SerializeAsString()).ok());
  ASSERT_TRUE(Until([&] { return !gone_.empty(); }));
  EXPECT_TRUE(processes_->was_killed);
  EXPECT_THAT(gone_, HasSubstr("of which 4194304 are taken at most"));
  EXPECT_TRUE(events_.empty());
}

// Two bytes each, and a hundred times that in memory.
TEST_F(ShepherdChannelTest, OneWhoseReportUnfoldsIsKilled) {
  StartShepherd();
  v1::ShepherdEvent event;
  for (int i = 0; i < 500'000; ++i) event.mutable_report()->mutable_job()->add_ranks();
  ASSERT_TRUE(shepherd_channel_->Send(event.SerializeAsString()).ok());
  ASSERT_TRUE(Until([&] { return !gone_.empty(); }));
  EXPECT_TRUE(processes_->was_killed);
  EXPECT_THAT(gone_, HasSubstr("cannot be read"));
  EXPECT_TRUE(events_.empty());
}

TEST_F(ShepherdChannelTest, ItIsAskedForOutputOverASocket) {
  StartShepherd();
  auto socket = channel_->ReadLogs({});
  ASSERT_TRUE(socket.ok()) << socket.status();
  ASSERT_TRUE(Until([&] { return requests_ == 1; }));
  processes_->ended("killed by signal 9");
  EXPECT_TRUE(absl::IsUnavailable(channel_->ReadLogs({}).status()));
}

// The sockets that it does not take are ours meanwhile.
TEST_F(ShepherdChannelTest, OneThatIsStoppedIsNotAskedForEver) {
  for (int i = 0; i < 2000 && !processes_->was_killed; ++i) {
    ASSERT_TRUE(channel_->ReadLogs({}).ok());
  }
  EXPECT_TRUE(processes_->was_killed);
}

// A process that is killed may end within a frame. How it ended is what is told.
TEST_F(ShepherdChannelTest, HalfAFrameAtTheEndOfTheProcessIsNoFault) {
  raw_ = true;
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  ASSERT_EQ(write(raw_fd_.get(), "1234", 4), 4);
  raw_fd_.Reset();
  processes_->ended("killed by signal 9");
  EXPECT_EQ(gone_, "killed by signal 9");
  EXPECT_FALSE(processes_->was_killed);
}

// It does not read what comes when it has ended. Its end is seen on one socket before its last word
// on the other.
TEST_F(ShepherdChannelTest, OneThatLeavesWordsOfOursUnreadIsHeardToItsEnd) {
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  ASSERT_TRUE(shepherd_.Send(Exit(6)).ok());
  ASSERT_TRUE(channel_->Send(v1::ShepherdRequest()).ok());  // closing then resets the connection
  shepherd_channel_.reset();
  link_->Pump();
  ASSERT_TRUE(Until([&] { return !heard_.empty(); }));
  EXPECT_THAT(heard_, ElementsAre(6));
  EXPECT_EQ(gone_, "");
  processes_->ended("exited with code 0");
  EXPECT_EQ(gone_, "exited with code 0");
  EXPECT_FALSE(processes_->was_killed);
}

TEST_F(ShepherdChannelTest, OneThatClosesItsSocketAndLivesOnIsKilled) {
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  ASSERT_TRUE(channel_->Send(v1::ShepherdRequest()).ok());
  shepherd_channel_.reset();
  ASSERT_TRUE(Until([&] { return !gone_.empty(); }));
  EXPECT_TRUE(processes_->was_killed);
}

// What it said last is heard before its end is.
TEST_F(ShepherdChannelTest, WhatWasSaidBeforeTheEndIsHeard) {
  StartShepherd();
  Attach();
  ASSERT_TRUE(Until([&] { return attached_; }));
  SayExit(1);
  SayExit(2);
  v1::ShepherdEvent ended;
  ended.mutable_ended();
  ASSERT_TRUE(shepherd_channel_->Send(ended.SerializeAsString()).ok());
  processes_->ended("exited with code 0");
  EXPECT_THAT(heard_, ElementsAre(1, 2));
  EXPECT_THAT(events_, ElementsAre(v1::ShepherdEvent::kEnded));
  EXPECT_EQ(gone_, "exited with code 0");
}

}  // namespace
}  // namespace dtrain::session
