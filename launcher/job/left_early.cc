// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/left_early.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/text.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {
namespace {

constexpr size_t kMostNamed = 8;
// A rank that exits tells of its end a moment after its peers have seen its connections close.
constexpr int64_t kReapedLateNanos = 500'000'000;
// So much earlier is worth a word: the others may have failed for another reason.
constexpr int64_t kLongAgoNanos = 10'000'000'000;

struct Operation {
  absl::string_view in_output;
  absl::string_view name;
};

// What tracebacks and errors of torch.distributed, NCCL and libdtrain call it. Those that contain
// others' names stand before them; what only leads to one stands last.
constexpr Operation kOperations[] = {
    {"monitored_barrier", "a barrier"},
    {"monitoredBarrier", "a barrier"},
    {"all_reduce", "all-reduce"},
    {"ALLREDUCE", "all-reduce"},
    {"allreduce", "all-reduce"},
    {"all_gather", "all-gather"},
    {"ALLGATHER", "all-gather"},
    {"allgather", "all-gather"},
    {"reduce_scatter", "reduce-scatter"},
    {"REDUCE_SCATTER", "reduce-scatter"},
    {"all_to_all", "all-to-all"},
    {"ALLTOALL", "all-to-all"},
    {"alltoall", "all-to-all"},
    {"broadcast", "a broadcast"},
    {"BROADCAST", "a broadcast"},
    {"in barrier", "a barrier"},
    {"_store_based_barrier", "a barrier"},
    {"in new_group", "new_group"},
    {"in recv", "recv"},
    {"(barrier", "a barrier"},
    {"BARRIER", "a barrier"},
    {".backward(", "all-reduce"},
    {"run_backward", "all-reduce"},
};

// The one named last: what is above it in a traceback has only led there.
absl::string_view OperationOf(absl::string_view tail) {
  absl::string_view found;
  size_t at = 0;
  for (const Operation& each : kOperations) {
    const size_t place = tail.rfind(each.in_output);
    if (place == absl::string_view::npos || (!found.empty() && place <= at)) continue;
    found = each.name;
    at = place;
  }
  return found;
}

// Gloo's words for a connection whose other end a process has closed: in good order, or with bytes
// unread.
bool WasClosed(absl::string_view tail) {
  return absl::StrContains(tail, "Connection closed by peer") ||
         absl::StrContains(tail, "Connection reset by peer");
}

// libdtrain names the rank that leaves.
std::optional<uint32_t> LeaverOf(absl::string_view tail) {
  constexpr absl::string_view kLeaving = " is leaving the job";
  constexpr absl::string_view kRank = "rank ";
  tail = tail.substr(0, tail.find(kLeaving));
  const size_t at = tail.rfind(kRank);
  uint32_t rank = 0;
  if (at == absl::string_view::npos || !absl::SimpleAtoi(tail.substr(at + kRank.size()), &rank)) {
    return std::nullopt;
  }
  return rank;
}

std::string NameOf(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kMostNamed)
    absl::StrAppend(&text, " and ", ranks.size() - kMostNamed, " more");
  return text;
}

}  // namespace

std::string LeftEarly(const std::vector<RankEnd>& ranks, Rank blamed) {
  const RankEnd& victim = ranks[blamed.value()];
  const int64_t noticed = victim.seen.peer_lost_unix_nanos;
  std::vector<uint32_t> finished, silent;
  int64_t last = 0;
  absl::string_view operation = OperationOf(victim.exit.stderr_tail());
  for (const RankEnd& rank : ranks) {
    const v1::WorkerExit& exit = rank.exit;
    const bool lost = rank.seen.peer_lost_unix_nanos > 0;
    if (operation.empty() && lost) operation = OperationOf(exit.stderr_tail());
    if (exit.told_to_stop() && !lost && rank.seen.sign == Sign::kNone) {
      silent.push_back(rank.rank.value());
    }
    if (!rank.ended || HasFailed(exit) || exit.told_to_stop()) continue;
    if (rank.ended_unix_nanos > noticed + kReapedLateNanos) continue;
    finished.push_back(rank.rank.value());
    last = std::max(last, rank.ended_unix_nanos);
  }
  const std::optional<uint32_t> leaver = LeaverOf(victim.exit.stderr_tail());
  std::string text;
  if (!finished.empty()) {
    text = absl::StrCat(NameOf(finished), " had finished (exit 0) ");
    if (noticed - last >= kLongAgoNanos) {
      absl::StrAppend(&text, FormatSeconds(std::chrono::nanoseconds(noticed - last)), " before, ");
    }
  } else if (leaver && *leaver < ranks.size()) {
    finished = {*leaver};
    text = absl::StrCat(NameOf(finished), " was leaving the job ");
  } else if (silent.size() == 1 && WasClosed(victim.exit.stderr_tail())) {
    // It lived, and all others have lost one.
    finished = silent;
    text = absl::StrCat(NameOf(finished), " had closed its connections ");
  } else {
    return "";
  }
  absl::StrAppend(&text, "while ", Count(ranks.size() - finished.size(), "rank"), " waited for ",
                  finished.size() == 1 ? "it" : "them",
                  operation.empty() ? "" : absl::StrCat(" in ", operation),
                  ": did one rank get less data?");
  if (leaver) absl::StrAppend(&text, " Then it must call join() when it has no more");
  return text;
}

}  // namespace dtrain::job
