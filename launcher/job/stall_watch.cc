// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/stall_watch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/job/outcome.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {

void StallWatch::Begin() {
  std::vector<std::string> names;
  for (const plan::PlannedNode& node : cluster_.plan().nodes) {
    names.push_back(cluster_.host(node.node));
  }
  has_exit_.assign(names.size(), false);
  fence_.emplace(std::move(names));
}

void StallWatch::BeginRetold() {
  Begin();
  retelling_.resize(has_exit_.size());
}

absl::Status StallWatch::OnFenceEnter(const Event& event) {
  const ShepherdMessage& message = OfShepherd(event);
  const size_t index = *cluster_.node(message.node).plan_index;
  if (retelling_.empty()) return Enter(index, message.event.fence_enter());
  if (retelling_[index].entered.size() == 3) return absl::InvalidArgumentError("too many fences");
  retelling_[index].entered.push_back(message.event.fence_enter());
  return absl::OkStatus();
}

void StallWatch::OnRetold(NodeId node) {
  if (retelling_.empty()) return;
  retelling_[*cluster_.node(node).plan_index].over = true;
  if (std::all_of(retelling_.begin(), retelling_.end(),
                  [](const Retelling& each) { return each.over; })) {
    Resume();
  }
}

// No node is more than one fence ahead of another, so the one before the fence that the last node
// is to enter next has been entered by all: it is made once more, since some may not have heard of
// its release. Who has, ignores it. Nodes that have ended wait for none.
void StallWatch::Resume() {
  const std::vector<Retelling> told = std::exchange(retelling_, {});
  uint32_t first = UINT32_MAX;
  for (size_t i = 0; i < told.size(); ++i) {
    if (cluster_.node(cluster_.planned(i)).ended) continue;
    const auto& entered = told[i].entered;
    first = std::min(first, entered.empty() ? 0 : entered.back().sequence());
  }
  std::vector<std::string> names;
  for (const plan::PlannedNode& node : cluster_.plan().nodes) {
    names.push_back(cluster_.host(node.node));
  }
  fence_.emplace(std::move(names), first == UINT32_MAX ? 0 : first);
  for (const uint32_t sequence : {first, first + 1}) {
    for (size_t i = 0; i < told.size(); ++i) {
      for (const v1::FenceEnter& enter : told[i].entered) {
        // What does not fit is told by the node's next one.
        if (enter.sequence() == sequence) Enter(i, enter).IgnoreError();
      }
    }
  }
  for (size_t i = 0; i < told.size(); ++i) {
    if (cluster_.node(cluster_.planned(i)).ended) fence_->NodeFinished(i);
  }
  Plan();
}

absl::Status StallWatch::Enter(size_t plan_index, v1::FenceEnter enter) {
  absl::StatusOr<std::optional<v1::FenceRelease>> release =
      fence_->Enter(plan_index, std::move(enter));
  if (!release.ok()) return release.status();
  if (*release) {
    v1::JobRequest request;
    *request.mutable_fence_release() = **std::move(release);
    out_.ToShepherds(cluster_.PlannedWithWork(), std::move(request));
    fence_since_ = kNever;
    unentered_ = 0;
  } else if (fence_since_ == kNever) {
    fence_since_ = cluster_.now();
  }
  Plan();
  return absl::OkStatus();
}

absl::Status StallWatch::OnPmix(const Event& event) {
  if (absl::Status status = mpi_watch_.OnPmix(event); !status.ok()) return status;
  Plan();
  return absl::OkStatus();
}

void StallWatch::OnExit(uint32_t rank) {
  const size_t index = *cluster_.node(ranks_.at(rank).node).plan_index;
  if (with_exits_.empty()) {
    early_exit_ = Rank(rank);
    warn_exit_at_ = After(cluster_.now(), cluster_.options().exit_timeout);
  }
  if (!has_exit_[index]) with_exits_.push_back(index);
  has_exit_[index] = true;
  Plan();
}

