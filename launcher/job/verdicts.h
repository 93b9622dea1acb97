// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "launcher/job/fault_list.h"
#include "launcher/job/job_core.h"
#include "launcher/job/rank_table.h"

namespace dtrain::job {

// A failure on one node makes workers of others fail within milliseconds, and their reports may
// overtake its own. Until this long after the first report the earliest of them counts.
constexpr Duration kVerdictSettle = std::chrono::milliseconds(100);

// When a rank failed on our wall clock, and which one.
using FailureOrder = std::pair<int64_t, uint32_t>;

// What may have ended the job.
struct Cause {
  enum class Kind {
    kFailure,   // of a rank
    kFault,     // a node's; several may be told together
    kOwnPause,  // nodes ended the job as this launcher was silent
    kOther,     // a signal, a time limit, a refusal, a stall ...
  };
  static Cause Other(Verdict verdict);
  // `heard_unix_nanos`: when we heard of it.
  static Cause Failure(FailureOrder order, const v1::WorkerExit& exit, int64_t heard_unix_nanos);
  static Cause OwnPause(std::string message);
  static Cause Fault(NodeId node, std::string text, int exit_code);

  Kind kind = Kind::kOther;
  Verdict verdict;  // kFault: without message, which is written when all are known
  // kFailure; kOwnPause: of the rank that it ended, if one is known.
  FailureOrder order = {std::numeric_limits<int64_t>::max(), 0};
  bool aborted = false;  // the rank has asked for the end
  int64_t heard_unix_nanos = 0;
  // kFault
  NodeId node;
  std::string text;
  bool same_start = false;          // of a node that was told to start, and has not
  bool absent = false;              // see Verdict
  bool leaves = false;              // see Verdict
  bool served_ranks = false;        // it is the end of a server that ranks were using
  TimePoint silent_since = kNever;  // of a node with ranks: when it was heard last
};

// Why the job ends: one cause, or what is told together with it, and what may be left behind.
class Verdicts {
 public:
  enum class Taken {
    kFirst,  // nothing stood before
    kToo,    // it changes what stands, or is told with it
    kNot,
  };

  Verdicts(const Cluster& cluster, const RankTable& ranks) : cluster_(cluster), ranks_(ranks) {}

  Taken Offer(Cause cause);
  void AddLeftBehind(NodeId node, std::string text);  // workers that may still be running
  // Workers are sent a signal that somebody has sent to us.
  void OnPassedOn(int signal, const std::string& from) { passed_on_[signal] = from; }
  // Completes the verdict. After that nothing is offered.
  void Conclude(bool succeeded);

  const Verdict& verdict() const { return verdict_; }
  bool none() const { return stands_ == Stands::kNone; }
  bool is_own_pause() const { return stands_ == Stands::kOwnPause; }

 private:
  enum class Stands { kNone, kFailure, kFault, kOwnPause, kOther };
  enum class Rule { kTake, kDrop, kIfEarlier, kIfItExplains, kIfTogether, kIfBefore };
  static const Rule kRules[5][4];

  void Take(Cause cause);
  void AddFault(const Cause& cause);
  bool IsEarlier(const Cause& cause) const;
  bool Explains(const Cause& cause) const;
  bool IsTogether(const Cause& cause) const;
  bool IsBefore(const Cause& cause) const;

  const Cluster& cluster_;
  const RankTable& ranks_;
  Stands stands_ = Stands::kNone;
  Verdict verdict_;
  FailureOrder first_failure_;      // while kFailure stands
  int64_t stopped_unix_nanos_ = 0;  // likewise: when all were told to end
  TimePoint open_until_ = kNever;   // kFailure, kFault: when it has settled
  FaultList faults_;                // while kFault stands
  bool all_absent_ = true;          // of these
  bool all_leave_ = true;
  FaultList left_behind_;
  std::map<int, std::string> passed_on_;  // from whom, by signal
};

}  // namespace dtrain::job
