// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/shepherd/aborts.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/pmix_gate.h"
#include "agent/shepherd/shepherd_core.h"
#include "agent/shepherd/store_gate.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/elastic.pb.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/pmix.pb.h"

namespace dtrain::shepherd {

// What helper processes serve the ranks, from before these start to the end: PMIx, and on rank 0's
// node, or on each of an elastic job, the key-value stores at which ranks meet. Loop thread.
class RankServers {
 public:
  // Ranks have joined the job's world by PMIx.
  using OnJoined = absl::AnyInvocable<void(uint32_t rank)>;

  // `program`: of the helpers. `core`: once a stop was asked for, no store is missed.
  RankServers(loop::Loop& loop, std::string program, const ShepherdCore& core,
              LauncherLine& launcher, Aborts& aborts, OnJoined on_joined);
  RankServers(const RankServers&) = delete;
  RankServers& operator=(const RankServers&) = delete;

  // A port that the agent holds for one of them, until that is open.
  void Hold(uint32_t port, os::UniqueFd socket) { held_[port] = std::move(socket); }
  // Before the workers start; `part` must stay. Why they cannot start.
  std::optional<v1::NodeFailure> Open(const v1::JobPart& part);
  // 0: the job does without PMIx.
  uint16_t pmix_port() const { return pmix_ ? pmix_->port() : 0; }
  // When they have started. `env`: as for PmixGate::Serve. `scratch`: where it may leave files,
  // besides the usual places; empty: nowhere.
  void ServePmix(PmixGate::Environment env, std::string scratch);
  void OnPmixDown(v1::PmixDown down);
  // Of an elastic job; kept until Open. A door that is gone hears nothing.
  void OnElasticDown(v1::ElasticDown down);
  // What of PMIx a launcher must know that has taken the job over.
  void SayAgain();
  // Whether ranks have been at a store.
  bool stores_used() const;

  // What the rank is in by PMIx, should it end now.
  v1::WorkerExit::World WorldOf(uint32_t rank) const { return pmix_talk_.WorldOf(rank); }

  // As Helper::MoveLog.
  void MoveLog();
  // Of the helpers that run.
  std::vector<pid_t> pids() const;
  // As Helper::OnChild.
  bool OnChild(pid_t pid);
  // Hears what the helpers have said, and whether they have ended: of an abort, or that a rank has
  // used them, before the end of that rank is judged.
  void CatchUp();
  // Ends all helpers, PMIx's first: it removes what ranks that were killed have left in shared
  // memory. Then `done`, perhaps at once.
  void End(loop::Task done);

 private:
  absl::Status OpenAll(const v1::JobPart& part);
  absl::Status OpenPmix(const v1::JobPart& part);
  absl::Status OpenStore(const v1::JobPart& part, const StoreKind& kind, uint32_t port);
  void OnPmixUp(v1::PmixUp up);
  void Fail(const std::string& why, bool ended);
  std::vector<Helper*> Helpers() const;

  loop::Loop& loop_;
  const std::string program_;
  const ShepherdCore& core_;
  LauncherLine& launcher_;
  Aborts& aborts_;
  OnJoined on_joined_;
  std::map<uint32_t, os::UniqueFd> held_;  // by port
  std::unique_ptr<PmixGate> pmix_;         // null: the job does without
  PmixTalk pmix_talk_;
  std::vector<std::unique_ptr<StoreGate>> stores_;
  StoreGate* door_ = nullptr;  // of them
  std::vector<v1::ElasticDown> early_downs_;
};

}  // namespace dtrain::shepherd
