// SPDX-License-Identifier: Apache-2.0
#include "launcher/node_links.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain {
namespace {

// An agent that was said goodbye closes the stream when it has ended its session.
constexpr Duration kGoodbyeWait = std::chrono::seconds(1);
// When nobody takes the output each link holds a piece of it: together so much at most, or the
// least that is worth a message.
constexpr size_t kMostOfAllLinks = 4 << 20;
constexpr size_t kLeastOfOne = 16 << 10;

uint32_t MostLogData(size_t nodes) {
  return static_cast<uint32_t>(std::max(kMostOfAllLinks / std::max(nodes, size_t{1}), kLeastOfOne));
}

const char* PhaseText(transport::Phase phase) {
  switch (phase) {
    case transport::Phase::kConnecting:
      return "connection";
    case transport::Phase::kAuthenticating:
      return "authentication";
    case transport::Phase::kLoginShell:
      return "login shell: its start-up files";
    case transport::Phase::kStartingAgent:
      return "start of the agent in its home directory";
    case transport::Phase::kPushingAgent:
      return "copy of the agent";
  }
  return "";
}

}  // namespace

NodeLinks::NodeLinks(loop::Loop& loop, transport::Ways& ways, Handlers handlers)
    : loop_(loop), ways_(ways), handlers_(std::move(handlers)), redials_(loop) {}

NodeLinks::~NodeLinks() = default;

void NodeLinks::Connect(const std::vector<hosts::HostEntry>& entries, bool kept) {
  keeps_ = kept;
  for (size_t i = 0; i < entries.size(); ++i) nodes_.push_back(std::make_unique<Node>(loop_));
  for (size_t i = 0; i < entries.size(); ++i) {
    Connect(NodeId(static_cast<uint32_t>(i)), entries[i], std::nullopt);
  }
}

void NodeLinks::TakeOver(const std::vector<hosts::HostEntry>& entries, const v1::Hello& hello,
                         const std::vector<std::optional<std::string>>& boot_ids) {
  keeps_ = true;
  for (size_t i = 0; i < entries.size(); ++i) nodes_.push_back(std::make_unique<Node>(loop_));
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!boot_ids[i]) continue;
    Connect(NodeId(static_cast<uint32_t>(i)), entries[i], NodeLink::Takeover{hello, *boot_ids[i]});
  }
}

std::vector<v1::LogPosition> NodeLinks::Taken() const {
  std::vector<v1::LogPosition> all;
  for (const auto& node : nodes_) {
    if (node->link != nullptr) node->link->AddTaken(all);
  }
  return all;
}

void NodeLinks::SetSafe(NodeId id, const v1::LogPosition& position) {
  if (nodes_[id.value()]->link != nullptr) nodes_[id.value()]->link->SetSafe(position);
}

void NodeLinks::Connect(NodeId id, const hosts::HostEntry& entry,
                        std::optional<NodeLink::Takeover> takeover) {
  nodes_[id.value()]->entry = entry;
  NodeLink::Handlers handlers;
  handlers.on_phase = [this, id](transport::Phase phase) {
    transport::Redials::Place& place = nodes_[id.value()]->place;
    // Until it answers it is known by why it did not.
    if (phase == transport::Phase::kConnecting && place) return;
    place = {};
    handlers_.on_event(job::NodePhase{id, PhaseText(phase)});
  };
  // Of a job that is kept, agents outlive their connection wherever they are.
  handlers.on_connected = [this, id,
                           own = !keeps_ && ways_.IsOwnChild(entry)](std::string address) {
    handlers_.on_event(job::NodeConnected{id, own, std::move(address)});
  };
  handlers.on_event = [this, id](v1::SessionEvent event) {
    handlers_.on_agent(id, std::move(event));
  };
  handlers.on_job_event = [this, id](v1::JobEvent event) {
    handlers_.on_shepherd(id, std::move(event));
  };
  handlers.on_closed = [this, id](absl::Status why) { OnClosed(id, std::move(why)); };
  handlers.on_logs = [this, id](v1::LogChunk chunk) { handlers_.on_logs(id, std::move(chunk)); };
  handlers.on_logs_cut = [this, id] { handlers_.on_logs_cut(id); };
  handlers.on_logs_end = [this, id](absl::Status status) {
    handlers_.on_logs_end(id, std::move(status));
  };
  transport::Target target{entry.host, entry.user, entry.port};
  target.keep = keeps_;
  nodes_[id.value()]->link = std::make_unique<NodeLink>(
      loop_, ways_.For(entry), redials_, kept_, target, std::move(handlers), std::move(takeover));
  if (keeps_) nodes_[id.value()]->link->KeepUntilSafe();
}

