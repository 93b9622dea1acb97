// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/http/message.h"
#include "common/view/event_log.h"
#include "launcher/report/facts.h"

namespace dtrain::status {

// Notices what happens to a job: its attempts and phases, its warnings, nodes that fall silent,
// ranks that fail, its end. Pure.
class JobEvents {
 public:
  explicit JobEvents(TimePoint begin) : begin_(begin) {}

  // After an event of that node, or one of nobody's. Costs what has happened, however many nodes
  // there are; once a second it looks at all.
  void Observe(const report::JobFacts& facts, std::optional<NodeId> of, TimePoint now);
  // That rank has ended. Of failed ones the first are of interest.
  void RankEnded(const report::JobFacts& facts, Rank rank, TimePoint now);
  // All that is known of nodes and ranks is of the next attempt from then on.
  void AttemptBegins(uint32_t attempt, TimePoint now);
  void AttemptEnded(const report::JobFacts& facts, const std::string& cause, TimePoint now);
  // The job has; `columns`: as the ranks are now, for readers who come no more.
  void JobEnded(const report::JobFacts& facts, nlohmann::ordered_json columns, TimePoint now);

  const view::EventLog& log() const { return log_; }

 private:
  enum class Seen : char { kFine, kSilent, kLost };
  void Look(const report::JobFacts& facts, size_t node, TimePoint now);
  void CountRanks(const report::JobFacts& facts);
  double At(TimePoint time) const;

  const TimePoint begin_;
  view::EventLog log_;
  size_t phases_ = 0;
  size_t warnings_ = 0;
  size_t failed_ = 0;
  std::vector<Seen> nodes_;
  std::vector<size_t> living_;  // ranks of each node
  std::vector<bool> ended_;     // by rank
  TimePoint looked_;
};

// Those who follow a job's events. Loop thread.
class EventFeeds {
 public:
  // `log` outlives this, and this its feeds.
  explicit EventFeeds(const view::EventLog& log) : log_(log) {}

  // Events behind number `since`, a line of JSON each, until the end.
  std::unique_ptr<http::Feed> Follow(uint64_t since);
  // There may be more.
  void Wake();
  bool any() const { return !feeds_.empty(); }
  // What is there is all.
  void End();

 private:
  class Feed;
  const view::EventLog& log_;
  std::vector<Feed*> feeds_;
  bool ended_ = false;
};

}  // namespace dtrain::status
