// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/shepherd/agent_line.h"
#include "agent/shepherd/job_report.h"
#include "agent/shepherd/log_feed.h"
#include "agent/shepherd/mpi_watch.h"
#include "agent/shepherd/pmi_connection.h"
#include "agent/shepherd/pmi_server.h"
#include "agent/shepherd/pmix_gate.h"
#include "agent/shepherd/preflight.h"
#include "agent/shepherd/shepherd_core.h"
#include "agent/shepherd/store_gate.h"
#include "agent/shepherd/sweeper.h"
#include "agent/shepherd/worker.h"
#include "agent/shepherd/worker_containers.h"
#include "common/loop/loop.h"
#include "common/os/cgroup.h"
#include "common/os/scratch_folder.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::shepherd {

// For an agent that is restarted this is enough. When the machine goes down none comes, and its
// service manager waits for all processes.
constexpr Duration kGoingDownLimit = std::chrono::seconds(5);

// Carries events to the core and its actions out: the channel to the agent, the worker processes,
// their streams. Stops the loop when all is over. Loop thread.
class Shepherd {
 public:
  // A socket to the agent, or where it will come. Behind a door our cgroup, too, was made for us.
  using Agent = std::variant<os::UniqueFd, AgentLine::Door>;
  // `program`: of the agent, whose other roles it starts.
  Shepherd(loop::Loop& loop, std::string program, Agent agent);
  Shepherd(const Shepherd&) = delete;
  Shepherd& operator=(const Shepherd&) = delete;

 private:
  AgentLine MakeLine(Agent agent);
  // From outside.
  void OnRequest(v1::JobRequest request);
  void OnLogTaken(const v1::LogPosition& taken);
  void OnAdopted();
  void OnReleased();
  void OnStart(v1::JobPart part);
  void OnStdin(const v1::StdinData& data);
  void OnSilent(Duration silence);
  void OnAgentLost();
  void OnUnreadable(uint32_t rank, const absl::Status& why);
  void OnSignal(int signal);
  void OnChildren();
  void Carry(PmiServer::Actions actions);
  void OnWorkerEnded(Worker& worker, const os::ExitStatus& status);
  os::ExitStatus EndOf(Worker& worker, const os::ExitStatus& of_process);
  v1::WorkerExit ExitOf(Worker& worker, const os::ExitStatus& status);
  void LetEnd();
  // The core.
  void Feed(const Event& event);
  void Carry(const std::vector<Action>& actions);
  void Do(Action action);
  // Actions.
  void PrepareContainers();
  void SpawnAll();
  void PrepareCgroup();
  void LoseCgroup(const absl::Status& why);
  absl::Status StartWorkers(os::SpawnError* error);
  // The folder of the workers' error files.
  void MakeScratch();
  std::string ReadErrorFile(uint32_t rank);
  void RemoveScratch();
  void ServePmi();
  absl::Status OpenPmix();
  void ServePmix();
  absl::Status OpenStores();
  absl::Status OpenStore(const StoreKind& kind, uint32_t port);
  bool StoresUsed() const;
  std::vector<Helper*> Helpers();
  void SpareHelpers();
  void OnAbortAsked(uint32_t rank, std::optional<int> code);
  // Ranks that are MPI worlds of their own.
  void WatchMpi();
  void PlanMpiLook(size_t look);
  void ExemptFromMpi();
  void LookForMpi(size_t look, size_t next);
  bool WantsMpiLook(const Worker& worker);
  void LookForMpiAt(const Worker& worker);
  void JudgeMpi(uint32_t rank);
  void TellMpiSuspects();
  void Sweep();
  void KillAll();  // now
  void SweepContainers();
  void ReportStarted();
  v1::Started StartedWorkers() const;
  void ReportUnkillable();
  void Drain();
  bool DrainAll();
  void Finish();
  void TellEnded();
  void Exit();
  void ExitOnceSaid();
  void WatchPages();
  // Progress and spans of all workers.
  void ReportPages();
  // Spans of those whose ring is used to a part that is worth a message.
  void TakeManySpans();
  // Of those that wait now, until fewer than `least` do.
  void TakeSpans(Worker& worker, uint64_t least);
  // To the agent: at once, or what has changed, when a second is over since the last time.
  void Report();
  void ReportLater();
  // To the launcher.
  void Send(const v1::JobEvent& event) { line_.launcher().Send(event); }
  void SendFailure(v1::NodeFailure failure);
  void Warn(std::string message, bool detail = false);
  void MarkGrown(uint32_t rank, v1::StreamKind kind);
  void SendGrown();  // all there is, now
  void FeedLogs();   // to their readers, from now on
  Worker* Find(uint32_t rank);

  loop::Loop& loop_;
  const std::string agent_;
  const std::vector<std::string> agent_env_;
  const WorkerLimits limits_;
  const bool has_workers_cgroup_;
  ShepherdCore core_;
  v1::JobPart common_;  // of the start that is to come
  v1::JobPart part_;
  JobReport report_;
  TimePoint reported_at_{};
  v1::Finished ended_;  // once finished
  v1::Spans spans_;     // of TakeSpans: its memory is used again
  TimePoint started_at_{};
  bool reported_started_ = false;
  bool told_to_end_ = false;  // by a signal, as the system does when it goes down
  std::optional<os::Cgroup> job_cgroup_;
  os::UniqueFd cgroup_fd_;  // of it, in which workers start
  std::string no_cgroup_why_;
  std::optional<os::ScratchFolder> scratch_;  // absent: none could be made
  std::optional<os::OomKillCounter> oom_kills_;
  uint64_t oom_kills_told_ = 0;
  WorkerHooks hooks_;
  std::optional<WorkerContainers> containers_;  // absent: no worker runs in one
  std::vector<std::unique_ptr<Worker>> workers_;
  std::optional<PmiServer> pmi_;
  std::map<uint32_t, std::unique_ptr<PmiConnection>> pmi_connections_;
  struct Abort {
    std::optional<int> code;  // nullopt: that of the rank's exit
    int64_t unix_nanos;       // when the rank asked for it
    std::unique_ptr<loop::Timer> timer;
  };
  std::map<uint32_t, Abort> aborts_;                // by rank
  std::unique_ptr<PmixGate> pmix_;                  // null: the job does without
  std::optional<MpiWatch> mpi_;                     // absent: nothing is to be found
  std::map<uint32_t, os::UniqueFd> held_;           // by port: for the stores, until they are open
  std::vector<std::unique_ptr<StoreGate>> stores_;  // none: another node has them
  bool last_held_ = false;  // the core has not heard of the last worker's end
  LogFeed feed_;
  std::set<LogFeed::Key> grown_;
  bool grown_posted_ = false;
  Sweeper sweeper_;
  loop::Timer deadline_, drain_, exit_, pages_, mpi_look_, report_due_;
  TimePoint progress_due_{};
  loop::SignalWatch signals_;
  AgentLine line_;
};

}  // namespace dtrain::shepherd
