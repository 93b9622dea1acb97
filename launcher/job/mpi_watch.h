// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/job/cluster.h"
#include "launcher/job/outcome.h"
#include "launcher/job/rank_table.h"
#include "rendezvous/pmix_core.h"

namespace dtrain::job {

// Ranks that are in an MPI world by PMIx: what their nodes exchange, and ranks that it waits for.
class MpiWatch {
 public:
  MpiWatch(const Cluster& cluster, Out& out, const RankTable& ranks)
      : cluster_(cluster), out_(out), ranks_(ranks) {}

  absl::Status OnPmix(const Event& event);
  void OnNodeEnded(NodeId node);
  void OnRankEnded(uint32_t rank);

  // From when on ranks that ended with 0 inside MPI end the job, if others still run; kNever: no
  // rank has.
  TimePoint unfinished_at() const;
  // Of those ranks; `others`: what these do, or have done.
  std::string UnfinishedText(absl::string_view others) const;
  // When all ranks have ended with 0: why that is no success; "": it is one.
  std::string JudgeEnd();
  // Of a failed rank: the text if its MPI library fails as a peer has gone that way; else "".
  std::string CauseOf(const v1::WorkerExit& failed) const;

  // Since when it is certain that MPI_Init waits for a rank that has ended with 0; kNever: it does
  // not.
  TimePoint stalled_since() const;
  // "" when it waits for no rank that has ended.
  std::string StallText() const;

  // To warn of ranks that have not called MPI_Init.
  TimePoint NextDeadline() const;
  void OnDeadline();

 private:
  void Begin();
  void Sort(uint32_t rank);
  void SendAll(std::vector<rendezvous::PmixCore::Send> sends);
  bool WaitsForMissingRanks() const;
  std::vector<std::string> Missing(bool ended) const;

  const Cluster& cluster_;
  Out& out_;
  const RankTable& ranks_;
  std::optional<rendezvous::PmixCore> pmix_;  // once a rank has asked for it
  TimePoint since_ = kNever;                  // when the first rank had joined
  TimePoint warn_at_ = kNever;
  // Ranks that live and are in MPI, or beyond; and those that ended without it, by when the first
  // of their node did: no message may cost a look at all ranks.
  std::unordered_set<uint32_t> inside_;
  std::set<std::pair<TimePoint, uint32_t>> ended_outside_;
  // Ranks that ended with 0 inside the world, since when, and how many had left it.
  std::set<uint32_t> unfinished_;
  TimePoint unfinished_since_ = kNever;
  size_t finished_ = 0;
};

}  // namespace dtrain::job
