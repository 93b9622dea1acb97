// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/facts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text.h"

namespace dtrain::report {

JobFacts FactsOf(const job::JobCore& core, const job::CampaignCore* campaign) {
  return {core.state(),      core.nodes(),   core.ranks(),
          core.phases(),     core.verdict(), core.secondary_deaths(),
          core.warnings(),   campaign,       nullptr,
          &core.gpu_faults()};
}

const char* PhaseName(job::State state) {
  switch (state) {
    case job::State::kConnecting:
      return "connect";
    case job::State::kProbing:
      return "check network";
    case job::State::kHolding:
      return "reserve ports";
    case job::State::kStarting:
      return "start";
    case job::State::kRunning:
      return "run";
    case job::State::kStopping:
      return "stop";
    case job::State::kFinished:
      return "end";
  }
  return "?";
}

const std::string& HostOf(const JobFacts& facts, NodeId id) {
  static const std::string* unknown = new std::string("?");
  return id.value() < facts.nodes.size() ? facts.nodes[id.value()].host : *unknown;
}

const job::GpuFault* LikelyCause(const JobFacts& facts) {
  using Kind = job::Verdict::Kind;
  const Kind kind = facts.verdict.kind;
  if (facts.gpus == nullptr ||
      (kind != Kind::kWorker && kind != Kind::kNode && kind != Kind::kStalled)) {
    return nullptr;
  }
  std::vector<NodeId> hosts = facts.verdict.nodes;
  for (const job::RankEnd& end : facts.ranks) {
    if (kind == Kind::kWorker && end.rank == facts.verdict.rank) hosts.push_back(end.node);
  }
  const auto score = [&hosts](const job::GpuFault& fault) {
    const bool there = std::find(hosts.begin(), hosts.end(), fault.node) != hosts.end();
    if (fault.kind == job::XidKind::kHardware) return there ? 3 : 2;
    return there ? 1 : 0;
  };
  const job::GpuFault* best = nullptr;
  for (const job::GpuFault& fault : *facts.gpus) {
    if (score(fault) > (best == nullptr ? 0 : score(*best))) best = &fault;
  }
  return best;
}

std::string GpuText(const JobFacts& facts, const job::GpuFault& fault) {
  return absl::StrCat("GPU ", fault.gpu, " on ", Escape(HostOf(facts, fault.node)), " ",
                      fault.what);
}

bool IsWaiting(job::State state, const job::NodeView& node) {
  if (node.gone) return false;
  return state == job::State::kConnecting ? !node.joined : !node.waiting_for.empty();
}

std::string Seconds(Duration duration) {
  double seconds = std::chrono::duration<double>(duration).count();
  if (seconds < 0) seconds = 0;
  return absl::StrFormat("%.*f s", seconds < 10 ? 2 : seconds < 1000 ? 1 : 0, seconds);
}

}  // namespace dtrain::report
