// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/session/job_directory.h"
#include "agent/session/shepherd_channel.h"
#include "agent/spawn/job_id.h"
#include "agent/spawn/spawner.h"
#include "common/loop/loop.h"
#include "dtrain/v1/shepherd.pb.h"
#include "dtrain/v1/state.pb.h"

namespace dtrain::session {

// Jobs that an agent before us has left running: each is taken over, when its shepherd is found and
// gives its account, or ended. Loop thread.
class Adoption {
 public:
  struct Job {
    JobDirectory directory;
    spawn::Owner owner;
    std::unique_ptr<ShepherdChannel> shepherd;
    v1::Account account;
    v1::JobRecord record;  // empty: it cannot be read any more
  };
  struct Lost {
    spawn::JobKey key;
    std::string why;
    std::optional<v1::JobRecord> record;
    std::set<uint32_t> killed;  // pids
  };
  struct Handlers {
    absl::AnyInvocable<void(Job)> on_job;
    absl::AnyInvocable<void(Lost)> on_lost;  // nothing of it is left
    absl::AnyInvocable<void()> on_decided;   // for all; may destroy this
  };

  Adoption(loop::Loop& loop, spawn::Spawner& spawner, Handlers handlers);
  ~Adoption();

  // Once. Fails, and has touched none of them, when a record cannot be read now: the job may be
  // well.
  absl::Status Begin(std::vector<JobDirectory> directories);

 private:
  struct Foundling;
  void Look(JobDirectory directory, std::optional<v1::JobRecord> record);
  void OnAccount(Foundling& foundling, v1::Account account);
  void GiveUp(Foundling& foundling, const std::string& why);
  void OnEnded(Foundling& foundling);
  void Decided(Foundling& foundling);

  loop::Loop& loop_;
  spawn::Spawner& spawner_;
  Handlers handlers_;
  std::list<std::unique_ptr<Foundling>> foundlings_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
