// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/spawn/processes.h"
#include "agent/spawn/quarantine.h"
#include "agent/spawn/shepherd_words.h"
#include "common/loop/loop.h"
#include "common/os/process_tree.h"
#include "common/os/spawn.h"

namespace dtrain::spawn {

// Where an agent's own processes end, and those of others beside it begin.
enum class Reach {
  kBelow,   // it has one job: all that is below it in the tree of processes
  kMarked,  // it has many: what has the job's variables in its environment
};

// Of a job whose shepherd this process, or one before it, has started itself.
class OwnProcesses final : public Processes {
 public:
  struct Surroundings {
    loop::Loop& loop;
    Quarantine& quarantine;  // outlives it
    Reach reach;
    std::shared_ptr<const bool> in_use = {};  // held by each
  };

  // `program` is run as `<program> shepherd` with the socket as kShepherdSocket; `user` (may be
  // null: as ourselves) is whom it and the workers run as; `cgroup` (may be empty: ours) is a
  // directory that this user may use, for it and them.
  static absl::StatusOr<std::unique_ptr<OwnProcesses>> Start(Surroundings around, Owner owner,
                                                             const std::string& program,
                                                             const os::Account* user,
                                                             const std::string& cgroup);
  // What is known of those that an agent before us has started.
  struct Remains {
    os::Child shepherd;         // without a pidfd: it is not there any more
    uint64_t start_time = 0;    // with the pid: how the shepherd was known; 0: it is not
    os::UniqueFd in_its_place;  // pidfd of who answers on its socket, where the kernel can tell
    os::UniqueFd socket;
    std::string cgroup;
  };
  static std::unique_ptr<OwnProcesses> Adopt(Surroundings around, Owner owner,
                                             const std::string& job_id, uint32_t attempt,
                                             Remains remains);
  ~OwnProcesses() override;
  // Of one that was started as ourselves, for messages.
  void SetOwner(const Owner& owner) { owner_ = owner; }

  os::UniqueFd TakeSocket() override { return std::move(socket_); }
  bool is_prepared() const override { return false; }
  void WhenStarted(OnStarted done) override;
  void WhenShepherdEnded(OnEnded done) override;
  bool shepherd_ended() const override { return ended_; }
  pid_t shepherd_pid() const override { return child_.pid; }
  const os::Account* account() const override { return user_ ? &*user_ : nullptr; }
  void SetPart(const std::string& job_id, uint32_t attempt, uint32_t node_rank) override;
  void Save(v1::JobRecord& record) const override;
  std::vector<uint32_t> Living() const override;
  void KillShepherd() override;
  void KillLiving() override;
  void KillMarked() override;
  void EndAll(loop::Task done) override;
  const std::set<uint32_t>& killed() const override { return killed_; }
  void set_patience(Duration patience) override { patience_ = patience; }
  void set_presence(std::shared_ptr<const bool> presence) override {
    presence_ = std::move(presence);
  }

 private:
  struct Beginning;
  OwnProcesses(Surroundings around, Owner owner, os::Child child, uint64_t start_time,
               bool is_child, os::UniqueFd socket, std::string cgroup);
  void Watch();
  void Reap();
  void Reported();
  void TryToEnd(TimePoint deadline);
  std::vector<os::ProcessInfo> Marked() const;
  std::vector<std::string> Marks() const;
  std::string Mark() const;
  std::string WorkersCgroup() const;

  const Surroundings around_;
  Owner owner_;
  std::optional<os::Account> user_;
  std::string job_id_;  // empty: without a job yet
  uint32_t attempt_ = 0;
  std::string part_cgroup_;  // the name of the workers' cgroup, which the shepherd makes
  os::Child child_;
  const uint64_t start_time_;  // taken while the pid was its own for sure
  const bool is_child_;
  os::UniqueFd in_its_place_;
  os::UniqueFd socket_;  // until TakeSocket
  const std::string cgroup_;
  std::unique_ptr<loop::FdWatch> exit_watch_;
  std::unique_ptr<Beginning> beginning_;  // until it runs
  std::unique_ptr<ShepherdWords> words_;  // of another user's, which we have started
  bool ended_ = false;
  std::string how_ended_;
  OnEnded when_ended_;
  std::set<uint32_t> killed_;
  loop::Timer again_;
  loop::Task when_all_ended_;
  Duration patience_;
  std::shared_ptr<const bool> presence_;
  mutable os::LookInParts look_;  // of Marked
  // Of EndAll: something was left by the looks since the last one that came to the end; they are
  // not whole.
  bool found_ = false, in_parts_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::spawn
