// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/spawn/remote_job.h"
#include "agent/spawn/spawner.h"
#include "agent/spawn/spawner_connection.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"

namespace dtrain::spawn {

// How long a RemoteSpawner waits. Tests wait less.
struct SpawnerLimits {
  Duration answer = SpawnerConnection::kAnswerLimit;
  // Of new launches, for a spawner that is restarted.
  Duration away = std::chrono::seconds(5);
  // Beyond lease and grace, of a job without a record. Its shepherd ends it by itself before that.
  Duration unknown = std::chrono::seconds(10);
};

// Has dtrain-spawner, root's program, start and kill shepherds, so that this process needs no
// privilege (ADR 30). Connects again when it has gone: jobs run on, new launches wait for it a few
// seconds. What ends a job is its word, and not the shepherd's. Outlives what it hands out. Loop
// thread.
class RemoteSpawner final : public Spawner {
 public:
  // `path`: of its agent.sock.
  RemoteSpawner(loop::Loop& loop, std::string path, const SpawnerLimits& limits = {});
  ~RemoteSpawner() override;

  absl::StatusOr<std::unique_ptr<Processes>> Spawn(Order order) override;
  void WhenReady(absl::AnyInvocable<void(absl::Status)> done) override;
  Found Adopt(Trace trace) override;
  void Sweep() override {}  // the spawner does

 private:
  friend class RemoteProcesses;
  using Job = std::shared_ptr<RemoteJob>;

  // Of RemoteProcesses.
  void Kill(const Job& job);
  void KillLater(const Job& job, Duration delay);
  void LetGo(const Job& job, Duration patience);
  void WatchShepherd(const Job& job);

  void Connect();
  void OnClosed(const std::string& why);
  void OnList(const std::vector<SpawnerJob>& listed);
  void OnEvent(const SpawnerWord& event);
  void Ask(const Job& job);
  void AwaitSpawner(const Job& job);
  bool MayAskAgain(RemoteJob& job, const SpawnerRefused& refused) const;
  void AskLater(const Job& job);
  void OnSpawned(const Job& job, absl::StatusOr<SpawnerConnection::Answer> answer);
  absl::Status TakeOver(RemoteJob& job, const SpawnerStarted& started,
                        std::vector<os::UniqueFd> fds);
  void Fail(const Job& job, absl::Status why);
  void Started(RemoteJob& job, absl::Status status);
  void ShepherdEnded(RemoteJob& job, std::string how);
  void Gone(Job job, std::string how);
  void OnKilled(const Job& job);
  Job Find(const JobKey& key) const;

  loop::Loop& loop_;
  const std::string path_;
  const SpawnerLimits limits_;
  std::unique_ptr<SpawnerConnection> connection_;
  bool ready_ = false;  // it has said what runs
  bool told_ = false;   // that it is away
  std::string why_away_;
  Duration pause_;
  loop::Timer retry_;
  loop::Timer ready_limit_;
  absl::AnyInvocable<void(absl::Status)> on_ready_;
  bool listed_once_ = false;
  std::list<Job> jobs_;  // all but those that are gone
};

}  // namespace dtrain::spawn
