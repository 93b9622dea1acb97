// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>

#include "agent/shepherd/agent_report.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/log_feed.h"
#include "agent/shepherd/workers.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::shepherd {

// The output of all workers, from their pipes to its readers: who is told how much there is of it,
// and when it may be dropped. Loop thread.
class WorkerLogs {
 public:
  WorkerLogs(loop::Loop& loop, const Workers& workers, AgentReport& report, LauncherLine& launcher);
  WorkerLogs(const WorkerLogs&) = delete;
  WorkerLogs& operator=(const WorkerLogs&) = delete;

  // The workers run: feeds readers from now on.
  void Begin();
  void Serve(v1::ReadLogs request, os::UniqueFd socket);
  // There is more of a stream. It is told soon, with what else has grown.
  void OnGrown(uint32_t rank, v1::StreamKind kind);
  void TellGrown();  // now
  void OnTaken(const v1::LogPosition& taken);
  // Nobody will read any of it.
  void Discard();

  // What its pipes hold now.
  void Drain(Worker& worker);
  // Of all, until nothing is left in them. `done` is never called from inside.
  void DrainAll(loop::Task done);
  void StopDraining() { drain_.Cancel(); }
  // For good: the ends of the streams; none if readers were never fed. Output for which there was
  // no room is a failure of the job.
  v1::Finished Close();
  // The readers have it from here on: nothing grows any more.
  void End() { feed_.End(); }
  void WhenAllDelivered(loop::Task task);
  // When a reader last took something.
  TimePoint last_taken() const { return feed_.last_taken(); }

 private:
  void OnLost(uint32_t rank, uint64_t bytes, const LogStream& log);
  void OnUnreadable(uint32_t rank, const absl::Status& why);

  loop::Loop& loop_;
  const Workers& workers_;
  AgentReport& report_;
  LauncherLine& launcher_;
  bool begun_ = false;
  bool closed_ = false;
  std::set<LogFeed::Key> grown_;
  bool grown_posted_ = false;
  loop::Timer drain_;
  LogFeed feed_;
};

}  // namespace dtrain::shepherd
