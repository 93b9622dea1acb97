// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/nccl/group.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "tests/support/fake_nccl/nccl/job.h"
#include "tests/support/fake_nccl/per_thread.h"

namespace fake_nccl {
namespace {

struct OfThread {
  int depth = 0;
  int error = kSuccess;
  std::optional<bool> blocking;  // as all of it must be
  std::vector<HostTask> host;
  std::vector<DeviceTask> device;
};

OfThread& Group() {
  static const auto* const groups = new PerThread<OfThread>;
  return groups->Get();
}

int First(int one, int other) { return one != kSuccess ? one : other; }

// At once, a thread each where there are several.
int RunHost(const std::vector<HostTask>& tasks) {
  std::vector<int> codes(tasks.size(), kSuccess);
  std::vector<std::thread> threads;
  for (size_t i = 1; i < tasks.size(); ++i) {
    threads.emplace_back([&codes, &tasks, i] { codes[i] = tasks[i].run(); });
  }
  if (!tasks.empty()) codes[0] = tasks[0].run();
  for (std::thread& thread : threads) thread.join();
  int code = kSuccess;
  for (const int other : codes) code = First(code, other);
  return code;
}

// By communicator, in the order of the calls.
std::vector<std::pair<ncclComm*, std::vector<DeviceTask>>> ByComm(
    const std::vector<DeviceTask>& tasks) {
  std::vector<std::pair<ncclComm*, std::vector<DeviceTask>>> all;
  for (const DeviceTask& task : tasks) {
    auto at = std::find_if(all.begin(), all.end(),
                           [&](const auto& entry) { return entry.first == task.comm; });
    if (at == all.end()) at = all.insert(all.end(), {task.comm, {}});
    at->second.push_back(task);
  }
  return all;
}

int RunAll(const std::vector<HostTask>& host, const std::vector<DeviceTask>& device) {
  int code = RunHost(host);
  if (code != kSuccess) return code;
  for (auto& [comm, tasks] : ByComm(device)) {
    if (StateOf(*comm) != kSuccess && StateOf(*comm) != kInProgress) return StateOf(*comm);
    code = First(code, Launch(*comm, tasks));
  }
  return code;
}

std::vector<ncclComm*> CommsOf(const OfThread& all) {
  std::vector<ncclComm*> comms;
  for (const HostTask& task : all.host) comms.push_back(task.comm);
  for (const DeviceTask& task : all.device) comms.push_back(task.comm);
  std::sort(comms.begin(), comms.end());
  comms.erase(std::unique(comms.begin(), comms.end()), comms.end());
  return comms;
}

bool NeedsThread(const OfThread& all) {
  const Profile& profile = TheProfile();
  if (!all.host.empty() || profile.thread_per_launch) return true;
  if (profile.connects_in_call) return false;
  for (auto& [comm, tasks] : ByComm(all.device)) {
    if (WouldConnect(*comm, tasks)) return true;
  }
  return false;
}

bool Fits(const ncclComm& comm) {
  if (!Group().blocking) Group().blocking = comm.blocking;
  return *Group().blocking == comm.blocking;
}

int RefuseMixture() {
  return Spoil(Fail(kInvalidArgument,
                    "Blocking and nonblocking communicators are not allowed in "
                    "the same group"));
}

}  // namespace

void BeginGroup() { ++Group().depth; }

int Spoil(int code) {
  Group().error = First(Group().error, code);
  return code;
}

int Add(HostTask task) {
  if (!task.ends && !Fits(*task.comm)) return RefuseMixture();
  Group().host.push_back(std::move(task));
  return kSuccess;
}

int Add(const DeviceTask& task) {
  if (!Fits(*task.comm)) return RefuseMixture();
  Group().device.push_back(task);
  return kSuccess;
}

int EndGroup() {
  if (--Group().depth > 0) return kSuccess;
  const OfThread all = std::exchange(Group(), {});
  if (all.error != kSuccess) return all.error;
  const auto comms = CommsOf(all);
  if (comms.empty()) return kSuccess;
  const bool ends =
      std::any_of(all.host.begin(), all.host.end(), [](const HostTask& task) { return task.ends; });
  if (ends || comms[0]->blocking || !NeedsThread(all)) return RunAll(all.host, all.device);
  // They are over when the background thread has said so.
  return BeginJob(comms, [all, comms] {
    for (ncclComm* comm : comms) comm->inside.fetch_add(1);
    const int code = RunAll(all.host, all.device);
    for (ncclComm* comm : comms) {
      if (!Stopped(*comm)) comm->state.store(code);
      comm->inside.fetch_sub(1);
    }
  });
}

}  // namespace fake_nccl

FAKE_EXPORT int ncclGroupStart() {
  fake_nccl::BeginGroup();
  return fake_nccl::kSuccess;
}

FAKE_EXPORT int ncclGroupEnd() {
  using namespace fake_nccl;
  if (Group().depth == 0) return Fail(kInvalidUsage, "ncclGroupEnd: not in a group call.");
  return EndGroup();
}

// Under the names of all that the fake does not do.
FAKE_EXPORT int fake_nccl_refuse() {
  return fake_nccl::Fail(fake_nccl::kInvalidUsage, "the fake does not do this");
}
