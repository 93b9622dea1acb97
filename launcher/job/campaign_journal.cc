// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/campaign_journal.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "common/base/text.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {

v1::RestartDecided RestartOf(const CampaignCore& campaign, const AttemptRecord& ended) {
  v1::RestartDecided restart;
  restart.set_attempt(ended.attempt);
  restart.set_cause(ended.cause);
  restart.set_counts(ended.counted);
  restart.set_exit_code(ended.exit_code);
  restart.set_ran_nanos(std::chrono::nanoseconds(ended.ran).count());
  for (const uint32_t host : ended.hosts) restart.add_at_fault(campaign.options().hosts[host]);
  restart.set_lost(ended.lost);
  for (const uint32_t host : ended.back) restart.add_back(campaign.options().hosts[host]);
  return restart;
}

CampaignPast PastOf(const v1::JournalState& state, const hosts::HostList& hosts, TimePoint now,
                    int64_t unix_now) {
  CampaignPast past;
  // A clock that was set back makes nothing younger than it can be.
  const auto since = [unix_now](int64_t unix_nanos) {
    return std::chrono::nanoseconds(std::max<int64_t>(unix_now - unix_nanos, 0));
  };
  const auto indices = [&hosts](const auto& names, std::vector<uint32_t>& out) {
    for (const std::string& name : names) {
      for (uint32_t i = 0; i < hosts.entries.size(); ++i) {
        if (hosts.entries[i].host == name) out.push_back(i);
      }
    }
  };
  for (const v1::RestartDecided& restart : state.restarts()) {
    if (restart.again()) continue;
    AttemptRecord record;
    record.attempt = restart.attempt();
    record.cause = restart.cause();
    record.exit_code = restart.exit_code();
    record.ran = std::chrono::nanoseconds(restart.ran_nanos());
    record.counted = restart.counts();
    indices(restart.at_fault(), record.hosts);
    record.lost = restart.lost();
    indices(restart.back(), record.back);
    record.ended = now - since(restart.unix_nanos());
    past.ended.push_back(std::move(record));
  }
  past.begun = state.phase() == v1::JournalState::PHASE_BEGUN ||
               state.phase() == v1::JournalState::PHASE_RUNS;
  past.runs = state.phase() == v1::JournalState::PHASE_RUNS;
  if (state.runs().attempt() == state.attempt().attempt()) {
    for (const v1::RunningNode& node : state.runs().nodes()) {
      if (static_cast<int>(node.node()) >= state.attempt().hosts_size()) continue;
      indices(std::vector{state.attempt().hosts(static_cast<int>(node.node()))}, past.seats);
    }
  }
  if (past.runs) past.ran = since(state.runs().unix_nanos());
  past.pauses = state.phase() == v1::JournalState::PHASE_RESTARTING;
  if (state.has_attempt()) past.attempt = state.attempt().attempt();
  if (state.restarts_size() > 0) {
    const v1::RestartDecided& last = *state.restarts().rbegin();
    if (!past.begun && !last.again()) past.attempt = last.attempt() + 1;
    // No longer than it was to be: the clock may have been ahead then, or be behind now.
    const int64_t wait =
        last.not_before_unix_nanos() - std::max<int64_t>(unix_now, last.unix_nanos());
    past.wait = std::chrono::nanoseconds(std::max<int64_t>(wait, 0));
    indices(last.left_out(), past.left_out);
  }
  past.age = since(state.accepted().by().unix_nanos());
  if (state.has_stop()) {
    past.stop_signal = SIGTERM;
    past.stop_from = StopFrom(state.stop());
  }
  if (past.runs && state.has_scale_up()) {
    past.scale_up = state.scale_up().why();
    indices(state.scale_up().hosts(), past.back);
  }
  return past;
}

v1::JournalState StateOf(const CampaignCore& campaign, TimePoint now, int64_t unix_now) {
  const auto at = [&](TimePoint then) {
    return unix_now - std::chrono::nanoseconds(now - then).count();
  };
  v1::JournalState state;
  state.set_phase(v1::JournalState::PHASE_RUNS);
  state.mutable_attempt()->set_attempt(campaign.attempt());
  state.mutable_runs()->set_attempt(campaign.attempt());
  state.mutable_runs()->set_unix_nanos(at(campaign.runs_since()));
  for (const AttemptRecord& ended : campaign.ended()) {
    v1::RestartDecided& restart = *state.add_restarts();
    restart = RestartOf(campaign, ended);
    restart.set_unix_nanos(at(ended.ended));
    restart.set_not_before_unix_nanos(at(ended.ended));
  }
  const int last = state.restarts_size() - 1;
  for (std::string& host : campaign.left_out()) {
    if (last >= 0) state.mutable_restarts(last)->add_left_out(std::move(host));
  }
  return state;
}

std::string StopFrom(const v1::StopAsked& stop) {
  return stop.by() == SignalName(SIGTERM) ? "" : Escape(stop.by());
}

}  // namespace dtrain::job
