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

using Said = std::variant<v1::SessionEvent, v1::JobEvent>;

template <typename Set>
Said Agent(Set set) {
  v1::SessionEvent event;
  set(event);
  return event;
}
template <typename Set>
Said Shepherd(Set set) {
  v1::JobEvent event;
  set(event);
  return event;
}

TEST_F(TableTest, IllegalMessagesAreTheNodesFaultAndNeverACrash) {
  const std::map<std::string, Said> messages = {
      {"probe_report", Agent([](auto& e) { e.mutable_probe_report(); })},
      {"ports_held", Agent([](auto& e) { e.mutable_ports_held(); })},
      {"preparing", Shepherd([](auto& e) { e.mutable_preparing(); })},
      {"stage_missing", Shepherd([](auto& e) { e.mutable_stage_missing(); })},
      {"stage_taken", Shepherd([](auto& e) { e.mutable_stage_taken(); })},
      {"staged", Shepherd([](auto& e) { e.mutable_staged(); })},
      {"started", Shepherd([](auto& e) { e.mutable_started(); })},
      {"exit", Shepherd([](auto& e) { e.mutable_exit()->set_rank(2); })},
      {"stdin_taken", Shepherd([](auto& e) { e.mutable_stdin_taken(); })},
      {"fence_enter", Shepherd([](auto& e) { e.mutable_fence_enter(); })},
      {"elastic", Shepherd([](auto& e) { e.mutable_elastic(); })},
      {"checkpoint", Shepherd([](auto& e) { e.mutable_checkpoint(); })},
      {"saving", Shepherd([](auto& e) { e.mutable_saving(); })},
      {"finished", Shepherd([](auto& e) { e.mutable_finished(); })},
      {"released", Agent([](auto& e) { e.mutable_released(); })},
      {"failure", Shepherd([](auto& e) { e.mutable_failure(); })},
      {"warning", Shepherd([](auto& e) { e.mutable_warning(); })},
      {"heartbeat", Shepherd([](auto& e) { e.mutable_heartbeat(); })},
      {"nothing", Agent([](auto&) {})},
      {"agent's finished", Agent([](auto& e) { e.mutable_finished(); })},
      {"agent's failure", Agent([](auto& e) { e.mutable_failure(); })},
      {"agent's warning", Agent([](auto& e) { e.mutable_warning(); })},
      {"agent's heartbeat", Agent([](auto& e) { e.mutable_heartbeat(); })},
      {"agent's opened", Agent([](auto& e) { e.mutable_opened(); })},
      {"agent's attached", Agent([](auto& e) { e.mutable_attached(); })},
      {"agent's gpus", Agent([](auto& e) { e.mutable_gpus()->add_gpus()->add_xids(79); })},
      {"shepherd's nothing", Shepherd([](auto&) {})},
  };
  // Of node 1, which does not hold the ports.
  const std::map<State, std::set<std::string>> legal = {
      {State::kConnecting, {"warning", "heartbeat", "agent's warning", "agent's heartbeat"}},
      {State::kProbing,
       {"probe_report", "warning", "heartbeat", "agent's warning", "agent's heartbeat"}},
      {State::kHolding, {"warning", "heartbeat", "agent's warning", "agent's heartbeat"}},
      {State::kStarting,
       {"preparing", "started", "exit", "stdin_taken", "fence_enter", "elastic", "checkpoint",
        "saving", "released", "warning", "heartbeat", "agent's warning", "agent's heartbeat",
        "agent's gpus"}},
      {State::kRunning,
       {"exit", "stdin_taken", "fence_enter", "elastic", "checkpoint", "saving", "released",
        "warning", "heartbeat", "agent's warning", "agent's heartbeat", "agent's gpus"}},
  };
  for (const auto& [state, allowed] : legal) {
    for (const auto& [name, said] : messages) {
      SCOPED_TRACE(absl::StrCat(name, " in ", StateName(state)));
      Reset(state);
      std::visit([this](const auto& event) { Message(1, event); }, said);
      EXPECT_EQ(IsTold(), !allowed.contains(name)) << verdict().message;
    }
  }
}

TEST_F(TableTest, WhileStoppingNothingANodeSendsChangesTheVerdict) {
  const std::vector<Said> messages = {
      Agent([](auto& e) { e.mutable_welcome(); }),
      Agent([](auto& e) { e.mutable_probe_report(); }),
      Agent([](auto& e) { e.mutable_ports_held(); }),
      Shepherd([](auto& e) { e.mutable_preparing(); }),
      Shepherd([](auto& e) { e.mutable_stage_missing(); }),
      Shepherd([](auto& e) { e.mutable_stage_taken(); }),
      Shepherd([](auto& e) { e.mutable_staged(); }),
      Shepherd([](auto& e) { e.mutable_started(); }),
      Shepherd([](auto& e) { e.mutable_stdin_taken(); }),
      Shepherd([](auto& e) { e.mutable_fence_enter(); }),
      Shepherd([](auto& e) { e.mutable_elastic(); }),
      Shepherd([](auto& e) { e.mutable_checkpoint(); }),
      Agent([](auto& e) { e.mutable_released(); }),
      Agent([](auto& e) { e.mutable_gpus(); }),
      Shepherd([](auto& e) { e.mutable_exit()->set_rank(99); }),
      Agent([](auto&) {}),
      Shepherd([](auto&) {}),
  };
  Reset(State::kStopping);
  for (const Said& said : messages) {
    EXPECT_TRUE(std::visit([this](const auto& event) { return Message(1, event); }, said).empty());
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
