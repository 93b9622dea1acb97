// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/shepherd/aborts.h"
#include "agent/shepherd/agent_line.h"
#include "agent/shepherd/agent_report.h"
#include "agent/shepherd/checkpoint_look.h"
#include "agent/shepherd/departure.h"
#include "agent/shepherd/job_cgroup.h"
#include "agent/shepherd/job_code.h"
#include "agent/shepherd/job_containers.h"
#include "agent/shepherd/job_requests.h"
#include "agent/shepherd/left_memory.h"
#include "agent/shepherd/loners.h"
#include "agent/shepherd/meeting_look.h"
#include "agent/shepherd/mpi_looks.h"
#include "agent/shepherd/offspring.h"
#include "agent/shepherd/pmi_service.h"
#include "agent/shepherd/rank_servers.h"
#include "agent/shepherd/save_watch.h"
#include "agent/shepherd/shepherd_core.h"
#include "agent/shepherd/state_folder.h"
#include "agent/shepherd/sweeper.h"
#include "agent/shepherd/user_signals.h"
#include "agent/shepherd/worker_exits.h"
#include "agent/shepherd/worker_logs.h"
#include "agent/shepherd/worker_pages.h"
#include "agent/shepherd/worker_scratch.h"
#include "agent/shepherd/workers.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::shepherd {

struct ShepherdLimits;

// Owns one job's workers on this node: carries events to the core and its actions out, to the parts
// that do the work. Stops the loop when all is over. Loop thread.
class Shepherd {
 public:
  // A socket to the agent, or where it will come. Behind a door our cgroup, too, was made for us.
  using Agent = std::variant<os::UniqueFd, AgentLine::Door>;
  // `program`: of the agent, whose other roles it starts.
  Shepherd(loop::Loop& loop, std::string program, Agent agent, const ShepherdLimits& limits);
  Shepherd(const Shepherd&) = delete;
  Shepherd& operator=(const Shepherd&) = delete;

 private:
  AgentLine MakeLine(Agent agent);
  // From outside.
  void OnAnotherLauncher();
  void OnReleased();
  void OnStart(v1::JobPart part);
  void OnStop(const StopAsked& stop);
  void OnSavingElsewhere();
  void OnSilent(Duration silence);
  void OnAgentLost();
  void OnSignal(int signal);
  void OnChildren();
  void OnWorkerEnded(Worker& worker, const os::ExitStatus& status);
  void LetEnd();
  // The core.
  void Feed(const Event& event);
  void Carry(const std::vector<Action>& actions);
  void Do(Action action);
  // Actions.
  void SpawnAll();
  std::optional<v1::NodeFailure> StartWorkers();  // why not
  absl::string_view GraceFlag() const;
  void OnSaves(std::vector<SaveWatch::Save> saves);
  void AwaitRest();
  void Sweep();
  void ReportStarted();
  void ReportUnkillable();
  void Finish();

  loop::Loop& loop_;
  const std::vector<std::string> agent_env_;
  const bool is_behind_door_;
  AgentLine line_;
  LauncherLine& launcher_;  // of it
  ShepherdCore core_;
  v1::JobPart part_;
  AgentReport report_;
  Sweeper sweeper_;
  LeftMemory memory_;
  JobCgroup cgroup_;
  WorkerScratch scratch_;
  KeptState state_;
  JobCode code_;
  int succeeded_ = 0;  // workers that exited with 0, and not because they were told
  Workers workers_;
  UserSignals user_signals_;
  SaveWatch saves_;
  Offspring offspring_;
  Aborts aborts_;
  JobContainers containers_;
  PmiService pmi_;
  RankServers servers_;
  MpiLooks mpi_;
  MeetingLook meeting_;
  Loners loners_;
  WorkerLogs logs_;
  Departure departure_;
  WorkerPages pages_;
  WorkerExits exits_;
  CheckpointLook checkpoint_;
  JobRequests requests_;
  bool reported_started_ = false;
  v1::Started started_;  // as it was reported
  std::optional<v1::Finished> finished_;
  bool last_held_ = false;  // the core has not heard of the last worker's end
  loop::Timer deadline_;
  loop::SignalWatch signals_;
};

}  // namespace dtrain::shepherd
