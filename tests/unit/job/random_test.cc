// SPDX-License-Identifier: Apache-2.0
// Random lives: agents that mostly do what they are asked, with lies, losses, signals and time
// thrown in. After every step the invariants of a launch are checked.
#include <map>
#include <random>
#include <set>

#include "launcher/job/outcome.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

class RandomTest : public JobFixture {
 public:
  // What a node really is.
  struct Model {
    bool connected = false;
    bool welcomed = false;
    bool start_seen = false;
    bool stop_seen = false;
    bool disconnected = false;
    bool logs_open = false;
    bool finished = false;
    bool released = false;
    bool drained = false;
    int probes_due = 0;
    int ports_due = 0;
    std::vector<uint32_t> living;
  };

  uint32_t Pick(uint32_t below) {
    return std::uniform_int_distribution<uint32_t>(0, below - 1)(rng_);
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(rng_); }

  void Begin(uint32_t seed) {
    rng_.seed(seed);
    now_ = start_;
    finished_ = false;
    finishes_ = 0;
    all_.clear();
    started_ranks_.clear();
    clean_.clear();
    honest_ = Chance(0.6);
    options_ = {};
    options_.grace_limit = Duration::zero();
    options_.start_timeout = seconds(60);
    if (Chance(0.2)) options_.time_limit = seconds(1 + Pick(60));
    if (Chance(0.1)) options_.dry_run = true;
    const uint32_t count = 1 + Pick(4);
    options_.keep_spares = Chance(0.3);
    if (options_.keep_spares) options_.plan.nodes = 1 + Pick(count);
    models_.assign(count, {});
    Make(count, 1 + Pick(3));
    last_state_ = core_->state();
  }

  // Feeds one event and checks what comes back.
  void Step(Event event) {
    const auto* message = std::get_if<ShepherdMessage>(&event);
    if (message != nullptr && message->event.has_exit() && message->event.exit().rank() < 64) {
      const v1::WorkerExit& exit = message->event.exit();
      if (!HasFailed(exit)) clean_.insert(exit.rank());
    }
    for (const Action& action : Feed(std::move(event))) Check(action);
    ASSERT_GE(static_cast<int>(core_->state()), static_cast<int>(last_state_));
    last_state_ = core_->state();
    ASSERT_EQ(finishes_, core_->state() == State::kFinished ? 1 : 0);
    if (core_->state() == State::kFinished) {
      CheckEnd();
    } else {
      ASSERT_EQ(core_->phases().back().end, kNever);
    }
  }
  void Say(uint32_t node, v1::SessionEvent event) {
    Step(AgentMessage{NodeId(node), std::move(event), kEpoch + (now_ - start_).count()});
  }
  void Say(uint32_t node, v1::JobEvent event) {
    Step(ShepherdMessage{NodeId(node), std::move(event), kEpoch + (now_ - start_).count()});
  }

  void Check(const Action& action) {
    if (const auto* agent = std::get_if<ToAgent>(&action)) {
      CheckSend(agent->node, agent->request);
    } else if (const auto* agents = std::get_if<ToAgents>(&action)) {
      ASSERT_FALSE(agents->nodes.empty());
      for (NodeId node : agents->nodes) CheckSend(node, agents->request);
    } else if (const auto* shepherd = std::get_if<ToShepherd>(&action)) {
      CheckSend(shepherd->node, Whole(*shepherd));
    } else if (const auto* shepherds = std::get_if<ToShepherds>(&action)) {
      ASSERT_FALSE(shepherds->nodes.empty());
      for (NodeId node : shepherds->nodes) CheckSend(node, shepherds->request);
    } else if (const auto* beat = std::get_if<job::Beat>(&action)) {
      ASSERT_FALSE(beat->nodes.empty());
      for (NodeId node : beat->nodes) CheckSend(node, v1::SessionRequest());
    } else if (const auto* logs = std::get_if<OpenLogs>(&action)) {
      Model& model = models_.at(logs->node.value());
      ASSERT_TRUE(model.start_seen && !model.logs_open);
      model.logs_open = true;
    } else if (const auto* disconnect = std::get_if<Disconnect>(&action)) {
      Model& model = models_.at(disconnect->node.value());
      ASSERT_FALSE(model.disconnected);
      model.disconnected = true;
    } else if (std::holds_alternative<Finish>(action)) {
      ++finishes_;
    }
  }

