// SPDX-License-Identifier: Apache-2.0
// Calls that any peer may make of an agent (NodeStatus, ReadLog, StopJob, Logs), about a job whose
// launcher and shepherd say what they like.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "agent/auth/authorise.h"
#include "agent/session/job_status.h"
#include "agent/session/log_relay.h"
#include "agent/session/session_core.h"
#include "agent/session/sessions.h"
#include "common/view/node_metrics.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/messages.h"

namespace {

using namespace dtrain::session;  // NOLINT: everything here is about it
using dtrain::fuzz::Script;

constexpr size_t kSpoolBytes = 4096;

// A spool whose first half was punched out, as what the launcher has is.
dtrain::os::UniqueFd MakeSpool() {
  dtrain::os::UniqueFd spool(memfd_create("spool", MFD_CLOEXEC));
  const std::string half(kSpoolBytes, 'o');
  const auto written = pwrite(spool.get(), half.data(), half.size(), kSpoolBytes);
  DTRAIN_CHECK(written == static_cast<ssize_t>(half.size()));
  return spool;
}

// A session without its processes: what is told of it to others than its launcher.
class Job {
 public:
  Job()
      : relay_(
            loop_, [](uint32_t, dtrain::v1::StreamKind, uint64_t) {},
            [](uint32_t, const std::string&) {}) {}

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
        return Parsed<dtrain::v1::LogsRequest>(step, [this](auto m) { relay_.Attach(nullptr, m); });
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
    if (event.has_log_opened()) {
      relay_.Opened(event.log_opened().rank(), event.log_opened().stream(), MakeSpool(), geteuid())
          .IgnoreError();  // as many ranks are not there
    }
    if (event.has_log_grown()) {
      relay_.Grown(event.log_grown().rank(), event.log_grown().stream(), event.log_grown().size());
    }
    if (event.has_ended()) relay_.Finished(event.ended());
  }
  void Report(const dtrain::v1::Report& report) {
    relay_.Expect(report);
    status_.Set(report.job());
  }
  void ReadLog(const dtrain::v1::ReadLogRequest& request) {
    const auto piece =
        relay_.Read(request.rank(), request.stream(), request.offset(), request.limit());
    if (!piece.ok()) return dtrain::fuzz::ExpectPrintable(piece.status());
    DTRAIN_CHECK(piece->data().size() <= request.limit());
    DTRAIN_CHECK(piece->data().empty() || piece->offset() >= request.offset());
    DTRAIN_CHECK(piece->offset() + piece->data().size() <= piece->size());
    for (char c : piece->data()) DTRAIN_CHECK(c == 'o');  // nothing of what is punched out
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
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Script script(dtrain::fuzz::Text(data, size));
  Script::Step step;
  Job job;
  while (script.Next(step)) job.Do(step);
  return 0;
}
