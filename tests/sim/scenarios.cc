// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/scenarios.h"

#include <csignal>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace dtrain::sim {
namespace {

using std::chrono::seconds;

Shape Of(size_t nodes) {
  Shape shape;
  shape.nodes = nodes;
  return shape;
}

void MustEnd(const Simulation& simulation, job::Verdict::Kind kind) {
  DTRAIN_CHECK(simulation.finished());
  DTRAIN_CHECK(simulation.core().verdict().kind == kind);
}

// Up to where all workers run.
void Start(Simulation& simulation) {
  DTRAIN_CHECK(simulation.RunUntil(job::State::kRunning));
  (void)simulation.Spent();
}

Bill Life(size_t nodes) {
  Simulation simulation(Of(nodes));
  DTRAIN_CHECK(simulation.Run());
  MustEnd(simulation, job::Verdict::Kind::kSuccess);
  return simulation.Spent();
}

Bill Switch(size_t nodes) {
  Simulation simulation(Of(nodes));
  simulation.RunForever();
  Start(simulation);
  simulation.BreakAllLinks([](size_t) { return "the connection was reset"; });
  DTRAIN_CHECK(simulation.Run());
  MustEnd(simulation, job::Verdict::Kind::kNode);
  return simulation.Spent();
}

Bill ManyTexts(size_t nodes) {
  Simulation simulation(Of(nodes));
  simulation.RunForever();
  Start(simulation);
  simulation.BreakAllLinks([](size_t node) { return absl::StrCat("reason ", node); });
  DTRAIN_CHECK(simulation.Run());
  MustEnd(simulation, job::Verdict::Kind::kNode);
  return simulation.Spent();
}

Bill Unreachable(size_t nodes) {
  Simulation simulation(Of(nodes));
  simulation.CannotReach(
      [](size_t node) { return absl::StrCat("connect to 10.0.0.", node, ": refused"); });
  DTRAIN_CHECK(simulation.Run());
  DTRAIN_CHECK(simulation.core().verdict().exit_code != 0);
  return simulation.Spent();
}

Bill Progress(size_t nodes) {
  Simulation simulation(Of(nodes));
  simulation.RunForever();
  Start(simulation);
  for (int i = 0; i < 5; ++i) {
    simulation.SayProgress();
    DTRAIN_CHECK(simulation.RunFor(seconds(1)));
  }
  DTRAIN_CHECK(simulation.core().state() == job::State::kRunning);
  return simulation.Spent();
}

Bill Fence(size_t nodes) {
  Simulation simulation(Of(nodes));
  simulation.RunForever();
  Start(simulation);
  simulation.EnterFence(0, 150);
  DTRAIN_CHECK(simulation.RunFor(seconds(1)));
  const Bill bill = simulation.Spent();
  DTRAIN_CHECK(bill.bytes_out > nodes * nodes * 8 * 150);
  return bill;
}

// Its end is what counts: ranks end one after the other while the rest waits in a fence.
Bill Exits(size_t nodes) {
  Simulation simulation(Of(nodes));
  Start(simulation);
  DTRAIN_CHECK(simulation.Run());
  MustEnd(simulation, job::Verdict::Kind::kSuccess);
  return simulation.Spent();
}

Bill Failures(size_t nodes) {
  Simulation simulation(Of(nodes));
  simulation.ExitCodes([](uint32_t) { return 3; });
  Start(simulation);
  DTRAIN_CHECK(simulation.Run());
  MustEnd(simulation, job::Verdict::Kind::kWorker);
  return simulation.Spent();
}

Bill Suspects(size_t nodes) {
  Simulation simulation(Of(nodes));
  simulation.RunForever();
  Start(simulation);
  simulation.Silence(seconds(10));
  DTRAIN_CHECK(simulation.RunFor(seconds(20)));
  DTRAIN_CHECK(simulation.core().state() == job::State::kRunning);
  return simulation.Spent();
}

Bill Interrupt(size_t nodes) {
  Simulation simulation(Of(nodes));
  simulation.RunForever();
  Start(simulation);
  simulation.Signal(SIGINT);
  DTRAIN_CHECK(simulation.Run());
  MustEnd(simulation, job::Verdict::Kind::kSignal);
  return simulation.Spent();
}

Bill Wait(size_t nodes) {
  Shape shape = Of(nodes);
  shape.options = [](job::JobOptions& options) { options.wait = std::chrono::hours(1); };
  Simulation simulation(shape);
  simulation.RefuseReservations(3);
  DTRAIN_CHECK(simulation.Run());
  MustEnd(simulation, job::Verdict::Kind::kSuccess);
  return simulation.Spent();
}

}  // namespace

const std::vector<Scenario>& Scenarios() {
  static const std::vector<Scenario> all = {
      {"life", "a job that succeeds, from the first connection to the last", Life},
      {"exits", "all ranks end with 0", Exits},
      {"failures", "all ranks end with 3", Failures},
      {"switch", "all connections break with one text", Switch},
      {"texts", "all connections break, each with a text of its own", ManyTexts},
      {"unreachable", "no node can be reached, each for a reason of its own", Unreachable},
      {"progress", "five times, every rank is told of", Progress},
      {"fence", "a fence with a value of 150 bytes of each rank", Fence, 250, true},
      {"suspects", "all nodes are silent for ten seconds", Suspects},
      {"interrupt", "Ctrl-C while all run", Interrupt},
      {"wait", "every node refuses three times what is to be reserved", Wait},
  };
  return all;
}

}  // namespace dtrain::sim