void StallWatch::OnNodeEnded(NodeId node) {
  OnRetold(node);
  if (fence_) fence_->NodeFinished(*cluster_.node(node).plan_index);
  mpi_watch_.OnNodeEnded(node);
}

// When it is certain that the present fence, or MPI_Init, waits for a rank that has ended with 0,
// and for how long that is tolerated.
void StallWatch::Plan() {
  stall_at_ = kNever;
  const Duration patience = cluster_.options().exit_timeout;
  if (with_exits_.empty() || patience <= Duration::zero()) return;
  stall_at_ = mpi_watch_.unfinished_at();
  if (const TimePoint since = mpi_watch_.stalled_since(); since != kNever) {
    stall_at_ = std::min(stall_at_, After(since, patience));
  }
  if (!fence_->in_progress()) return;
  while (unentered_ < with_exits_.size() && fence_->has_entered(with_exits_[unentered_])) {
    ++unentered_;
  }
  if (unentered_ == with_exits_.size()) return;
  const TimePoint exit = ranks_.first_exit(cluster_.planned(with_exits_[unentered_]));
  stall_at_ = std::min(stall_at_, After(std::max(exit, fence_since_), patience));
}

TimePoint StallWatch::NextDeadline() const {
  return cluster_.state() == State::kRunning ? std::min(stall_at_, warn_exit_at_) : kNever;
}

void StallWatch::OnDeadline() {
  const auto is_due = [this](TimePoint deadline) {
    return cluster_.state() == State::kRunning && cluster_.now() >= deadline;
  };
  if (is_due(stall_at_)) OnStall();
  if (is_due(warn_exit_at_)) OnEarlyExit();
}

// Ranks may end at very different times, and rank 0 may write a model for long: without the user's
// word that is worth a line, no more.
void StallWatch::OnEarlyExit() {
  warn_exit_at_ = kNever;
  const JobOptions& options = cluster_.options();
  std::string text = absl::StrCat(
      ranks_.Name(early_exit_.value()), " ended with 0 ", FormatSeconds(options.exit_timeout),
      " ago, ", ranks_.size() - ranks_.ended(), " of ", Count(ranks_.size(), "rank"), " still run");
  if (!options.exit_timeout_ends_job) {
    return out_.Warn(absl::StrCat(text, "; if they wait for it, did it get less data?"));
  }
  if (std::string mpi = mpi_watch_.StallText(); !mpi.empty()) {
    rank_watch_.Stalled(std::move(mpi));
  } else {
    rank_watch_.Stalled(absl::StrCat(text, " (--exit-timeout)"));
  }
}

void StallWatch::OnStall() {
  std::string unfinished = mpi_watch_.UnfinishedText(
      absl::StrCat("; ", ranks_.size() - ranks_.ended(), " of ", Count(ranks_.size(), "rank"),
                   " still run and may wait for it (--exit-timeout)"));
  if (!unfinished.empty()) return rank_watch_.Stalled(std::move(unfinished));
  if (std::string mpi = mpi_watch_.StallText(); !mpi.empty()) {
    return rank_watch_.Stalled(std::move(mpi));
  }
  std::vector<std::string> who;
  for (size_t i = 0; i < cluster_.plan().nodes.size(); ++i) {
    if (fence_->has_entered(i)) continue;
    for (const v1::WorkerSpec& worker : cluster_.plan().nodes[i].workers) {
      if (ranks_.at(worker.rank()).ended) who.push_back(ranks_.Name(worker.rank()));
    }
  }
  rank_watch_.Stalled(absl::StrCat("the others wait in fence ", fence_->sequence(), " for ",
                                   rendezvous::FormatHosts(who), ", ended with 0 more than ",
                                   FormatSeconds(cluster_.options().exit_timeout),
                                   " ago (--exit-timeout)"));
}

}  // namespace dtrain::job
