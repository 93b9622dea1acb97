// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "launcher/job/job_core.h"

namespace dtrain::job {

// It was killed or crashed, which its neighbours may notice before it can be reaped. SIGABRT is not
// such an end: libraries abort when they lose their peers.
bool IsStruckDown(const v1::WorkerExit& exit);
// The rank's end is its own: it was not told to end, or has crashed all the same.
bool EndedByItself(const RankEnd& rank);
// What `dtrain launch` exits with when this rank is blamed; never 0.
int BlamedExitCode(const RankEnd& rank);

// Its last words are about another rank, that was gone. `stop_unix_nanos`: see below.
bool HasLostPeer(const RankEnd& rank, int64_t stop_unix_nanos);

// Which rank's failure ended the attempt, by all that is known at its end: the earliest sign of a
// failure, and not the earliest exit. `first`, whose exit came first, at `first_unix_nanos`, unless
// another one shows a failure of its own
//   - before `first` showed any: a traceback or a crash in its output, or its exit. A crash counts
//     as 2 s earlier than an exit without a word;
//   - at all, if `first` says that it has lost another rank: that one never outranks a failure of
//     its own. Who was told to end counts by its output before that, or by a crash.
// Pure.
// Output counts by when it has arrived, so `stop_unix_nanos` is when we had heard of that exit, and
// told all to end.
Rank Blame(const std::vector<RankEnd>& ranks, Rank first, int64_t first_unix_nanos,
           int64_t stop_unix_nanos);

}  // namespace dtrain::job
