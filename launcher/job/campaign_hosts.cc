// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/campaign_hosts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/job/outcome.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {
namespace {

// A host by whose fault so many attempts ended within that time, or in all, is left out.
constexpr size_t kMostEnds = 2;
constexpr Duration kEndsWithin = std::chrono::minutes(10);
constexpr size_t kMostEndsInAll = 3;
constexpr size_t kMostGpusNamed = 3;  // errors of one host's

}  // namespace

uint32_t CampaignHosts::eligible() const {
  return static_cast<uint32_t>(
      std::count_if(hosts_.begin(), hosts_.end(), [](const Host& host) { return !host.left_out; }));
}

std::vector<std::string> CampaignHosts::left_out() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (hosts_[i].left_out) names.push_back(options_.hosts[i]);
  }
  return names;
}

std::vector<bool> CampaignHosts::usable() const {
  std::vector<bool> usable;
  for (const Host& host : hosts_) usable.push_back(!host.left_out);
  return usable;
}

bool CampaignHosts::SufficesWithout(const std::vector<uint32_t>& hosts) const {
  const auto others =
      static_cast<uint32_t>(std::count_if(hosts_.begin(), hosts_.end(), [](const Host& host) {
        return !host.left_out && !host.set_aside;
      }));
  return others >= options_.least_hosts + hosts.size();
}

bool CampaignHosts::CanReplace(const std::vector<uint32_t>& lost) const {
  // Hosts that count as eligible were not there when this one was taken back.
  if (std::any_of(lost.begin(), lost.end(),
                  [this](uint32_t host) { return hosts_[host].last_choice; })) {
    return false;
  }
  const auto used = static_cast<uint32_t>(std::count_if(
      lost.begin(), lost.end(), [this](uint32_t host) { return !hosts_[host].left_out; }));
  return used > 0 && eligible() >= options_.least_hosts + used;
}

bool CampaignHosts::AnyWaitedFor(const std::vector<uint32_t>& hosts) const {
  return std::any_of(hosts.begin(), hosts.end(),
                     [this](uint32_t host) { return hosts_[host].waited_for; });
}

void CampaignHosts::Offer(TimePoint now, BeginAttempt& begin) const {
  for (uint32_t i = 0; i < hosts_.size(); ++i) {
    if (hosts_[i].left_out || hosts_[i].set_aside) continue;
    begin.hosts.push_back(i);
    begin.doubtful.push_back(hosts_[i].doubtful);
    if (hosts_[i].unheard && hosts_[i].unheard->dead_at > now) {
      begin.unheard.push_back(*hosts_[i].unheard);
    }
  }
}

void CampaignHosts::OnRuns(const std::vector<uint32_t>& joined) {
  welcomed_.clear();
  for (const uint32_t host : joined) hosts_[host].doubtful = false;
  for (Host& host : hosts_) host.set_aside = host.waited_for = false;
}

void CampaignHosts::SetLeftOut(const std::vector<uint32_t>& hosts) {
  for (const uint32_t host : hosts) hosts_[host].left_out = true;
}

void CampaignHosts::Doubt(const std::vector<uint32_t>& hosts) {
  for (const uint32_t host : hosts) hosts_[host].doubtful = true;
}

void CampaignHosts::Count(const AttemptRecord& record) {
  for (const uint32_t host : record.hosts) {
    hosts_[host].ends.push_back(record.ended);
    hosts_[host].doubtful = record.lost;
  }
}

void CampaignHosts::Welcome(const AttemptRecord& record) {
  welcomed_ = record.back;
  for (const uint32_t host : record.back) hosts_[host].doubtful = false;
}

// Never so many are left out that too few remain.
std::vector<std::string> CampaignHosts::Blame(TimePoint now, const AttemptRecord& record) {
  Count(record);
  std::vector<std::string> lines;
  for (const uint32_t index : record.hosts) {
    const Host& host = hosts_[index];
    const auto recent =
        static_cast<size_t>(std::count_if(host.ends.begin(), host.ends.end(),
                                          [now](TimePoint at) { return now - at <= kEndsWithin; }));
    std::optional<std::string> line;
    if (recent >= kMostEnds) {
      line = LeaveOut(index, absl::StrCat(recent, " attempts within ", FormatSeconds(kEndsWithin),
                                          " ended by its fault"));
    } else if (host.ends.size() >= kMostEndsInAll) {
      line = LeaveOut(index, absl::StrCat(host.ends.size(), " attempts ended by its fault"));
    }
    if (line) lines.push_back(*std::move(line));
  }
  return lines;
}

