// SPDX-License-Identifier: Apache-2.0
#include "agent/session/reported_job.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/session/reservations.h"
#include "common/base/text.h"

namespace dtrain::session {
namespace {

// Of why a shepherd cannot go on.
constexpr size_t kMostOfBroken = 400;
constexpr size_t kMostCpuList = 16 << 10;
// Of the command: as many bytes as a shepherd of ours reports, which does not count empty words.
constexpr size_t kMostArgv = 16 << 10;
constexpr int kMostWords = 64 << 10;
// As many as dtrain-spawner lets a job have processes.
constexpr int kMostRanks = 32'768;
constexpr Duration kKillPause = std::chrono::milliseconds(500);

bool IsWritten(const v1::JobRecord& record) { return !record.boot_id().empty(); }

v1::JobOnNode InName(const v1::JobOnNode& job) {
  v1::JobOnNode out;
  out.set_state(job.state());
  *out.mutable_gpu_uuids() = job.gpu_uuids();
  out.set_cpulist(job.cpulist());
  return out;
}

}  // namespace

Reported ReportedBy(const v1::Report& report) {
  Reported out;
  out.gpus = {report.job().gpu_uuids().begin(), report.job().gpu_uuids().end()};
  for (const v1::RankOnNode& rank : report.job().ranks()) {
    if (rank.pid() != 0) out.workers.insert(rank.pid());
  }
  return out;
}

Reported ReportedBy(const v1::Report& report, const v1::JobRecord& record) {
  Reported out = ReportedBy(report);
  if (IsWritten(record)) out.gpus = {record.gpu_uuids().begin(), record.gpu_uuids().end()};
  return out;
}

v1::Reserve ReservedBy(const v1::Report& report, const v1::JobRecord& record) {
  const bool recorded = IsWritten(record);
  const v1::JobOnNode& job = report.job();
  v1::Reserve out;
  *out.mutable_gpu_uuids() = recorded ? record.gpu_uuids() : job.gpu_uuids();
  out.set_cpulist(recorded ? record.cpulist() : job.cpulist());
  out.set_node_rank(recorded ? record.node_rank() : job.node_rank());
  return out;
}

ReportedJob::ReportedJob(const Surroundings& agent, const v1::Hello& hello, uid_t owner,
                         ShepherdChannel& shepherd, Feed feed, Leftovers::Warn warn)
    : loop_(agent.loop),
      hello_(hello),
      shepherd_(shepherd),
      feed_(std::move(feed)),
      // A launcher that may come back says itself how far it has come.
      relay_(agent.loop, /*reclaim=*/!agent.self.resumable, LogHandlers()),
      leftovers_(agent.loop, shepherd.processes(), owner, std::move(warn)),
      reports_(agent.reports) {}

ReportedJob::~ReportedJob() {
  if (reports_ != nullptr) reports_->Remove(report_bytes_ + end_bytes_);
}

LogRelay::Handlers ReportedJob::LogHandlers() {
  LogRelay::Handlers handlers;
  handlers.ask = [this](const v1::ReadLogs& request) { return shepherd_.ReadLogs(request); };
  handlers.on_broken = [this](std::string why) { shepherd_.Break(std::move(why)); };
  return handlers;
}

void ReportedJob::OnEvent(v1::ShepherdEvent event) {
  const Feed feed = feed_;
  switch (event.kind_case()) {
    case v1::ShepherdEvent::kReport:
      OnReport(std::move(*event.mutable_report()));
      break;
    case v1::ShepherdEvent::kEnded:
      if (absl::Status valid = relay_.Finished(event.ended()); !valid.ok()) {
        return shepherd_.Break(std::string(valid.message()));
      }
      if (absl::Status fits = Count(event.ended(), end_bytes_); !fits.ok()) {
        return shepherd_.Break(std::string(fits.message()));
      }
      feed(JobEnded{std::move(*event.mutable_ended())});
      break;
    case v1::ShepherdEvent::kBroken:
      shepherd_.Break(Escape(event.broken(), kMostOfBroken));
      break;
    case v1::ShepherdEvent::KIND_NOT_SET:
      feed(ShepherdAnswers{});
      break;
    case v1::ShepherdEvent::kAccount:   // to those who adopt it
    case v1::ShepherdEvent::kAttached:  // the channel's
      break;
  }
}

// Its launcher says what the job has, and what a shepherd says is its user's word: others see both,
// and pay for what they cost.
absl::Status ReportedJob::Check(const v1::JobOnNode& job) const {
  if (job.gpu_uuids_size() > kMostGpus || job.cpulist().size() > kMostCpuList) {
    return absl::InvalidArgumentError(
        absl::StrCat("it says that the job has ", job.gpu_uuids_size(),
                     " GPUs, and cores in a list of ", job.cpulist().size(), " bytes"));
  }
  size_t argv = 0;
  for (const std::string& word : job.argv()) argv += word.size();
  if (argv > kMostArgv || job.argv_size() > kMostWords || job.ranks_size() > kMostRanks) {
    return absl::InvalidArgumentError(absl::StrCat("it says that the job has ", job.ranks_size(),
                                                   " ranks, and a command of ", job.argv_size(),
                                                   " words and ", argv, " bytes"));
  }
  return relay_.Knows(job) ? absl::OkStatus()
                           : absl::InvalidArgumentError("it says that other ranks are here now");
}

absl::Status ReportedJob::Count(const google::protobuf::Message& word, size_t& bytes) {
  if (reports_ == nullptr) return absl::OkStatus();
  reports_->Remove(std::exchange(bytes, 0));
  const size_t now = word.SpaceUsedLong();
  if (!reports_->Add(now)) {
    return absl::ResourceExhaustedError(absl::StrCat("what shepherds of this user report takes ",
                                                     "more than ", reports_->most(), " bytes"));
  }
  bytes = now;
  return absl::OkStatus();
}

void ReportedJob::OnReport(v1::Report report) {
  absl::Status sound = Check(report.job());
  if (sound.ok()) sound = Count(report, report_bytes_);
  if (!sound.ok()) return shepherd_.Break(std::string(sound.message()));
  shepherd_.processes().SetPart(hello_.job_id(), hello_.attempt(), report.job().node_rank());
  leftovers_.OnReport(report);
  relay_.Reported(report);
  // Its word is not enough: it is its user's. To look is work, and it says so each second.
  if (report.unkillable() && loop_.Now() >= kills_due_) {
    kills_due_ = loop_.Now() + kKillPause;
    shepherd_.processes().KillLiving();
  }
  const Reported reported = ReportedBy(report);
  in_name_.Set(InName(report.job()));
  status_.Set(std::move(*report.mutable_job()));
  const Feed feed = feed_;
  feed(reported);
}

v1::Reserve ReportedJob::Used() const {
  v1::Report report;
  *report.mutable_job() = status_.View(SessionState::kRunning, /*away=*/false);
  return ReservedBy(report, {});
}

v1::JobOnNode ReportedJob::Describe(SessionState state, bool away) const {
  v1::JobOnNode job = status_.View(state, away);
  for (v1::RankOnNode& rank : *job.mutable_ranks()) {
    rank.set_stdout_bytes(relay_.size(rank.rank(), v1::STREAM_KIND_STDOUT));
    rank.set_stderr_bytes(relay_.size(rank.rank(), v1::STREAM_KIND_STDERR));
  }
  return job;
}

v1::JobOnNode ReportedJob::DescribeInName(SessionState state, bool away) const {
  v1::JobOnNode job = in_name_.View(state, away);
  job.set_in_name(true);
  return job;
}

}  // namespace dtrain::session
