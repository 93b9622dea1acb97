// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/job_requests.h"

#include <chrono>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"

namespace dtrain::shepherd {
namespace {

void LogMisplaced(const v1::JobRequest& request) {
  log::Error(absl::StrCat("the agent passed on what is not for a shepherd: request ",
                          static_cast<int>(request.kind_case())));
}

}  // namespace

JobRequests::JobRequests(Parts parts, Handlers handlers)
    : parts_(parts), handlers_(std::move(handlers)) {}

void JobRequests::Take(v1::JobRequest request) {
  switch (request.kind_case()) {
    case v1::JobRequest::kCommon:
      common_ = std::move(*request.mutable_common());
      break;
    case v1::JobRequest::kStart:
      common_.MergeFrom(request.start());
      handlers_.on_part(std::exchange(common_, {}));
      break;
    case v1::JobRequest::kStage:
      // Else it was stopped.
      if (parts_.core.state() == State::kWaiting) parts_.code.Begin(request.stage());
      break;
    case v1::JobRequest::kStagePieces:
      parts_.code.Take(request.stage_pieces());
      break;
    case v1::JobRequest::kSignal:
      if (const int signal = request.signal().signal(); signal < 1 || signal > SIGRTMAX) {
        return parts_.launcher.Break(absl::StrCat("no signal has the number ", signal));
      } else if (signal == SIGUSR1 || signal == SIGUSR2) {
        parts_.user_signals.Take(signal, UserSignals::From::kLauncher);
      } else {
        parts_.workers.Signal(signal);
      }
      break;
    case v1::JobRequest::kStop:
      handlers_.on_stop(request.stop());
      break;
    case v1::JobRequest::kSaving:
      handlers_.on_saving();
      break;
    case v1::JobRequest::kStdin:
      parts_.workers.TakeStdin(request.stdin());
      break;
    case v1::JobRequest::kFenceRelease:
      parts_.pmi.OnFenceRelease(request.fence_release());
      break;
    case v1::JobRequest::kPmix:
      parts_.servers.OnPmixDown(std::move(*request.mutable_pmix()));
      break;
    case v1::JobRequest::kElastic:
      if (!parts_.part.has_elastic()) return LogMisplaced(request);
      parts_.servers.OnElasticDown(std::move(*request.mutable_elastic()));
      break;
    case v1::JobRequest::kLookAtCheckpoint:
      if (parts_.core.state() == State::kRunning) parts_.checkpoint.Look();
      break;
    case v1::JobRequest::kHeartbeat:
      parts_.launcher.AnswerBeat();
      break;
    case v1::JobRequest::kLogsTaken:
      for (const v1::LogPosition& taken : request.logs_taken().streams()) {
        parts_.logs.OnTaken(taken);
      }
      break;
    default:
      LogMisplaced(request);
  }
}

}  // namespace dtrain::shepherd
