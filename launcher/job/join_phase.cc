// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/join_phase.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {
namespace {

// What torchrun's rendezvous grants to those that come after the least number.
constexpr Duration kLastCall = std::chrono::seconds(30);
// And for those that an earlier attempt has lost, once all others have been heard of.
constexpr Duration kLastCallForDoubtful = std::chrono::seconds(2);

std::vector<std::string> HostNames(const hosts::HostList& hosts) {
  std::vector<std::string> names;
  for (const hosts::HostEntry& entry : hosts.entries) names.push_back(entry.host);
  return names;
}

}  // namespace

JoinPhase::JoinPhase(Cluster& cluster, Out& out, LeaseWatch& lease_watch, StopPhase& stop,
                     OwnPauses& own_pauses, Retries& retries, EarlyFaults& early_faults,
                     Losses& losses, PlanPhase& plan)
    : cluster_(cluster),
      out_(out),
      lease_watch_(lease_watch),
      stop_(stop),
      own_pauses_(own_pauses),
      retries_(retries),
      early_faults_(early_faults),
      losses_(losses),
      plan_(plan),
      barrier_({cluster.options().job_id, cluster.options().attempt, cluster.options().incarnation},
               HostNames(cluster.hosts()), cluster.options().shared_machines),
      undecided_(cluster.size()) {
  for (uint32_t i = 0; i < cluster.size(); ++i) undecided_ -= IsDoubtful(NodeId(i)) ? 1 : 0;
}

bool JoinPhase::IsDoubtful(NodeId node) const {
  const std::vector<bool>& doubtful = cluster_.options().doubtful;
  return node.value() < doubtful.size() && doubtful[node.value()];
}

void JoinPhase::OnPhase(const Event& event) {
  const auto& phase = std::get<NodePhase>(event);
  retries_.OnPhase(phase.node);
  cluster_.SetWaitingFor(phase.node, phase.waiting_for);
}

void JoinPhase::OnConnected(const Event& event) {
  const auto& connected = std::get<NodeConnected>(event);
  const NodeId id = connected.node;
  if (cluster_.node(id).connected || early_faults_.has_failed(id)) return;
  cluster_.SetConnected(id, true);
  cluster_.SetReached(id, connected.reached);
  retries_.OnConnected(id);
  cluster_.SetWaitingFor(id, "its inventory");
  // It says that it lives from the Hello on, also while it takes its inventory.
  lease_watch_.Watch(id, connected.same_machine);
  SayHello(id, connected.same_machine);
}

void JoinPhase::SayHello(NodeId id, bool same_machine) {
  const JobOptions& options = cluster_.options();
  v1::Hello& hello = *out_.ToAgent(id).mutable_hello();
  hello = JobCore::HelloOf(options);
  hello.set_same_machine(same_machine);
  // Without a number of slots the GPUs give it, whether they are used or not.
  const hosts::HostEntry& entry = cluster_.hosts().entries[id.value()];
  hello.set_no_gpus(options.plan.gpu_bind == plan::GpuBind::kNone && (entry.slots || entry.gpus));
}

v1::Hello JobCore::HelloOf(const JobOptions& options) {
  v1::Hello hello;
  hello.set_protocol(options.protocol);
  hello.set_build(options.build);
  hello.set_job_id(options.job_id);
  hello.set_attempt(options.attempt);
  hello.set_incarnation(options.incarnation);
  hello.set_lease_ms(ToMs(options.lease));
  hello.set_grace_ms(ToMs(options.grace));
  hello.set_probe_token(options.probe_token);
  hello.set_generation(options.generation);
  hello.set_away_ms(ToMs(options.away));
  hello.set_launcher(options.launcher);
  if (options.elastic) *hello.mutable_elastic() = *options.elastic;
  return hello;
}

absl::Status JoinPhase::Join(const AgentMessage& message) {
  const v1::Welcome& welcome = message.event.welcome();
  const v1::Inventory& inventory = welcome.inventory();
  return barrier_.Join(message.node, {welcome.job_id(), welcome.attempt(), welcome.incarnation()},
                       {inventory.boot_id(), inventory.network_namespace()});
}