  void CheckSend(NodeId node, const v1::SessionRequest& request) {
    Model& model = models_.at(node.value());
    ASSERT_FALSE(model.disconnected) << request.ShortDebugString();
    ASSERT_TRUE(model.connected) << request.ShortDebugString();
    if (request.has_probe()) ++model.probes_due;
    if (request.has_hold_ports()) ++model.ports_due;
  }
  void CheckSend(NodeId node, const v1::JobRequest& request) {
    Model& model = models_.at(node.value());
    ASSERT_FALSE(model.disconnected) << request.ShortDebugString();
    ASSERT_TRUE(model.connected) << request.ShortDebugString();
    if (request.has_stop()) {
      ASSERT_TRUE(model.start_seen);
      model.stop_seen = true;
    }
    if (!request.has_start()) return;
    for (const Model& each : models_) ASSERT_TRUE(each.welcomed) << "a start before all joined";
    ASSERT_FALSE(model.start_seen);
    model.start_seen = true;
    for (const v1::WorkerSpec& worker : request.start().workers()) {
      ASSERT_TRUE(started_ranks_.insert(worker.rank()).second) << "a rank started twice";
      model.living.push_back(worker.rank());
    }
  }

  void CheckEnd() {
    const Verdict& v = verdict();
    ASSERT_NE(v.kind, Verdict::Kind::kNone);
    ASSERT_EQ(v.exit_code == 0, v.kind == Verdict::Kind::kSuccess);
    for (const Model& model : models_) ASSERT_TRUE(model.disconnected || lost_.contains(&model));
    if (v.kind == Verdict::Kind::kSuccess && !options_.dry_run) {
      for (const RankEnd& end : core_->ranks()) {
        ASSERT_TRUE(end.ended && !HasFailed(end.exit) && clean_.contains(end.rank.value()));
      }
      for (const Model& model : models_) {
        ASSERT_TRUE(!model.start_seen || (model.drained && model.finished && model.released));
      }
    }
    if (v.kind == Verdict::Kind::kWorker) {
      const RankEnd& end = core_->ranks().at(v.rank.value());
      ASSERT_TRUE(end.ended && HasFailed(end.exit));
      ASSERT_TRUE(v.exit_code == WorkerExitCode(end.exit) || v.exit_code == 204);
    } else if (v.kind != Verdict::Kind::kSuccess) {
      ASSERT_FALSE(v.message.empty());
    }
    const auto& phases = core_->phases();
    for (size_t i = 0; i + 1 < phases.size(); ++i) ASSERT_EQ(phases[i].end, phases[i + 1].begin);
  }

  // What the node would do next by itself.
  void Sensible(uint32_t n) {
    Model& model = models_[n];
    v1::SessionEvent event;
    if (model.disconnected) return;
    if (!model.connected) {
      model.connected = true;
      return Step(NodeConnected{NodeId(n)});
    }
    if (!model.welcomed) {
      model.welcomed = true;
      FillWelcome(Inventory(n), *event.mutable_welcome());
      return Say(n, event);
    }
    if (model.probes_due > 0) {
      --model.probes_due;
      return Absorb(Probed(n, honest_ || Chance(0.9)));
    }
    if (model.ports_due > 0) {
      --model.ports_due;
      return Absorb(PortsHeld(n));
    }
    // It may overtake all that the shepherd says.
    if (model.start_seen && !model.released && (model.finished || Chance(0.02))) {
      model.released = true;
      event.mutable_released();
      return Say(n, event);
    }
    if (!model.start_seen || model.finished) {
      if (!model.finished || model.drained) return Say(n, Heartbeat());
      model.drained = true;
      return Step(LogsDrained{NodeId(n)});
    }
    if (core_->state() == State::kStarting) return Absorb(Started(n));
    if (!model.living.empty()) return EndWorker(n);
    model.finished = true;
    v1::JobEvent end;
    end.mutable_finished();
    Say(n, end);
  }
  void EndWorker(uint32_t n) {
    Model& model = models_[n];
    v1::JobEvent event;
    *event.mutable_exit() = Chance(0.05) && !model.stop_seen
                                ? ExitOf(model.living.back(), Pick(256))
                            : model.stop_seen ? ExitOf(model.living.back(), 0, SIGTERM, true)
                                              : ExitOf(model.living.back(), 0);
    model.living.pop_back();
    Say(n, event);
  }
  // The fixture's helpers feed by themselves.
  void Absorb(const std::vector<Action>& actions) {
    for (const Action& action : actions) Check(action);
    last_state_ = core_->state();
    if (core_->state() == State::kFinished) CheckEnd();
  }
  static v1::SessionEvent Heartbeat() {
    v1::SessionEvent event;
    event.mutable_heartbeat();
    return event;
  }

