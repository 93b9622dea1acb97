// SPDX-License-Identifier: Apache-2.0
#include "agent/session/join_phase.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/spawn/job_id.h"
#include "common/base/node_rank.h"
#include "common/base/text.h"

namespace dtrain::session {
namespace {

constexpr uint32_t kMinLeaseMs = 100;
// Ids and tokens; the shepherd keeps it for agents after us.
constexpr size_t kMostHello = 4096;
// A launcher that waits for GPUs looks again each second, and then asks for ports again. The
// agent's loop reads some hundred files for the one, and binds up to a thousand sockets for the
// other.
constexpr Duration kAskPause = std::chrono::milliseconds(100);
// It reserves once for each look, and again when a spare takes a lost node's place.
constexpr Duration kReservePause = std::chrono::seconds(1);
constexpr int kMostReserves = 16;
// It has addresses tested once for each look, and again at once if its first choice of them fails.
// For that the agent opens up to 64 connections at the same moment.
constexpr Duration kProbePause = std::chrono::milliseconds(250);
constexpr int kMostProbes = 8;
// A launcher asks for at most 8 addresses of 15 nodes, however many nodes it has.
constexpr int kMostTargets = 256;

}  // namespace

bool IsSound(const v1::Hello& hello) {
  return spawn::IsPlainJobId(hello.job_id()) && hello.lease_ms() >= kMinLeaseMs &&
         hello.ByteSizeLong() <= kMostHello;
}

void JoinPhase::OnHello(const Request& request) {
  const v1::Hello& hello = request.request.hello();
  const Identity& self = life_.self();
  if (hello.protocol() != self.protocol || hello.build() != self.build) {
    return life_.Finish(absl::FailedPreconditionError(
        absl::StrCat("this agent is build ", self.build, " with protocol ", self.protocol,
                     ", the launcher wants build ", Escape(hello.build()), " with protocol ",
                     hello.protocol(), ": start both from the same release")));
  }
  if (!IsSound(hello)) {
    return life_.Finish(
        absl::InvalidArgumentError("a Hello without the id of a job (letters, digits, - and _), "
                                   "with a lease below 100 ms, or of "
                                   "more than 4096 bytes"));
  }
  life_.Join(hello);
  life_.Do(OpenChannels{});
  if (!self.notice.empty()) lease_.Warn(self.notice);
  life_.Do(SendWelcome{});
}

void JoinPhase::OnNoHello() { life_.Finish(absl::DeadlineExceededError("no Hello within 30 s")); }

// What its predecessor asked of the shepherd is not answered any more.
void JoinPhase::OnTakenOver(const TakenOver& taken) {
  life_.TakeOver(taken.hello);
  shepherd_.Excuse();
  ports_due_ = {};
  if (life_.started()) {
    // For the agent after us.
    v1::ShepherdRequest keep;
    *keep.mutable_keep_running()->mutable_hello() = life_.hello();
    life_.Do(SendShepherd{std::move(keep)});
  }
  lease_.OnTakenOver();
  life_.Do(TellAgain{});
}

// Another one takes the place of one that runs: its launcher may have taken over from another.
void JoinPhase::OnProbe(const Request& request) {
  const v1::ProbeRequest& probe = request.request.probe();
  if (probe.targets_size() > kMostTargets) {
    return life_.Finish(absl::InvalidArgumentError(
        absl::StrCat("the launcher has ", probe.targets_size(), " addresses tested, more than the ",
                     kMostTargets, " that one node tests")));
  }
  probe_due_ = std::max(probe_due_, life_.now()) + kProbePause;
  if (probe_due_ > life_.now() + kMostProbes * kProbePause) {
    return life_.Finish(absl::InvalidArgumentError(
        absl::StrCat("the launcher has addresses tested again and again: more than ", kMostProbes,
                     " times at once")));
  }
  life_.Do(RunProbe{probe});
}

void JoinPhase::OnHoldPorts(const Request& request) {
  if (life_.now() < ports_due_) {
    return life_.Finish(absl::InvalidArgumentError("the launcher asked for ports again at once"));
  }
  ports_due_ = life_.now() + kAskPause;
  const v1::HoldPorts& hold = request.request.hold_ports();
  life_.Do(HoldPorts{hold.count(), hold.listening()});
}

void JoinPhase::OnReserve(const Request& request) {
  const v1::Reserve& reserve = request.request.reserve();
  if (reserve.gpu_uuids_size() > 0 || !reserve.cpulist().empty()) {
    reserve_due_ = std::max(reserve_due_, life_.now()) + kReservePause;
    if (reserve_due_ > life_.now() + kMostReserves * kReservePause) {
      return life_.Finish(absl::InvalidArgumentError(absl::StrCat(
          "the launcher reserves again and again: more than ", kMostReserves, " times at once")));
    }
  }
  release_.Given({reserve.gpu_uuids().begin(), reserve.gpu_uuids().end()});
  lease_.OnSpare(reserve.node_rank() == kNoNodeRank);
  life_.Do(ReserveShare{reserve});
}

// Questions of a network that was slow may come at once. One answer is for all of them.
void JoinPhase::OnLookAgain() {
  wants_look_ = true;
  if (life_.now() >= look_due_) Look();
}

void JoinPhase::Look() {
  wants_look_ = false;
  look_due_ = life_.now() + kAskPause;
  life_.Do(SendInventory{});
}

void JoinPhase::OnJobFrame(const JobFrame& frame) {
  shepherd_.OnJobFrame(frame);
  if (!frame.kept) return;
  life_.Start();
  life_.Do(PrepareStart{});
}

}  // namespace dtrain::session
