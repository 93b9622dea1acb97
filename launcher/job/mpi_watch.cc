// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/mpi_watch.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/job/outcome.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {
namespace {

// From the first rank's MPI_Init to the last one's, where files come from a slow disk.
constexpr Duration kInitPatience = std::chrono::seconds(10);
// For ranks that fail, too, with a code of their own, and for those that end likewise.
constexpr Duration kUnfinishedPatience = std::chrono::seconds(2);
// What MPICH's like and Open MPI write when a call fails, and what is left of that above a trace.
constexpr absl::string_view kMpiComplaints[] = {"Fatal error in ", "MPIR_", "libmpi",
                                                "*** An error occurred in MPI_"};

v1::PmixJob PmixJobOf(const plan::Plan& plan) {
  v1::PmixJob job;
  job.set_universe_size(plan.universe_size);
  for (const plan::PlannedNode& node : plan.nodes) {
    v1::PmixNode& out = *job.add_nodes();
    out.set_host(node.entry.host);
    for (const v1::WorkerSpec& worker : node.workers) {
      out.add_ranks(worker.rank());
      out.add_programs(worker.program());
    }
  }
  return job;
}

}  // namespace

absl::Status MpiWatch::OnPmix(const Event& event) {
  const ShepherdMessage& message = OfShepherd(event);
  const v1::PmixUp& up = message.event.pmix();
  if (!pmix_) Begin();
  auto sends = pmix_->OnUp(*cluster_.node(message.node).plan_index, up);
  if (!sends.ok()) {
    // It may go on from what only the launcher before us was told.
    if (cluster_.options().generation > 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("in PMIx: ", sends.status().message()));
  }
  for (const uint32_t rank : up.joined().ranks()) Sort(rank);
  for (const uint32_t rank : up.left().ranks()) Sort(rank);
  SendAll(*std::move(sends));
  if (since_ == kNever && pmix_->joined() > 0) {
    since_ = cluster_.now();
    const Duration warning = cluster_.options().collective_warning;
    if (warning > Duration::zero()) warn_at_ = since_ + std::min(kInitPatience, warning);
  }
  return absl::OkStatus();
}

void MpiWatch::Begin() {
  pmix_.emplace(PmixJobOf(cluster_.plan()));
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) Sort(rank);
}

void MpiWatch::OnNodeEnded(NodeId node) {
  if (pmix_) SendAll(pmix_->NodeFinished(*cluster_.node(node).plan_index));
}

void MpiWatch::OnRankEnded(uint32_t rank) {
  if (pmix_) Sort(rank);
  const v1::WorkerExit& exit = ranks_.at(rank).exit;
  if (HasFailed(exit)) return;
  if (exit.world() == v1::WorkerExit::WORLD_LEFT) ++finished_;
  if (exit.world() != v1::WorkerExit::WORLD_INSIDE) return;
  unfinished_.insert(rank);
  unfinished_since_ = std::min(unfinished_since_, cluster_.now());
}

TimePoint MpiWatch::unfinished_at() const {
  const JobOptions& options = cluster_.options();
  if (unfinished_.empty() || options.exit_timeout <= Duration::zero()) return kNever;
  return After(unfinished_since_, options.exit_timeout_ends_job
                                      ? options.exit_timeout
                                      : std::min(options.exit_timeout, kUnfinishedPatience));
}

std::string MpiWatch::UnfinishedText(absl::string_view others) const {
  if (unfinished_.empty()) return "";
  std::vector<std::string> who;
  for (const uint32_t rank : unfinished_) who.push_back(ranks_.Name(rank));
  return absl::StrCat(rendezvous::FormatHosts(who),
                      " ended with 0 after MPI_Init but without MPI_Finalize", others);
}

// Programs that avoid MPI_Finalize, as it hangs or crashes, do so on every rank.
std::string MpiWatch::JudgeEnd() {
  if (finished_ > 0 && unfinished_at() != kNever) {
    return UnfinishedText(", which other ranks have called");
  }
  if (!unfinished_.empty()) {
    out_.Warn(UnfinishedText(": whether their work was complete is not known"));
  }
  return "";
}

