// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/loop/loop.h"
#include "common/rpc/client_stream.h"
#include "dtrain/v1/agent.grpc.pb.h"
#include "launcher/transport/transport.h"

namespace dtrain {

// The launcher's line to one agent: a transport's byte stream, gRPC on it, the Session and Logs
// calls on that. Destroying it ends all of them, and with them the agent. Loop thread.
class NodeLink {
 public:
  struct Handlers {
    absl::AnyInvocable<void(transport::Phase)> on_phase;
    absl::AnyInvocable<void()> on_connected;  // Send may be called from now on
    absl::AnyInvocable<void(v1::SessionEvent)> on_event;
    // The session is over, or never was. Once, and nothing after it. OK: the agent said so.
    absl::AnyInvocable<void(absl::Status)> on_closed;
    // Take it, then call NextLogs when there is room for more.
    absl::AnyInvocable<void(v1::LogChunk)> on_logs;
    absl::AnyInvocable<void(absl::Status)> on_logs_end;  // OK: all of them were delivered
  };

  NodeLink(loop::Loop& loop, transport::Transport& transport, const transport::Target& target,
           Handlers handlers);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  void Send(v1::SessionRequest request);
  void OpenLogs(const std::string& job_id, uint32_t attempt);
  void NextLogs();

 private:
  void Open(os::UniqueFd stream);
  void Closed(absl::Status status);

  loop::Loop& loop_;
  Handlers handlers_;
  std::unique_ptr<transport::Connection> connection_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Agent::Stub> stub_;
  std::optional<rpc::ClientStream<v1::SessionRequest, v1::SessionEvent>> session_;
  std::optional<rpc::ClientReader<v1::LogChunk>> logs_;
  loop::Timer reason_wait_;
};

}  // namespace dtrain
