// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/worker_exits.h"

#include <signal.h>

#include <chrono>

#include "absl/time/clock.h"

namespace dtrain::shepherd {
namespace {

// While the launcher is away, the exits of very many workers come without their last words rather
// than not at all.
constexpr size_t kLittleRoom = 8 << 20;
// Of last words, for launchers to come.
constexpr size_t kMostWordsKept = 16 << 20;

}  // namespace

v1::WorkerExit WorkerExits::Of(const Worker& worker, const os::ExitStatus& status,
                               const ShepherdCore& core) {
  v1::WorkerExit exit;
  exit.set_rank(worker.rank());
  exit.set_pid(static_cast<uint32_t>(worker.pid()));
  exit.set_exit_code(status.code);
  exit.set_signal(status.signal);
  exit.set_core_dumped(status.core_dumped);
  exit.set_unix_nanos(absl::GetCurrentTimeNanos());
  exit.set_monotonic_nanos(std::chrono::nanoseconds(loop_.Now() - workers_.started_at()).count());
  aborts_.AddTo(exit);
  // During the grace we send SIGTERM, and SIGKILL only to ranks that abort. Any other SIGKILL is
  // the kernel's (out of memory) or a user's, and may be why we were told to stop: a large process
  // closes its connections well before it can be reaped.
  const bool killed_by_others =
      status.signal == SIGKILL && core.state() == State::kStopping && !exit.aborted();
  exit.set_told_to_stop(core.stop_asked() && !killed_by_others);
  if (status.signal == SIGKILL && !exit.told_to_stop()) cgroup_.ExplainKill(exit);
  const bool failed = status.code != 0 || status.signal != 0;
  if (failed && launcher_.room() > kLittleRoom) AddLastWords(worker, exit);
  return exit;
}

void WorkerExits::Say(const v1::JobEvent& exit) {
  launcher_.Send(exit);
  v1::JobEvent& said = said_.emplace_back(exit);
  words_said_ += exit.exit().stderr_tail().size() + exit.exit().error_file().size();
  if (words_said_ > kMostWordsKept) DropLastWords(*said.mutable_exit());
}

void WorkerExits::SayAgain() {
  for (v1::JobEvent exit : said_) {
    if (launcher_.room() <= kLittleRoom) DropLastWords(*exit.mutable_exit());
    launcher_.Send(exit);
  }
}

void WorkerExits::DropLastWords(v1::WorkerExit& exit) {
  exit.clear_stderr_tail();
  exit.clear_error_file();
}

void WorkerExits::AddLastWords(const Worker& worker, v1::WorkerExit& exit) {
  exit.set_stderr_tail(worker.LastWords());
  // Of those that were told to end, nobody asks why.
  if (!exit.told_to_stop()) exit.set_error_file(scratch_.ReadErrorFile(worker.rank()));
}

}  // namespace dtrain::shepherd