std::string MpiWatch::CauseOf(const v1::WorkerExit& failed) const {
  if (unfinished_at() == kNever) return "";
  for (const absl::string_view complaint : kMpiComplaints) {
    if (absl::StrContains(failed.stderr_tail(), complaint)) {
      return UnfinishedText(absl::StrCat(", and MPI failed on ", ranks_.Name(failed.rank()),
                                         " after that (exit code ", WorkerExitCode(failed), ")"));
    }
  }
  return "";
}

// Puts it where it belongs, after it has joined, left or ended.
void MpiWatch::Sort(uint32_t rank) {
  const RankEnd& end = ranks_.at(rank);
  const bool joined = pmix_->has_joined(rank);
  if (!end.ended && joined && !pmix_->has_left(rank)) {
    inside_.insert(rank);
  } else {
    inside_.erase(rank);
  }
  if (!end.ended) return;
  const std::pair<TimePoint, uint32_t> entry(ranks_.first_exit(end.node), rank);
  if (joined) {
    ended_outside_.erase(entry);
  } else {
    ended_outside_.insert(entry);
  }
}

void MpiWatch::SendAll(std::vector<rendezvous::PmixCore::Send> sends) {
  for (rendezvous::PmixCore::Send& send : sends) {
    std::vector<NodeId> nodes;
    for (const size_t index : send.nodes) {
      if (cluster_.has_work(cluster_.planned(index))) nodes.push_back(cluster_.planned(index));
    }
    v1::JobRequest request;
    *request.mutable_pmix() = std::move(send.down);
    out_.ToShepherds(std::move(nodes), std::move(request));
  }
}

// Some ranks are in MPI_Init, or beyond, and others have not called it.
bool MpiWatch::WaitsForMissingRanks() const {
  return pmix_ && pmix_->joined() < ranks_.size() && !inside_.empty();
}

// Those that have not called MPI_Init, and have ended or still may.
std::vector<std::string> MpiWatch::Missing(bool ended) const {
  std::vector<std::string> who;
  for (const RankEnd& end : ranks_.all()) {
    if (end.ended != ended || pmix_->has_joined(end.rank.value())) continue;
    who.push_back(ranks_.Name(end.rank.value()));
  }
  return who;
}

TimePoint MpiWatch::stalled_since() const {
  if (!WaitsForMissingRanks() || ended_outside_.empty()) return kNever;
  return std::max(ended_outside_.begin()->first, since_);
}

std::string MpiWatch::StallText() const {
  if (!WaitsForMissingRanks() || ended_outside_.empty()) return "";
  return absl::StrCat("the others wait in MPI_Init for ",
                      rendezvous::FormatHosts(Missing(/*ended=*/true)),
                      ", ended with 0 without having called it more than ",
                      FormatSeconds(cluster_.options().exit_timeout), " ago (--exit-timeout)");
}

TimePoint MpiWatch::NextDeadline() const {
  return cluster_.state() == State::kRunning ? warn_at_ : kNever;
}

void MpiWatch::OnDeadline() {
  if (cluster_.now() < NextDeadline()) return;
  warn_at_ = kNever;
  if (!WaitsForMissingRanks()) return;
  const std::vector<std::string> running = Missing(/*ended=*/false);
  const std::vector<std::string> ended = Missing(/*ended=*/true);
  std::string text = absl::StrCat(pmix_->joined(), " of ", ranks_.size(),
                                  " ranks have called MPI_Init and wait for the others: ");
  if (!running.empty()) absl::StrAppend(&text, rendezvous::FormatHosts(running));
  if (!ended.empty()) {
    absl::StrAppend(&text, running.empty() ? "" : "; ", rendezvous::FormatHosts(ended),
                    ended.size() == 1 ? " has ended" : " have ended");
  }
  out_.Warn(absl::StrCat(text,
                         ". Every rank must call it, or none; importing mpi4py.MPI does, unless "
                         "mpi4py.rc.initialize is False"));
}

}  // namespace dtrain::job
