// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/attempt.h"
#include "launcher/attempt_run.h"
#include "launcher/discovery/script.h"
#include "launcher/elastic/board.h"
#include "launcher/elastic/elastic_core.h"
#include "launcher/elastic/host_book.h"
#include "launcher/elastic_hosts.h"

namespace dtrain {

// An attempt of elastic Horovod, whose hosts come and go: feeds ElasticCore and does what it
// decides. Each host has a run of its own, an AttemptRun with one node. Loop thread.
class ElasticRun : public Attempt {
 public:
  // What goes on from attempt to attempt.
  struct Past {
    Past(std::optional<elastic::CoolDown> range, uint64_t seed) : book(range, seed) {}
    elastic::HostBook book;
    elastic::RunId next_run;
    uint32_t surveys = 0;
  };
  // `past` outlives it. `options`: of an attempt of all hosts. `discovery`: null, or what says
  // which hosts there are from now on.
  ElasticRun(const Around& around, Past& past, hosts::HostList hosts,
             const job::JobOptions& options, elastic::ElasticOptions elastic,
             std::unique_ptr<discovery::Script> discovery, Handlers handlers);
  ~ElasticRun() override;
  ElasticRun(const ElasticRun&) = delete;
  ElasticRun& operator=(const ElasticRun&) = delete;

  void Begin(const std::vector<hosts::HostEntry>& hosts) override;
  void Feed(job::Event event) override;
  // Of a job whose ranks change nobody reads ours.
  void SendStdin(Rank, absl::string_view, bool) override {}
  report::JobFacts facts() const override;
  TimePoint dead_at() const override { return dead_at_; }
  const std::string& stopped() const override { return stopped_; }
  const report::SlowestNodes& slowest() const override { return slowest_; }

 private:
  struct Run {
    NodeId node;         // as who asks is told: one that comes back is another
    uint32_t first = 0;  // its workers' numbers count up from it
    std::unique_ptr<AttemptRun> attempt;
    bool started = false;  // all its workers
    bool ending = false;   // by us
    size_t gpu_faults = 0;
  };

  Around AroundRuns() const;
  ElasticHosts::Callbacks HostCallbacks();
  void Decide(elastic::ElasticEvent event);
  void Do(const elastic::Announce& announce);
  void Do(const elastic::BeginRun& begin);
  void Do(const elastic::EndRun& end);
  void Do(const elastic::OpenRound& open);
  void Do(const elastic::Notify& notify);
  void Do(const elastic::EndElastic& end);
  Handlers HandlersOf(elastic::RunId id);
  void OnUp(elastic::RunId id, const v1::ElasticUp& up);
  void OnStarted(Run& run);
  void OnRankEnded(elastic::RunId id, Rank rank);
  void OnRunOver(elastic::RunId id);
  void Pass(std::vector<elastic::Board::Send> sends);
  void Look(Run& run);
  void LookForStop(const Run& run);
  void ShowLayout();
  void Enter(job::State state);
  void Warn(job::Warn warn);
  void Finish(job::Verdict verdict);

  const Around around_;
  Past& past_;
  const job::JobOptions options_;
  Handlers handlers_;
  ElasticHosts hosts_;
  elastic::ElasticCore core_;
  elastic::Board board_;
  std::map<elastic::RunId, Run> runs_;        // whose AttemptRuns are not over
  std::deque<elastic::ElasticEvent> events_;  // that came while actions were being carried out
  bool deciding_ = false;
  size_t starting_ = 0;  // runs whose workers have not all started yet
  bool ran_ = false;
  loop::Timer deadline_;
  TimePoint dead_at_ = TimePoint::min();
  // What facts() tells, of all runs.
  std::vector<job::NodeView> nodes_;
  std::vector<job::RankEnd> ranks_;  // by number
  size_t failed_ = 0;                // of them
  std::vector<job::PhaseTime> phases_;
  std::vector<std::string> warnings_;
  std::vector<job::GpuFault> gpu_faults_;
  job::Verdict verdict_;
  std::string stopped_;  // as the run was ending, or the job
  report::SlowestNodes slowest_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain
