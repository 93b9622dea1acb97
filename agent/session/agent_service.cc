// SPDX-License-Identifier: Apache-2.0
#include "agent/session/agent_service.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::session {

AgentService::AgentService(loop::Loop& loop, Identity self, MakeShepherd make_shepherd,
                           Readers readers, loop::Task on_session_ended)
    : loop_(loop),
      self_(std::move(self)),
      make_shepherd_(std::move(make_shepherd)),
      readers_(std::move(readers)),
      on_session_ended_(std::move(on_session_ended)) {}

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* AgentService::Session(
    grpc::CallbackServerContext*) {
  return session::Session::Stream::New(
      loop_,
      [this](std::shared_ptr<session::Session::Stream> stream) { Accept(std::move(stream)); });
}

grpc::ServerWriteReactor<v1::LogChunk>* AgentService::Logs(grpc::CallbackServerContext*,
                                                           const v1::LogsRequest* request) {
  return LogRelay::Writer::New(
      loop_, [this, request = *request](std::shared_ptr<LogRelay::Writer> writer) {
        AcceptLogs(request, std::move(writer));
      });
}

void AgentService::Accept(std::shared_ptr<session::Session::Stream> stream) {
  if (session_ != nullptr) {
    stream->Finish(absl::ResourceExhaustedError("this agent has a session already"));
    return;
  }
  auto shepherd = make_shepherd_();
  if (!shepherd.ok()) {
    stream->Finish(absl::Status(shepherd.status().code(),
                                absl::StrCat("start the shepherd: ", shepherd.status().message())));
    return;
  }
  auto on_ended = [this, stream] {
    session_.reset();
    stream->WhenOver([this] { on_session_ended_(); });
  };
  session_ = std::make_unique<session::Session>(loop_, self_, stream, *std::move(shepherd),
                                                readers_, std::move(on_ended));
}

void AgentService::AcceptLogs(const v1::LogsRequest& request,
                              std::shared_ptr<LogRelay::Writer> writer) {
  if (session_ == nullptr || session_->job_id() != request.job_id()) {
    writer->Finish(absl::NotFoundError("no session of this job"));
    return;
  }
  session_->AttachLogs(std::move(writer));
}

}  // namespace dtrain::session
