// SPDX-License-Identifier: Apache-2.0
// Calls that any peer may make of an agent (NodeStatus, ReadLog, StopJob, Logs), about a job whose
// launcher and shepherd say what they like.
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>

#include "agent/auth/authorise.h"
#include "agent/session/job_status.h"
#include "agent/session/log_relay.h"
#include "agent/session/session_core.h"
#include "agent/session/sessions.h"
#include "common/os/fd.h"
#include "common/view/node_metrics.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/messages.h"

namespace {

using namespace dtrain::session;  // NOLINT: everything here is about it
using dtrain::fuzz::Script;

// A session without its processes: what is told of it to others than its launcher.
class Job {
 public:
  Job()
      : relay_(loop_, /*reclaim=*/true,
               {[this](const dtrain::v1::ReadLogs&) { return Ask(); },
                [](const std::string& why) {
                  dtrain::fuzz::ExpectPrintable(absl::DataLossError(why));
                }}) {}

  void Do(const Script::Step& step) {
    switch (step.what & 7) {
      case 0:
        return status_.SetStopping();
      case 1:
        return Parsed<dtrain::v1::ShepherdEvent>(step, [this](auto m) { FromShepherd(m); });
      case 2:
        return Parsed<dtrain::v1::Account>(step, [this](auto m) { Report(m.report()); });
      case 3:
        return Parsed<dtrain::v1::ReadLogRequest>(step, [this](auto m) { ReadLog(m); });
      case 4:
        return Parsed<dtrain::v1::StopJobRequest>(step, [this](auto m) { StopJob(m); });
      case 5:
        output_ = std::string(step.message);
        return;
      case 7:
        return Parsed<dtrain::v1::Report>(step, [this](auto m) { Report(m); });
      default:
        return Parsed<dtrain::v1::NodeReport>(step, [this](auto m) { NodeStatus(std::move(m)); });
    }
  }

 private:
  template <typename Message, typename F>
  static void Parsed(const Script::Step& step, F f) {
    Message message;
    if (message.ParseFromArray(step.message.data(), static_cast<int>(step.message.size()))) {
      f(std::move(message));
    }
  }
  // As Session does.
  void FromShepherd(const dtrain::v1::ShepherdEvent& event) {
    if (event.has_report()) Report(event.report());
    if (event.has_ended()) relay_.Finished(event.ended()).IgnoreError();
  }
  // The shepherd sends what the script says, and ends.
  absl::StatusOr<dtrain::os::UniqueFd> Ask() {
    auto pair = dtrain::os::SocketPair();
    if (!pair.ok()) return pair.status();
    // What does not fit is as if it had not been sent.
    (void)!send(pair->second.get(), output_.data(), output_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return std::move(pair->first);
  }
  void Report(const dtrain::v1::Report& report) {
    relay_.Reported(report);
    status_.Set(report.job());
  }
  void ReadLog(const dtrain::v1::ReadLogRequest& request) {
    bool answered = false;
    relay_.Read(request, [&](const absl::StatusOr<dtrain::v1::LogPiece>& piece) {
      answered = true;
      if (!piece.ok()) return dtrain::fuzz::ExpectPrintable(piece.status());
      DTRAIN_CHECK(piece->data().size() <= std::max<size_t>(request.limit(), 1));
    });
    while (!answered) loop_.context().run_one();
  }
  void StopJob(const dtrain::v1::StopJobRequest& request) {
    const dtrain::auth::Job job{request.job_id(), "bob", 7};
    const dtrain::auth::Identity alice;
    const absl::Status may = dtrain::auth::Authorise(alice, "/dtrain.v1.Agent/StopJob", &job);
    DTRAIN_CHECK(!may.ok());
    const std::string line = dtrain::auth::AuditLine(alice, "/dtrain.v1.Agent/StopJob", &job, may);
    for (char c : line) DTRAIN_CHECK(static_cast<unsigned char>(c) >= ' ');
    core_.OnEvent(dtrain::TimePoint(std::chrono::seconds(1)), StopAsked{"stopped"});
  }
  // The report of the node, with the job in it, as it goes over gRPC and as metrics.
  void NodeStatus(dtrain::v1::NodeReport report) {
    for (auto state : {SessionCore::State::kRunning, SessionCore::State::kFinished}) {
      *report.add_jobs() = status_.View(state, false);
    }
    dtrain::v1::NodeReport again;
    DTRAIN_CHECK(again.ParseFromString(report.SerializeAsString()));
    DTRAIN_CHECK(!dtrain::view::NodeMetrics(again, "node", true).empty());
  }

  SessionCore core_{Identity{1, "b", true}, dtrain::TimePoint{}};
  JobStatus status_;
  dtrain::loop::Loop loop_;
  LogRelay relay_;
  std::string output_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Script script(dtrain::fuzz::Text(data, size));
  Script::Step step;
  Job job;
  while (script.Next(step)) job.Do(step);
  return 0;
}
