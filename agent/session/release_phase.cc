// SPDX-License-Identifier: Apache-2.0
#include "agent/session/release_phase.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"

namespace dtrain::session {
namespace {

constexpr Duration kLimit = std::chrono::seconds(10);
// A launcher whose user cancelled gives up three seconds after it asked for KILL.
constexpr Duration kLimitHurried = std::chrono::seconds(2);
constexpr Duration kLookPause = std::chrono::milliseconds(250);

}  // namespace

// What the agent before us waited for is looked at again.
void ReleasePhase::Adopt(const v1::KeepRunning& kept, const Reported& reported, bool over) {
  gpus_.Before({kept.gpus_before().begin(), kept.gpus_before().end()});
  gpus_.Given(reported.gpus);
  gpus_.Started(reported.workers);
  if (!over) return;
  life_.Become(SessionState::kReleasing);
  look_at_ = life_.now();
  give_up_at_ = life_.now() + kLimit;
}

void ReleasePhase::OnReported(const Reported& reported) {
  if (!life_.self().resumable) gpus_.Given(reported.gpus);
  gpus_.Started(reported.workers);
}

void ReleasePhase::Begin() {
  life_.Become(SessionState::kReleasing);
  if (!gpus_.watched() || (lease_.given_up() && !life_.self().resumable)) return End();
  give_up_at_ = life_.now() + (hurried_ ? kLimitHurried : kLimit);
  looking_ = true;
  life_.Do(LookAtGpus{});
}

void ReleasePhase::OnGpusSeen(const GpusSeen& seen) {
  looking_ = false;
  gpus_.After(seen.gpus, seen.ours);
  if (!seen.error.empty()) {
    lease_.Warn(absl::StrCat("whether the job's GPUs are free again is not known: ", seen.error));
    End();
  } else if (!gpus_.held()) {
    End();
  } else {
    look_at_ = life_.now() + kLookPause;
  }
}

void ReleasePhase::Hurry() {
  hurried_ = true;
  give_up_at_ = std::min(give_up_at_, life_.now() + kLimitHurried);
}

void ReleasePhase::OnGoodbye() {
  life_.Do(GiveBack{gpus_});
  life_.Finish(absl::OkStatus());
}

void ReleasePhase::Look() {
  look_at_ = kNever;
  if (!gpus_.watched()) return End();
  if (!std::exchange(looking_, true)) life_.Do(LookAtGpus{});
}

void ReleasePhase::GiveUp() {
  ReportHeld();
  End();
}

// The job's end is the same, unless it is one of its own processes that is left.
void ReleasePhase::ReportHeld() {
  if (!gpus_.seen_after()) {
    lease_.Warn(
        "whether the job's GPUs are free again is not known: NVIDIA's driver (NVML) did not "
        "answer in time; see the kernel log of the node for NVRM lines");
  }
  for (const HeldGpu& gpu : gpus_.FindHeld()) {
    if (gpu.ours) {
      lease_.Fail(v1::NodeFailure::KIND_CLEANUP, kExitCleanup, gpu.text);
    } else {
      lease_.Warn(gpu.text);
    }
  }
}

void ReleasePhase::End() {
  life_.Become(SessionState::kFinished);
  // First, as the launcher may start another job at once.
  life_.Do(GiveBack{gpus_});
  if (lease_.given_up()) {
    return life_.Finish(
        absl::AbortedError("the launcher was not heard from; its workers have been ended"));
  }
  v1::SessionEvent up;
  up.mutable_released();
  lease_.Tell(std::move(up));
}

}  // namespace dtrain::session
