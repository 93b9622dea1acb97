// SPDX-License-Identifier: Apache-2.0
#include "agent/session/life.h"

#include <algorithm>
#include <chrono>

namespace dtrain::session {
namespace {

constexpr std::chrono::milliseconds kLongestGrace = std::chrono::hours(1);
// Of what a launcher calls itself: the Hello it came in is kept for agents after us.
constexpr size_t kMostOfLauncher = 256;
// A launcher that wants to leave its job to another does so within seconds, or not at all: after
// that the job ends with its stream again.
constexpr Duration kTimeToLeave = std::chrono::seconds(30);

}  // namespace

const char* StateName(SessionState state) {
  switch (state) {
    case SessionState::kNew:
      return "new";
    case SessionState::kJoined:
      return "joined";
    case SessionState::kRunning:
      return "running";
    case SessionState::kOrphaned:
      return "orphaned";
    case SessionState::kReaping:
      return "reaping";
    case SessionState::kReleasing:
      return "releasing";
    case SessionState::kFinished:
      return "finished";
    case SessionState::kEnded:
      return "ended";
  }
  return "?";
}

uint32_t BoundedGrace(uint32_t grace_ms) {
  return std::min(grace_ms, static_cast<uint32_t>(kLongestGrace.count()));
}

uint32_t Life::grace_ms() const { return BoundedGrace(hello_.grace_ms()); }

void Life::Join(const v1::Hello& hello) {
  hello_ = hello;
  // Of this connection alone.
  hello_.clear_agent();
  hello_.clear_job();
  state_ = SessionState::kJoined;
}

void Life::TakeOver(const v1::Hello& hello) {
  hello_.set_generation(hello.generation());
  hello_.set_away_ms(hello.away_ms());
  hello_.set_launcher(hello.launcher().substr(0, kMostOfLauncher));
}

void Life::SetKept() {
  kept_ = true;
  kept_until_ = now_ + kTimeToLeave;
}

void Life::Start() {
  started_ = true;
  state_ = SessionState::kRunning;
}

void Life::Finish(absl::Status status) {
  // A shepherd that keeps running without us must hear that it is not to.
  const bool lives = state_ == SessionState::kRunning || state_ == SessionState::kOrphaned ||
                     state_ == SessionState::kReleasing || state_ == SessionState::kFinished;
  if (waits_for_agents() && lives) {
    v1::ShepherdRequest release;
    release.mutable_release();
    Do(SendShepherd{std::move(release)});
  }
  state_ = SessionState::kEnded;
  Do(End{std::move(status)});
}

}  // namespace dtrain::session
