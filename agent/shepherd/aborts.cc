// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/aborts.h"

#include <signal.h>

#include <utility>

#include "absl/time/clock.h"

namespace dtrain::shepherd {
namespace {

// From a worker's abort to its exit. Some do it by themselves; MPICH over UCX never does when its
// peers live on, and waits to be killed.
constexpr Duration kAbortLimit = std::chrono::milliseconds(200);
// The same where the job's code is that of the exit: a busy node must not lose it.
constexpr Duration kAbortExitLimit = std::chrono::seconds(1);

}  // namespace

void Aborts::Ask(uint32_t rank, std::optional<int> code) {
  Worker* const worker = workers_.Find(rank);
  // The time runs from the first time, however often it asks.
  if (worker == nullptr || aborts_.contains(rank)) return;
  Abort& abort = aborts_[rank];
  abort.code = code;
  abort.unix_nanos = absl::GetCurrentTimeNanos();
  if (worker->ended()) return;  // what it said last may be heard after its end
  abort.timer = std::make_unique<loop::Timer>(loop_);
  abort.timer->After(code ? kAbortLimit : kAbortExitLimit, [worker] { worker->Signal(SIGKILL); });
}

void Aborts::AddTo(v1::WorkerExit& exit) const {
  const auto abort = aborts_.find(exit.rank());
  if (abort == aborts_.end()) return;
  const int code_of_exit = exit.signal() == 0 ? exit.exit_code() : 1;
  exit.set_aborted(true);
  exit.set_abort_code(abort->second.code.value_or(code_of_exit));
  exit.set_abort_unix_nanos(abort->second.unix_nanos);
}

}  // namespace dtrain::shepherd
