// SPDX-License-Identifier: Apache-2.0
// Random jobs. First beside Horovod's own rules, where ours are the same; then with everything that
// can go wrong, where only the invariants of the fixture must hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/elastic/elastic_fixture.h"
#include "tests/unit/elastic/fake_driver.h"

namespace dtrain::elastic {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ElasticRandomTest : public ElasticFixture {
 public:
  uint32_t Pick(uint32_t below) {
    return std::uniform_int_distribution<uint32_t>(0, below - 1)(rng_);
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(rng_); }
  static std::string Name(uint32_t i) { return std::string(1, static_cast<char>('a' + i)); }

  std::mt19937 rng_;
};

// ---- beside Horovod's rules -----------------------------------------------------------------
// What is not compared, as it differs on purpose: workers that fail while a round forms, or while
// they wait for one (there Horovod's ranks run into Gloo's timeout); hosts whose number of slots
// changes, or of which --max-np takes a part, while they live; a host that was removed and listed
// again while it lives, if others without workers were listed before it (Horovod ends it); time
// that passes between a failure and the decision (ours cools down from the failure on).
class BesideHorovodTest : public ElasticRandomTest {
 public:
  struct Counts {
    int rounds = 0;
    int notices = 0;
    int strangers = 0;
    std::map<FakeDriver::End, int> ends;
  };

  void Begin(uint32_t seed) {
    rng_.seed(seed);
    options_ = {};
    fake_ = {};
    list_.clear();
    slots_.clear();
    const uint32_t kinds = 2 + Pick(4);
    const bool even = Chance(0.4);
    const uint32_t each = 1 + Pick(3);
    for (uint32_t i = 0; i < kinds; ++i) slots_.push_back(even ? each : 1 + Pick(3));
    options_.later.ranks = 1 + Pick(5);
    options_.start.ranks = options_.later.ranks + Pick(3);
    if (Chance(0.3)) options_.start.hosts = 2;
    if (even && Chance(0.6)) {
      options_.most.ranks = each * (1 + Pick(4));
      options_.later.ranks = std::min(options_.later.ranks, *options_.most.ranks);
      options_.start.ranks = std::min(options_.start.ranks, *options_.most.ranks);
    }
    if (Chance(0.5)) options_.most_resets = Pick(5);
    std::optional<CoolDown> range;
    if (Chance(0.5)) {
      const Duration pause = seconds(1 + Pick(100));
      range = CoolDown{pause, pause};
      fake_.cooldown = pause;
    }
    fake_.np = static_cast<int>(options_.start.ranks);
    fake_.min_np = static_cast<int>(options_.later.ranks);
    fake_.min_hosts = static_cast<int>(options_.start.hosts);
    if (options_.most.ranks) fake_.max_np = static_cast<int>(*options_.most.ranks);
    if (options_.most_resets) fake_.reset_limit = static_cast<int>(*options_.most_resets);
    Make(range);
    fake_.Start(now_);
  }

  bool Lives(const std::string& host) const {
    return std::any_of(real_.begin(), real_.end(), [&host](const auto& each) {
      return !each.second.over && each.second.host == host;
    });
  }
  bool IsListed(const std::string& host) const {
    return std::any_of(list_.begin(), list_.end(),
                       [&host](const HostSlots& each) { return each.host == host; });
  }
  // To both.
  void List() {
    AllOver();
    std::vector<std::pair<std::string, int>> found;
    for (const HostSlots& each : list_) found.push_back({each.host, each.slots});
    fake_.Discover(now_, found);
    Hosts(list_);
  }
  void ChangeList() {
    const uint32_t i = Pick(static_cast<uint32_t>(slots_.size()));
    const std::string host = Name(i);
    if (IsListed(host)) {
      std::erase_if(list_, [&host](const HostSlots& each) { return each.host == host; });
      return;
    }
    if (Lives(host)) {
      for (const std::string& other : fake_.order()) {
        if (!Lives(other)) return;
      }
    } else if (!options_.most.ranks && Chance(0.3)) {
      slots_[i] = 1 + Pick(3);
    }
    const auto at = list_.begin() + Pick(static_cast<uint32_t>(list_.size()) + 1);
    list_.insert(at, {host, slots_[i]});
  }
  void Pass(Duration time) {
    AllOver();
    now_ += time;
    fake_.OnTime(now_);
    if (fake_.end() == FakeDriver::End::kNone) {
      List();  // Horovod looks each second
    }
    Feed(Tick{});
  }

