// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "launcher/elastic/events.h"
#include "launcher/elastic/runs.h"
#include "launcher/job/job_core.h"

namespace dtrain::elastic {

struct Failure {
  RunId run;
  std::string host;
  job::Verdict verdict;
  std::string cause;  // without the host's name
};

job::Verdict MakeVerdict(job::Verdict::Kind kind, int exit_code, std::string message = "");
Failure FailureOf(const WorkerEnded& ended, const Run& run);
Failure FailureOf(const RunOver& over, const Run& run);
// A worker exited with 0 although it had asked for its place in the next round.
Failure Withdrawal(RunId id, const Run& run, uint32_t local_rank);
// Its workers did not come to their door by then.
Failure Absence(RunId id, const Run& run, Duration limit);
// Processes of the job may still be on the host.
bool LeavesBehind(const job::Verdict& verdict);
// Only the user can mend it: no other host would do better.
bool IsForTheUser(const job::Verdict& verdict);

// Why an attempt ends.
struct Ending {
  job::Verdict verdict;  // kNone: the first failure's, to whose message this one's is
                         // added, and whose exit code this one's replaces if it is not 0
  std::string cause;     // one line
};

Ending SuccessOfAll();
Ending StopBy(int signal, const std::string& from);
Ending TimeIsUp(Duration limit);
// What is needed did not come in time, as `text` says; or cannot come, or has left.
Ending TooLate(bool first_round, std::string text);
Ending TooFew(bool first_round, std::string text);

// What has gone wrong in an attempt, and what becomes of it at the end.
class Failures {
 public:
  void OnRound();  // a round is opened: what was before does not end the job any more
  // `decides`: for what becomes of the job, those before do not count.
  void Add(TimePoint now, Failure failure, bool decides = false);
  void Leave(std::string host, std::string why);  // not a failure
  void OnOver(const RunOver& over, const Run& run);
  void EndWith(Ending ending) { ending_ = std::move(ending); }

  const std::optional<Failure>& first() const { return first_; }  // since the last round opened
  TimePoint first_at() const { return first_at_; }
  // Why a host has left; empty: it has not.
  std::string CauseOf(const std::string& host) const;
  // "node2 leaves the job: rank 5 ...", of all that left since it was asked last; or empty.
  std::string TakeDepartures();
  EndElastic Conclude() const;

 private:
  std::optional<Failure> first_;
  TimePoint first_at_ = kNever;
  std::map<std::string, std::string> causes_;  // by host, the last one
  std::vector<std::string> departures_;
  std::vector<std::string> left_behind_;
  TimePoint dead_at_ = TimePoint::min();
  Ending ending_;
};

}  // namespace dtrain::elastic
