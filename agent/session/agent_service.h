// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/session/sessions.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "dtrain/v1/agent.grpc.pb.h"

namespace dtrain::session {

// All of its methods take bytes, which common/rpc parses.
using RawAgent = v1::Agent::WithRawCallbackMethod_Session<v1::Agent::WithRawCallbackMethod_Logs<
    v1::Agent::WithRawCallbackMethod_NodeStatus<v1::Agent::WithRawCallbackMethod_ReadLog<
        v1::Agent::WithRawCallbackMethod_StopJob<v1::Agent::Service>>>>>;

// The gRPC face of the agent to one connection, whose peer is known: leads its calls to the
// sessions. Its gRPC methods run on gRPC's threads and only post; all else is the loop's. A
// connection has one session at a time, as a launcher needs no more, and each costs a process.
class AgentService final : public RawAgent {
 public:
  // `sessions` outlives the calls. `on_too_many` is called once when the peer goes on opening
  // sessions beside the one it has. `connected`: the connection, of a
  // peer on this machine.
  AgentService(loop::Loop& loop, Sessions& sessions, auth::Identity peer,
               loop::Task on_too_many = nullptr, std::optional<spawn::Connected> connected = {});

  // When a call was here last: now, while the session or output streams; for others, whose answers
  // are a matter of a moment, when they came. A call whose message is yet to come is none.
  TimePoint LastCall() const;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Logs(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* NodeStatus(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* report) override;
  grpc::ServerUnaryReactor* ReadLog(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* piece) override;
  grpc::ServerUnaryReactor* StopJob(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* reply) override;

 private:
  // What the calls have in common; they may outlive the connection, and this service with it.
  struct Calls;

  loop::Loop& loop_;
  Sessions& sessions_;
  const auth::Identity peer_;
  const std::optional<spawn::Connected> connected_;
  const std::shared_ptr<Calls> calls_;
};

}  // namespace dtrain::session
