// SPDX-License-Identifier: Apache-2.0
#include "launcher/present_job.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/time/clock.h"
#include "launcher/detached/ourselves.h"
#include "launcher/job/campaign_journal.h"
#include "launcher/launch_detached.h"

namespace dtrain {

Handover::Job ToHandOver(const PresentJob& job, TimePoint now) {
  Handover::Job over;
  over.spec = job.spec;
  Describe(job.options, over.spec);
  over.spec.set_job_id(job.options.job.job_id);
  over.spec.set_had_terminal(true);
  *over.spec.mutable_accepted_by() = detached::Ourselves();
  // By the clock as it is now, like all that StateOf has: it may have been set since.
  const int64_t unix_now = absl::GetCurrentTimeNanos();
  over.spec.mutable_accepted_by()->set_unix_nanos(
      unix_now - std::chrono::nanoseconds(now - job.clock.begin).count());
  over.state = job::StateOf(job.campaign, now, unix_now);
  *over.state.mutable_accepted()->mutable_by() = over.spec.accepted_by();
  v1::AttemptBegins& attempt = *over.state.mutable_attempt();
  attempt.set_incarnation(job.attempt.options().incarnation);
  for (const std::string& host : job.attempt_hosts) attempt.add_hosts(host);
  const int64_t since = over.state.runs().unix_nanos();
  attempt.set_unix_nanos(since);
  *over.state.mutable_runs() = job.attempt.Runs();
  over.state.mutable_runs()->set_unix_nanos(since);
  for (const v1::LogPosition& at : job.attempt.Taken()) {
    *over.state.add_logs_safe() = at;
    // Those of the attempts before are counted together with these.
    const auto kept = job.shown.range(Rank(at.rank()), at.stream());
    const uint64_t size = std::min(kept.end - kept.begin, at.offset());
    if (size == 0) continue;
    over.output.push_back({{Rank(at.rank()), at.stream() == v1::STREAM_KIND_STDERR},
                           at.offset() - size,
                           job.shown.Read(Rank(at.rank()), at.stream(), kept.end - size, size)});
  }
  over.code = job.code;
  over.may_restart = job.may_restart;
  return over;
}

}  // namespace dtrain
