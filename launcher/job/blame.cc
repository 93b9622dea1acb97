// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/blame.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <limits>

#include "common/base/exit_code.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {
namespace {

constexpr int64_t kNoTime = std::numeric_limits<int64_t>::max();
constexpr int64_t kSecondNanos = 1'000'000'000;
// All are told to end right after the first exit. What a rank writes then is about that.
constexpr int64_t kStopNanos = kSecondNanos / 10;
// A rank that has crashed is reaped once its core is written; what others are told meanwhile they
// may answer by leaving.
constexpr int64_t kCoreNanos = 10 * kSecondNanos;
constexpr int64_t kLeftMeanwhileNanos = 2 * kSecondNanos;
// A traceback so long before another rank's own failure is that of a program which goes on.
constexpr int64_t kTeardownNanos = 2 * kSecondNanos;
// The same before a rank that has lost it says so: it may wait for ever in what runs at its exit.
constexpr int64_t kLastWordsNanos = 60 * kSecondNanos;

bool HasCrashed(const v1::WorkerExit& exit) {
  constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
  return std::find(std::begin(kCrashes), std::end(kCrashes), exit.signal()) != std::end(kCrashes);
}

// Than it was reaped: an abort happened when it was asked for.
int64_t EarlierBy(const v1::WorkerExit& exit) {
  if (exit.aborted()) return std::max<int64_t>(exit.unix_nanos() - exit.abort_unix_nanos(), 0);
  return IsStruckDown(exit) ? kStopNanos : 0;
}

// It only left, and did not say why.
bool IsBare(const RankEnd& rank) {
  return rank.seen.sign == Sign::kNone && rank.exit.signal() == 0 && !rank.exit.aborted() &&
         rank.exit.error_file().empty();
}

// When a rank showed a failure of its own first; kNoTime: it did not.
int64_t FailedAt(const RankEnd& rank, int64_t stop, int64_t words_since) {
  int64_t at = kNoTime;
  if (rank.seen.sign != Sign::kNone && rank.seen.unix_nanos <= stop &&
      rank.seen.unix_nanos >= words_since) {
    at = rank.seen.unix_nanos;
  }
  if (EndedByItself(rank) && rank.ended_unix_nanos <= stop + kCoreNanos) {
    at = std::min(at, rank.ended_unix_nanos - EarlierBy(rank.exit));
  }
  return at;
}

}  // namespace

bool IsStruckDown(const v1::WorkerExit& exit) {
  constexpr int kHard[] = {SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  return !exit.told_to_stop() &&
         std::find(std::begin(kHard), std::end(kHard), exit.signal()) != std::end(kHard);
}

bool EndedByItself(const RankEnd& rank) {
  return rank.ended && HasFailed(rank.exit) &&
         (!rank.exit.told_to_stop() || rank.exit.aborted() || HasCrashed(rank.exit));
}

bool HasLostPeer(const RankEnd& rank, int64_t stop_unix_nanos) {
  const v1::WorkerExit& exit = rank.exit;
  if (exit.signal() != 0 && exit.signal() != SIGABRT && !exit.told_to_stop()) return false;
  const int64_t since =
      rank.seen.sign != Sign::kNone ? rank.seen.unix_nanos : stop_unix_nanos - kLastWordsNanos;
  return rank.seen.peer_lost_unix_nanos > 0 && rank.seen.peer_lost_unix_nanos >= since;
}

int BlamedExitCode(const RankEnd& rank) {
  if (EndedByItself(rank)) return WorkerExitCode(rank.exit);
  if (rank.seen.sign == Sign::kKilled) return kExitSignalBase + SIGKILL;
  return rank.seen.sign == Sign::kCrash ? kExitSignalBase + SIGABRT : 1;
}

Rank Blame(const std::vector<RankEnd>& ranks, Rank first, int64_t first_unix_nanos,
           int64_t stop_unix_nanos) {
  const RankEnd& exited = ranks[first.value()];
  const int64_t stop = std::max(first_unix_nanos, stop_unix_nanos) + kStopNanos;
  const bool is_victim = HasLostPeer(exited, stop);
  const int64_t own = is_victim ? kNoTime : FailedAt(exited, stop, 0);
  const int64_t words_since = is_victim ? first_unix_nanos - kLastWordsNanos : own - kTeardownNanos;
  Rank blamed = first;
  int64_t earliest = own;
  for (const RankEnd& rank : ranks) {
    if (rank.rank == first || HasLostPeer(rank, stop)) continue;
    int64_t at = FailedAt(rank, stop, words_since);
    if (at != kNoTime && HasCrashed(rank.exit) && IsBare(exited)) at -= kLeftMeanwhileNanos;
    if (at >= earliest) continue;
    earliest = at;
    blamed = rank.rank;
  }
  return blamed;
}

}  // namespace dtrain::job