  // Anything at all.
  void Wild() {
    const uint32_t n = Pick(static_cast<uint32_t>(models_.size()) + 1);
    v1::SessionEvent event;
    v1::JobEvent job;
    switch (Pick(14)) {
      case 0:
        event.mutable_probe_report();
        break;
      case 1:
        event.mutable_ports_held()->add_ports(Pick(70000));
        break;
      case 2:
        job.mutable_started()->add_workers()->set_rank(Pick(8));
        break;
      case 3:
        *job.mutable_exit() = ExitOf(Pick(8), Pick(3), Pick(3), Chance(0.3));
        break;
      case 4:
        job.mutable_fence_enter()->set_sequence(Pick(3));
        break;
      case 5:
        Chance(0.5) ? event.mutable_finished() : job.mutable_finished();
        break;
      case 6:
        (Chance(0.5) ? event.mutable_failure() : job.mutable_failure())->set_message("why");
        break;
      case 7:
        Chance(0.5) ? event.mutable_warning() : job.mutable_warning();
        break;
      case 8:
        event.mutable_welcome();
        break;
      case 9:
        if (n < models_.size()) models_[n].drained = true;
        return Step(LogsDrained{NodeId(n)});
      case 10:
        return Step(OutputFailed{"gone"});
      case 11:
        event.mutable_released();
        break;
      default:
        if (n < models_.size()) lost_.insert(&models_[n]);
        return Step(NodeClosed{NodeId(n), absl::UnavailableError("cut")});
    }
    if (event.has_welcome() && n < models_.size() && models_[n].connected) {
      models_[n].welcomed = true;  // a join of a nameless machine
    }
    // Its lies count as its own words.
    const bool finished = event.has_finished() || job.has_finished();
    if (finished && n < models_.size()) models_[n].finished = true;
    if (event.has_released() && n < models_.size() && models_[n].start_seen) {
      models_[n].released = true;
    }
    if (job.kind_case() != v1::JobEvent::KIND_NOT_SET) return Say(n, job);
    Say(n, event);
  }

  void Run(uint32_t seed) {
    lost_.clear();
    Begin(seed);
    for (int i = 0; i < 200 && !finished_ && !HasFatalFailure(); ++i) {
      if (Chance(honest_ ? 0.0 : 0.04)) {
        Wild();
      } else if (core_->state() == State::kStopping && Chance(0.03)) {
        CheckNobodyRunsForLong();
      } else if (Chance(0.01)) {
        constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, 99};
        Step(UserSignal{kSignals[Pick(6)]});
      } else if (Chance(0.1)) {
        // Time, with or without the Tick that was asked for.
        now_ = Chance(0.5) && core_->NextDeadline() != kNever
                   ? std::max(now_, core_->NextDeadline())
                   : now_ + milliseconds(Pick(3000));
        Step(Tick{});
      } else {
        Sensible(Pick(static_cast<uint32_t>(models_.size())));
      }
    }
    // Whatever the state: after Ctrl-C the end comes, though no agent says another word.
    if (finished_ || HasFatalFailure()) return;
    Step(UserSignal{SIGINT});
    const TimePoint end = now_ + options_.grace + seconds(5);
    PassWithBeats(kNever);
    ASSERT_TRUE(finished_);
    ASSERT_LE(now_, end);
  }
  // No agent says anything but that it lives.
  void PassWithBeats(TimePoint end) {
    for (int i = 0; i < 10000 && !finished_ && !HasFatalFailure(); ++i) {
      ASSERT_NE(core_->NextDeadline(), kNever);
      if (core_->NextDeadline() > end) break;
      now_ = std::max(now_, core_->NextDeadline());
      for (uint32_t n = 0; n < models_.size() && !finished_; ++n) {
        if (models_[n].connected) Say(n, Heartbeat());
      }
      if (!finished_) Step(Tick{});
    }
  }
  // However a job ends: by then only a reader of its output is awaited.
  void CheckNobodyRunsForLong() {
    const TimePoint end =
        std::max(now_, core_->phases().back().begin + options_.grace + seconds(126));
    PassWithBeats(end);
    for (size_t n = 0; n < models_.size() && !finished_; ++n) {
      ASSERT_TRUE(core_->nodes()[n].gone || (models_[n].finished && models_[n].released)) << n;
    }
    now_ = std::max(now_, end);
    ++long_stops_;
  }

  std::mt19937 rng_;
  std::vector<Model> models_;
  std::set<const Model*> lost_;
  std::set<uint32_t> started_ranks_;
  std::set<uint32_t> clean_;
  State last_state_ = State::kConnecting;
  int finishes_ = 0;
  int long_stops_ = 0;
  bool honest_ = true;
};

TEST_F(RandomTest, EveryLifeKeepsItsInvariants) {
  std::map<Verdict::Kind, int> seen;
  for (uint32_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Run(seed);
    if (HasFailure()) break;
    ++seen[verdict().kind];
  }
  // The runs would prove little if they all ended the same way.
  EXPECT_GT(seen[Verdict::Kind::kSuccess], 100);
  EXPECT_GT(seen[Verdict::Kind::kWorker], 100);
  EXPECT_GT(seen[Verdict::Kind::kNode], 100);
  EXPECT_GT(seen[Verdict::Kind::kSignal], 100);
  EXPECT_GT(seen[Verdict::Kind::kTimeLimit], 10);
  EXPECT_GT(long_stops_, 100);
}

}  // namespace
}  // namespace dtrain::job
