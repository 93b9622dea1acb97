// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "launcher/job/campaign_core.h"
#include "launcher/job/job_core.h"

namespace dtrain::report {

// The code that a launch stages.
struct CodeFacts {
  std::string sha256;  // of the tree, in hex
  size_t files = 0;
  uint64_t bytes = 0;
  std::string git;  // empty: no git work tree
};

// What the reports are made of, as JobCore tells it of one attempt. Borrows; valid as long as the
// core is and no event is fed to it.
struct JobFacts {
  job::State state = job::State::kConnecting;
  const std::vector<job::NodeView>& nodes;
  const std::vector<job::RankEnd>& ranks;
  const std::vector<job::PhaseTime>& phases;
  const job::Verdict& verdict;
  size_t secondary_deaths = 0;
  const std::vector<std::string>& warnings;
  const job::CampaignCore* campaign = nullptr;       // of a launch that may restart its workers
  const CodeFacts* code = nullptr;                   // null: none is staged
  const std::vector<job::GpuFault>* gpus = nullptr;  // null: none has reported anything
  const std::string* disk = nullptr;  // what is wrong with a detached job's folder; null: nothing
};

JobFacts FactsOf(const job::JobCore& core, const job::CampaignCore* campaign = nullptr);

// "connect", "check network", "reserve ports", "start", "run", "stop": what people read.
const char* PhaseName(job::State state);

// The name node `id` has in the host list, or "?".
const std::string& HostOf(const JobFacts& facts, NodeId id);

// What explains the end of the attempt, if a GPU has reported it: an error of the hardware, first
// of those on hosts whose fault the end is; else one of any kind there. Null: none does.
const job::GpuFault* LikelyCause(const JobFacts& facts);
// "GPU 3 on node2 reported Xid 79 (GPU has fallen off the bus)"
std::string GpuText(const JobFacts& facts, const job::GpuFault& fault);

// Whether the present phase still waits for this node.
bool IsWaiting(job::State state, const job::NodeView& node);

// Seconds with as many digits as are of interest: "0.15 s", "12.3 s", "4321 s".
std::string Seconds(Duration duration);

}  // namespace dtrain::report