  void WorkerDoes() {
    std::vector<std::pair<RunId, uint32_t>> idle;
    std::vector<RunId> living;
    for (const auto& [id, real] : real_) {
      if (real.over || real.failed || real.told_to_end || !real.joined) continue;
      living.push_back(id);
      for (uint32_t i = 0; i < real.workers; ++i) {
        if (real.asked.count(i) == 0 && real.exited.count(i) == 0) idle.push_back({id, i});
      }
    }
    if (idle.empty()) return;
    const auto [run, slot] = idle[Pick(static_cast<uint32_t>(idle.size()))];
    const std::string host = real_.at(run).host;
    if (Chance(success_)) {
      fake_.Record(host, static_cast<int>(slot), FakeDriver::State::kSuccess);
      Exit(run, slot);
    } else if (!Chance(failure_)) {
      fake_.Record(host, static_cast<int>(slot), FakeDriver::State::kReady);
      Ask(run, slot);
    } else {
      HostFails(living[Pick(static_cast<uint32_t>(living.size()))]);
    }
  }
  void HostFails(RunId run) {
    const Real real = real_.at(run);
    std::vector<uint32_t> slots;
    for (uint32_t i = 0; i < real.workers; ++i) {
      if (real.exited.count(i) == 0) slots.push_back(i);
    }
    if (slots.empty()) return;
    std::shuffle(slots.begin(), slots.end(), rng_);
    // All that is left on a host fails with the first: Horovod's ranks lose each other, ours are
    // ended by JobCore.
    for (const uint32_t slot : slots) {
      fake_.Record(real.host, static_cast<int>(slot), FakeDriver::State::kFailure);
    }
    const int code = 1 + static_cast<int>(Pick(100));
    if (first_code_ == 0) first_code_ = code;
    if (Chance(0.3)) {
      SetFailed(run, code);
      Over(run, Kind::kWorker, code);
    } else {
      Exit(run, slots[0], code);
      if (Chance(0.5)) Over(run, Kind::kWorker, code);
    }
  }

  void Newcomer() {
    std::vector<RunId> shut;
    for (const auto& [id, real] : real_) {
      if (!real.over && !real.told_to_end && !real.joined &&
          real.waiting + real.exited.size() < real.workers) {
        shut.push_back(id);
      }
    }
    if (shut.empty()) return;
    const RunId run = shut[Pick(static_cast<uint32_t>(shut.size()))];
    Real& real = real_.at(run);
    if (Chance(success_ / 2)) {
      const auto slot = static_cast<uint32_t>(real.waiting + real.exited.size());
      fake_.Record(real.host, static_cast<int>(slot), FakeDriver::State::kSuccess);
      // It was not one of those that wait: these are not told apart.
      Exit(run, slot);
    } else {
      Wait(run, static_cast<uint32_t>(real.waiting) + 1);
    }
  }

