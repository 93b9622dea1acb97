// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/job_report.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "agent/containers/removal.h"
#include "common/base/cpulist.h"
#include "common/base/programs.h"

namespace dtrain::shepherd {
namespace {

// Of the command: what somebody wants to see of it.
constexpr size_t kMostWords = 16 << 10;

void SetShare(const v1::JobPart& part, v1::JobOnNode& job) {
  std::set<std::string> gpus;
  std::set<int> cores;
  for (const v1::WorkerSpec& worker : part.workers()) {
    if (worker.set_visible_gpus()) {
      gpus.insert(worker.gpu_uuids().begin(), worker.gpu_uuids().end());
    }
    if (part.shares_cores()) continue;
    const auto cpus = ParseCpuList(HeldCpus(worker));
    if (cpus.ok()) cores.insert(cpus->begin(), cpus->end());
  }
  for (const std::string& uuid : gpus) job.add_gpu_uuids(uuid);
  job.set_cpulist(FormatCpuList({cores.begin(), cores.end()}));
}

}  // namespace

void JobReport::Begin(const v1::JobPart& part) {
  changed_ = true;
  v1::JobOnNode& job = *report_.mutable_job();
  job.set_state(v1::JobOnNode::STATE_RUNNING);
  job.set_node_rank(part.node_rank());
  job.set_node_count(part.node_count());
  job.set_world_size(part.world_size());
  size_t words = 0;
  for (std::string& word : CommandWords(part)) {
    word.resize(std::min(word.size(), kMostWords - words));
    words += word.size();
    job.add_argv(std::move(word));
    if (words == kMostWords) break;
  }
  SetShare(part, job);
  for (const v1::WorkerSpec& worker : part.workers()) {
    v1::RankOnNode& rank = *job.add_ranks();
    rank.set_rank(worker.rank());
    rank.set_local_rank(worker.local_rank());
    places_[worker.rank()] = job.ranks_size() - 1;
  }
  for (const containers::Removable& removable : containers::RemovablesOf(geteuid(), part)) {
    v1::LeftContainers& left = *report_.add_containers();
    *left.mutable_container() = removable.container;
    *left.mutable_names() = {removable.names.begin(), removable.names.end()};
  }
}

void JobReport::OnStarted(const v1::Started& started) {
  changed_ = true;
  for (const v1::WorkerStarted& worker : started.workers()) {
    if (v1::RankOnNode* rank = Find(worker.rank())) rank->set_pid(worker.pid());
  }
}

void JobReport::OnExit(const v1::WorkerExit& exit) {
  v1::RankOnNode* const rank = Find(exit.rank());
  if (rank == nullptr) return;
  changed_ = true;
  rank->set_ended(true);
  *rank->mutable_exit() = exit;
  rank->mutable_exit()->clear_stderr_tail();
  rank->mutable_exit()->clear_error_file();
}

void JobReport::OnProgress(const v1::RankProgress& progress) {
  v1::RankOnNode* const rank = Find(progress.rank());
  if (rank == nullptr) return;
  changed_ = true;
  *rank->mutable_progress() = progress;
}

void JobReport::OnSize(uint32_t number, v1::StreamKind stream, uint64_t bytes) {
  v1::RankOnNode* const rank = Find(number);
  if (rank == nullptr) return;
  changed_ = true;
  if (stream == v1::STREAM_KIND_STDOUT) {
    rank->set_stdout_bytes(bytes);
  } else {
    rank->set_stderr_bytes(bytes);
  }
}

void JobReport::SetEnding() {
  changed_ = true;
  report_.mutable_job()->set_state(v1::JobOnNode::STATE_ENDING);
}

void JobReport::SetUnkillable() {
  changed_ = true;
  report_.set_unkillable(true);
}

v1::RankOnNode* JobReport::Find(uint32_t rank) {
  const auto place = places_.find(rank);
  return place == places_.end() ? nullptr : report_.mutable_job()->mutable_ranks(place->second);
}

}  // namespace dtrain::shepherd
