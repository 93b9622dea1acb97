// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "agent/session/life.h"
#include "common/base/clock.h"

namespace dtrain::session {

// Watches whether a job's shepherd answers its launcher, and us once we have told it to end its
// workers. Pure.
class ShepherdWatch {
 public:
  explicit ShepherdWatch(Life& life) : life_(life) {}

  void OnJobFrame(const JobFrame& frame);
  void OnAnswers();
  // It owes no answer to a launcher that is away.
  void Excuse() { asked_at_ = kNever; }
  void Credit(Duration pause);
  void EndWorkers(uint32_t grace_ms);

  // It owes its launcher an answer for a whole lease: tells it to kill its workers.
  void OnSilent();
  TimePoint SilentAt() const;
  // When it must have answered our request to end the workers. If it has, it is asked again.
  TimePoint AnswerDue() const { return answer_by_; }
  bool answered() const { return answered_; }
  // The shepherd was told to end them.
  bool ends_workers() const { return answer_by_ != kNever; }
  void AskAgain();

 private:
  Life& life_;
  TimePoint asked_at_ = kNever;  // by its launcher, the first time without an answer since
  TimePoint answer_by_ = kNever;
  bool answered_ = true;
  uint32_t grace_ms_ = 0;  // of our last request
};

}  // namespace dtrain::session
