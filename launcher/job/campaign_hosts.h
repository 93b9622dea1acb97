// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "launcher/job/campaign.h"

namespace dtrain::job {

// Which hosts the attempts of a job may use, and what is known against each of them. Pure. Hosts
// are indices of CampaignOptions::hosts. What it decides against one it returns as a line for the
// user.
class CampaignHosts {
 public:
  // The options outlive it.
  explicit CampaignHosts(const CampaignOptions& options)
      : options_(options), hosts_(options.hosts.size()) {}
  CampaignHosts(const CampaignHosts&) = delete;
  CampaignHosts& operator=(const CampaignHosts&) = delete;

  uint32_t eligible() const;  // not left out
  // They are left out while enough others are there.
  std::vector<std::string> left_out() const;
  std::vector<bool> usable() const;  // likewise, by host: the others
  // The job has enough of those that may be used now, without these; or without those of these that
  // are not left out, of which there is one.
  bool SufficesWithout(const std::vector<uint32_t>& hosts) const;
  bool CanReplace(const std::vector<uint32_t>& lost) const;
  // One of them was lost before the workers ran, and was dialled once more.
  bool AnyWaitedFor(const std::vector<uint32_t>& hosts) const;
  // All that the attempt may use.
  void Offer(TimePoint now, BeginAttempt& begin) const;

  // An attempt runs, with these: whoever has stood aside for that may come back.
  void OnRuns(const std::vector<uint32_t>& joined);
  void SetLeftOut(const std::vector<uint32_t>& hosts);  // by a launcher before us
  // They were lost, and may not be back: others need not wait for them.
  void Doubt(const std::vector<uint32_t>& hosts);
  // An attempt that has ended by their fault.
  void Count(const AttemptRecord& record);
  // Of an attempt that was ended for their sake: they are waited for like all others.
  void Welcome(const AttemptRecord& record);
  // The attempt has ended by the nodes' own fault: leaves those out that have done so too often.
  // Counts it.
  std::vector<std::string> Blame(TimePoint now, const AttemptRecord& record);
  // Leaves their hosts out at once: what such a GPU has done once it does again, to whatever
  // program.
  std::vector<std::string> BlameGpus(const std::vector<BadGpu>& bad_gpus);
  // The next attempt does without hosts that leave. False: they are needed.
  bool SetLeavingAside(const std::vector<uint32_t>& hosts);
  // The same of hosts that have gone before the workers ran. False: they are needed, and dialled
  // once more.
  bool SetAbsentAside(const std::vector<uint32_t>& hosts, bool had_joined);
  // The last choice is still one: others that the job needs are not there. ", with node0 again", or
  // nothing.
  std::string TakeBackLeftOut();
  // The attempt that was begun for the sake of hosts has not come to run. ", without node3", or
  // nothing.
  std::string SetAsideWelcomed();
  // When the next attempt may begin, as workers of lost hosts may live. `restarts`: its agents are
  // asked for them where it has hosts.
  TimePoint NotBefore(const AttemptEnded& end, bool restarts);

 private:
  struct Host {
    std::vector<TimePoint> ends;  // attempts that ended by its fault
    bool doubtful = false;        // lost, and in no attempt since that has run
    bool left_out = false;        // while enough others are there
    bool set_aside = false;       // until an attempt runs: one with it has not come to that
    std::optional<Unheard> unheard;
    bool last_choice = false;  // taken back, as too few others were there
    bool waited_for = false;   // likewise: it was lost before that once, and dialled again
  };
  std::optional<std::string> LeaveOut(uint32_t host, const std::string& why);

  const CampaignOptions& options_;
  std::vector<Host> hosts_;
  std::vector<uint32_t> welcomed_;  // for whose sake the attempt that is to run was begun
};

}  // namespace dtrain::job
