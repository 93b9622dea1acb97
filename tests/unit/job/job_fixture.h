// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/job/job_core.h"

namespace dtrain::job {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A launch on nodes "node0", "node1", ... with a clock that only the test moves. What the core asks
// for is collected; nothing answers by itself but in the Run* helpers.
class JobFixture : public testing::Test {
 public:
  static constexpr int64_t kEpoch = 1'700'000'000'000'000'000;

  JobFixture() {
    options_.grace = std::chrono::seconds(5);
    options_.grace_limit = Duration::zero();
  }

  void Make(size_t count, uint32_t slots = 2) {
    hosts_.entries.clear();
    for (size_t i = 0; i < count; ++i) {
      hosts::HostEntry entry;
      entry.host = absl::StrCat("node", i);
      entry.slots = slots;
      hosts_.entries.push_back(entry);
    }
    MakeCore();
  }
  void MakeCore() {
    options_.job_id = "j1";
    options_.build = "b1";
    options_.incarnation = std::string(16, 'i');
    options_.probe_token = std::string(32, 't');
    core_.emplace(hosts_, options_, now_);
  }

  // ---- feeding ----
  std::vector<Action> Feed(Event event) {
    std::vector<Action> fresh = core_->OnEvent(now_, std::move(event));
    EXPECT_TRUE(!finished_ || fresh.empty()) << "actions after Finish";
    for (const Action& action : fresh) {
      EXPECT_FALSE(finished_) << "an action after Finish";
      if (std::holds_alternative<Finish>(action)) finished_ = true;
      all_.push_back(action);
    }
    return fresh;
  }
  // Its agent says so.
  std::vector<Action> Message(uint32_t node, v1::SessionEvent event) {
    return Feed(AgentMessage{NodeId(node), std::move(event), kEpoch + (now_ - start_).count()});
  }
  // Its shepherd does.
  std::vector<Action> Message(uint32_t node, v1::JobEvent event) {
    return Feed(ShepherdMessage{NodeId(node), std::move(event), kEpoch + (now_ - start_).count()});
  }
  // Moves the clock by `duration`, with a Tick at every deadline on the way, and a sign of life
  // of the nodes in `alive` before each.
  void Pass(Duration duration, std::vector<uint32_t> alive = {}) {
    const TimePoint end = now_ + duration;
    while (!finished_ && core_->NextDeadline() <= end) {
      now_ = std::max(now_, core_->NextDeadline());
      for (uint32_t node : alive) Beat(node);
      Feed(Tick{});
      ASSERT_TRUE(finished_ || core_->NextDeadline() > now_) << "a deadline that stays due";
    }
    now_ = std::max(now_, end);
  }
  void Beat(uint32_t node) {
    BeatOfAgent(node);
    v1::JobEvent event;
    event.mutable_heartbeat();
    Message(node, event);
  }
  void BeatOfAgent(uint32_t node) {
    v1::SessionEvent event;
    event.mutable_heartbeat();
    Message(node, event);
  }

