// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/worker.h"

#include <signal.h>

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "absl/time/clock.h"
#include "agent/shepherd/failure.h"
#include "common/base/cpulist.h"
#include "common/base/programs.h"
#include "common/os/fd.h"
#include "common/os/process_tree.h"

namespace dtrain::shepherd {
namespace {

// Numbers of its descriptors.
constexpr int kPmi = 3;
constexpr int kPage = 4;
constexpr int kVariables = 5;  // of a container's client
constexpr uint64_t kDefaultSpool = 64 << 20;
// Large pipes mean few turns for who writes much. What an unprivileged user has in pipes is
// limited (64 MiB in all, usually), beyond which new ones shrink to a page: the workers' own too.
constexpr uint32_t kAllPipes = 32 << 20;
constexpr uint32_t kLargestPipe = 1 << 20;
constexpr uint32_t kSmallestPipe = 64 << 10;

// Processes of a worker that are looked at, and how seldom: each costs two small files of /proc.
constexpr size_t kMostLookedAt = 16;
constexpr int kLooksPerLookBelow = 5;

constexpr size_t kTailLines = 20;
constexpr size_t kTailBytes = 8 << 10;

bool IsStopped(char state) { return state == 'T' || state == 't'; }

// One stream on its way: the end for the worker, and what reads the other.
struct Stream {
  os::UniqueFd writer;
  std::unique_ptr<LogStream> log;
};

absl::StatusOr<Stream> MakeStream(loop::Loop& loop, const WorkerSetup& setup, uint32_t rank,
                                  v1::StreamKind kind, WorkerHooks& hooks) {
  auto pipe = os::Pipe();
  if (!pipe.ok()) return pipe.status();
  uint64_t spool_limit = setup.part.spool_limit_bytes();
  auto streams = 2 * static_cast<uint32_t>(setup.part.workers_size());
  uint32_t pipe_size = std::clamp(std::bit_floor(kAllPipes / streams), kSmallestPipe, kLargestPipe);
  return Stream{std::move(pipe->second),
                std::make_unique<LogStream>(
                    loop, std::move(pipe->first), setup.spool_directories,
                    LogStream::Limits{spool_limit > 0 ? spool_limit : kDefaultSpool,
                                      static_cast<int>(pipe_size)},
                    [&hooks, rank, kind] { hooks.log_grown(rank, kind); },
                    [&hooks, rank](const absl::Status& why) { hooks.log_stuck(rank, why); })};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(loop::Loop& loop, const WorkerSetup& setup,
                                                      const v1::WorkerSpec& spec,
                                                      WorkerHooks& hooks, os::SpawnError* error) {
  *error = {};
  uint32_t rank = spec.rank();
  auto cpus = ParseCpuList(spec.cpulist());
  if (!cpus.ok()) return cpus.status();
  auto out = MakeStream(loop, setup, rank, v1::STREAM_KIND_STDOUT, hooks);
  if (!out.ok()) return out.status();
  auto err = MakeStream(loop, setup, rank, v1::STREAM_KIND_STDERR, hooks);
  if (!err.ok()) return err.status();
  auto pmi = os::SocketPair();
  if (!pmi.ok()) return pmi.status();
  auto page = Page::Make(setup.part.timeline_records());
  if (!page.ok()) return page.status();
  os::UniqueFd page_fd = page->TakeFd();
  os::UniqueFd stdin_reader, stdin_writer;
  if (spec.stdin_mode() != v1::STDIN_MODE_NULL) {
    auto pipe = os::Pipe();
    if (!pipe.ok()) return pipe.status();
    std::tie(stdin_reader, stdin_writer) = *std::move(pipe);
  }

  os::SpawnSpec run;
  const v1::Program& program = ProgramOf(setup.part, spec);
  const containers::Chosen* container =
      setup.containers != nullptr ? setup.containers->Of(spec.program()) : nullptr;
  const bool inherits = container == nullptr || containers::CarriesDescriptors(container->runtime);
  run.argv.assign(program.argv().begin(), program.argv().end());
  run.env = setup.env.Of(spec, {.pmi = inherits ? kPmi : -1,
                                .page = inherits ? kPage : -1,
                                .pmix = setup.pmix,
                                .traits = setup.traits,
                                .shepherd = setup.mark,
                                .pid_namespace = setup.pid_namespace,
                                .error_file = ErrorFilePath(setup.scratch, rank),
                                .state = setup.state != nullptr   ? setup.state->path()
                                         : setup.part.has_state() ? "none"
                                                                  : ""});
  run.working_directory = program.working_directory();
  run.stdin_fd = stdin_reader.get();
  run.stdout_fd = out->writer.get();
  run.stderr_fd = err->writer.get();
  if (inherits) run.extra_fds = {{pmi->second.get(), kPmi}, {page_fd.get(), kPage}};
  run.parent_death_signal = SIGKILL;
  run.cgroup_fd = setup.cgroup_fd;
  run.cpus = *std::move(cpus);
  run.limits = setup.limits;
  if (setup.part.has_inherited()) {
    run.umask = static_cast<mode_t>(setup.part.inherited().umask() & 0777);
    run.nice = setup.part.inherited().nice();
  }
  os::UniqueFd variables;
  if (container != nullptr) {
    std::vector<std::string> folders{setup.scratch, setup.code};
    if (setup.state != nullptr) folders.push_back(setup.state->job_path());
    auto file = setup.containers->Wrap(spec, folders, kVariables, &run);
    if (!file.ok()) return file.status();
    variables = *std::move(file);
  }
  auto child = os::Spawn(run, error);
  if (!child.ok()) return child.status();

  auto worker = std::unique_ptr<Worker>(new Worker(spec));
  worker->child_ = *std::move(child);
  worker->stdout_ = std::move(out->log);
  worker->stderr_ = std::move(err->log);
  worker->pmi_ = std::move(pmi->first);
  worker->page_ = *std::move(page);
  if (stdin_writer) {
    worker->stdin_ = std::make_unique<StdinFeeder>(
        loop, std::move(stdin_writer), worker->pid(), spec.stdin_mode() == v1::STDIN_MODE_TERMINAL,
        [&hooks, rank](const StdinFeeder::Taken& taken) { hooks.stdin_taken(rank, taken); });
  }
  return worker;
}

std::string Worker::LastWords() const { return stderr_->Tail(kTailLines, kTailBytes); }

void Worker::Signal(int signal) {
  if (ended_) return;
  // A worker may have moved to another group of its session.
  if (kill(-child_.pid, signal) != 0) (void)os::SendSignal(child_.pidfd.get(), signal);
}

// The program may be below a script. A process that is stopped there stops the rank as well; one
// that waits in the kernel may be any of many that read data, unless it is the only one.
char Worker::LookBelow() const {
  std::vector<pid_t> todo = {child_.pid};
  bool alone = true;
  size_t looked_at = 0;
  for (size_t i = 0; i < todo.size(); ++i) {
    const std::vector<pid_t> children = os::ChildrenOfMainThread(todo[i]);
    alone = alone && children.size() == 1;
    for (pid_t pid : children) {
      if (++looked_at > kMostLookedAt) return 0;
      const auto found = os::FindProcess(pid);
      if (!found || found->group != child_.pid) continue;
      if (IsStopped(found->state) || (found->state == 'D' && alone)) return found->state;
      todo.push_back(pid);
    }
  }
  return 0;
}

void Worker::LookAtState() {
  const auto found = ended_ ? std::nullopt : os::FindProcess(child_.pid);
  char state = 0;
  if (found && (IsStopped(found->state) || found->state == 'D')) {
    state = found->state;
  } else if (found) {
    if (until_below_-- == 0) {
      until_below_ = kLooksPerLookBelow - 1;
      below_ = LookBelow();
    }
    state = below_;
  }
  if (state == state_) {
    ++looks_;
    return;
  }
  state_ = state;
  state_since_unix_nanos_ = absl::GetCurrentTimeNanos();
  looks_ = 0;
}

bool Worker::AddState(v1::RankProgress& progress) {
  // Everybody reads from a disk now and then.
  const int enough = below_ == 'D' ? kLooksPerLookBelow : 1;
  const bool of_note = !ended_ && (IsStopped(state_) || (state_ == 'D' && looks_ >= enough));
  if (of_note) {
    progress.set_process_state(static_cast<uint32_t>(state_));
    progress.set_state_since_unix_nanos(state_since_unix_nanos_);
    progress.set_stopped(state_ != 'D');
  }
  return std::exchange(state_told_, of_note) || of_note;
}

std::optional<os::ExitStatus> Worker::Reap() {
  if (ended_) return std::nullopt;
  auto status = os::TryReap(child_.pidfd.get());
  if (!status.ok() || !status->has_value()) return std::nullopt;
  ended_ = true;
  child_.pidfd.Reset();
  if (stdin_ != nullptr) stdin_->Close();
  return **status;
}

}  // namespace dtrain::shepherd
