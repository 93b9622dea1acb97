// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "launcher/job/job_core.h"

namespace dtrain::report {

// What the reports are made of, as JobCore tells it. Borrows; valid as long as the core is and no
// event is fed to it.
struct JobFacts {
  job::State state = job::State::kConnecting;
  const std::vector<job::NodeView>& nodes;
  const std::vector<job::RankEnd>& ranks;
  const std::vector<job::PhaseTime>& phases;
  const job::Verdict& verdict;
  size_t secondary_deaths = 0;
  const std::vector<std::string>& warnings;
};

JobFacts FactsOf(const job::JobCore& core);

// "connect", "check network", "reserve ports", "start", "run", "stop": what people read.
const char* PhaseName(job::State state);

// The name node `id` has in the host list, or "?".
const std::string& HostOf(const JobFacts& facts, NodeId id);

// Whether the present phase still waits for this node.
bool IsWaiting(job::State state, const job::NodeView& node);

// Seconds with as many digits as are of interest: "0.15 s", "12.3 s", "4321 s".
std::string Seconds(Duration duration);

}  // namespace dtrain::report
