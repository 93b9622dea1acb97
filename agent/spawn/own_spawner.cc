// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/own_spawner.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/spawn/job_id.h"
#include "common/log/log.h"
#include "common/os/cgroup.h"
#include "common/os/credentials.h"
#include "common/os/process_tree.h"

namespace dtrain::spawn {
namespace {

// How often to make a shepherd's cgroup again if something has removed it.
constexpr int kCgroupTries = 3;
// What a user may make below the cgroup of one job, all of which the kernel keeps, and we walk
// through at the end.
constexpr int kMostCgroups = 1000;
constexpr int kDeepestCgroup = 12;
constexpr Duration kSweepPause = std::chrono::milliseconds(100);
constexpr absl::string_view kCgroupPrefix = "dtrain-shepherd-";

std::string CgroupName(const JobKey& key) {
  return absl::StrCat(kCgroupPrefix, key.job_id, ".", key.attempt, ".", key.uid);
}

}  // namespace

OwnSpawner::OwnSpawner(loop::Loop& loop, std::string program, FindAccount find_account)
    : around_{loop, quarantine(), Reach::kMarked, std::make_shared<const bool>(true)},
      program_(std::move(program)),
      find_account_(std::move(find_account)),
      sweep_(loop) {}

absl::StatusOr<std::unique_ptr<Processes>> OwnSpawner::Spawn(Order order) {
  const Owner& owner = order.owner;
  auto account = find_account_(owner.uid);
  // In a container, a user that its image does not know. What is needed of ourselves is known.
  if (absl::IsNotFound(account.status()) && owner.uid != 0 && owner.uid == geteuid()) {
    account = os::Account{owner.uid, getegid(), {}, owner.name, "", ""};
  }
  if (!account.ok()) return account.status();
  const os::Account* const user = geteuid() == 0 ? &*account : nullptr;
  const JobKey key{owner.uid, order.job_id, order.attempt};
  std::string cgroup = MakeCgroup(*account, key);
  auto made = OwnProcesses::Start(around_, owner, program_, user, cgroup);
  // Another agent beside us that tidies up takes it for a leftover while nobody is in it.
  for (int i = 0; i < kCgroupTries && absl::IsNotFound(made.status()) && !cgroup.empty(); ++i) {
    cgroup = MakeCgroup(*account, key);
    made = OwnProcesses::Start(around_, owner, program_, user, cgroup);
  }
  if (!made.ok()) {
    Sweep();
    return made.status();
  }
  os::ResetOomScore((*made)->shepherd_pid());
  return made;
}

// For the shepherd and its workers; empty when there can be none, of which the shepherd warns.
std::string OwnSpawner::MakeCgroup(const os::Account& account, const JobKey& key) {
  auto parent = os::FindWritableCgroup();
  if (!parent.ok() || !IsPlainJobId(key.job_id)) return "";
  auto made = os::Cgroup::Make(*parent, CgroupName(key));
  if (!made.ok()) return "";
  absl::Status given = made->Bound(kMostCgroups, kDeepestCgroup);
  if (given.ok()) given = made->GiveTo(account.uid, account.gid);
  if (!given.ok()) {
    log::Warn(given.message());
    made->Remove().IgnoreError();
    return "";
  }
  return made->path();
}

Spawner::Found OwnSpawner::Adopt(Trace trace) {
  Found found;
  OwnProcesses::Remains remains;
  os::UniqueFd socket;
  if (trace.socket.ok()) socket = *std::move(trace.socket);
  const auto peer =
      socket ? os::PeerOf(socket.get()) : absl::StatusOr<os::Peer>(absl::NotFoundError(""));
  if (trace.record) {
    found.owner = {trace.record->uid(), trace.record->owner()};
    remains.cgroup = trace.record->cgroup();
  } else {
    const uid_t uid = trace.uid.value_or(peer.ok() ? peer->uid : geteuid());
    found.owner = {uid, absl::StrCat(uid)};
    if (auto parent = os::FindWritableCgroup(); parent.ok()) {
      remains.cgroup = absl::StrCat(*parent, "/", CgroupName({uid, trace.job_id, trace.attempt}));
    }
    found.why_not = "the agent's record of it is missing or damaged";
  }
  if (peer.ok()) {
    // Only this leads to the listener for sure: its pid may be another process's by now.
    auto listener = os::PidfdOfPeer(socket.get());
    if (listener.ok() && peer->uid == found.owner.uid) remains.in_its_place = *std::move(listener);
  } else if (socket) {
    found.why_not = std::string(peer.status().message());
  }
  if (trace.record) {
    const v1::JobRecord& record = *trace.record;
    const auto pid = static_cast<pid_t>(record.shepherd_pid());
    remains.shepherd.pid = pid;
    remains.start_time = record.shepherd_start_time();
    auto pidfd = os::OpenProcess(pid, record.shepherd_start_time(), record.uid());
    if (pidfd.ok()) remains.shepherd.pidfd = std::move(*pidfd);
    if (peer.ok() && (peer->pid != pid || peer->uid != record.uid())) {
      found.why_not = "another process answers in its place";
    } else if (found.why_not.empty() && !pidfd.ok()) {
      found.why_not = std::string(pidfd.status().message());
    }
  }
  if (!trace.socket.ok()) found.why_not = std::string(trace.socket.status().message());
  remains.socket = std::move(socket);
  found.processes =
      OwnProcesses::Adopt(around_, found.owner, trace.job_id, trace.attempt, std::move(remains));
  return found;
}

// A shepherd leaves its own a moment after its session has ended.
void OwnSpawner::Sweep() {
  auto parent = os::FindWritableCgroup();
  if (!parent.ok()) return;
  bool left = false;
  for (const os::Cgroup& cgroup : os::Cgroup::Below(*parent, kCgroupPrefix)) {
    if (cgroup.Populated() || !cgroup.Remove().ok()) left = true;
  }
  const bool idle = around_.in_use.use_count() == 1;
  if (left && idle) sweep_.After(kSweepPause, [this] { Sweep(); });
}

absl::StatusOr<std::unique_ptr<OneSpawner>> OneSpawner::Start(loop::Loop& loop,
                                                              const std::string& program) {
  std::unique_ptr<OneSpawner> spawner(new OneSpawner());
  auto one = OwnProcesses::Start({loop, spawner->quarantine(), Reach::kBelow}, {geteuid(), ""},
                                 program, /*user=*/nullptr, /*cgroup=*/"");
  if (!one.ok()) return one.status();
  spawner->one_ = *std::move(one);
  return spawner;
}

std::unique_ptr<OneSpawner> OneSpawner::Empty() {
  return std::unique_ptr<OneSpawner>(new OneSpawner());
}

absl::StatusOr<std::unique_ptr<Processes>> OneSpawner::Spawn(Order order) {
  if (one_ == nullptr) {
    return absl::FailedPreconditionError(
        "this agent has already run its one job, or was started to answer questions");
  }
  one_->SetOwner(order.owner);
  return std::move(one_);
}

Spawner::Found OneSpawner::Adopt(Trace) {
  return {nullptr, {}, "an agent of one job takes none over"};
}

void OneSpawner::KillUnused() {
  if (one_ != nullptr) one_->KillShepherd();
}

}  // namespace dtrain::spawn
