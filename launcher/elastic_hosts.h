// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "launcher/attempt.h"
#include "launcher/attempt_run.h"
#include "launcher/discovery/script.h"
#include "launcher/elastic/events.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/job/job_core.h"

namespace dtrain {

// What an agent is told of a session of an elastic job, which is with one host, or a survey.
// `number`: of the session, as agents know it.
job::JobOptions SessionOptions(const job::JobOptions& of_all, uint32_t number);

// The first line of what a verdict about that host alone says, without its name.
std::string FirstLine(const std::string& host, absl::string_view message);

// Which hosts an elastic job may use now, and by which addresses they reach each other. Surveys are
// sessions of their own: of all hosts at first, and later of each that comes with a few of those
// that have workers. Loop thread.
class ElasticHosts {
 public:
  struct Host {
    hosts::HostEntry entry;
    std::string address;  // that the others reach
    uint32_t slots = 0;
  };
  struct Callbacks {
    absl::AnyInvocable<void(elastic::HostsFound)> on_found;
    // The first survey, for good; facts are nodes().
    absl::AnyInvocable<void(job::Verdict)> on_failed;
    absl::AnyInvocable<void(job::Warn)> on_warning;
    // Something of a survey has changed.
    absl::AnyInvocable<void(std::optional<NodeId> of)> on_event;
    absl::AnyInvocable<void()> on_changed;
    // The names of those that have workers, rank 0's first.
    absl::AnyInvocable<std::vector<std::string>()> with_workers;
    loop::Task on_over;  // after End
  };
  // `list`: the hosts at first. `discovery`: null, or what says which there are from then on.
  // `least`: so many are needed to begin. `surveys`: so many there were in the launch.
  ElasticHosts(const Attempt::Around& around, hosts::HostList list, const job::JobOptions& options,
               std::unique_ptr<discovery::Script> discovery, uint32_t least, uint32_t& surveys,
               Callbacks callbacks);
  ~ElasticHosts();
  ElasticHosts(const ElasticHosts&) = delete;
  ElasticHosts& operator=(const ElasticHosts&) = delete;

  void Begin();
  // What comes from the user, while it surveys.
  void Feed(const job::Event& event);
  // That host does not answer where it was found: it is looked for again before it is used.
  void Doubt(const std::string& host);
  // The job is about to end: no host is looked for any more.
  void Stop();
  // It has ended. on_over comes when nothing of this is left, perhaps at once.
  void End();

  const Host& at(const std::string& host) const { return known_.at(host); }
  const hosts::HostList& list() const { return list_; }
  // Of the first survey, for reports.
  const std::vector<job::NodeView>& nodes() const;

 private:
  void Survey(std::vector<hosts::HostEntry> hosts, const std::string& net);
  void OnSurveyed();
  void Miss(const job::JobCore& survey);
  bool KeepsAddresses(const job::JobCore& survey);
  void Take(const job::JobCore& survey);
  void SurveyNext();
  void Ask(hosts::HostEntry entry, const std::string& net);
  std::vector<hosts::HostEntry> SomeOfRound();
  void Await(const hosts::HostEntry& entry, bool is_new);
  bool IsKnown(const std::string& host) const;
  void Tell();
  void Discover();
  void OnListed(hosts::HostList list);

  const Attempt::Around around_;
  hosts::HostList list_;  // all that may be used, as it is now
  const job::JobOptions options_;
  const std::unique_ptr<discovery::Script> discovery_;
  const uint32_t least_;
  uint32_t& surveys_;
  Callbacks callbacks_;
  std::unique_ptr<AttemptRun> survey_;   // null: none goes on
  std::vector<job::NodeView> nodes_;     // of the first, once it is over
  std::map<std::string, Host> known_;    // by name, those that a survey has found
  std::set<std::string> stale_;          // of these, to be surveyed again before they are used
  std::string network_;                  // one that all are in; those that come try it first
  std::deque<hosts::HostEntry> absent_;  // to be surveyed next, one by one
  std::string asked_;                    // of them, in the survey that goes on
  std::map<std::string, std::string> missing_;  // hosts of the list, and why they are not there
  TimePoint untold_since_ = kNever;             // since when a host is known and not told
  bool discovery_fails_ = false;
  bool redials_ = false;  // redial_ runs
  bool stopped_ = false;
  bool ended_ = false;
  loop::Timer discover_;
  loop::Timer redial_;
  Duration redial_after_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain
