// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "agent/session/sessions.h"
#include "common/loop/loop.h"
#include "dtrain/v1/agent.grpc.pb.h"

namespace dtrain::session {

// The gRPC face of the agent to one connection, whose peer is known: leads its calls to the
// sessions. Its gRPC methods run on gRPC's threads and only post; all else is the loop's.
class AgentService final : public v1::Agent::CallbackService {
 public:
  // `sessions` outlives the calls.
  AgentService(loop::Loop& loop, Sessions& sessions, auth::Identity peer)
      : loop_(loop), sessions_(sessions), peer_(std::move(peer)) {}

  grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::LogChunk>* Logs(grpc::CallbackServerContext* context,
                                               const v1::LogsRequest* request) override;
  grpc::ServerUnaryReactor* NodeStatus(grpc::CallbackServerContext* context,
                                       const v1::NodeStatusRequest* request,
                                       v1::NodeReport* report) override;
  grpc::ServerUnaryReactor* ReadLog(grpc::CallbackServerContext* context,
                                    const v1::ReadLogRequest* request,
                                    v1::LogPiece* piece) override;
  grpc::ServerUnaryReactor* StopJob(grpc::CallbackServerContext* context,
                                    const v1::StopJobRequest* request,
                                    v1::StopJobReply* reply) override;

 private:
  loop::Loop& loop_;
  Sessions& sessions_;
  const auth::Identity peer_;
};

}  // namespace dtrain::session
