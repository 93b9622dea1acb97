// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/progress.h"

#include <gmock/gmock.h>

#include "tests/unit/report/facts_fixture.h"

namespace dtrain::report {
namespace {

using job::State;
using testing::HasSubstr;

class ProgressTest : public FactsTest {};

TEST_F(ProgressTest, ConnectCountsThoseThatJoinedAndNamesTheOthers) {
  Phase(State::kConnecting, 0);
  nodes_[1].joined = false;
  nodes_[1].waiting_for = "ssh authentication";
  EXPECT_EQ(ProgressLine(Facts(), At(1200), 120),
            "connect 1/2 1.20 s, waiting for node2 (ssh authentication)");
}

TEST_F(ProgressTest, PhasesThatAreOverKeepTheirTimes) {
  Phase(State::kConnecting, 0, 200);
  Phase(State::kProbing, 200, 300);
  Phase(State::kStarting, 300);
  EXPECT_EQ(ProgressLine(Facts(), At(1000), 120),
            "connect 0.20 s, check network 0.10 s, start 2/2 0.70 s");
}

TEST_F(ProgressTest, ManyNodesAreCountedNotListed) {
  Phase(State::kConnecting, 0);
  nodes_.resize(100);
  for (job::NodeView& node : nodes_) node.joined = false;
  nodes_[2].host = "n3";
  EXPECT_EQ(ProgressLine(Facts(), At(0), 120),
            "connect 0/100 0.00 s, waiting for node1, node2, n3 and 97 more");
}

TEST_F(ProgressTest, StoppingCountsTheRanks) {
  Phase(State::kRunning, 0, 1000);
  Phase(State::kStopping, 1000);
  End(0);
  EXPECT_EQ(ProgressLine(Facts(), At(1500), 120), "run 1.00 s, stop 1/4 0.50 s");
}

TEST_F(ProgressTest, WhileTheWorkersRunThereIsNoLine) {
  Phase(State::kRunning, 0);
  EXPECT_EQ(ProgressLine(Facts(), At(10), 120), "");
}

TEST_F(ProgressTest, TheLineFitsTheTerminalAndIsHarmless) {
  Phase(State::kConnecting, 0);
  nodes_[0].joined = false;
  nodes_[0].waiting_for = "\x1b[2J a long long long long wait";
  std::string line = ProgressLine(Facts(), At(0), 60);
  EXPECT_LT(line.size(), 60u);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_THAT(line, HasSubstr("..."));
}

TEST_F(ProgressTest, TheTableNamesTheSlowestNodeOfAPhase) {
  SlowestNodes slowest;
  Phase(State::kConnecting, 0);
  nodes_[0].joined = nodes_[1].joined = false;
  slowest.Observe(Facts(), std::nullopt, At(0));
  nodes_[1].joined = true;
  slowest.Observe(Facts(), NodeId(1), At(100));
  nodes_[0].joined = true;
  phases_.back().end = At(250);
  Phase(State::kProbing, 250);
  nodes_[1].waiting_for = "probes";
  slowest.Observe(Facts(), NodeId(0), At(250));
  nodes_[1].waiting_for = "";
  slowest.Observe(Facts(), NodeId(1), At(300));
  phases_.back().end = At(300);
  Phase(State::kRunning, 300);
  slowest.Observe(Facts(), NodeId(1), At(300));
  EXPECT_EQ(PhaseTable(Facts(), slowest, At(1300)),
            "phase                time  slowest node\n"
            "connect            0.25 s  node1 (0.25 s)\n"
            "check network      0.05 s  node2 (0.05 s)\n"
            "run                1.00 s\n"
            "all                1.30 s\n");
}

}  // namespace
}  // namespace dtrain::report