  // False: not comparable from here on.
  bool CheckSame(Counts& counts) {
    if (fake_.has_only_strangers()) {
      ++counts.strangers;
      return false;
    }
    const bool fake_ended = fake_.end() != FakeDriver::End::kNone;
    const bool ended = core_->state() == State::kEnd || core_->state() == State::kOver;
    EXPECT_EQ(ended, fake_ended) << static_cast<int>(fake_.end());
    if (ended || fake_ended) return false;
    EXPECT_EQ(core_->state() == State::kGather, fake_.waits());
    EXPECT_EQ(core_->resets(), static_cast<uint32_t>(fake_.resets()));
    if (fake_.waits()) return true;
    const uint64_t round = core_->round() + (core_->state() == State::kForm ? 1 : 0);
    EXPECT_EQ(round, static_cast<uint64_t>(fake_.rendezvous()));
    FakeDriver::Assignments seats;
    for (const auto& [id, run] : core_->runs().all()) {
      if (!run.seated) continue;
      for (const v1::Seat& seat : run.seats) {
        seats[run.host].push_back({seat.rank(), seat.size(), seat.local_rank(), seat.local_size(),
                                   seat.cross_rank(), seat.cross_size()});
      }
    }
    EXPECT_EQ(seats, fake_.assigned());
    if (core_->state() == State::kOpen) CheckNotice(counts);
    return true;
  }
  void CheckNotice(Counts& counts) {
    if (round_ != core_->round()) {
      round_ = core_->round();
      first_code_ = 0;
    }
    const auto [first, run] = core_->runs().Coordinator();
    if (run == nullptr || fake_.has_failures() || run->records[0] != Record::kNone) return;
    if (!run->takes_notices[0]) {
      if (Chance(0.5)) Saying([this, id = first] { Feed(Registered{id, 0, ""}); });
      return;
    }
    if (!fake_.WouldChange()) return;
    EXPECT_EQ(told_in_, round_);
    ++counts.notices;
  }
  template <typename Act>
  void Saying(const Act& act) {
    const size_t sent = notified_.size();
    act();
    if (notified_.size() == sent) return;
    told_in_ = core_->round();
    EXPECT_TRUE(fake_.WouldChange());
  }

  void Step() {
    switch (core_->state()) {
      case State::kGather:
        if (Chance(0.7)) {
          Relist();
        } else {
          Pass(seconds(1 + Pick(120)));
        }
        break;
      case State::kForm:
        if (Chance(0.1)) {
          Relist();
        } else {
          Newcomer();
        }
        break;
      case State::kOpen:
        if (Chance(0.2)) {
          Relist();
        } else if (Chance(0.1) && !fake_.has_failures()) {
          Pass(seconds(1 + Pick(60)));
        } else {
          WorkerDoes();
        }
        break;
      case State::kEnd:
      case State::kOver:
        break;
    }
  }
  void Relist() {
    ChangeList();
    List();
  }

  void CheckEnd(uint32_t seed) {
    using End = FakeDriver::End;
    AllOver();
    ASSERT_TRUE(end_) << seed;
    const job::Verdict& verdict = end_->verdict;
    switch (fake_.end()) {
      case End::kSuccess:
        if (!fake_.has_failures()) {
          EXPECT_EQ(verdict.kind, Kind::kSuccess);
        } else {
          EXPECT_EQ(verdict.kind, Kind::kWorker);
          EXPECT_EQ(verdict.exit_code, first_code_);
        }
        break;
      case End::kAllFailed:
      case End::kAllBlacklisted:
        EXPECT_EQ(verdict.kind, Kind::kWorker);
        EXPECT_EQ(verdict.exit_code, first_code_);
        break;
      case End::kResetLimit:
        EXPECT_EQ(verdict.exit_code, kExitRestarts);
        break;
      case End::kNoHostLeft:
        EXPECT_THAT(verdict.message, testing::HasSubstr("the state is lost"));
        break;
      case End::kTimeout:
        EXPECT_EQ(verdict.exit_code, core_->round() == 0 ? kExitRendezvous : kExitNodeLost);
        break;
      case End::kNone:
        break;
    }
  }

