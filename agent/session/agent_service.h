// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "agent/session/sessions.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "dtrain/v1/agent.grpc.pb.h"

namespace dtrain::session {

// The gRPC face of the agent to one connection, whose peer is known: leads its calls to the
// sessions. Its gRPC methods run on gRPC's threads and only post; all else is the loop's. A
// connection has one session at a time, as a launcher needs no more, and each costs a process.
class AgentService final : public v1::Agent::CallbackService {
 public:
  // `sessions` outlives the calls. `on_too_many` is called once when the peer goes on opening
  // sessions beside the one it has.
  AgentService(loop::Loop& loop, Sessions& sessions, auth::Identity peer,
               loop::Task on_too_many = nullptr);

  // When a call was here last: now, while the session or output streams; for others, whose answers
  // are a matter of a moment, when they came. A call whose message is yet to come is none.
  TimePoint LastCall() const;

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
  // What the calls have in common; they may outlive the connection, and this service with it.
  struct Calls;

  loop::Loop& loop_;
  Sessions& sessions_;
  const auth::Identity peer_;
  const std::shared_ptr<Calls> calls_;
};

}  // namespace dtrain::session
