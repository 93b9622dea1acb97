// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/spawn/processes.h"
#include "agent/spawn/remote_job.h"
#include "common/loop/loop.h"

namespace dtrain::spawn {

class RemoteSpawner;

// Of a job that dtrain-spawner has started: all of it is in one cgroup, which that kills.
class RemoteProcesses final : public Processes {
 public:
  // `spawner` outlives it.
  RemoteProcesses(loop::Loop& loop, RemoteSpawner& spawner, std::shared_ptr<RemoteJob> job);
  ~RemoteProcesses() override;

  os::UniqueFd TakeSocket() override { return std::move(job_->socket); }
  bool is_prepared() const override { return true; }
  void WhenStarted(OnStarted done) override;
  void WhenShepherdEnded(OnEnded done) override;
  bool shepherd_ended() const override { return job_->shepherd_ended; }
  pid_t shepherd_pid() const override { return job_->pid; }
  const os::Account* account() const override { return nullptr; }
  void SetPart(const std::string&, uint32_t, uint32_t) override {}
  void Save(v1::JobRecord& record) const override;
  std::vector<uint32_t> Living() const override;
  void KillShepherd() override;
  // A moment later, as the shepherd, which has said that it cannot end them, goes with them.
  void KillLiving() override;
  void KillMarked() override {}  // they are in the cgroup
  void EndAll(loop::Task done) override;
  const std::set<uint32_t>& killed() const override { return killed_; }
  void set_patience(Duration patience) override { patience_ = patience; }
  void set_presence(std::shared_ptr<const bool> presence) override {
    job_->presence = std::move(presence);
  }

 private:
  void AllEnded();

  loop::Loop& loop_;
  RemoteSpawner& spawner_;
  const std::shared_ptr<RemoteJob> job_;
  std::set<uint32_t> killed_;
  loop::Timer end_limit_;
  loop::Task when_all_ended_;
  Duration patience_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::spawn
