// SPDX-License-Identifier: Apache-2.0
#include "launcher/nodes/agents.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text.h"
#include "common/rpc/channel.h"
#include "common/rpc/unary.h"

namespace dtrain::nodes {
namespace {

// Before a connection that broke is made anew: an agent that is restarted needs a moment.
constexpr Duration kReconnectPause = std::chrono::milliseconds(200);

// Never destroyed: gRPC's threads still post the end of calls that were cancelled with their
// Agents.
loop::Loop& ProcessLoop() {
  static auto& loop = *new loop::Loop;
  return loop;
}

absl::string_view Doing(transport::Phase phase) {
  switch (phase) {
    case transport::Phase::kConnecting:
      return "connecting";
    case transport::Phase::kAuthenticating:
      return "logging in";
    case transport::Phase::kLoginShell:
      return "in the login shell and its start-up files";
    case transport::Phase::kStartingAgent:
      return "starting the agent";
    case transport::Phase::kPushingAgent:
      return "sending the agent";
  }
  return "";
}

}  // namespace

struct Agents::Node {
  explicit Node(loop::Loop& loop) : timer(loop) {}
  hosts::HostEntry entry;
  std::unique_ptr<transport::Connection> connection;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Agent::Stub> stub;  // null: not connected
  transport::Phase phase = transport::Phase::kConnecting;
  std::optional<absl::Status> failed;  // until it is disconnected
  bool reached = false;                // it was connected before
  bool lost = false;                   // the last question, with its connection
  // The question that is under way.
  absl::AnyInvocable<void(absl::Status)> on_ready;  // OK: the stub is there
  std::shared_ptr<void> call;
  loop::Timer timer;
};

Agents::Agents(const transport::WayOptions& options)
    : loop_(ProcessLoop()),
      connect_timeout_(options.connect_timeout),
      // Nodes that wait for one that is stuck have to answer in time all the same.
      agent_(loop_, "", std::min(transport::PushOrder::kLongestWait, connect_timeout_ / 2)),
      ways_(loop_, options, agent_) {}

Agents::~Agents() = default;

absl::StatusOr<std::unique_ptr<Agents>> Agents::Make(const hosts::HostList& hosts,
                                                     const transport::WayOptions& options) {
  std::unique_ptr<Agents> agents(new Agents(options));
  absl::Status reachable = agents->ways_.Prepare(hosts, hosts.entries.empty());
  if (!reachable.ok()) return reachable;
  for (const hosts::HostEntry& entry : hosts.entries) {
    agents->nodes_.push_back(std::make_unique<Node>(agents->loop_));
    agents->nodes_.back()->entry = entry;
  }
  if (hosts.entries.empty()) {
    agents->nodes_.push_back(std::make_unique<Node>(agents->loop_));
    agents->nodes_.back()->entry.host = "localhost";
  }
  return agents;
}

const std::string& Agents::host(size_t node) const { return nodes_[node]->entry.host; }

void Agents::Connect(Node& node) {
  transport::Callbacks callbacks;
  callbacks.on_phase = [&node](transport::Phase phase) { node.phase = phase; };
  callbacks.on_ready = [&node](os::UniqueFd stream) {
    node.channel = rpc::MakeChannel(std::move(stream));
    node.stub = v1::Agent::NewStub(node.channel);
    node.reached = true;
    if (node.on_ready) std::exchange(node.on_ready, nullptr)(absl::OkStatus());
  };
  callbacks.on_failed = [&node](absl::Status why) {
    node.failed = why;
    // Who may not come in any more need not try again.
    node.lost = node.reached && !transport::IsNotAuthorised(why);
    if (node.on_ready) std::exchange(node.on_ready, nullptr)(std::move(why));
  };
  transport::Target target = {node.entry.host, node.entry.user, node.entry.port};
  target.asks = true;
  node.connection = ways_.For(node.entry).Connect(target, std::move(callbacks));
}

absl::Status Agents::TookTooLong(absl::string_view what) const {
  return absl::DeadlineExceededError(
      absl::StrFormat("no answer within %g s, %s (--connect-timeout)",
                      std::chrono::duration<double>(connect_timeout_).count(), what));
}

void Agents::Disconnect(size_t number) {
  Node& node = *nodes_[number];
  node.call.reset();
  node.stub.reset();
  node.channel.reset();
  node.connection.reset();
  node.failed.reset();
  node.phase = transport::Phase::kConnecting;
}

void Agents::Pause(Duration duration) {
  loop::Timer timer(loop_);
  timer.After(duration, [this] { loop_.Stop(); });
  loop_.context().restart();
  loop_.Run();
}

template <typename Reply>
absl::StatusOr<Reply> Agents::Explain(Node& node, absl::StatusOr<Reply> answer) const {
  if (node.call == nullptr || answer.ok()) return answer;
  if (absl::IsDeadlineExceeded(answer.status())) return TookTooLong("though it is connected");
  if (!absl::IsUnavailable(answer.status())) return answer;
  // What the transport knows of the end is better than that the stream has ended.
  const absl::Status reason = node.connection->CloseReason();
  node.lost = !transport::IsNotAuthorised(reason);
  if (!reason.ok()) return reason;
  return answer;
}

template <typename Reply, typename Request, typename StartCall>
std::vector<absl::StatusOr<Reply>> Agents::Call(
    const std::vector<std::pair<size_t, Request>>& requests, StartCall start_call) {
  const TimePoint until = loop_.Now() + connect_timeout_;
  std::vector<absl::StatusOr<Reply>> answers(requests.size(),
                                             absl::UnknownError("it was not asked"));
  std::vector<size_t> which(requests.size());
  std::iota(which.begin(), which.end(), size_t{0});
  for (;;) {
    CallOnce<Reply>(requests, which, until, start_call, answers);
    std::vector<size_t> lost;
    for (size_t i : which) {
      if (answers[i].ok()) continue;
      const size_t node = requests[i].first;
      if (nodes_[node]->lost) lost.push_back(i);
      // One that does not answer may never again.
      if (nodes_[node]->lost || absl::IsDeadlineExceeded(answers[i].status())) Disconnect(node);
    }
    if (lost.empty() || loop_.Now() + kReconnectPause >= until) return answers;
    Pause(kReconnectPause);
    which = std::move(lost);
  }
}

template <typename Reply, typename Request, typename StartCall, typename Done>
void Agents::Start(Node& node, const Request& request, TimePoint until, StartCall start_call,
                   Done done) {
  using ClientCall = rpc::ClientCall<Request, Reply>;
  node.lost = false;
  auto explained = [this, &node, done](absl::StatusOr<Reply> answer) mutable {
    node.on_ready = nullptr;
    done(Explain(node, std::move(answer)));
  };
  auto ask = [this, &node, explained, start_call, until,
              request](const absl::Status& ready) mutable {
    node.timer.Cancel();
    if (!ready.ok()) return explained(ready);
    // gRPC ends it in time, whatever the other side does.
    node.call = std::make_shared<ClientCall>(
        loop_, request, until - loop_.Now(),
        [&](auto* context, auto* question, auto* answer, auto* reactor) {
          start_call(*node.stub, context, question, answer, reactor);
        },
        explained);
  };
  node.timer.At(until, [this, &node, explained]() mutable {
    explained(TookTooLong(absl::StrCat("while ", Doing(node.phase))));
  });
  if (node.failed) {
    loop_.Post([ask, why = *node.failed]() mutable { ask(why); });
  } else if (node.stub != nullptr) {
    ask(absl::OkStatus());
  } else {
    node.on_ready = ask;
    if (node.connection == nullptr) Connect(node);
  }
}

// All at once: each is done with its answer, its failure or its time.
template <typename Reply, typename Request, typename StartCall>
void Agents::CallOnce(const std::vector<std::pair<size_t, Request>>& requests,
                      const std::vector<size_t>& which, TimePoint until, StartCall start_call,
                      std::vector<absl::StatusOr<Reply>>& answers) {
  size_t left = which.size();
  for (size_t i : which) {
    Start<Reply>(*nodes_[requests[i].first], requests[i].second, until, start_call,
                 [this, &answers, &left, i](absl::StatusOr<Reply> answer) {
                   answers[i] = std::move(answer);
                   if (--left == 0) loop_.Stop();
                 });
  }
  if (left > 0) {
    loop_.context().restart();
    loop_.Run();
  }
}

void Agents::AskLater(size_t number,
                      absl::AnyInvocable<void(absl::StatusOr<v1::NodeReport>)> done) {
  Node& node = *nodes_[number];
  if (node.failed) Disconnect(number);
  auto shared =
      std::make_shared<absl::AnyInvocable<void(absl::StatusOr<v1::NodeReport>)>>(std::move(done));
  Start<v1::NodeReport>(
      node, v1::NodeStatusRequest(), loop_.Now() + connect_timeout_,
      [](v1::Agent::Stub& stub, auto* context, auto* request, auto* answer, auto* reactor) {
        stub.async()->NodeStatus(context, request, answer, reactor);
      },
      [this, number, shared](absl::StatusOr<v1::NodeReport> answer) {
        if (!answer.ok()) Disconnect(number);
        (*shared)(std::move(answer));
      });
}

std::vector<absl::StatusOr<v1::NodeReport>> Agents::Ask(const std::vector<size_t>& nodes) {
  std::vector<std::pair<size_t, v1::NodeStatusRequest>> requests;
  for (const size_t node : nodes) requests.emplace_back(node, v1::NodeStatusRequest());
  return Call<v1::NodeReport>(
      requests, [](v1::Agent::Stub& stub, auto* context, auto* request, auto* answer,
                   auto* reactor) { stub.async()->NodeStatus(context, request, answer, reactor); });
}

std::vector<absl::StatusOr<v1::NodeReport>> Agents::AskAll() {
  std::vector<size_t> all(nodes_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return Ask(all);
}

absl::StatusOr<v1::NodeReport> Agents::Ask(size_t node) { return Ask(std::vector{node})[0]; }

std::vector<absl::StatusOr<v1::StopJobReply>> Agents::Stop(
    const std::vector<std::pair<size_t, v1::StopJobRequest>>& requests) {
  return Call<v1::StopJobReply>(
      requests, [](v1::Agent::Stub& stub, auto* context, auto* request, auto* answer,
                   auto* reactor) { stub.async()->StopJob(context, request, answer, reactor); });
}

absl::StatusOr<v1::LogPiece> Agents::ReadLog(size_t node, const v1::ReadLogRequest& request) {
  return Call<v1::LogPiece>(
      std::vector{std::pair(node, request)},
      [](v1::Agent::Stub& stub, auto* context, auto* question, auto* answer, auto* reactor) {
        stub.async()->ReadLog(context, question, answer, reactor);
      })[0];
}

}  // namespace dtrain::nodes
