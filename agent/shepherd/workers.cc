// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/workers.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "agent/shepherd/node_caches.h"
#include "agent/shepherd/worker_env.h"
#include "common/base/exit_code.h"
#include "common/base/programs.h"
#include "common/os/process_facts.h"
#include "common/os/process_tree.h"
#include "common/os/scratch_folder.h"
#include "common/os/spawn.h"

namespace dtrain::shepherd {
namespace {

// With a trap on EXIT, bash has a handler for each signal that would end it, and ends.
bool ActsOn(pid_t pid, int signal) {
  return os::Catches(pid, signal) && !(os::IsShell(pid) && os::Catches(pid, SIGVTALRM));
}

}  // namespace

Workers::Workers(loop::Loop& loop, LauncherLine& launcher, OnGrown on_grown)
    : loop_(loop), launcher_(launcher) {
  hooks_.log_grown = std::move(on_grown);
  hooks_.log_stuck = [this](uint32_t rank, const absl::Status& why) { OnStuck(rank, why); };
  hooks_.stdin_taken = [this](uint32_t rank, const StdinFeeder::Taken& taken) {
    v1::JobEvent event;
    v1::StdinTaken& out = *event.mutable_stdin_taken();
    out.set_rank(rank);
    out.set_closed(taken.closed);
    out.set_unread(taken.unread);
    out.set_waits(taken.waits);
    launcher_.Send(event);
  };
}

void Workers::OnStuck(uint32_t rank, const absl::Status& why) {
  if (absl::IsOutOfRange(why)) {
    // The worker would wait for ever, and with -q nobody would know.
    return launcher_.SendFailure(MakeFailure(
        v1::NodeFailure::KIND_STATE, kExitState,
        absl::StrCat("the output of rank ", rank,
                     " has reached the limit of file sizes: ", std::string(why.message()),
                     "; raise the limit (ulimit -f) where dtrain or its agent is started")));
  }
  launcher_.Warn(absl::StrCat("the output of rank ", rank, " waits: ", std::string(why.message()),
                              "; the worker is blocked, and continues when there is room "
                              "in XDG_RUNTIME_DIR, TMPDIR, /tmp or /var/tmp of the node"));
}

std::string Workers::CachesFor(const v1::JobPart& part, const std::vector<std::string>& agent_env) {
  NodeCaches caches = ChooseNodeCaches(part.node_caches(), agent_env);
  if (!caches.trouble.ok()) {
    launcher_.Warn(
        absl::StrCat("compilers' caches (Triton, Inductor, CUDA, torch extensions) stay "
                     "where programs put them, though ",
                     caches.why, ": ", std::string(caches.trouble.message()),
                     " (--node-caches off: do not try)"));
  } else if (!caches.folder.empty()) {
    launcher_.Warn(absl::StrCat("compilers' caches are in ", caches.folder, ": ", caches.why),
                   /*detail=*/true);
  }
  return std::move(caches.folder);
}

std::optional<v1::NodeFailure> Workers::Start(const v1::JobPart& part, const Surroundings& around) {
  started_at_ = loop_.Now();
  const WorkerLimits::Chosen chosen = limits_.For(part);
  const auto& limits = chosen.limits;
  const auto directories = os::TemporaryDirectories();
  const std::string mark = os::ProcessMark(getpid());
  const std::string pid_namespace = os::PidNamespace();
  const WorkerEnv env(part, around.agent_env);
  NodeTraits traits = ReadTraits(part, around.agent_env);
  traits.caches = CachesFor(part, around.agent_env);
  for (int i = 0; i < part.workers_size();) {
    const WorkerSetup setup{
        part,        env,           directories,      limits,       around.cgroup.fd(),
        mark,        pid_namespace, around.scratch,   around.state, around.code,
        around.pmix, traits,        around.containers};
    const v1::WorkerSpec& spec = part.workers(i);
    os::SpawnError error;
    auto worker = Worker::Start(loop_, setup, spec, hooks_, &error);
    if (worker.ok()) {
      workers_.push_back(*std::move(worker));
      ++i;
    } else if (error.stage == os::SpawnStage::kCgroup && i == 0 && !part.require_cgroup()) {
      // The directory could be made, but the system lets nobody in (not delegated).
      around.cgroup.Lose(worker.status());
    } else if (error.stage != os::SpawnStage::kNone) {
      return SpawnFailure(part, ProgramOf(part, spec), error, worker.status());
    } else {
      return CannotStart(worker.status());
    }
  }
  if (!chosen.trouble.empty()) {
    launcher_.Warn(absl::StrCat("the ranks have lower limits than the launcher, as the host's hard "
                                "limits are lower: ",
                                chosen.trouble),
                   /*detail=*/true);
  }
  if (part.has_inherited() && !workers_.empty()) {
    errno = 0;
    const int nice = getpriority(PRIO_PROCESS, static_cast<id_t>(workers_[0]->pid()));
    const int wanted = part.inherited().nice();
    const std::string trouble = errno == 0 ? NiceTrouble(wanted, nice) : "";  // it may have ended
    if (!trouble.empty()) launcher_.Warn(trouble);
  }
  return std::nullopt;
}

Worker* Workers::Find(uint32_t rank) const {
  for (const auto& worker : workers_) {
    if (worker->rank() == rank) return worker.get();
  }
  return nullptr;
}

Worker* Workers::FindRunning(pid_t pid) const {
  for (const auto& worker : workers_) {
    if (worker->pid() == pid && !worker->ended()) return worker.get();
  }
  return nullptr;
}

v1::Started Workers::Started() const {
  v1::Started started;
  for (const auto& worker : workers_) {
    v1::WorkerStarted* entry = started.add_workers();
    entry->set_rank(worker->rank());
    entry->set_pid(static_cast<uint32_t>(worker->pid()));
  }
  return started;
}

void Workers::Signal(int signal) {
  for (const auto& worker : workers_) worker->Signal(signal);
}

void Workers::PassOn(int signal) {
  std::unordered_map<pid_t, std::vector<os::ProcessInfo>> acting;  // by worker
  for (const auto& worker : workers_) {
    if (!worker->ended()) acting.try_emplace(worker->pid());
  }
  struct Place {
    pid_t worker = 0;
    bool acts = false;  // it, or one above
  };
  std::unordered_map<pid_t, Place> places;
  for (const os::ProcessInfo& info : os::Descendants(getpid())) {
    // Parents are listed first. An orphan may still be of the group.
    Place place{acting.contains(info.pid) ? info.pid : info.group, false};
    if (const auto parent = places.find(info.parent); parent != places.end()) {
      place = parent->second;
    }
    if (!acting.contains(place.worker)) continue;
    // To those in other groups (torchrun's workers) a launcher that acts passes it on itself.
    if ((info.group == place.worker || !place.acts) && ActsOn(info.pid, signal)) {
      acting[place.worker].push_back(info);
      place.acts = true;
    }
    places.emplace(info.pid, place);
  }
  for (const auto& worker : workers_) {
    if (worker->ended()) continue;
    const std::vector<os::ProcessInfo>& those = acting[worker->pid()];
    if (those.empty()) {
      worker->Signal(signal);
    } else {
      os::Signal(those, signal);
    }
  }
}

void Workers::TakeStdin(const v1::StdinData& data) {
  Worker* const worker = Find(data.rank());
  if (worker != nullptr && worker->stdin_feeder() != nullptr) {
    worker->stdin_feeder()->Write(data.data(), data.end());
  } else {
    hooks_.stdin_taken(data.rank(), {.closed = true, .unread = data.data().size()});
  }
}

}  // namespace dtrain::shepherd
