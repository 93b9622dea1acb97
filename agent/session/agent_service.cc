// SPDX-License-Identifier: Apache-2.0
#include "agent/session/agent_service.h"

#include <algorithm>
#include <utility>

#include "common/rpc/unary.h"

namespace dtrain::session {
namespace {

// Sessions that were refused for another one on their connection.
constexpr size_t kMostRefused = 16;
// Of a piece of output: well below what gRPC takes for one message.
constexpr uint32_t kMostRead = 1 << 20;

}  // namespace

struct AgentService::Calls {
  // False when it has a session, which is not over yet.
  bool TakeSession(const std::shared_ptr<Session::Stream>& stream) {
    const std::shared_ptr<Session::Stream> before = session.lock();
    if (before == nullptr || before->over()) {
      session = stream;
      return true;
    }
    if (++refused == kMostRefused && on_too_many != nullptr) std::exchange(on_too_many, nullptr)();
    return false;
  }
  void NoteLogs(const std::shared_ptr<LogRelay::Writer>& writer) {
    std::erase_if(logs, [](const auto& each) { return IsOver(each.lock()); });
    logs.push_back(writer);
  }
  static bool IsOver(const std::shared_ptr<LogRelay::Writer>& writer) {
    return writer == nullptr || writer->gone();
  }

  std::weak_ptr<Session::Stream> session;
  std::vector<std::weak_ptr<LogRelay::Writer>> logs;
  TimePoint last;
  size_t refused = 0;
  loop::Task on_too_many;
};

AgentService::AgentService(loop::Loop& loop, Sessions& sessions, auth::Identity peer,
                           loop::Task on_too_many, std::optional<spawn::Connected> connected)
    : loop_(loop),
      sessions_(sessions),
      peer_(std::move(peer)),
      connected_(std::move(connected)),
      calls_(std::make_shared<Calls>()) {
  calls_->last = loop_.Now();
  calls_->on_too_many = std::move(on_too_many);
}

TimePoint AgentService::LastCall() const {
  const std::shared_ptr<Session::Stream> session = calls_->session.lock();
  const bool streams = (session != nullptr && !session->over()) ||
                       std::any_of(calls_->logs.begin(), calls_->logs.end(),
                                   [](const auto& each) { return !Calls::IsOver(each.lock()); });
  return streams ? loop_.Now() : calls_->last;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AgentService::Session(
    grpc::CallbackServerContext*) {
  // By value: the call may outlive the connection, and this service with it.
  return session::Session::Stream::New(
      loop_, [&loop = loop_, &sessions = sessions_, peer = peer_, connected = connected_,
              calls = calls_](std::shared_ptr<session::Session::Stream> stream) {
        calls->last = loop.Now();
        if (calls->TakeSession(stream)) {
          return sessions.Accept(std::move(stream), peer, connected);
        }
        stream->Finish(absl::ResourceExhaustedError("a connection has one session at a time"));
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* AgentService::Logs(grpc::CallbackServerContext*,
                                                               const grpc::ByteBuffer* request) {
  return LogRelay::Writer::New<v1::LogsRequest>(
      loop_, *request,
      [&loop = loop_, &sessions = sessions_, peer = peer_, calls = calls_](
          std::shared_ptr<LogRelay::Writer> writer, const v1::LogsRequest& asked) {
        calls->last = loop.Now();
        calls->NoteLogs(writer);
        sessions.AcceptLogs(asked, std::move(writer), peer, calls->session.lock().get());
      });
}

grpc::ServerUnaryReactor* AgentService::NodeStatus(grpc::CallbackServerContext*,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* report) {
  using Call = rpc::ServerCall<v1::NodeReport>;
  return Call::New<v1::NodeStatusRequest>(
      loop_, *request, report,
      [&loop = loop_, &sessions = sessions_, peer = peer_, calls = calls_](
          std::shared_ptr<Call> call, const v1::NodeStatusRequest&) {
        calls->last = loop.Now();
        sessions.inquiries().ReportNode(
            peer, "/dtrain.v1.Agent/NodeStatus",
            [call](absl::StatusOr<v1::NodeReport> told) { call->Finish(std::move(told)); });
      });
}

grpc::ServerUnaryReactor* AgentService::ReadLog(grpc::CallbackServerContext*,
                                                const grpc::ByteBuffer* request,
                                                grpc::ByteBuffer* piece) {
  using Call = rpc::ServerCall<v1::LogPiece>;
  return Call::New<v1::ReadLogRequest>(
      loop_, *request, piece,
      [&loop = loop_, &sessions = sessions_, peer = peer_, calls = calls_](
          std::shared_ptr<Call> call, v1::ReadLogRequest asked) {
        calls->last = loop.Now();
        asked.set_limit(std::min(asked.limit(), kMostRead));
        sessions.inquiries().ReadLog(
            peer, "/dtrain.v1.Agent/ReadLog", asked,
            [call](absl::StatusOr<v1::LogPiece> piece) { call->Finish(std::move(piece)); });
      });
}

grpc::ServerUnaryReactor* AgentService::StopJob(grpc::CallbackServerContext*,
                                                const grpc::ByteBuffer* request,
                                                grpc::ByteBuffer* reply) {
  using Call = rpc::ServerCall<v1::StopJobReply>;
  return Call::New<v1::StopJobRequest>(
      loop_, *request, reply,
      [&loop = loop_, &sessions = sessions_, peer = peer_, calls = calls_](
          const std::shared_ptr<Call>& call, const v1::StopJobRequest& asked) {
        calls->last = loop.Now();
        call->Finish(sessions.inquiries().StopJob(peer, asked));
      });
}

}  // namespace dtrain::session
