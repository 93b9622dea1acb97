// SPDX-License-Identifier: Apache-2.0
// Ranks that are in an MPI world by PMIx: what their nodes exchange, and ranks that it waits for.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {
namespace {

// From the first rank's MPI_Init to the last one's, where files come from a slow disk.
constexpr Duration kInitPatience = std::chrono::seconds(10);

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

void JobImpl::OnPmix(const Event& event) {
  const NodeMessage& message = Message(event);
  if (!pmix) pmix.emplace(PmixJobOf(the_plan));
  auto sends = pmix->OnUp(*At(message.node).plan_index, message.event.pmix());
  if (!sends.ok()) {
    return Violation(message.node,
                     absl::StrCat("in PMIx: ", std::string(sends.status().message())));
  }
  SendPmix(*std::move(sends));
  if (mpi_since == kNever && pmix->joined() > 0) {
    mpi_since = now;
    if (options.collective_warning > Duration::zero()) {
      warn_mpi_at = now + std::min(kInitPatience, options.collective_warning);
    }
  }
  PlanStallCheck();
}

void JobImpl::SendPmix(std::vector<rendezvous::PmixCore::Send> sends) {
  for (rendezvous::PmixCore::Send& send : sends) {
    SendMany many;
    for (const size_t index : send.nodes) {
      const NodeId node = NodeOfPlan(index);
      if (!views[node.value()].gone && !At(node).finished) many.nodes.push_back(node);
    }
    if (many.nodes.empty()) continue;
    *many.request.mutable_pmix() = std::move(send.down);
    actions.push_back(std::move(many));
  }
}

// Some ranks are in MPI_Init, or beyond, and others have not called it.
bool JobImpl::WaitsForMissingRanks() const {
  if (!pmix || pmix->joined() == 0 || pmix->joined() == ranks.size()) return false;
  return std::any_of(ranks.begin(), ranks.end(), [this](const RankEnd& end) {
    return !end.ended && pmix->has_joined(end.rank.value()) && !pmix->has_left(end.rank.value());
  });
}

// Those that have not called MPI_Init, and have ended or still may.
std::vector<std::string> JobImpl::MissingFromMpi(bool ended) const {
  std::vector<std::string> who;
  for (const RankEnd& end : ranks) {
    if (end.ended != ended || pmix->has_joined(end.rank.value())) continue;
    who.push_back(absl::StrCat("rank ", end.rank.value(), " on ", Host(end.node)));
  }
  return who;
}

// It is certain that MPI_Init waits for a rank that has ended with 0.
void JobImpl::PlanMpiStall() {
  if (!WaitsForMissingRanks()) return;
  for (const RankEnd& end : ranks) {
    if (!end.ended || pmix->has_joined(end.rank.value())) continue;
    const TimePoint since = std::max(At(end.node).first_exit, mpi_since);
    stall_at = std::min(stall_at, After(since, options.exit_timeout));
  }
}

// "" when MPI_Init waits for no rank that has ended.
std::string JobImpl::MpiStallText() const {
  if (!WaitsForMissingRanks()) return "";
  const std::vector<std::string> who = MissingFromMpi(/*ended=*/true);
  if (who.empty()) return "";
  return absl::StrCat("the others wait in MPI_Init for ", rendezvous::FormatHosts(who),
                      ", ended with 0 without having called it more than ",
                      FormatSeconds(options.exit_timeout), " ago (--exit-timeout)");
}

void JobImpl::TellMissingFromMpi() {
  warn_mpi_at = kNever;
  if (!WaitsForMissingRanks()) return;
  const std::vector<std::string> running = MissingFromMpi(/*ended=*/false);
  const std::vector<std::string> ended = MissingFromMpi(/*ended=*/true);
  std::string text = absl::StrCat(pmix->joined(), " of ", ranks.size(),
                                  " ranks have called MPI_Init and wait for the others: ");
  if (!running.empty()) absl::StrAppend(&text, rendezvous::FormatHosts(running));
  if (!ended.empty()) {
    absl::StrAppend(&text, running.empty() ? "" : "; ", rendezvous::FormatHosts(ended),
                    ended.size() == 1 ? " has ended" : " have ended");
  }
  WarnUser(absl::StrCat(text,
                        ". Every rank must call it, or none; importing mpi4py.MPI does, unless "
                        "mpi4py.rc.initialize is False"));
}

}  // namespace dtrain::job
