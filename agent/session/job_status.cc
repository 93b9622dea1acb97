// SPDX-License-Identifier: Apache-2.0
#include "agent/session/job_status.h"

#include <algorithm>
#include <utility>

#include "agent/session/reservations.h"
#include "common/base/cpulist.h"
#include "common/base/programs.h"

namespace dtrain::session {
namespace {

using State = SessionCore::State;

v1::JobOnNode::State StateOf(State state, bool away, bool stopping) {
  switch (state) {
    case State::kNew:
    case State::kJoined:
      return v1::JobOnNode::STATE_JOINING;
    case State::kRunning:
      if (stopping) return v1::JobOnNode::STATE_ENDING;
      return away ? v1::JobOnNode::STATE_AWAY : v1::JobOnNode::STATE_RUNNING;
    case State::kOrphaned:
    case State::kReaping:
      return v1::JobOnNode::STATE_ENDING;
    case State::kReleasing:
    case State::kFinished:
    case State::kEnded:
      return v1::JobOnNode::STATE_FINISHED;
  }
  return v1::JobOnNode::STATE_UNSPECIFIED;
}

}  // namespace

void JobStatus::SetPart(const v1::JobPart& part) {
  job_.set_node_rank(part.node_rank());
  job_.set_node_count(part.node_count());
  job_.set_world_size(part.world_size());
  for (std::string& word : CommandWords(part)) job_.add_argv(std::move(word));
  for (const v1::WorkerSpec& worker : part.workers()) {
    v1::RankOnNode& rank = ranks_[worker.rank()];
    rank.set_rank(worker.rank());
    rank.set_local_rank(worker.local_rank());
  }
  const absl::StatusOr<Share> share = ShareOf(part);
  if (!share.ok()) return;  // nor has it anything
  *job_.mutable_gpu_uuids() = {share->gpus.begin(), share->gpus.end()};
  job_.set_cpulist(FormatCpuList({share->cores.begin(), share->cores.end()}));
}

void JobStatus::SetStarted(const v1::Started& started) {
  for (const v1::WorkerStarted& worker : started.workers()) {
    auto rank = ranks_.find(worker.rank());
    if (rank != ranks_.end()) rank->second.set_pid(worker.pid());
  }
}

void JobStatus::FromShepherd(const v1::SessionEvent& event) {
  if (event.has_started()) SetStarted(event.started());
  if (event.has_exit()) {
    auto rank = ranks_.find(event.exit().rank());
    if (rank == ranks_.end()) return;
    rank->second.set_ended(true);
    *rank->second.mutable_exit() = event.exit();
    rank->second.mutable_exit()->clear_stderr_tail();
    rank->second.mutable_exit()->clear_error_file();
  }
  for (const v1::RankProgress& progress : event.progress().ranks()) {
    auto rank = ranks_.find(progress.rank());
    if (rank != ranks_.end()) *rank->second.mutable_progress() = progress;
  }
}

void JobStatus::Adopt(const v1::Account& account, const std::vector<uint32_t>& living) {
  SetPart(account.part());
  SetStarted(account.started());
  for (auto& [number, rank] : ranks_) {
    if (rank.pid() == 0) continue;
    rank.set_ended(std::find(living.begin(), living.end(), rank.pid()) == living.end());
  }
}

v1::JobOnNode JobStatus::View(State state, bool away) const {
  v1::JobOnNode out = job_;
  out.set_state(StateOf(state, away, stopping_));
  for (const auto& [number, rank] : ranks_) *out.add_ranks() = rank;
  return out;
}

}  // namespace dtrain::session
