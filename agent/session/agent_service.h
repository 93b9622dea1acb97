// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "agent/session/session.h"
#include "common/loop/loop.h"
#include "dtrain/v1/agent.grpc.pb.h"

namespace dtrain::session {

// The gRPC face of the agent: makes a Session of each Session call and leads Logs calls to it.
// Its gRPC methods run on gRPC's threads and only post; all else is the loop's.
class AgentService final : public v1::Agent::CallbackService {
 public:
  using MakeShepherd = absl::AnyInvocable<absl::StatusOr<std::unique_ptr<ShepherdProcess>>()>;

  // `on_session_ended` is called, on the loop, when a session is gone and its last word is sent.
  AgentService(loop::Loop& loop, Identity self, MakeShepherd make_shepherd, Readers readers,
               loop::Task on_session_ended);

  grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::LogChunk>* Logs(grpc::CallbackServerContext* context,
                                               const v1::LogsRequest* request) override;

  bool busy() const { return session_ != nullptr; }

 private:
  void Accept(std::shared_ptr<session::Session::Stream> stream);
  void AcceptLogs(const v1::LogsRequest& request, std::shared_ptr<LogRelay::Writer> writer);

  loop::Loop& loop_;
  const Identity self_;
  MakeShepherd make_shepherd_;
  Readers readers_;
  loop::Task on_session_ended_;
  std::unique_ptr<session::Session> session_;  // an agent on a byte stream serves one launcher
};

}  // namespace dtrain::session