  FakeDriver fake_;
  std::vector<HostSlots> list_;
  std::vector<uint32_t> slots_;  // of host a, b, ...
  double success_ = 0;
  double failure_ = 0;
  int first_code_ = 0;
  uint64_t round_ = 0;
  uint64_t told_in_ = 0;
};

TEST_F(BesideHorovodTest, TheSameVerdictAndTheSameSeats) {
  Counts counts;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Begin(seed);
    success_ = Chance(0.5) ? 0.01 : 0.2;
    failure_ = Chance(0.5) ? 0.05 : 0.2;
    round_ = told_in_ = 0;
    bool same = true;
    for (int step = 0; step < 300 && same; ++step) {
      Saying([this] { Step(); });
      same = CheckSame(counts);
      if (HasFailure()) break;
    }
    counts.rounds += static_cast<int>(core_->round());
    ++counts.ends[fake_.end()];
    if (fake_.end() != FakeDriver::End::kNone && !fake_.has_only_strangers()) CheckEnd(seed);
    if (HasFailure()) break;
  }
  // All of that did happen.
  using End = FakeDriver::End;
  for (const End end :
       {End::kSuccess, End::kAllFailed, End::kResetLimit, End::kNoHostLeft, End::kTimeout}) {
    EXPECT_GT(counts.ends[end], 20) << static_cast<int>(end);
  }
  EXPECT_GT(counts.rounds, 3000);
  EXPECT_GT(counts.notices, 1000);
  EXPECT_LT(counts.strangers, 150);
}