absl::Status JoinPhase::OnWelcome(const Event& event) {
  const AgentMessage& message = OfAgent(event);
  const NodeId id = message.node;
  const v1::Welcome& welcome = message.event.welcome();
  if (!cluster_.node(id).connected) {
    return absl::InvalidArgumentError("Welcome without a Hello");
  }
  if (early_faults_.has_failed(id)) return absl::OkStatus();
  const absl::Status joined = Join(message);
  if (absl::IsAlreadyExists(joined)) {
    plan_.Refuse(joined);
  } else if (!joined.ok()) {
    Fault(id, std::string(joined.message()), kExitRendezvous);
  } else if (const std::string why = EndsAtLogout(welcome); !why.empty()) {
    Fault(id, why, kExitStartAgents);
  } else if (!cluster_.view(id).joined) {
    if (const std::string& setting = welcome.removes_ipc_at_logout();
        cluster_.options().generation > 0 && !setting.empty()) {
      out_.Warn(absl::StrCat(cluster_.host(id), " removes the shared memory of users who log out (",
                             Printable(setting),
                             "), with which NCCL's ranks talk to each other: run `loginctl "
                             "enable-linger` there, or stay logged in"));
    }
    cluster_.SetInventory(id, message.event.welcome().inventory());
    cluster_.SetWaitingFor(id, "");
    lease_watch_.OnWelcome(message);
    retries_.Forget(id);
    TellKilled(id);
    Decided(id);
    CheckAllDecided();
  }
  return absl::OkStatus();
}

// A job that is to outlive its terminal would end with it. Empty: not there.
std::string JoinPhase::EndsAtLogout(const v1::Welcome& welcome) const {
  if (cluster_.options().generation == 0 || welcome.ends_at_logout().empty()) return "";
  return absl::StrCat(
      "it ends all processes of users who log out (", Printable(welcome.ends_at_logout()),
      "), and so the job: install the resident agent there (docs/operations.md), or "
      "launch without -d from a terminal that stays");
}

// A reply that was thought lost. Only the same machine may repeat it.
void JoinPhase::OnWelcomeAgain(const Event& event) {
  const AgentMessage& message = OfAgent(event);
  const absl::Status again = Join(message);
  if (again.ok()) return;
  std::string text = Printable(again.message());
  if (cluster_.state() < State::kStarting) {
    Fault(message.node, std::move(text), kExitRendezvous);
  } else {
    losses_.Fault(message.node, std::move(text),
                  cluster_.state() == State::kStarting ? kExitRendezvous : kExitAgentLost);
  }
}

void JoinPhase::CheckAllDecided() {
  if (barrier_.joined() + early_faults_.never_joined() < cluster_.size()) {
    if (!IsElastic() || barrier_.joined() < cluster_.options().min_nodes) return;
    return CallLast(undecided_ == 0 ? kLastCallForDoubtful : kLastCall);
  }
  last_call_at_ = kNever;
  if (early_faults_.any()) return early_faults_.Conclude();
  if (!MayBegin()) return;
  early_faults_.TellLeftOut();
  plan_.Begin();
}

// Its session broke, and its machine stands: it was no power cut.
void JoinPhase::TellKilled(NodeId id) {
  const JobOptions& options = cluster_.options();
  const std::string& boot_id = cluster_.view(id).inventory.boot_id();
  if (id.value() >= options.unheard.size() || boot_id.empty()) return;
  if (options.unheard[id.value()] != boot_id) return;
  out_.Warn(absl::StrCat(
      "dtrain's processes on ", cluster_.host(id),
      ", or their connection, were killed (perhaps by a ",
      "rank: `kill -9 -1`): it has not been rebooted, and nothing of the job is left there"));
}

// Of hosts that have not joined, workers of an attempt before may still live.
bool JoinPhase::MayBegin() {
  awaits_end_ = false;
  const JobOptions& options = cluster_.options();
  if (cluster_.now() >= options.clear_at) return true;
  std::vector<std::string> names;
  for (uint32_t i = 0; i < options.unheard.size(); ++i) {
    if (options.unheard[i] && !cluster_.view(NodeId(i)).joined) {
      names.push_back(cluster_.host(NodeId(i)));
    }
  }
  if (names.empty()) return true;
  awaits_end_ = true;
  out_.Warn(absl::StrCat(
      "waiting ",
      FormatSeconds(std::chrono::ceil<std::chrono::seconds>(options.clear_at - cluster_.now())),
      " until the workers of ", rendezvous::FormatHosts(names),
      " must have ended, as nothing is heard from there"));
  return false;
}

void JoinPhase::Decided(NodeId id) {
  if (!IsDoubtful(id)) --undecided_;
}

// The first call counts, and an earlier end.
void JoinPhase::CallLast(Duration wait) {
  const TimePoint at = cluster_.now() + wait;
  if (at >= last_call_at_) return;
  last_call_at_ = at;
  last_call_ = wait;
}

