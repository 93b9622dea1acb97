// SPDX-License-Identifier: Apache-2.0
#include "agent/reap.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/account.h"
#include "common/os/cgroup.h"
#include "common/os/process_facts.h"
#include "common/os/scratch_folder.h"

namespace dtrain::agent {
namespace {

// Of a worker in a container that a shepherd has started: where the mark means something.
constexpr char kMarksNamespace[] = "DTRAIN_PID_NAMESPACE";
constexpr Duration kBound = std::chrono::seconds(2);
constexpr int kPauseMs = 5;

// Those of the jobs in `jobs` that nobody is in any more; whether that is all. A process that ends
// is still in one for a moment when its environment is gone.
bool RemoveCgroups(const std::set<std::string>& jobs) {
  bool all = true;
  auto parent = os::FindWritableCgroup();
  if (!parent.ok()) return true;
  for (const os::Cgroup& cgroup : os::Cgroup::Below(*parent, "dtrain-")) {
    for (const std::string& job : jobs) {
      const bool its = cgroup.path().find(absl::StrCat("-", job, ".")) != std::string::npos ||
                       cgroup.path().find(absl::StrCat("/", job, ".")) != std::string::npos;
      if (its && (cgroup.Populated() || !cgroup.Remove().ok())) all = false;
    }
  }
  return all;
}

}  // namespace

std::string UserName(uid_t uid) {
  auto account = os::FindAccount(uid);
  return account.ok() ? account->name : absl::StrCat(uid);
}

std::vector<Leftover> FindLeftovers() {
  std::vector<Leftover> out;
  std::map<std::string, bool> lives;  // by mark
  for (const os::MarkedProcess& process :
       os::FindByVariable(os::kShepherdVariable, kMarksNamespace)) {
    if (process.info.state == 'Z' || process.info.pid == getpid()) continue;
    if (geteuid() != 0 && process.uid != geteuid()) continue;
    const std::string mark = os::VariableOf(process.environment, os::kShepherdVariable);
    auto [known, fresh] = lives.emplace(mark, false);
    if (fresh) known->second = os::Lives(mark);
    if (known->second) continue;
    out.push_back({process.info, process.uid, os::VariableOf(process.environment, "DTRAIN_JOB_ID"),
                   mark, os::CommandName(process.info.pid)});
  }
  return out;
}

// Whoever holds an object keeps it, and one that a living job of its owner has a claim to stays.
std::vector<LeftMemory> FindLeftMemory(bool remove) {
  std::optional<uid_t> user;  // all
  if (geteuid() != 0) user = geteuid();
  const std::vector<os::RecordedSharedMemory> records = os::ReadSharedMemoryRecords(user);
  using Owned = std::pair<uid_t, os::SharedMemory>;
  std::set<Owned> claimed, left, stay;
  for (const os::RecordedSharedMemory& record : records) {
    for (const os::SharedMemory& object : record.objects) {
      (record.lives ? claimed : left).emplace(record.owner, object);
    }
  }
  std::map<uid_t, LeftMemory> found;
  for (os::NamedSharedMemory& each : os::ListSharedMemory(user)) {
    const Owned object{each.owner, each.object};
    if (!left.contains(object)) continue;
    const os::SharedMemoryUse use = claimed.contains(object) ? os::SharedMemoryUse::kSomebody
                                    : remove                 ? os::RemoveUnused(each, each.owner)
                                                             : os::UseOf(each, each.owner);
    if (use == os::SharedMemoryUse::kSomebody) stay.insert(object);
    if (use != os::SharedMemoryUse::kNobody) continue;
    LeftMemory& memory = found[each.owner];
    memory.uid = each.owner;
    memory.objects.push_back(std::move(each));
  }
  for (const os::RecordedSharedMemory& record : records) {
    const bool all = std::none_of(record.objects.begin(), record.objects.end(),
                                  [&](const os::SharedMemory& object) {
                                    return stay.contains({record.owner, object});
                                  });
    if (remove && !record.lives && all) (void)unlink(record.path.c_str());
  }
  std::vector<LeftMemory> out;
  for (auto& [uid, memory] : found) out.push_back(std::move(memory));
  return out;
}

std::string Describe(const LeftMemory& memory) {
  return absl::StrCat("shared memory of jobs of user ", UserName(memory.uid), ": ",
                      os::Describe(memory.objects));
}

std::string Describe(const Leftover& leftover) {
  return absl::StrCat("pid ", leftover.process.pid, " (", Escape(leftover.command, 64), ") of job ",
                      Escape(leftover.job_id, 64), ", user ", UserName(leftover.uid));
}

Reaped ReapLeftovers() {
  Reaped reaped;
  reaped.found = FindLeftovers();
  std::vector<Leftover> rest = reaped.found;
  std::set<std::string> jobs;
  for (const Leftover& leftover : rest) jobs.insert(leftover.job_id);
  const TimePoint give_up = Clock::now() + kBound;
  while (!rest.empty() && Clock::now() < give_up) {
    std::vector<os::ProcessInfo> processes;
    for (const Leftover& leftover : rest) processes.push_back(leftover.process);
    (void)os::Kill(processes);
    (void)poll(nullptr, 0, kPauseMs);
    rest = FindLeftovers();
  }
  reaped.left = std::move(rest);
  reaped.memory = FindLeftMemory(/*remove=*/true);
  while (!RemoveCgroups(jobs) && Clock::now() < give_up) (void)poll(nullptr, 0, kPauseMs);
  const absl::Status removed =
      os::RemoveDeadScratchFolders(os::ScratchPlaces(), /*of_all_users=*/true);
  if (!removed.ok()) log::Error(absl::StrCat("cannot ", removed.message()));
  return reaped;
}

int RunReap(bool dry_run) {
  if (dry_run) {
    const std::vector<Leftover> found = FindLeftovers();
    for (const Leftover& leftover : found) std::printf("%s\n", Describe(leftover).c_str());
    const std::vector<LeftMemory> memory = FindLeftMemory(/*remove=*/false);
    for (const LeftMemory& each : memory) std::printf("%s\n", Describe(each).c_str());
    if (found.empty() && memory.empty()) std::printf("no job has left anything behind\n");
    return kExitOk;
  }
  const Reaped reaped = ReapLeftovers();
  for (const Leftover& leftover : reaped.found) {
    std::printf("ended %s\n", Describe(leftover).c_str());
  }
  for (const LeftMemory& each : reaped.memory) {
    std::printf("removed %s\n", Describe(each).c_str());
  }
  if (reaped.found.empty() && reaped.memory.empty())
    std::printf("no job has left anything behind\n");
  if (reaped.left.empty()) return kExitOk;
  log::Error(absl::StrCat(
      reaped.left.size(), " of them cannot be ended: they wait in the kernel for a ",
      "device or a file system, see ps -o pid,stat,wchan; reboot the node if ", "they stay"));
  return kExitCleanup;
}

}  // namespace dtrain::agent
