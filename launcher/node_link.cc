// SPDX-License-Identifier: Apache-2.0
#include "launcher/node_link.h"

#include <utility>

namespace dtrain {
namespace {

// gRPC may see the end of the stream before the transport has learned why it ended (the exit code
// and last words of an ssh process). So long we wait for the better message.
constexpr Duration kReasonWait = std::chrono::milliseconds(200);

}  // namespace

NodeLink::NodeLink(loop::Loop& loop, transport::Transport& transport,
                   const transport::Target& target, Handlers handlers)
    : loop_(loop), handlers_(std::move(handlers)), reason_wait_(loop) {
  transport::Callbacks callbacks;
  callbacks.on_phase = [this](transport::Phase phase) { handlers_.on_phase(phase); };
  callbacks.on_ready = [this](os::UniqueFd stream) { Open(std::move(stream)); };
  callbacks.on_failed = [this](absl::Status status) { handlers_.on_closed(std::move(status)); };
  connection_ = transport.Connect(target, std::move(callbacks));
}

NodeLink::~NodeLink() = default;

void NodeLink::Open(os::UniqueFd stream) {
  channel_ = rpc::MakeChannel(std::move(stream));
  stub_ = v1::Agent::NewStub(channel_);
  session_.emplace(
      loop_, [this](auto* context, auto* reactor) { stub_->async()->Session(context, reactor); },
      [this](v1::SessionEvent event) { handlers_.on_event(std::move(event)); },
      [this](absl::Status status) { Closed(std::move(status)); });
  handlers_.on_connected();
}

void NodeLink::Closed(absl::Status status) {
  // The agent's own words are the best there are.
  if (!absl::IsUnavailable(status)) {
    handlers_.on_closed(std::move(status));
    return;
  }
  auto report = [this, status] {
    absl::Status reason = connection_->CloseReason();
    if (reason.ok()) {
      reason = absl::UnavailableError("the connection to the agent was closed by the other side");
    }
    handlers_.on_closed(std::move(reason));
  };
  if (connection_->CloseReason().ok()) {
    reason_wait_.After(kReasonWait, report);
  } else {
    report();
  }
}

void NodeLink::Send(v1::SessionRequest request) {
  if (session_.has_value()) session_->Send(std::move(request));
}

void NodeLink::OpenLogs(const std::string& job_id, uint32_t attempt) {
  v1::LogsRequest request;
  request.set_job_id(job_id);
  request.set_attempt(attempt);
  auto shared = std::make_shared<v1::LogsRequest>(std::move(request));
  logs_.emplace(
      loop_,
      [this, shared](auto* context, auto* reactor) {
        stub_->async()->Logs(context, shared.get(), reactor);
      },
      [this](v1::LogChunk chunk) { handlers_.on_logs(std::move(chunk)); },
      [this](absl::Status status) { handlers_.on_logs_end(std::move(status)); });
}

void NodeLink::NextLogs() {
  if (logs_.has_value()) logs_->Next();
}

}  // namespace dtrain
