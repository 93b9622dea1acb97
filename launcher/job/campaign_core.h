// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "launcher/job/campaign.h"
#include "launcher/job/campaign_hosts.h"
#include "launcher/job/scale_up.h"

// The attempts of one launch: which of them is followed by another, when, and on which hosts. Pure:
// events in, actions out. JobCore decides about one attempt.
namespace dtrain::job {

class CampaignCore {
 public:
  enum class State {
    kAttempt,  // one is on its way: from its first connection until its last node has let go
    kPause,    // before the next
    kOver,
  };

  CampaignCore(CampaignOptions options, TimePoint now);
  CampaignCore(CampaignOptions options, const CampaignPast& past, TimePoint now);

  // Once, before any event. Of an attempt that has begun nothing comes: the caller takes it over.
  std::vector<CampaignAction> Begin();
  std::vector<CampaignAction> OnEvent(TimePoint now, const CampaignEvent& event);
  TimePoint NextDeadline() const;

  State state() const { return state_; }
  const CampaignOptions& options() const { return options_; }
  bool restarts() const { return options_.max_restarts > 0 || options_.spares; }
  uint32_t attempt() const { return attempt_; }
  uint32_t counted() const;                             // restarts that have counted, so far
  TimePoint next_at() const { return next_at_; }        // in kPause
  TimePoint runs_since() const { return runs_since_; }  // the present attempt; or kNever
  const std::vector<AttemptRecord>& ended() const { return ended_; }
  std::vector<std::string> left_out() const { return hosts_.left_out(); }
  // Hosts of which HostLooked is to come now and then.
  std::vector<uint32_t> absent() const { return scale_up_.absent(); }
  // The present attempt is being ended for one on more hosts.
  bool scales_up() const { return scales_up_.has_value(); }

 private:
  // What comes after an attempt.
  enum class Next { kOver, kRestart, kJoinAgain, kBeginAgain, kPlanAgain };
  struct Judgement {
    Next next = Next::kOver;
    std::string why = {};  // kOver: why no restart follows, if the user must hear it
  };

  void On(const AttemptRuns&);
  void On(const AttemptEnded& end);
  void On(const HostLooked& looked);
  void On(const CheckpointLooked& looked);
  void On(const StopAsked& asked);
  void On(const CampaignTick&);

  Judgement Judge(const AttemptEnded& end) const;
  Judgement JudgeWorker(const Verdict& verdict) const;
  Judgement JudgeNode(const AttemptEnded& end, bool again) const;
  bool AllLeave(const AttemptEnded& end) const;
  bool IsReplaced(const AttemptEnded& end) const;
  uint32_t Used() const;  // of max_restarts
  void Restart(const AttemptEnded& end);
  std::string HostsBack() const;
  void DecideScaleUp();
  bool IsScaledUp(const AttemptEnded& end) const;
  void RestartScaledUp(const AttemptEnded& end);
  void JoinAgain(const AttemptEnded& end);
  void BeginAgain(const AttemptEnded& end);
  bool MayPlanAgain(const AttemptEnded& end) const;
  void PlanAgain(const AttemptEnded& end);
  void BlameGpus(const AttemptEnded& end);
  void Say(std::string line);
  Duration BackOff();
  void Pause(TimePoint until);
  void Start();
  void End(Verdict verdict);

  const CampaignOptions options_;
  const TimePoint begin_;
  TimePoint now_;
  State state_ = State::kAttempt;
  bool begun_ = false;  // by the launcher before us
  uint32_t attempt_ = 0;
  TimePoint runs_since_ = kNever;  // of the present attempt
  TimePoint next_at_ = kNever;     // kPause
  TimePoint join_by_ = kNever;     // of the present restart, until it runs
  Duration backoff_;
  int stop_signal_ = 0;
  std::string stop_from_;
  CampaignHosts hosts_;
  std::vector<uint32_t> seats_;  // of the attempt that ran last
  ScaleUp scale_up_;
  std::optional<EndAttempt> scales_up_;  // the present attempt is being ended for that
  bool waits_told_ = false;              // that its next checkpoint is awaited for that
  std::vector<AttemptRecord> ended_;
  std::vector<CampaignAction> actions_;
};

}  // namespace dtrain::job
