// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/functional/any_invocable.h"
#include "common/loop/loop.h"
#include "launcher/campaign_run.h"
#include "launcher/job_records.h"
#include "launcher/prepared_launch.h"

namespace dtrain {

// What only the launcher of a detached job does: it begins the job, or goes on from what launchers
// before it left in the job's folder. Loop thread.
class DetachedJob {
 public:
  // Ends this launcher, saying `text`; the job goes on.
  using LeaveIt = absl::AnyInvocable<void(const std::string& text, int exit_code)>;
  // `launch`, which has records, and `campaign` outlive it.
  DetachedJob(PreparedLaunch& launch, CampaignRun& campaign, LeaveIt leave);

  // Once the launch is prepared.
  void Begin();
  // For a launch that cannot be prepared: makes `why` the job's verdict. False: the job has begun
  // and is left to a launcher that can go on with it.
  bool Refuse(int exit_code, const std::string& why);
  // When the user asks for the end for the first time.
  void Stop(int signal, const std::string& from);
  // The workers live on: the next launcher may do better, perhaps once the trouble is fixed.
  void Leave(const std::string& why);

 private:
  void BeginJob();
  void TakeOver();
  void Conclude();

  PreparedLaunch& launch_;
  CampaignRun& campaign_;
  JobRecords& records_;
  LeaveIt leave_;
  loop::Timer stop_timer_;  // until a stop is written down
  bool stop_obeyed_ = false;
};

}  // namespace dtrain