void NodeLinks::OnClosed(NodeId id, absl::Status why) {
  if (nodes_[id.value()]->disconnecting) return Disconnect(id);
  if (keeps_ && absl::IsAlreadyExists(why)) {
    return handlers_.on_superseded(std::string(why.message()));
  }
  const bool unknown = transport::IsUnknownHost(why);
  const bool refused = transport::IsNotAuthorised(why);
  const bool anew = transport::WasStartedAnew(why);
  std::string passes = transport::WhatPasses(why);
  nodes_[id.value()]->place = {};
  job::NodeClosed closed{id, std::move(why), unknown, refused, anew};
  closed.passes = std::move(passes);
  handlers_.on_event(std::move(closed));
}

// Posted at least: this is called by what is destroyed here.
void NodeLinks::ConnectAgain(const job::ConnectAgain& again) {
  Node& node = *nodes_[again.node.value()];
  node.said_goodbye = false;
  node.again.After(redials_.Pause(again.tries), [this, &node, id = again.node] {
    node.link.reset();
    node.place = redials_.Enter(
        [this, &node, id] { Connect(id, hosts::HostEntry(node.entry), std::nullopt); });
  });
}

void NodeLinks::Send(const job::ToAgent& message) {
  Node& node = *nodes_[message.node.value()];
  node.said_goodbye = node.said_goodbye || message.request.has_goodbye();
  if (!message.request.has_hello()) return SendTo(message.node, SharedRequest(message.request));
  if (node.link != nullptr) node.link->SayHello(message.request.hello());
}

void NodeLinks::Send(const job::ToAgents& message) {
  const SharedRequest request(message.request);
  for (const NodeId id : message.nodes) SendTo(id, request);
}

void NodeLinks::Send(const job::ToShepherd& message) {
  if (message.common != nullptr) SendTo(message.node, CommonBytes(message.common));
  SendTo(message.node, SharedRequest(message.request));
}

void NodeLinks::Send(const job::ToShepherds& message) {
  const SharedRequest request(message.request);
  for (const NodeId id : message.nodes) SendTo(id, request);
}

void NodeLinks::Send(const job::Beat& beat) {
  for (const NodeId id : beat.nodes) {
    if (nodes_[id.value()]->link != nullptr) nodes_[id.value()]->link->Beat(beat_);
  }
}

const SharedRequest& NodeLinks::CommonBytes(const std::shared_ptr<const v1::JobPart>& common) {
  if (common != common_) {
    common_ = common;
    v1::JobRequest request;
    *request.mutable_common() = *common;
    common_bytes_.emplace(request);
  }
  return *common_bytes_;
}

// What is kept for all nodes has a limit. When it is reached, the node for which most is kept is
// the one that does not read.
void NodeLinks::SendTo(NodeId id, const SharedRequest& request) {
  const auto kept = [](const std::unique_ptr<Node>& node) {
    return node->link != nullptr ? node->link->kept_bytes() : 0;
  };
  while (nodes_[id.value()]->link != nullptr) {
    const absl::Status sent = nodes_[id.value()]->link->Send(request);
    if (sent.ok()) return;
    Node& slowest =
        **std::max_element(nodes_.begin(), nodes_.end(),
                           [&](const auto& a, const auto& b) { return kept(a) < kept(b); });
    if (slowest.link == nullptr || slowest.link->kept_bytes() == 0) {
      return nodes_[id.value()]->link->GiveUp(
          absl::ResourceExhaustedError(std::string(sent.message())));
    }
    slowest.link->GiveUp(absl::ResourceExhaustedError(
        absl::StrCat("its agent or shepherd has not acknowledged ", slowest.link->kept_bytes(),
                     " bytes, and ", sent.message())));
  }
}

void NodeLinks::OpenLogs(NodeId id, const std::string& job_id, uint32_t attempt) {
  nodes_[id.value()]->link->OpenLogs(job_id, attempt, MostLogData(nodes_.size()));
}

void NodeLinks::NextLogs(NodeId id) {
  if (nodes_[id.value()]->link != nullptr) nodes_[id.value()]->link->NextLogs();
}

void NodeLinks::DialAnew(NodeId id) {
  if (nodes_[id.value()]->link != nullptr) nodes_[id.value()]->link->DialAnew();
}

void NodeLinks::Disconnect(NodeId id) {
  Node& node = *nodes_[id.value()];
  node.again.Cancel();
  node.place = {};
  const bool wait = node.link != nullptr && node.said_goodbye && !node.disconnecting;
  if (!std::exchange(node.disconnecting, true) && node.link != nullptr) ++leaving_;
  if (wait) {
    node.goodbye_timer.After(kGoodbyeWait, [this, id] { Disconnect(id); });
    return;
  }
  node.goodbye_timer.Cancel();
  // Posted, because this may be called by the link itself.
  loop_.Post([this, link = std::move(node.link)]() mutable {
    if (link == nullptr) return;
    link.reset();
    --leaving_;
    handlers_.on_left();
  });
}

}  // namespace dtrain