// Not a host that the job cannot do without: there it may work, and if it does not, that is known
// why.
std::vector<std::string> CampaignHosts::BlameGpus(const std::vector<BadGpu>& bad_gpus) {
  std::map<uint32_t, std::vector<std::string>> bad;
  for (const BadGpu& gpu : bad_gpus) bad[gpu.host].push_back(gpu.what);
  std::vector<std::string> lines;
  for (auto& [host, what] : bad) {
    const size_t more = what.size() > kMostGpusNamed ? what.size() - kMostGpusNamed : 0;
    if (more > 0) what.resize(kMostGpusNamed);
    std::string why = absl::StrJoin(what, "; ");
    if (more > 0) absl::StrAppend(&why, "; and ", more, " more");
    if (hosts_[host].left_out) continue;
    std::optional<std::string> line = LeaveOut(host, why);
    lines.push_back(line
                        ? *std::move(line)
                        : absl::StrCat("dtrain: ", options_.hosts[host],
                                       " stays in the job, which has no host in its place: ", why));
  }
  return lines;
}

// Not if it is needed.
std::optional<std::string> CampaignHosts::LeaveOut(uint32_t host, const std::string& why) {
  if (hosts_[host].left_out || eligible() <= options_.least_hosts) return std::nullopt;
  hosts_[host].left_out = true;
  return absl::StrCat("dtrain: ", options_.hosts[host], " is left out while others suffice: ", why);
}

bool CampaignHosts::SetLeavingAside(const std::vector<uint32_t>& hosts) {
  const bool without = SufficesWithout(hosts);
  for (const uint32_t host : hosts) hosts_[host].set_aside = without;
  Doubt(hosts);
  return without;
}

bool CampaignHosts::SetAbsentAside(const std::vector<uint32_t>& hosts, bool had_joined) {
  const bool without = SufficesWithout(hosts);
  for (const uint32_t index : hosts) {
    Host& host = hosts_[index];
    if (without) {
      // The second time it is not even asked.
      host.set_aside = host.waited_for || !had_joined;
      host.doubtful = true;
    }
    host.waited_for = true;
  }
  return without;
}

std::string CampaignHosts::TakeBackLeftOut() {
  std::vector<std::string> names;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (!std::exchange(hosts_[i].left_out, false)) continue;
    hosts_[i].last_choice = true;
    names.push_back(options_.hosts[i]);
  }
  return names.empty() ? "" : absl::StrCat(", with ", rendezvous::FormatHosts(names), " again");
}

// The job had enough without them, and is not to wait for them. They may have answered, and have no
// room for the job, for instance.
std::string CampaignHosts::SetAsideWelcomed() {
  const std::vector<uint32_t> welcomed = std::exchange(welcomed_, {});
  // Without them it does not run either: another host may be gone, and they are needed.
  for (Host& host : hosts_) host.set_aside = false;
  if (welcomed.empty() || eligible() < options_.least_hosts + welcomed.size()) return "";
  std::vector<std::string> names;
  for (const uint32_t host : welcomed) {
    hosts_[host].set_aside = true;
    names.push_back(options_.hosts[host]);
  }
  return absl::StrCat(", without ", rendezvous::FormatHosts(names));
}

// The next attempt asks the agents of lost hosts itself whether workers are left, but not of those
// that it leaves out; nor does an agent look for them in the first attempt.
TimePoint CampaignHosts::NotBefore(const AttemptEnded& end, bool restarts) {
  for (const Unheard& unheard : end.unheard) hosts_[unheard.host].unheard = unheard;
  TimePoint at = end.unheard.empty() ? end.dead_at : TimePoint::min();
  for (const Host& host : hosts_) {
    if (!host.unheard || (restarts && !host.left_out && !host.set_aside)) continue;
    at = std::max(at, host.unheard->dead_at);
  }
  return at;
}

}  // namespace dtrain::job
