// SPDX-License-Identifier: Apache-2.0
#include "agent/session/agent_service.h"

#include <utility>

#include "common/rpc/unary.h"

namespace dtrain::session {

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* AgentService::Session(
    grpc::CallbackServerContext*) {
  // By value: the call may outlive the connection, and this service with it.
  return session::Session::Stream::New(
      loop_,
      [&sessions = sessions_, peer = peer_](std::shared_ptr<session::Session::Stream> stream) {
        sessions.Accept(std::move(stream), peer);
      });
}

grpc::ServerWriteReactor<v1::LogChunk>* AgentService::Logs(grpc::CallbackServerContext*,
                                                           const v1::LogsRequest* request) {
  return LogRelay::Writer::New(loop_, [&sessions = sessions_, peer = peer_, request = *request](
                                          std::shared_ptr<LogRelay::Writer> writer) {
    sessions.AcceptLogs(request, std::move(writer), peer);
  });
}

grpc::ServerUnaryReactor* AgentService::NodeStatus(grpc::CallbackServerContext*,
                                                   const v1::NodeStatusRequest*,
                                                   v1::NodeReport* report) {
  using Call = rpc::ServerCall<v1::NodeReport>;
  return Call::New(
      loop_, report, [&sessions = sessions_, peer = peer_](std::shared_ptr<Call> call) {
        sessions.ReportNode(
            peer, "/dtrain.v1.Agent/NodeStatus",
            [call](absl::StatusOr<v1::NodeReport> told) { call->Finish(std::move(told)); });
      });
}

grpc::ServerUnaryReactor* AgentService::ReadLog(grpc::CallbackServerContext*,
                                                const v1::ReadLogRequest* request,
                                                v1::LogPiece* piece) {
  using Call = rpc::ServerCall<v1::LogPiece>;
  return Call::New(
      loop_, piece,
      [&sessions = sessions_, peer = peer_, request = *request](const std::shared_ptr<Call>& call) {
        call->Finish(sessions.ReadLog(peer, "/dtrain.v1.Agent/ReadLog", request));
      });
}

grpc::ServerUnaryReactor* AgentService::StopJob(grpc::CallbackServerContext*,
                                                const v1::StopJobRequest* request,
                                                v1::StopJobReply* reply) {
  using Call = rpc::ServerCall<v1::StopJobReply>;
  return Call::New(
      loop_, reply,
      [&sessions = sessions_, peer = peer_, request = *request](const std::shared_ptr<Call>& call) {
        call->Finish(sessions.StopJob(peer, request));
      });
}

}  // namespace dtrain::session