  // ---- what nodes say ----
  v1::Inventory Inventory(uint32_t node) {
    v1::Inventory inventory;
    inventory.set_hostname(absl::StrCat("node", node));
    inventory.set_boot_id(absl::StrCat("boot", node));
    inventory.set_network_namespace(7);
    inventory.set_allowed_cpus("0-3");
    inventory.set_probe_port(4000 + node);
    inventory.set_probe_reply(absl::StrCat("reply", node));
    inventory.set_clock_unix_nanos(kEpoch + (now_ - start_).count());
    v1::Interface& eth = *inventory.add_interfaces();
    eth.set_name("eth0");
    eth.set_up(true);
    eth.set_physical(true);
    v1::Address& address = *eth.add_addresses();
    address.set_ip(absl::StrCat("10.0.", node / 250, ".", node % 250 + 1));
    address.set_prefix_length(Size() > 250 ? 16 : 24);
    return inventory;
  }
  void FillWelcome(const v1::Inventory& inventory, v1::Welcome& welcome) {
    *welcome.mutable_inventory() = inventory;
    welcome.set_job_id(options_.job_id);
    welcome.set_attempt(options_.attempt);
    welcome.set_incarnation(options_.incarnation);
  }
  std::vector<Action> Welcome(uint32_t node) { return Welcome(node, Inventory(node)); }
  std::vector<Action> Welcome(uint32_t node, const v1::Inventory& inventory) {
    v1::SessionEvent event;
    FillWelcome(inventory, *event.mutable_welcome());
    return Message(node, event);
  }
  std::vector<Action> Probed(uint32_t node, bool reached = true) {
    v1::SessionEvent event;
    v1::ProbeReport& report = *event.mutable_probe_report();
    for (const v1::SessionRequest& request : SentTo(node)) {
      if (request.has_probe()) report.clear_outcomes();  // the last request counts
      for (const v1::ProbeTarget& target : request.probe().targets()) {
        v1::ProbeOutcome& outcome = *report.add_outcomes();
        outcome.set_node(target.node());
        outcome.set_ip(target.ip());
        outcome.set_reached(reached);
        if (!reached) outcome.set_error("Connection refused");
      }
    }
    return Message(node, event);
  }
  std::vector<Action> PortsHeld(uint32_t node, std::vector<uint32_t> ports = {5001, 5002, 5003}) {
    v1::SessionEvent event;
    for (uint32_t port : ports) event.mutable_ports_held()->add_ports(port);
    event.mutable_ports_held();
    return Message(node, event);
  }
  std::vector<Action> Started(uint32_t node) {
    v1::JobEvent event;
    event.mutable_started();
    for (const RankEnd& end : core_->ranks()) {
      if (end.node != NodeId(node)) continue;
      event.mutable_started()->add_workers()->set_rank(end.rank.value());
    }
    return Message(node, event);
  }
  static v1::WorkerExit ExitOf(uint32_t rank, int code, int signal = 0, bool told = false) {
    v1::WorkerExit exit;
    exit.set_rank(rank);
    exit.set_exit_code(code);
    exit.set_signal(signal);
    exit.set_told_to_stop(told);
    return exit;
  }
  std::vector<Action> Exit(v1::WorkerExit exit) {
    if (exit.unix_nanos() == 0) exit.set_unix_nanos(kEpoch + (now_ - start_).count());
    const uint32_t node = core_->ranks().at(exit.rank()).node.value();
    v1::JobEvent event;
    *event.mutable_exit() = std::move(exit);
    return Message(node, event);
  }
  std::vector<Action> Exit(uint32_t rank, int code, int signal = 0, bool told = false) {
    return Exit(ExitOf(rank, code, signal, told));
  }
  std::vector<Action> Finished(uint32_t node) {
    v1::JobEvent event;
    event.mutable_finished();
    return Message(node, event);
  }
  std::vector<Action> Released(uint32_t node) {
    v1::SessionEvent event;
    event.mutable_released();
    return Message(node, event);
  }
  // No worker is left, and the GPUs are free.
  std::vector<Action> Over(uint32_t node) {
    std::vector<Action> actions = Finished(node);
    if (finished_) return actions;
    for (Action& action : Released(node)) actions.push_back(std::move(action));
    return actions;
  }
  std::vector<Action> Failure(uint32_t node, v1::NodeFailure::Kind kind, int exit_code,
                              const std::string& text) {
    v1::SessionEvent event;
    event.mutable_failure()->set_kind(kind);
    event.mutable_failure()->set_exit_code(exit_code);
    event.mutable_failure()->set_message(text);
    return Message(node, event);
  }
  std::vector<Action> Fence(uint32_t node, uint32_t sequence, const std::string& key = "") {
    v1::JobEvent event;
    event.mutable_fence_enter()->set_sequence(sequence);
    if (!key.empty()) event.mutable_fence_enter()->add_entries()->set_key(key);
    return Message(node, event);
  }
  std::vector<Action> Pmix(uint32_t node, v1::PmixUp up) {
    v1::JobEvent event;
    *event.mutable_pmix() = std::move(up);
    return Message(node, event);
  }
  std::vector<Action> JoinMpi(uint32_t node, std::vector<uint32_t> ranks) {
    v1::PmixUp up;
    up.mutable_joined()->mutable_ranks()->Add(ranks.begin(), ranks.end());
    return Pmix(node, up);
  }
  std::vector<Action> LeaveMpi(uint32_t node, std::vector<uint32_t> ranks) {
    v1::PmixUp up;
    up.mutable_left()->mutable_ranks()->Add(ranks.begin(), ranks.end());
    return Pmix(node, up);
  }
  std::vector<Action> Drained(uint32_t node) { return Feed(LogsDrained{NodeId(node)}); }
  std::vector<Action> Closed(uint32_t node, const std::string& why = "reset") {
    return Feed(NodeClosed{NodeId(node), absl::UnavailableError(why)});
  }
  std::vector<Action> UnknownHost(uint32_t node) {
    return Feed(NodeClosed{NodeId(node), absl::NotFoundError("resolve the name"), true});
  }
  std::vector<Action> Signal(int signal) { return Feed(UserSignal{signal}); }

