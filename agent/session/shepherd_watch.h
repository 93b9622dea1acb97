// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "agent/session/life.h"
#include "common/base/clock.h"

namespace dtrain::session {

// Whether the shepherd of a job answers: its launcher, and us, when it was told to end its workers.
// Pure.
class ShepherdWatch {
 public:
  explicit ShepherdWatch(Life& life) : life_(life) {}

  void OnJobFrame(const JobFrame& frame);
  void OnAnswers();
  // It owes no answer to a launcher that is away.
  void Excuse() { asked_at_ = kNever; }
  void Credit(Duration pause);
  void EndWorkers(uint32_t grace_ms);

  // It has not answered its launcher for a lease: it is told to end its workers at once.
  void OnSilent();
  TimePoint SilentAt() const;
  // It must have answered by then; one that has is told again, and must do so again.
  TimePoint AnswerDue() const { return answer_by_; }
  bool answered() const { return answered_; }
  void AskAgain();

 private:
  Life& life_;
  TimePoint asked_at_ = kNever;  // by its launcher, the first time without an answer since
  TimePoint answer_by_ = kNever;
  bool answered_ = true;
  uint32_t grace_ms_ = 0;  // that it was told last
};

}  // namespace dtrain::session
