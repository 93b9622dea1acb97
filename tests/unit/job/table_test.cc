// SPDX-License-Identifier: Apache-2.0
// Every message in every state: what a node must not send there is told as its fault.
#include <functional>
#include <map>
#include <set>

#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

class TableTest : public JobFixture {
 public:
  void Reset(State state) {
    now_ = start_;
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(state);
    if (state == State::kConnecting) {
      Feed(NodeConnected{NodeId(0)});
      Feed(NodeConnected{NodeId(1)});
    }
    ASSERT_EQ(core_->state(), state);
  }
  bool IsTold() {
    if (core_->state() < State::kStarting) Pass(seconds(4), {0});
    return verdict().kind == Verdict::Kind::kNode;
  }
};

using Set = std::function<void(v1::SessionEvent&)>;

TEST_F(TableTest, IllegalMessagesAreTheNodesFaultAndNeverACrash) {
  const std::map<std::string, Set> messages = {
      {"probe_report", [](auto& e) { e.mutable_probe_report(); }},
      {"ports_held", [](auto& e) { e.mutable_ports_held(); }},
      {"preparing", [](auto& e) { e.mutable_preparing(); }},
      {"started", [](auto& e) { e.mutable_started(); }},
      {"exit", [](auto& e) { e.mutable_exit()->set_rank(2); }},
      {"stdin_taken", [](auto& e) { e.mutable_stdin_taken(); }},
      {"fence_enter", [](auto& e) { e.mutable_fence_enter(); }},
      {"finished", [](auto& e) { e.mutable_finished(); }},
      {"released", [](auto& e) { e.mutable_released(); }},
      {"failure", [](auto& e) { e.mutable_failure(); }},
      {"warning", [](auto& e) { e.mutable_warning(); }},
      {"heartbeat", [](auto& e) { e.mutable_heartbeat(); }},
      {"nothing", [](auto&) {}},
  };
  // Of node 1, which does not hold the ports.
  const std::map<State, std::set<std::string>> legal = {
      {State::kConnecting, {"warning", "heartbeat"}},
      {State::kProbing, {"probe_report", "warning", "heartbeat"}},
      {State::kHolding, {"warning", "heartbeat"}},
      {State::kStarting,
       {"preparing", "started", "exit", "stdin_taken", "fence_enter", "released", "warning",
        "heartbeat"}},
      {State::kRunning, {"exit", "stdin_taken", "fence_enter", "released", "warning", "heartbeat"}},
  };
  for (const auto& [state, allowed] : legal) {
    for (const auto& [name, set] : messages) {
      SCOPED_TRACE(absl::StrCat(name, " in ", StateName(state)));
      Reset(state);
      v1::SessionEvent event;
      set(event);
      Message(1, event);
      EXPECT_EQ(IsTold(), !allowed.contains(name)) << verdict().message;
    }
  }
}

TEST_F(TableTest, WhileStoppingNothingANodeSendsChangesTheVerdict) {
  const std::vector<Set> messages = {
      [](auto& e) { e.mutable_welcome(); },
      [](auto& e) { e.mutable_probe_report(); },
      [](auto& e) { e.mutable_ports_held(); },
      [](auto& e) { e.mutable_preparing(); },
      [](auto& e) { e.mutable_started(); },
      [](auto& e) { e.mutable_stdin_taken(); },
      [](auto& e) { e.mutable_fence_enter(); },
      [](auto& e) { e.mutable_released(); },
      [](auto& e) { e.mutable_exit()->set_rank(99); },
      [](auto&) {},
  };
  Reset(State::kStopping);
  for (const Set& set : messages) {
    v1::SessionEvent event;
    set(event);
    EXPECT_TRUE(Message(1, event).empty());
  }
  EndAll();
  EXPECT_EQ(verdict().kind, Verdict::Kind::kWorker);
}

TEST_F(TableTest, AWelcomeBeforeTheHelloIsAFault) {
  Make(1);
  Welcome(0);
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 201);
}

TEST_F(TableTest, NothingIsTakenAfterTheEnd) {
  Make(1);
  Signal(SIGINT);
  ASSERT_TRUE(finished_);
  EXPECT_TRUE(Feed(NodeConnected{NodeId(0)}).empty());
  EXPECT_TRUE(Welcome(0).empty());
  EXPECT_TRUE(Closed(0).empty());
  EXPECT_TRUE(Signal(SIGINT).empty());
  EXPECT_TRUE(Feed(Tick{}).empty());
}

}  // namespace
}  // namespace dtrain::job