// ---- with everything ------------------------------------------------------------------------
class ElasticChaosTest : public ElasticRandomTest {
 public:
  void Begin(uint32_t seed) {
    rng_.seed(seed);
    options_ = {};
    options_.later = {.ranks = 1 + Pick(6), .hosts = 1 + Pick(2)};
    options_.start = {.ranks = options_.later.ranks + Pick(3), .hosts = options_.later.hosts};
    if (Chance(0.4)) options_.most.ranks = options_.start.ranks + Pick(4);
    if (Chance(0.2)) options_.most.hosts = options_.start.hosts + Pick(3);
    if (Chance(0.3)) options_.most_resets = Pick(6);
    if (Chance(0.2)) options_.time_limit = seconds(1 + Pick(2000));
    if (Chance(0.3)) {
      for (uint32_t i = 0; i < 5; ++i) options_.fixed_hosts.push_back(Name(i));
    }
    std::optional<CoolDown> range;
    if (Chance(0.7)) range = CoolDown{seconds(1 + Pick(20)), seconds(20 + Pick(200))};
    Make(range);
  }
  RunId AnyRun() {
    if (real_.empty() || Chance(0.02)) return RunId(Pick(100));
    auto run = real_.begin();
    std::advance(run, Pick(static_cast<uint32_t>(real_.size())));
    return run->first;
  }
  void AnyHosts() {
    std::vector<HostSlots> hosts;
    for (uint32_t i = 0; i < 5; ++i) {
      if (Chance(0.7)) hosts.push_back({Name(i), Pick(4)});
    }
    Hosts(hosts);
  }
  void EndRunOf(RunId run) {
    const Kind kinds[] = {Kind::kWorker, Kind::kNode, Kind::kRefused, Kind::kStalled};
    const int codes[] = {1, kExitNodeLost, kExitAgentLost, kExitCleanup, kExitStartAgents, 126};
    if (real_.at(run).told_to_end && Chance(0.7)) return Over(run);
    const TimePoint dead_at = Chance(0.3) ? now_ + seconds(Pick(60)) : TimePoint::min();
    Over(run, kinds[Pick(4)], codes[Chance(0.9) ? Pick(5) : 5], dead_at, "why");
  }
  void Step() {
    const RunId run = AnyRun();
    const auto real = real_.find(run);
    if (real == real_.end() || real->second.over) {
      switch (Pick(6)) {
        case 0:
          return AnyHosts();
        case 1:
          return Feed(SeatAsked{run, Pick(4)});
        case 2:
          return Feed(DoorWaits{run, Pick(4)});
        case 3:
          return Feed(WorkerEnded{run, Pick(4), static_cast<int>(Pick(2)), "late"});
        case 4:
          return Feed(RunOver{run, {}, "", {}});
        default:
          return Feed(Registered{run, Pick(4), Chance(0.5) ? "" : "odd"});
      }
    }
    const Real& real_run = real->second;
    const auto local_rank = Pick(static_cast<uint32_t>(real_run.workers));
    const bool acts =
        !real_run.told_to_end && !real_run.failed && real_run.exited.count(local_rank) == 0;
    switch (Pick(24)) {
      case 0:
        return AnyHosts();
      case 1:
        now_ += milliseconds(Pick(30000));
        return Feed(Tick{});
      case 2:
        if (core_->NextDeadline() != kNever) ToDeadline();
        return;
      case 3:
        if (Chance(0.15)) EndRunOf(run);
        return;
      case 4:
        if (acts && Chance(0.3)) Exit(run, local_rank, 1 + static_cast<int>(Pick(50)));
        return;
      case 5:
        // One that has asked and leaves makes its host fail.
        if (!acts || !Chance(0.3)) return;
        if (real_run.asked.count(local_rank) != 0) SetFailed(run, kExitStalled);
        return Exit(run, local_rank);
      case 6:
        return Feed(Registered{run, local_rank, Chance(0.9) ? "" : "odd"});
      case 7:
        if (!notified_.empty()) {
          Feed(NoticeDone{notified_.back().run, notified_.back().timestamp,
                          Chance(0.5) ? "" : "refused"});
        }
        return;
      case 8:
        if (!Chance(0.01)) return;
        Feed(StopAsked{SIGTERM});
        for (auto& [id, each] : real_) each.told_to_end = true;  // each run has the signal
        return;
      case 9:
        if (!real_run.joined) Wait(run, Pick(static_cast<uint32_t>(real_run.workers) + 1));
        return;
      case 10:
      case 11:
      case 12:
        if (real_run.failed || real_run.told_to_end) return Over(run);
        if (real_run.exited.size() == real_run.workers) return Over(run);
        return;
      default:
        if (!acts) return;
        if (real_run.joined) return Ask(run, local_rank);
        return Wait(run, static_cast<uint32_t>(real_run.workers - real_run.exited.size()));
    }
  }
  // From anywhere, workers that do what they should bring a job to its end.
  void Finish() {
    for (int i = 0; i < 60 && !end_; ++i) {
      AllOver();
      for (const auto& [id, real] : std::map<RunId, Real>(real_)) {
        if (end_ || real.over || real.failed || real.told_to_end) continue;
        if (!real.joined) {
          Wait(id, static_cast<uint32_t>(real.workers));
          continue;
        }
        for (uint32_t j = 0; j < real.workers; ++j) {
          const Real& now = real_.at(id);
          if (now.over || now.failed || now.told_to_end) break;
          if (now.exited.count(j) == 0 && now.asked.count(j) == 0) Exit(id, j);
        }
      }
      AllOver();
      if (!end_ && core_->NextDeadline() != kNever) ToDeadline();
    }
  }
};

TEST_F(ElasticChaosTest, InvariantsHoldAndEachJobEnds) {
  std::map<int, int> codes;
  int rounds = 0;
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Begin(seed);
    AnyHosts();
    for (int step = 0; step < 200 && !end_; ++step) {
      Step();
      if (HasFailure()) break;
    }
    if (!HasFailure()) Finish();
    ASSERT_TRUE(end_ || HasFailure());
    if (HasFailure()) break;
    rounds += static_cast<int>(core_->round());
    ++codes[end_->verdict.exit_code];
  }
  EXPECT_GT(rounds, 1000);
  for (const int code : std::vector<int>{0, 1, kExitRendezvous, kExitNodeLost, kExitCleanup,
                                         kExitRestarts, kExitTimeLimit, kExitTerminated}) {
    EXPECT_GT(codes[code], 3) << code;
  }
}

}  // namespace
}  // namespace dtrain::elastic
