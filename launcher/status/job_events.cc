// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/job_events.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "launcher/job/outcome.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/result_json.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFailuresTold = 100;
constexpr Duration kLookAtAll = std::chrono::seconds(1);

}  // namespace

double JobEvents::At(TimePoint time) const {
  return std::chrono::duration<double>(time - begin_).count();
}

void JobEvents::Observe(const report::JobFacts& facts, std::optional<NodeId> of, TimePoint now) {
  for (; phases_ < facts.phases.size(); ++phases_) {
    const job::PhaseTime& phase = facts.phases[phases_];
    log_.Add(At(phase.begin), "phase", {{"text", report::PhaseName(phase.state)}});
  }
  for (; warnings_ < facts.warnings.size(); ++warnings_) {
    log_.Add(At(now), "warning", {{"text", facts.warnings[warnings_]}});
  }
  nodes_.resize(facts.nodes.size(), Seen::kFine);
  CountRanks(facts);
  if (of && of->value() < nodes_.size()) Look(facts, of->value(), now);
  if (now - looked_ < kLookAtAll) return;
  looked_ = now;
  for (size_t i = 0; i < nodes_.size(); ++i) Look(facts, i, now);
}

void JobEvents::CountRanks(const report::JobFacts& facts) {
  if (ended_.size() == facts.ranks.size() && living_.size() == facts.nodes.size()) return;
  living_.assign(facts.nodes.size(), 0);
  ended_.assign(facts.ranks.size(), false);
  for (const job::RankEnd& rank : facts.ranks) {
    ended_[rank.rank.value()] = rank.ended;
    if (!rank.ended) ++living_[rank.node.value()];
  }
}

void JobEvents::Look(const report::JobFacts& facts, size_t index, TimePoint now) {
  const job::NodeView& node = facts.nodes[index];
  const Seen was = nodes_[index];
  if (was == Seen::kLost) return;
  // At the end of the job nodes go one by one, with nothing left on them.
  const bool has_left =
      node.let_go || (node.gone && facts.state >= job::State::kStopping && living_[index] == 0);
  if (has_left) return;
  const Seen is = node.gone ? Seen::kLost : node.suspect ? Seen::kSilent : Seen::kFine;
  nodes_[index] = is;
  if (is == was) return;
  const char* kind = is == Seen::kLost ? "lost" : is == Seen::kSilent ? "silent" : "heard";
  log_.Add(At(now), kind, {{"host", node.host}});
}

void JobEvents::RankEnded(const report::JobFacts& facts, Rank rank, TimePoint now) {
  const job::RankEnd& end = facts.ranks[rank.value()];
  CountRanks(facts);
  if (end.ended && !ended_[rank.value()]) {
    ended_[rank.value()] = true;
    --living_[end.node.value()];
  }
  if (!end.ended || end.exit.told_to_stop() || !HasFailed(end.exit)) return;
  if (failed_++ >= kFailuresTold) return;
  log_.Add(At(now), "rank",
           {{"rank", rank.value()},
            {"host", report::HostOf(facts, end.node)},
            {"text", report::DescribeEnd(end.exit)}});
}

void JobEvents::AttemptBegins(uint32_t attempt, TimePoint now) {
  phases_ = warnings_ = failed_ = 0;
  nodes_.clear();
  living_.clear();
  ended_.clear();
  log_.Add(At(now), "attempt", {{"attempt", attempt}});
}

void JobEvents::AttemptEnded(const report::JobFacts& facts, const std::string& cause,
                             TimePoint now) {
  Observe(facts, std::nullopt, now);
  log_.Add(At(now), "restart", {{"text", cause}});
}

void JobEvents::JobEnded(const report::JobFacts& facts, Json columns, TimePoint now) {
  Observe(facts, std::nullopt, now);
  Json json = {{"exit_code", facts.verdict.exit_code},
               {"verdict", report::VerdictName(facts.verdict.kind)},
               {"report", report::FailureReport(facts)}};
  if (facts.verdict.kind == job::Verdict::Kind::kWorker) json["rank"] = facts.verdict.rank.value();
  json["columns"] = std::move(columns);
  log_.Add(At(now), "ended", json);
}

class EventFeeds::Feed : public http::Feed {
 public:
  // Events that have not been are those of another launcher.
  Feed(EventFeeds& feeds, uint64_t since)
      : feeds_(feeds), at_(since > feeds.log_.last() ? 0 : since) {
    feeds_.feeds_.push_back(this);
  }
  ~Feed() override { std::erase(feeds_.feeds_, this); }

  std::string Next(size_t limit) override { return feeds_.log_.Lines(at_, limit); }
  bool ended() const override { return feeds_.ended_ && !has_more(); }
  void Notify(absl::AnyInvocable<void()> task) override {
    if (has_more() || feeds_.ended_) {
      task();
    } else {
      task_ = std::move(task);
    }
  }
  void Wake() {
    if (task_ != nullptr && (has_more() || feeds_.ended_)) std::exchange(task_, nullptr)();
  }

 private:
  bool has_more() const { return at_ < feeds_.log_.last(); }

  EventFeeds& feeds_;
  uint64_t at_;
  absl::AnyInvocable<void()> task_;
};

std::unique_ptr<http::Feed> EventFeeds::Follow(uint64_t since) {
  return std::make_unique<Feed>(*this, since);
}

void EventFeeds::Wake() {
  // A feed that is woken may go away, and others too.
  const std::vector<Feed*> feeds = feeds_;
  for (Feed* feed : feeds) {
    if (std::find(feeds_.begin(), feeds_.end(), feed) != feeds_.end()) feed->Wake();
  }
}

void EventFeeds::End() {
  ended_ = true;
  Wake();
}

}  // namespace dtrain::status