bool JoinPhase::MayLeaveOut(NodeId id) const {
  return IsElastic() && !cluster_.view(id).joined &&
         cluster_.size() - early_faults_.never_joined() >= cluster_.options().min_nodes;
}

void JoinPhase::Fault(NodeId id, std::string text, int exit_code, bool absent) {
  if (early_faults_.has_failed(id)) return;
  if (cluster_.is_spare(id)) return losses_.LoseSpare(id, text);
  retries_.Forget(id);
  lease_watch_.Forget(id);
  early_faults_.SetFailed(id);
  if (!cluster_.view(id).joined) Decided(id);
  if (MayLeaveOut(id)) {
    early_faults_.LeaveOut(id, std::move(text), exit_code);
    stop_.LetGo(id);
    return CheckAllDecided();
  }
  cluster_.SetWaitingFor(id, "");
  early_faults_.Add(id, std::move(text), exit_code, absent);
  if (cluster_.state() == State::kConnecting) CheckAllDecided();
}

void JoinPhase::OnClosed(const Event& event) {
  const auto& closed = std::get<NodeClosed>(event);
  const bool joined = cluster_.view(closed.node).joined;
  const bool was_connected = cluster_.node(closed.node).connected;
  cluster_.SetConnected(closed.node, false);
  if (joined && HasGivenUsUp(closed) && own_pauses_.Blame()) return;
  std::string text(closed.why.message());
  if (text.empty()) text = "its agent ended the session before the job started";
  if (joined) text = own_pauses_.WithThem(std::move(text));
  int exit_code = closed.unknown_host ? kExitUsage : kExitStartAgents;
  if (closed.not_authorised) exit_code = kExitNotAuthorised;
  text = Printable(text);
  std::string passes = closed.passes;
  // Its own word has another code.
  if (was_connected && absl::IsUnavailable(closed.why)) passes = "its connection broke";
  if (!joined && !passes.empty() && !early_faults_.has_failed(closed.node)) {
    lease_watch_.Forget(closed.node);
    if (retries_.TryAgain(closed.node, text, passes, exit_code)) return;
    if (retries_.Has(closed.node)) text = retries_.Why(closed.node);
  }
  Fault(closed.node, std::move(text), exit_code, /*absent=*/!passes.empty());
}

void JoinPhase::OnFailure(const Event& event) {
  const v1::NodeFailure& failure = FailureOf(event);
  // Whatever else is awaited, and if the job could do without that node.
  if (IsStop(failure)) return losses_.OnStopAsked(SenderOf(event), Printable(failure.message()));
  Fault(SenderOf(event), Printable(failure.message()), FailureExitCode(failure),
        /*absent=*/IsLeaving(failure));
}

void JoinPhase::OnSilent(NodeId node, std::string why) {
  if (!cluster_.view(node).joined) absl::StrAppend(&why, ", since its agent had answered");
  Fault(node, own_pauses_.WithThem(std::move(why)), kExitNodeLost, /*absent=*/true);
}

TimePoint JoinPhase::NextDeadline() const {
  if (cluster_.state() != State::kConnecting) return kNever;
  return awaits_end_ ? std::min(last_call_at_, cluster_.options().clear_at) : last_call_at_;
}

void JoinPhase::OnDeadline() {
  if (cluster_.state() == State::kConnecting) EndRetries();
  if (cluster_.state() != State::kConnecting) return;
  if (cluster_.now() >= last_call_at_) LastCall();
  if (awaits_end_ && cluster_.now() >= cluster_.options().clear_at) CheckAllDecided();
}

// Whatever is under way to them.
void JoinPhase::EndRetries() {
  for (const NodeId node : retries_.Due()) {
    const int exit_code = retries_.ExitCode(node);
    Fault(node, retries_.Why(node), exit_code, /*absent=*/true);
  }
}

// There are enough, and the rest has had its time.
void JoinPhase::LastCall() {
  last_call_at_ = kNever;
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    const NodeView& view = cluster_.view(NodeId(i));
    if (view.joined || early_faults_.has_failed(NodeId(i))) continue;
    const std::string why = retries_.Has(NodeId(i))
                                ? retries_.Why(NodeId(i))
                                : absl::StrCat("it was waiting for ", view.waiting_for);
    Fault(NodeId(i),
          absl::StrCat("it had not joined ", FormatSeconds(last_call_),
                       " after enough other hosts had; ", why),
          kExitRendezvous, /*absent=*/true);
  }
}

}  // namespace dtrain::job
