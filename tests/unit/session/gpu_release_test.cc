// SPDX-License-Identifier: Apache-2.0
#include "agent/session/gpu_release.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/session/session_core.h"
#include "common/base/exit_code.h"

// D14: GPU memory that is still held after the end.
namespace dtrain::session {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kWorker = 4711;

v1::Gpu MakeGpu(uint64_t used_mib, uint32_t index = 0) {
  v1::Gpu gpu;
  gpu.set_index(index);
  gpu.set_uuid("GPU-" + std::to_string(index));
  gpu.set_memory_total_bytes(80 * 1024 * kMiB);
  gpu.set_memory_used_bytes(used_mib * kMiB);
  return gpu;
}

v1::Gpu With(v1::Gpu gpu, uint32_t pid, uint64_t mib, const std::string& name) {
  v1::GpuProcess* process = gpu.add_processes();
  process->set_pid(pid);
  process->set_name(name);
  process->set_memory_bytes(mib * kMiB);
  return gpu;
}

const std::set<std::string> kGiven = {"GPU-0"};

std::vector<HeldGpu> HeldAfter(const v1::Gpu& before, const v1::Gpu& after,
                               const std::vector<uint32_t>& living = {}) {
  GpuRelease release;
  release.Before({before, MakeGpu(0, 1)});
  release.Given(kGiven);
  release.Started({kWorker});
  EXPECT_TRUE(release.watched());
  release.After({after, MakeGpu(70'000, 1)}, living);
  return release.FindHeld();
}

TEST(GpuReleaseTest, AGpuAsItWasIsFree) {
  EXPECT_THAT(HeldAfter(MakeGpu(10), MakeGpu(10)), SizeIs(0));
  EXPECT_THAT(HeldAfter(MakeGpu(10), MakeGpu(200)), SizeIs(0)) << "a driver's own use changes";
  EXPECT_THAT(HeldAfter(MakeGpu(9000), MakeGpu(10)), SizeIs(0));
}

TEST(GpuReleaseTest, AGpuOfNoWorkerIsNotLookedAt) {
  GpuRelease release;
  release.Before({MakeGpu(0)});
  release.Given(kGiven);
  release.Given({});  // --gpu-bind none
  EXPECT_FALSE(release.watched());
  release = GpuRelease();
  release.Given(kGiven);
  EXPECT_FALSE(release.watched()) << "nobody knows how it was";
}

TEST(GpuReleaseTest, AWorkerThatTheDriverStillHasIsOurs) {
  const auto held = HeldAfter(MakeGpu(0), With(MakeGpu(900), kWorker, 900, ""));
  ASSERT_THAT(held, SizeIs(1));
  EXPECT_TRUE(held[0].ours);
  EXPECT_THAT(held[0].text, AllOf(HasSubstr("GPU 0 (GPU-0)"), HasSubstr("900 MiB"),
                                  HasSubstr("pid 4711, which has ended"),
                                  HasSubstr("nvidia-smi --gpu-reset -i 0")));
}

TEST(GpuReleaseTest, AProcessOfTheJobThatStillLivesIsOursHoweverLittleItHolds) {
  const auto held = HeldAfter(MakeGpu(0), With(MakeGpu(3), 5000, 3, "python"), {5000});
  ASSERT_THAT(held, SizeIs(1));
  EXPECT_TRUE(held[0].ours);
  EXPECT_THAT(held[0].text, AllOf(HasSubstr("pid 5000"), Not(HasSubstr("has ended"))));
}

TEST(GpuReleaseTest, MemoryWithoutAnOwnerIsHeldByNobodyKnown) {
  const auto held = HeldAfter(MakeGpu(100), MakeGpu(40'100));
  ASSERT_THAT(held, SizeIs(1));
  EXPECT_FALSE(held[0].ours);
  EXPECT_THAT(held[0].text, AllOf(HasSubstr("GPU 0 (GPU-0)"), HasSubstr("40000 MiB more"),
                                  HasSubstr("no visible process")));
}

// A shepherd may say ever new ones.
TEST(GpuReleaseTest, AJobHasOnlySoManyPids) {
  GpuRelease release;
  release.Before({MakeGpu(0)});
  release.Given(kGiven);
  constexpr uint32_t kFew = 1 << 16, kMany = 200'000;
  for (uint32_t pid = 1; pid < kMany; ++pid) release.Started({pid});
  for (const auto& [pid, count] : {std::pair(kFew, 1), {kMany - 1, 0}}) {
    release.After({With(MakeGpu(900), pid, 900, "")}, {});
    EXPECT_THAT(release.FindHeld(), SizeIs(count)) << pid;
  }
}

TEST(GpuReleaseTest, WhatOthersUseIsTheirs) {
  EXPECT_THAT(HeldAfter(MakeGpu(0), With(MakeGpu(30'000), 99, 30'000, "other")), SizeIs(0));
  EXPECT_THAT(
      HeldAfter(With(MakeGpu(10), 99, 10, "other"), With(MakeGpu(30'000), 99, 30'000, "other")),
      SizeIs(0))
      << "grown";
  EXPECT_THAT(HeldAfter(MakeGpu(0), With(MakeGpu(30'000), 99, 0, "other")), SizeIs(0))
      << "nobody can say how much of it is theirs";
}

TEST(GpuReleaseTest, AWorkersPidThatMeansAnotherProcessIsNotOurs) {
  EXPECT_THAT(HeldAfter(MakeGpu(0), With(MakeGpu(900), kWorker, 900, "other")), SizeIs(0));
  // In a container pids may be the host's.
  const v1::Gpu all_along = With(MakeGpu(900), kWorker, 900, "");
  EXPECT_THAT(HeldAfter(all_along, all_along), SizeIs(0));
}

class ReleasingTest : public ::testing::Test {
 protected:
  void Run(int lease_ms = 60'000, bool gpus = true) {
    v1::SessionRequest hello;
    hello.mutable_hello()->set_protocol(1);
    hello.mutable_hello()->set_build("b");
    hello.mutable_hello()->set_job_id("job");
    hello.mutable_hello()->set_lease_ms(static_cast<uint32_t>(lease_ms));
    Feed(Request{hello});
    Feed(GpusSeen{{MakeGpu(0)}, "", {}});
    v1::SessionRequest reserve;
    reserve.mutable_reserve();
    if (gpus) reserve.mutable_reserve()->add_gpu_uuids("GPU-0");
    Feed(Request{reserve});
    Feed(JobFrame{true, true});
    Feed(ShepherdAnswers{});
    Feed(Reported{gpus ? kGiven : std::set<std::string>(), {kWorker}});
  }
  void WorkersEnd() {
    JobEnded event;
    event.finished.add_logs()->set_size(17);
    Feed(event);
  }
  void Feed(const Event& event) {
    for (Action& action : core_->OnEvent(now_, event)) {
      looks_ += std::holds_alternative<LookAtGpus>(action);
      ended_ = ended_ || std::holds_alternative<End>(action);
      if (auto* give = std::get_if<GiveBack>(&action)) given_back_ = give->gpus;
      if (auto* send = std::get_if<SendEvent>(&action)) {
        if (!send->event.has_heartbeat()) sent_.push_back(std::move(send->event));
      }
    }
  }
  void Pass(TimePoint until) {
    while (core_->NextDeadline() <= until) {
      now_ = std::max(now_, core_->NextDeadline());
      Feed(Tick{});
      if (looks_ > answered_ && answers_) {
        ++answered_;
        Feed(GpusSeen{{seen_}, "", {}});
      }
    }
    now_ = until;
  }
  bool IsReleased() const { return !sent_.empty() && sent_.back().has_released(); }

  TimePoint now_{seconds(1000)};
  std::optional<SessionCore> core_{std::in_place, Identity{1, "b"}, now_};
  std::vector<v1::SessionEvent> sent_;
  int looks_ = 0, answered_ = 0;
  bool answers_ = true;
  bool ended_ = false;
  std::optional<GpuRelease> given_back_;
  v1::Gpu seen_ = With(MakeGpu(900), kWorker, 900, "");
};

TEST_F(ReleasingTest, TheEndIsTheShepherdsToTell) {
  Run();
  WorkersEnd();
  EXPECT_TRUE(sent_.empty());
  EXPECT_FALSE(given_back_) << "its GPUs may be in use";
}

TEST_F(ReleasingTest, AJobWithoutGpusIsReleasedAtOnce) {
  Run(60'000, /*gpus=*/false);
  WorkersEnd();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(sent_[0].has_released());
  EXPECT_TRUE(given_back_);
  EXPECT_EQ(looks_, 0);
}

TEST_F(ReleasingTest, AFreeGpuCostsOneLook) {
  Run();
  WorkersEnd();
  EXPECT_EQ(looks_, 1);
  EXPECT_EQ(core_->state(), SessionCore::State::kReleasing);
  EXPECT_FALSE(IsReleased());
  Feed(GpusSeen{{MakeGpu(0)}, "", {}});
  ASSERT_TRUE(IsReleased());
  EXPECT_TRUE(given_back_) << "others may have it before the launcher starts another job";
  EXPECT_EQ(core_->state(), SessionCore::State::kFinished);
}

TEST_F(ReleasingTest, AGpuThatGetsFreeInTimeIsNoNews) {
  Run();
  WorkersEnd();
  Feed(GpusSeen{{seen_}, "", {}});
  answered_ = 1;
  Pass(now_ + seconds(9));
  EXPECT_FALSE(IsReleased());
  EXPECT_GT(looks_, 10);
  seen_ = MakeGpu(0);
  Pass(now_ + milliseconds(500));
  ASSERT_TRUE(IsReleased());
  EXPECT_EQ(sent_.size(), 1u) << "Released";
}

TEST_F(ReleasingTest, AfterTenSecondsAProcessOfOursIsAFailedCleanup) {
  Run();
  WorkersEnd();
  Feed(GpusSeen{{seen_}, "", {}});
  answered_ = 1;
  Pass(now_ + seconds(10));
  ASSERT_TRUE(IsReleased());
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].failure().kind(), v1::NodeFailure::KIND_CLEANUP);
  EXPECT_EQ(sent_[0].failure().exit_code(), kExitCleanup);
}

TEST_F(ReleasingTest, AfterTenSecondsMemoryOfNobodyIsAWarning) {
  Run();
  seen_ = MakeGpu(900);
  WorkersEnd();
  Feed(GpusSeen{{seen_}, "", {}});
  answered_ = 1;
  Pass(now_ + seconds(10));
  ASSERT_TRUE(IsReleased());
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_THAT(sent_[0].warning().message(), HasSubstr("900 MiB"));
}

TEST_F(ReleasingTest, ADriverThatHangsIsWaitedForNoLonger) {
  Run();
  answers_ = false;
  WorkersEnd();
  Pass(now_ + seconds(10));
  ASSERT_TRUE(IsReleased());
  EXPECT_EQ(looks_, 1) << "the pool has one thread, and that hangs";
  EXPECT_THAT(sent_[0].warning().message(), HasSubstr("did not answer"));
  Feed(GpusSeen{{seen_}, "", {}});  // after all
  EXPECT_EQ(sent_.size(), 2u);
}

TEST_F(ReleasingTest, ALibraryThatFailsIsSaid) {
  Run();
  WorkersEnd();
  Feed(GpusSeen{{}, "fell off the bus", {}});
  ASSERT_TRUE(IsReleased());
  EXPECT_THAT(sent_[0].warning().message(), HasSubstr("fell off the bus"));
}

TEST_F(ReleasingTest, AKillShortensTheWait) {
  Run();
  WorkersEnd();
  Feed(GpusSeen{{seen_}, "", {}});
  answered_ = 1;
  v1::SessionRequest kill;
  kill.mutable_end_job();
  Feed(Request{kill});
  Pass(now_ + seconds(2));
  EXPECT_TRUE(IsReleased());
}

TEST_F(ReleasingTest, TheLeaseGoesOnWhileItWaits) {
  Run(3000);
  WorkersEnd();
  Feed(GpusSeen{{seen_}, "", {}});
  answered_ = 1;
  Pass(now_ + seconds(4));  // not a word from the launcher
  EXPECT_EQ(core_->state(), SessionCore::State::kEnded);
}

TEST_F(ReleasingTest, ADeadShepherdsGpusAreLookedAtToo) {
  Run();
  Feed(ShepherdGone{"killed"});
  Feed(LeftoversGone{});
  EXPECT_EQ(looks_, 1);
  EXPECT_FALSE(IsReleased());
  Feed(GpusSeen{{MakeGpu(0)}, "", {}});
  EXPECT_TRUE(IsReleased());
}

// Of a resident agent, whose GPUs others want once a launcher has gone.
class ResidentReleasingTest : public ReleasingTest {
 protected:
  ResidentReleasingTest() { core_.emplace(Identity{1, "b", true}, now_); }
};

TEST_F(ResidentReleasingTest, AVanishedLaunchersGpusAreLookedAtToo) {
  Run(3000);
  Feed(LauncherGone{});
  Pass(now_ + seconds(3));
  EXPECT_EQ(core_->state(), SessionCore::State::kOrphaned);
  WorkersEnd();
  EXPECT_EQ(looks_, 1);
  Feed(GpusSeen{{seen_}, "", {}});
  answered_ = 1;
  Pass(now_ + seconds(9));
  EXPECT_FALSE(ended_) << "the memory may become free";
  EXPECT_FALSE(given_back_);
  Pass(now_ + seconds(2));
  EXPECT_TRUE(ended_);
  ASSERT_TRUE(given_back_);
  ASSERT_TRUE(given_back_->held());
  const GpuRelease after_us(given_back_->Save());
  ASSERT_THAT(after_us.FindHeld(), SizeIs(1));
  EXPECT_EQ(after_us.FindHeld()[0].text, given_back_->FindHeld()[0].text);
}

TEST_F(ResidentReleasingTest, ALauncherThatVanishesMeanwhileChangesNothing) {
  Run(3000);
  WorkersEnd();
  Feed(GpusSeen{{seen_}, "", {}});
  answered_ = 1;
  Feed(LauncherGone{});
  Pass(now_ + seconds(8));
  EXPECT_FALSE(ended_);
  v1::Hello back;
  back.set_job_id("job");
  back.set_protocol(1);
  EXPECT_FALSE(core_->CanResume(back)) << "its lease has run out";
  seen_ = MakeGpu(0);
  Pass(now_ + seconds(1));
  EXPECT_TRUE(ended_);
  ASSERT_TRUE(given_back_);
  EXPECT_FALSE(given_back_->held());
}

// Its GPUs are still looked at.
TEST_F(ResidentReleasingTest, ALauncherThatComesBackMeanwhileHearsTheRest) {
  Run();
  WorkersEnd();
  Feed(GpusSeen{{seen_}, "", {}});
  answered_ = 1;
  Feed(LauncherGone{});
  v1::Hello back;
  back.set_job_id("job");
  back.set_protocol(1);
  ASSERT_TRUE(core_->CanResume(back));
  Feed(Resumed{back});
  EXPECT_TRUE(sent_.empty());
  seen_ = MakeGpu(0);
  Pass(now_ + seconds(1));
  EXPECT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(IsReleased());
}

// Its last word may not have reached the launcher, who drops the second.
TEST_F(ResidentReleasingTest, TheEndOfAShepherdThatHasDiedIsTold) {
  Run();
  WorkersEnd();
  Feed(ShepherdGone{"killed"});
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].finished().logs(0).size(), 17u);
  Feed(ShepherdGone{"killed"});
  EXPECT_EQ(sent_.size(), 1u);
}

// An agent that is restarted between the two words has the second one to say.
class AdoptedReleasingTest : public ReleasingTest {
 protected:
  void Adopt(bool gpus) {
    v1::Account account;
    account.mutable_kept()->mutable_hello()->set_job_id("job");
    account.mutable_kept()->mutable_hello()->set_protocol(1);
    account.mutable_kept()->mutable_hello()->set_lease_ms(60'000);
    if (gpus) *account.mutable_kept()->add_gpus_before() = MakeGpu(0);
    account.set_finished(true);
    core_.emplace(Identity{1, "b", true}, now_, account, Reported{kGiven, {kWorker}});
    Feed(Tick{});
  }
  void ComeBack() {
    v1::Hello back;
    back.set_job_id("job");
    back.set_protocol(1);
    ASSERT_TRUE(core_->CanResume(back));
    Feed(Resumed{back});
  }
};

TEST_F(AdoptedReleasingTest, ItLooksAtTheGpus) {
  Adopt(/*gpus=*/true);
  EXPECT_EQ(looks_, 1);
  EXPECT_FALSE(given_back_);
  ComeBack();
  EXPECT_THAT(sent_, SizeIs(0)) << "not before they are free";
  Feed(GpusSeen{{MakeGpu(0)}, "", {}});
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(IsReleased());
  EXPECT_TRUE(given_back_);
}

TEST_F(AdoptedReleasingTest, WithoutGpusThereIsNothingToLookAt) {
  Adopt(/*gpus=*/false);
  EXPECT_EQ(looks_, 0);
  EXPECT_EQ(core_->state(), SessionCore::State::kFinished);
  ComeBack();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(IsReleased());
}

TEST_F(AdoptedReleasingTest, WhatTheShepherdSaysAgainOutlivesIt) {
  Adopt(/*gpus=*/false);
  WorkersEnd();
  ASSERT_EQ(sent_.size(), 1u) << "Released";
  Feed(ShepherdGone{"killed"});
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].finished().logs(0).size(), 17u);
}

TEST_F(ResidentReleasingTest, ALauncherThatDoesNotWaitLeavesWhatWasSeen) {
  Run();
  WorkersEnd();
  Feed(GpusSeen{{seen_}, "", {}});
  v1::SessionRequest bye;
  bye.mutable_goodbye();
  Feed(Request{bye});
  EXPECT_TRUE(ended_);
  ASSERT_TRUE(given_back_);
  EXPECT_TRUE(given_back_->held());
}

TEST_F(ReleasingTest, AnAgentOfOneJobDoesNotStayForAVanishedLaunchersGpus) {
  Run(3000);
  Feed(LauncherGone{});
  WorkersEnd();
  EXPECT_EQ(looks_, 0);
  EXPECT_TRUE(ended_);
}

}  // namespace
}  // namespace dtrain::session
