// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/elastic/elastic_core.h"

namespace dtrain::elastic {

// An ElasticCore, and the runs that it has begun as they really are. After each event the
// invariants of a job are checked.
class ElasticFixture : public testing::Test {
 public:
  using State = ElasticCore::State;
  using Kind = job::Verdict::Kind;

  struct Real {
    std::string host;
    size_t workers = 0;
    bool told_to_end = false;
    bool over = false;
    bool failed = false;
    int code = 0;  // of its first failure
    bool joined = false;
    size_t waiting = 0;
    std::set<uint32_t> asked;
    std::set<uint32_t> exited;
  };

  void Make(std::optional<CoolDown> range = std::nullopt) {
    book_.emplace(range, 1);
    core_.emplace(options_, *book_, now_);
    Clear();
  }
  // A next attempt, with the same book.
  void MakeNext() {
    options_.first_run = core_->runs().next();
    options_.first_number = core_->runs().next_number();
    core_.emplace(options_, *book_, now_);
    Clear();
  }
  void Clear() {
    real_.clear();
    begun_.clear();
    ended_.clear();
    opened_.clear();
    notified_.clear();
    said_.clear();
    end_.reset();
  }

  void Feed(const ElasticEvent& event) {
    const uint64_t before = core_->round();
    for (ElasticAction& action : core_->OnEvent(now_, event)) Take(std::move(action));
    EXPECT_LE(core_->round(), before + 1);
    CheckInvariants();
  }
  void Take(ElasticAction action) {
    EXPECT_FALSE(end_) << "an action after the end";
    if (auto* begin = std::get_if<BeginRun>(&action)) {
      EXPECT_EQ(real_.count(begin->run), 0U);
      for (const auto& [id, real] : real_) EXPECT_FALSE(!real.over && real.host == begin->host);
      real_[begin->run].host = begin->host;
      real_[begin->run].workers = begin->seats.size();
      begun_.push_back(std::move(*begin));
    } else if (auto* end = std::get_if<EndRun>(&action)) {
      Real& real = real_.at(end->run);
      EXPECT_FALSE(real.over || (real.told_to_end && !end->cancels));
      real.told_to_end = true;
      ended_.push_back(std::move(*end));
    } else if (auto* open = std::get_if<OpenRound>(&action)) {
      CheckOpen(*open);
      opened_.push_back(std::move(*open));
    } else if (auto* notify = std::get_if<Notify>(&action)) {
      EXPECT_EQ(notify->local_rank, 0U);
      EXPECT_EQ(opened_.back().seats.at(notify->run)[0].rank(), 0U);
      notified_.push_back(*notify);
    } else if (auto* announce = std::get_if<Announce>(&action)) {
      EXPECT_EQ(announce->text.rfind("dtrain: ", 0), 0U) << announce->text;
      said_.push_back(announce->text);
    } else if (auto* over = std::get_if<EndElastic>(&action)) {
      for (const auto& [id, real] : real_) EXPECT_TRUE(real.over);
      end_ = std::move(*over);
    }
  }
  // All of them must be there.
  void CheckOpen(const OpenRound& open) {
    EXPECT_EQ(open.round, opened_.size() + 1);
    std::set<uint32_t> ranks;
    size_t absent = 0;
    for (auto& [id, real] : real_) {
      const auto seats = open.seats.find(id);
      if (seats == open.seats.end()) {
        // Its workers may have their places, although it is over.
        if (real.over && !real.joined && real.exited.size() == real.workers) absent += real.workers;
        continue;
      }
      EXPECT_FALSE(real.over || real.told_to_end || real.failed);
      EXPECT_EQ(seats->second.size(), real.workers);
      if (real.joined) {
        EXPECT_EQ(real.asked.size(), real.workers) << "round " << open.round;
      } else {
        EXPECT_GE(real.waiting + real.exited.size(), real.workers);
      }
      if (open.round > 1 && seats->second[0].rank() == 0) {
        EXPECT_TRUE(real.joined);
      }
      for (const v1::Seat& seat : seats->second) {
        EXPECT_TRUE(ranks.insert(seat.rank()).second);
        EXPECT_EQ(seat.local_size(), real.workers);
      }
      real.joined = true;
      real.asked.clear();
      real.waiting = 0;
    }
    std::set<uint32_t> sizes;
    for (const auto& [id, seats] : open.seats) {
      EXPECT_EQ(real_.count(id), 1U);
      for (const v1::Seat& seat : seats) sizes.insert(seat.size());
    }
    if (ranks.empty()) return;
    ASSERT_EQ(sizes.size(), 1U);
    EXPECT_LT(*ranks.rbegin(), *sizes.begin());
    EXPECT_GE(*sizes.begin(), ranks.size());
    EXPECT_LE(*sizes.begin(), ranks.size() + absent);
  }
  void CheckInvariants() {
    size_t not_over = 0;
    for (const auto& [id, real] : real_) not_over += real.over ? 0 : 1;
    switch (core_->state()) {
      case State::kGather:
        EXPECT_TRUE(core_->NextDeadline() != kNever || core_->runs().MakesRoom());
        break;
      case State::kForm:
        EXPECT_NE(core_->NextDeadline(), kNever);
        break;
      case State::kOpen:
        for (const auto& [id, run] : core_->runs().all()) {
          if (!run.seated) continue;
          EXPECT_TRUE(run.lives() || run.Count(Record::kFailure) > 0 ||
                      run.Count(Record::kSuccess) == run.records.size());
        }
        break;
      case State::kEnd:
        EXPECT_GT(not_over, 0U);
        break;
      case State::kOver:
        EXPECT_EQ(not_over, 0U);
        break;
    }
    EXPECT_EQ(core_->state() == State::kOver, end_.has_value());
    if (end_) {
      EXPECT_EQ(core_->NextDeadline(), kNever);
      EXPECT_EQ(end_->verdict.exit_code == 0, end_->verdict.kind == Kind::kSuccess);
      if (end_->verdict.kind != Kind::kSuccess) {
        EXPECT_NE(end_->cause, "");
      }
    }
  }

