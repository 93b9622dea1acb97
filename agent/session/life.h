// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "agent/session/session_events.h"
#include "common/base/clock.h"
#include "common/base/patience.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::session {

enum class SessionState {
  kNew,        // no Hello yet
  kJoined,     // welcomed; probing, holding ports
  kRunning,    // the shepherd has its part
  kOrphaned,   // the launcher is gone, the shepherd is ending its workers, for so long as it may
  kReaping,    // the shepherd died; what it left behind is being ended
  kReleasing,  // no worker is left; its GPUs' memory may still be in use
  kFinished,   // no worker is left; logs may still be on their way
  kEnded,
};

const char* StateName(SessionState state);

// What the parts of SessionCore share: who this agent is, the launcher's Hello, the time, how far
// the session is, and the actions of the event being handled. Decides nothing. Pure.
class Life {
 public:
  Life(Identity self, TimePoint now) : self_(std::move(self)), now_(now) {}
  // Of a job that an agent before us has started.
  Life(Identity self, TimePoint now, v1::Hello hello)
      : self_(std::move(self)),
        now_(now),
        state_(SessionState::kRunning),
        hello_(std::move(hello)),
        started_(true) {}

  const Identity& self() const { return self_; }
  TimePoint now() const { return now_; }
  SessionState state() const { return state_; }
  const v1::Hello& hello() const { return hello_; }
  Duration lease() const { return std::chrono::milliseconds(hello_.lease_ms()); }
  // How long workers run on without hearing a launcher.
  Duration patience() const { return PatienceOf(hello_); }
  // Its launcher may have died, and another be yet to come: how it ended is kept for that.
  bool is_detached() const { return self_.resumable && hello_.generation() > 0; }
  // Its shepherd waits for another agent when we leave, and is to be let go by a word.
  bool waits_for_agents() const { return self_.resumable || kept_; }
  // It does so because the launcher asked for it within the last seconds, to hand the job over.
  bool was_just_kept() const { return kept_ && now_ < kept_until_; }
  void SetKept();
  void SetLost() { kept_ = false; }  // the shepherd is gone
  // The launcher's, as far as anybody waits for it.
  uint32_t grace_ms() const;
  // The shepherd has been given its part: there may be workers.
  bool started() const { return started_; }

  void AdvanceTo(TimePoint now) { now_ = std::max(now_, now); }
  void Join(const v1::Hello& hello);
  // Another launcher has the job.
  void TakeOver(const v1::Hello& hello);
  void Start();
  void Become(SessionState state) { state_ = state; }
  // Nothing comes after it.
  void Finish(absl::Status status);

  void Do(Action action) { actions_.push_back(std::move(action)); }
  std::vector<Action> Take() { return std::exchange(actions_, {}); }

 private:
  const Identity self_;
  TimePoint now_;
  SessionState state_ = SessionState::kNew;
  v1::Hello hello_;  // empty while kNew
  bool started_ = false;
  bool kept_ = false;
  TimePoint kept_until_;
  std::vector<Action> actions_;
};

// What somebody asks for and we wait for, of a shepherd that may never end: it is its user's, and
// so is the number.
uint32_t BoundedGrace(uint32_t grace_ms);

}  // namespace dtrain::session
