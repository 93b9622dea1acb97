// SPDX-License-Identifier: Apache-2.0
#include "agent/session/agent_service.h"

#include <utility>

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

}  // namespace dtrain::session
