// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "launcher/host_watch.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/job/campaign_core.h"
#include "launcher/prepared_launch.h"
#include "launcher/present_attempt.h"
#include "launcher/report/facts.h"
#include "launcher/report/progress.h"
#include "launcher/status/status_server.h"

namespace dtrain {

// The attempts of a launch, one after the other, up to its verdict: feeds CampaignCore and does
// what it decides. Loop thread.
class CampaignRun {
 public:
  struct Handlers {
    absl::AnyInvocable<void()> on_end;  // there is a verdict, on disk too
    // Another launcher has the job.
    absl::AnyInvocable<void(const std::string& text)> on_superseded;
  };
  CampaignRun(PreparedLaunch& launch, Handlers handlers);
  CampaignRun(const CampaignRun&) = delete;
  CampaignRun& operator=(const CampaignRun&) = delete;

  // Opens our stdin and decides which hosts attempts may use.
  absl::Status Prepare();
  // Null: nobody can ask.
  void ShowOn(status::StatusServer* status);

  void Begin();
  // Makes an attempt that never begins: answers and reports need one.
  void MakeIdle();
  // Takes over the attempt that a launcher before us began. The error says why it cannot.
  absl::Status TakeOver(const v1::JournalState& before);

  // The user asks for the end; true the first time. Decides nothing, but from now on nothing waits
  // for a disk or a terminal for long.
  bool NoteStop() { return !std::exchange(stop_asked_, true); }
  void Decide(const job::CampaignEvent& event);
  void OnSignal(int signal, const std::string& from);  // no attempt follows, and the workers get it
  void OnOutputFailed(const absl::Status& why);
  void End(job::Verdict verdict);

  // The live line goes, and our stdin is closed.
  void StopShowing();
  // Another launcher goes on: decides nothing more and cuts the connections.
  void LetGo();

  // Valid until the next event of any kind; with the verdict, if there is one.
  report::JobFacts Facts() const;
  Duration Age(TimePoint now) const;  // zero unless detached
  bool workers_run() const;           // all of them, and nothing has ended the launch
  bool stop_asked() const { return stop_asked_; }
  const std::optional<job::Verdict>& verdict() const { return verdict_; }
  const hosts::HostList& hosts() const { return hosts_; }   // Prepare(); spares last
  const job::CampaignCore& core() const { return *core_; }  // Prepare()
  PresentAttempt& attempt() { return attempt_; }

 private:
  PresentAttempt::Handlers AttemptHandlers();
  void Carry(std::vector<job::CampaignAction> actions);
  void Do(const job::BeginAttempt& begin);
  void Start(const job::JobOptions& options, const std::vector<uint32_t>& hosts);
  void OnAttemptOver();
  void EndAttempt(const job::EndAttempt& end);
  void OnCheckpoint(bool newer, const std::string& trouble);
  std::string StatusLine(TimePoint now) const;

  PreparedLaunch& launch_;
  Handlers handlers_;
  status::StatusServer* status_ = nullptr;  // null: nobody can ask
  hosts::HostList hosts_;
  std::optional<job::CampaignCore> core_;
  PresentAttempt attempt_;
  report::Progress progress_;
  std::optional<HostWatch> absent_;  // --scale-up: of hosts that the present attempt does without
  std::string checkpoint_trouble_;   // the last one that was reported
  loop::Timer pause_;
  loop::Timer logs_timer_;  // until the disk takes a detached job's output again
  bool logs_failed_ = false;
  bool stop_asked_ = false;
  std::optional<job::Verdict> verdict_;
};

}  // namespace dtrain