  // ---- whole stretches ----
  void ConnectAll() {
    for (uint32_t i = 0; i < Size(); ++i) {
      Feed(NodeConnected{NodeId(i)});
      Welcome(i);
    }
  }
  void ProbeAll() {
    if (core_->state() != State::kProbing || Size() == 1) return;
    for (uint32_t i = 0; i < Size(); ++i) Probed(i);
  }
  void RunUntil(State state) {
    if (state == State::kConnecting) return;
    ConnectAll();
    if (state == State::kProbing) return;
    ProbeAll();
    if (state == State::kHolding) return;
    PortsHeld(0);
    if (state == State::kStarting) return;
    for (uint32_t i = 0; i < Size(); ++i) Started(i);
    if (state == State::kRunning) return;
    Exit(0, 1);  // kStopping
  }
  // Every node says that nothing is left, and its logs are through.
  void EndAll() {
    for (uint32_t i = 0; i < Size(); ++i) {
      Over(i);
      Drained(i);
    }
  }

  // ---- looking ----
  size_t Size() const { return hosts_.entries.size(); }
  const Verdict& verdict() const { return core_->verdict(); }
  std::vector<v1::SessionRequest> SentTo(uint32_t node) const { return SentTo(node, all_); }
  static std::vector<v1::SessionRequest> SentTo(uint32_t node, const std::vector<Action>& actions) {
    std::vector<v1::SessionRequest> sent;
    for (const Action& action : actions) {
      if (const auto* one = std::get_if<ToAgent>(&action); one && one->node == NodeId(node)) {
        sent.push_back(one->request);
      }
      const auto* many = std::get_if<ToAgents>(&action);
      if (many && IsAmong(node, many->nodes)) sent.push_back(many->request);
    }
    return sent;
  }
  std::vector<v1::JobRequest> JobSentTo(uint32_t node) const { return JobSentTo(node, all_); }
  static std::vector<v1::JobRequest> JobSentTo(uint32_t node, const std::vector<Action>& actions) {
    std::vector<v1::JobRequest> sent;
    for (const Action& action : actions) {
      if (const auto* one = std::get_if<ToShepherd>(&action); one && one->node == NodeId(node)) {
        sent.push_back(Whole(*one));
      }
      const auto* many = std::get_if<ToShepherds>(&action);
      if (many && IsAmong(node, many->nodes)) sent.push_back(many->request);
    }
    return sent;
  }
  static bool IsAmong(uint32_t node, const std::vector<NodeId>& nodes) {
    return std::find(nodes.begin(), nodes.end(), NodeId(node)) != nodes.end();
  }
  // As it is where `common` has been merged with it.
  static v1::JobRequest Whole(const ToShepherd& send) {
    v1::JobRequest request;
    if (send.common != nullptr) *request.mutable_start() = *send.common;
    request.MergeFrom(send.request);
    return request;
  }
  static bool Sends(const std::vector<Action>& actions, uint32_t node,
                    v1::SessionRequest::KindCase kind) {
    const auto sent = SentTo(node, actions);
    return std::any_of(sent.begin(), sent.end(),
                       [kind](const auto& request) { return request.kind_case() == kind; });
  }
  static bool Sends(const std::vector<Action>& actions, uint32_t node,
                    v1::JobRequest::KindCase kind) {
    const auto sent = JobSentTo(node, actions);
    return std::any_of(sent.begin(), sent.end(),
                       [kind](const auto& request) { return request.kind_case() == kind; });
  }
  static bool Disconnects(const std::vector<Action>& actions, uint32_t node) {
    for (const Action& action : actions) {
      const auto* disconnect = std::get_if<Disconnect>(&action);
      if (disconnect && disconnect->node == NodeId(node)) return true;
    }
    return false;
  }
  std::vector<uint32_t> DialedAnew() const {
    std::vector<uint32_t> nodes;
    for (const Action& action : all_) {
      if (const auto* dial = std::get_if<DialAnew>(&action)) nodes.push_back(dial->node.value());
    }
    return nodes;
  }
  std::vector<std::string> Warnings() const {
    std::vector<std::string> texts;
    for (const Action& action : all_) {
      if (const auto* warn = std::get_if<Warn>(&action)) texts.push_back(warn->text);
    }
    return texts;
  }
  v1::JobPart PartOf(uint32_t node) const {
    for (const v1::JobRequest& request : JobSentTo(node)) {
      if (request.has_start()) return request.start();
    }
    ADD_FAILURE() << "no Start was sent to node " << node;
    return {};
  }

  const TimePoint start_{seconds(1000)};
  TimePoint now_ = start_;
  hosts::HostList hosts_;
  JobOptions options_;
  std::optional<JobCore> core_;
  std::vector<Action> all_;
  bool finished_ = false;
};

}  // namespace dtrain::job
