// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/mpi_looks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/shepherd/contracts.h"
#include "agent/shepherd/failure.h"
#include "agent/shepherd/worker_env.h"
#include "common/base/exit_code.h"
#include "common/os/process_tree.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {
namespace {

// After the start of the workers. What ends before the first look costs nothing; programs that
// import for long get to MPI late.
constexpr Duration kLooks[] = {std::chrono::milliseconds(100), std::chrono::milliseconds(300),
                               std::chrono::seconds(1),        std::chrono::seconds(3),
                               std::chrono::seconds(10),       std::chrono::seconds(30)};
// Of a worker: itself, and what a script has started.
constexpr size_t kMostProcesses = 16;
// A process with many mappings has some thousand lines.
constexpr size_t kMostMaps = 4 << 20;
constexpr size_t kMostEnvironment = 256 << 10;

// The beginning; "": it cannot be read, has ended.
std::string ReadProc(pid_t pid, absl::string_view name, size_t limit) {
  const os::UniqueFd file(
      open(absl::StrCat("/proc/", pid, "/", name).c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char part[64 << 10];
  while (file && text.size() < limit) {
    const ssize_t n = read(file.get(), part, sizeof(part));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(part, static_cast<size_t>(n));
  }
  return text;
}

bool WantsSingletons(const std::vector<std::string>& environment) {
  return std::find(environment.begin(), environment.end(), "DTRAIN_SINGLETONS=1") !=
         environment.end();
}

}  // namespace

void MpiLooks::Begin(const v1::JobPart& part, const std::vector<std::string>& agent_env) {
  if (part.world_size() < 2 || !HasContract(part, v1::CONTRACT_MPI)) return;
  part_ = &part;
  agent_env_ = &agent_env;
  watch_.emplace(part.world_size());
  Plan(0);
}

void MpiLooks::Plan(size_t look) {
  if (look == std::size(kLooks) || core_.state() != State::kRunning) return;
  next_look_.At(workers_.started_at() + kLooks[look], [this, look] {
    if (look == 0) Exempt();
    Look(look, 0);
  });
}

void MpiLooks::Exempt() {
  const WorkerEnv env(*part_, *agent_env_);
  for (const v1::WorkerSpec& worker : part_->workers()) {
    if (WantsSingletons(env.Of(worker, {}))) watch_->Exempt(worker.rank());
  }
}

void MpiLooks::OnJoined(uint32_t rank) {
  if (watch_) watch_->OnJoined(rank);
}

// One worker at a time: between them, others' output and ends are taken.
void MpiLooks::Look(size_t look, size_t next) {
  const auto& workers = workers_.all();
  while (next < workers.size() && !WantsLook(*workers[next])) ++next;
  if (next == workers.size()) {
    if (std::string text = watch_->TellAlone(); !text.empty()) launcher_.Warn(std::move(text));
    return Plan(look + 1);
  }
  LookAt(*workers[next]);
  loop_.Post([this, look, next] { Look(look, next + 1); });
}

bool MpiLooks::WantsLook(const Worker& worker) {
  if (pmi_.HasJoined(worker.rank())) watch_->OnJoined(worker.rank());
  return !worker.ended() && watch_->WantsLook(worker.rank());
}

void MpiLooks::LookAt(const Worker& worker) {
  std::vector<pid_t> todo = {worker.pid()};
  MpiSigns last;
  for (size_t i = 0; i < todo.size() && i < kMostProcesses; ++i) {
    const std::string name = ReadProc(todo[i], "comm", 64);
    if (IsMpiLauncher(name)) continue;
    if (name == "orted\n") {
      last.alone = !last.library.empty() && IsSingletonDaemon(ReadProc(todo[i], "cmdline", 4096));
      if (last.alone) watch_->OnLook(worker.rank(), last);
      continue;
    }
    const MpiSigns signs = ReadMpiSigns(ReadProc(todo[i], "maps", kMostMaps),
                                        ReadProc(todo[i], "environ", kMostEnvironment));
    if (!signs.library.empty()) last = signs;
    watch_->OnLook(worker.rank(), signs);
    for (const pid_t child : os::ChildrenOfMainThread(todo[i])) todo.push_back(child);
  }
}

void MpiLooks::Judge(uint32_t rank) {
  if (!watch_) return;
  if (pmi_.HasJoined(rank)) watch_->OnJoined(rank);
  const std::string why = watch_->OnSuccess(rank);
  if (why.empty()) return;
  launcher_.SendFailure(MakeFailure(v1::NodeFailure::KIND_HELPER, kExitRendezvous, why));
}

void MpiLooks::End() {
  next_look_.Cancel();
  std::string text = watch_ ? watch_->TellSuspects() : "";
  if (!text.empty()) launcher_.Warn(std::move(text));
}

}  // namespace dtrain::shepherd