  // ---- what hosts and workers do ------------------------------------------------------------
  void Hosts(std::vector<HostSlots> hosts, std::vector<MissingHost> missing = {}) {
    Feed(HostsFound{std::move(hosts), std::move(missing)});
  }
  RunId On(const std::string& host) const {
    for (const auto& [id, real] : real_) {
      if (!real.over && real.host == host) return id;
    }
    ADD_FAILURE() << "no run on " << host;
    return {};
  }
  void Wait(RunId run, uint32_t clients) {
    real_.at(run).waiting = clients;
    Feed(DoorWaits{run, clients});
  }
  void Wait(const std::string& host) {
    const RunId run = On(host);
    Wait(run, static_cast<uint32_t>(real_.at(run).workers));
  }
  void Ask(RunId run, uint32_t local_rank) {
    real_.at(run).asked.insert(local_rank);
    Feed(SeatAsked{run, local_rank});
  }
  // All of them that have not exited.
  void Ask(const std::string& host) {
    const RunId run = On(host);
    for (uint32_t i = 0; i < real_.at(run).workers; ++i) {
      if (real_.at(run).exited.count(i) == 0) Ask(run, i);
    }
  }
  void SetFailed(RunId run, int code) {
    Real& real = real_.at(run);
    if (!std::exchange(real.failed, true)) real.code = code;
  }
  void Exit(RunId run, uint32_t local_rank, int code = 0) {
    real_.at(run).exited.insert(local_rank);
    if (code != 0) SetFailed(run, code);
    Feed(WorkerEnded{run, local_rank, code, absl::StrCat("a rank exited with code ", code)});
  }
  void Exit(const std::string& host) {
    const RunId run = On(host);
    for (uint32_t i = 0; i < real_.at(run).workers; ++i) {
      if (real_.at(run).exited.count(i) == 0) Exit(run, i);
    }
  }
  void Over(RunId run, Kind kind, int code, TimePoint dead_at = TimePoint::min(),
            std::string message = "") {
    real_.at(run).over = true;
    RunOver over;
    over.run = run;
    over.verdict.kind = kind;
    over.verdict.exit_code = code;
    over.verdict.left_behind = code == kExitCleanup && !message.empty();  // else a rank's own code
    over.verdict.message = std::move(message);
    over.cause = absl::StrCat("over with ", code);
    over.dead_at = dead_at;
    Feed(over);
  }
  // As JobCore ends a run whose workers failed, succeeded or were told to end.
  void Over(RunId run) {
    const Real real = real_.at(run);
    if (real.failed) return Over(run, Kind::kWorker, real.code);
    if (real.told_to_end) return Over(run, Kind::kSignal, 143);
    Over(run, Kind::kSuccess, 0);
  }
  // All that must end.
  void AllOver() {
    for (const auto& [id, real] : std::map<RunId, Real>(real_)) {
      if (!real.over && (real.failed || real.told_to_end || real.exited.size() == real.workers)) {
        Over(id);
      }
    }
  }
  void Lost(const std::string& host, Duration dead_in = std::chrono::seconds(30)) {
    Over(On(host), Kind::kNode, kExitNodeLost, now_ + dead_in,
         absl::StrCat(host, ": connection lost"));
  }
  void At(Duration later) {
    now_ += later;
    Feed(Tick{});
  }
  void ToDeadline() {
    const TimePoint next = core_->NextDeadline();
    ASSERT_NE(next, kNever);
    now_ = std::max(now_, next);
    Feed(Tick{});
  }
  // "a 0 1 | b 2 3" of the last round.
  std::string Round() const {
    std::map<uint32_t, std::string> by_rank;
    for (const auto& [id, seats] : opened_.back().seats) {
      std::string text = real_.at(id).host;
      for (const v1::Seat& seat : seats) absl::StrAppend(&text, " ", seat.rank());
      by_rank[seats[0].rank()] = text;
    }
    std::string all;
    for (const auto& [rank, text] : by_rank) absl::StrAppend(&all, all.empty() ? "" : " | ", text);
    return all;
  }
  // A job whose round 1 is open: 2 ranks on each host.
  void Start(const std::vector<std::string>& hosts, std::optional<CoolDown> range = std::nullopt) {
    Make(range);
    std::vector<HostSlots> list;
    for (const std::string& host : hosts) list.push_back({host, 2});
    Hosts(list);
    for (const std::string& host : hosts) Wait(host);
    ASSERT_EQ(core_->state(), State::kOpen);
  }

  ElasticOptions options_;
  std::optional<HostBook> book_;
  std::optional<ElasticCore> core_;
  TimePoint now_{std::chrono::seconds(1000)};
  std::map<RunId, Real> real_;
  std::vector<BeginRun> begun_;
  std::vector<EndRun> ended_;
  std::vector<OpenRound> opened_;
  std::vector<Notify> notified_;
  std::vector<std::string> said_;
  std::optional<EndElastic> end_;
};

}  // namespace dtrain::elastic
