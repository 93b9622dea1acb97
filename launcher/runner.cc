// SPDX-License-Identifier: Apache-2.0
#include "launcher/runner.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <list>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/programs.h"
#include "common/os/signals.h"
#include "launcher/job/outcome.h"
#include "launcher/signal_sender.h"

namespace dtrain {

Runner::Runner(loop::Loop& loop, cli::LaunchOptions options, std::unique_ptr<JobRecords> records,
               std::unique_ptr<v1::Spec> spec)
    : loop_(loop),
      launch_(loop, std::move(options), std::move(records),
              [this](const absl::Status& why) { OnOutputFailed(why); }),
      campaign_(launch_,
                {[this] { OnEnd(); },
                 [this](const std::string& text) {
                   LeaveJob(absl::StrCat("dtrain: ", job::Printable(text), "; this one leaves it"),
                            kExitOk);
                 }}),
      detaching_(launch_, campaign_, std::move(spec)) {
  if (launch_.records() == nullptr) return;
  detached_job_ = std::make_unique<DetachedJob>(
      launch_, campaign_,
      [this](const std::string& text, int exit_code) { LeaveJob(text, exit_code); });
}

Runner::~Runner() = default;

int Runner::Run() {
  if (const absl::Status prepared = Prepare(); !prepared.ok()) return Refuse(prepared);
  os::FailWritesWithoutSignals();
  std::list<loop::SignalWatch> watches;
  std::vector<int> signals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
  if (is_detached()) signals.push_back(detached::JobFolder::StopSignal());
  for (int number : os::NotIgnored(std::move(signals))) {
    watches.emplace_back(loop_, std::initializer_list<int>{number},
                         [this](int signal) { OnSignal(signal); });
  }
  for (const std::string& warning : launch_.options().hosts.warnings) launch_.Warn(warning);
  if (is_detached()) {
    detached_job_->Begin();
  } else {
    campaign_.Begin();
  }
  loop_.Run();
  campaign_.attempt().Drop();
  status_.reset();
  if (detaching_.is_done()) return detaching_.Finish();
  if (end_ != nullptr) return end_->exit_code();
  // Why it leaves the job.
  if (!campaign_.verdict()) launch_.router().FinishSaying(kOutputWait);
  return exit_code_;
}

absl::Status Runner::Prepare() {
  if (absl::Status files = launch_.PrepareFiles(); !files.ok()) return files;
  if (absl::Status attempts = campaign_.Prepare(); !attempts.ok()) return attempts;
  if (absl::Status hosts = launch_.PrepareHosts(campaign_.hosts()); !hosts.ok()) return hosts;
  return PrepareStatus();
}

absl::Status Runner::PrepareStatus() {
  const cli::LaunchOptions& options = launch_.options();
  if (options.job.dry_run) return absl::OkStatus();
  status::JobIdentity job;
  job.id = options.job.job_id;
  job.argv = CommandWords(options.job.part);
  job.launcher_pid = getpid();
  job.begin = loop_.Now();
  job.begin -= campaign_.Age(job.begin);
  job.begin_unix_nanos = launch_.clock().At(job.begin);
  status_ = std::make_unique<status::StatusServer>(loop_, std::move(job),
                                                   [this] { return campaign_.Facts(); });
  campaign_.ShowOn(status_.get());
  launch_.TellUnfinishedLines([this](uint32_t rank) {
    return status_ == nullptr ? "" : status_->logs().Unfinished(Rank(rank));
  });
  if (!is_detached()) {
    status_->OnDetach({[this](auto may) { detaching_.Ask(std::move(may)); },
                       [this] { return detaching_.Detach(status_->logs()); },
                       [this] {
                         status_.reset();
                         detaching_.LeaveLoop();
                       }});
  }
  // The job does not depend on it, and `dtrain ps` reports the same problem.
  absl::Status listening = status_->ListenUnix();
  if (!listening.ok() && options.verbose) {
    launch_.Warn(absl::StrCat("dtrain: no status queries: ", listening.message()));
  }
  if (options.status_listen.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> where = status_->ListenTcp(options.status_listen);
  if (!where.ok()) {
    return absl::Status(where.status().code(),
                        absl::StrCat("--status-listen: ", where.status().message()));
  }
  launch_.Warn(absl::StrCat("dtrain: ", *where));
  return absl::OkStatus();
}

int Runner::Refuse(const absl::Status& why) {
  exit_code_ = absl::IsUnauthenticated(why)   ? kExitNotAuthorised
               : absl::IsInvalidArgument(why) ? kExitUsage
                                              : kExitStartAgents;
  const std::string text(why.message());
  if (is_detached() && detached_job_->Refuse(exit_code_, text)) {
    loop_.Run();
    campaign_.attempt().Drop();
  } else {
    std::fprintf(stderr, "dtrain: %s\n", text.c_str());
  }
  return exit_code_;
}

// A detached launcher's output is its log, on which the job does not depend.
void Runner::OnOutputFailed(const absl::Status& why) {
  if (!is_detached() && !detaching_.is_done()) campaign_.OnOutputFailed(why);
}

void Runner::OnSignal(int signal) {
  if (detaching_.is_done()) return;
  const bool stops = signal != SIGUSR1 && signal != SIGUSR2;
  // Nobody seems to want the output that is left; a folder is written to its end.
  if (campaign_.verdict()) {
    if (!stops) return;
    if (!is_detached() && (end_ == nullptr || !end_->StopWaiting())) Leave();
    return;
  }
  const bool told = signal == detached::JobFolder::StopSignal();
  const std::string from = NameSender(loop::SignalWatch::SenderOf(signal));
  if (told) signal = SIGTERM;
  // Only `dtrain stop` ends a detached job.
  if (is_detached() && stops && !told) {
    return detached_job_->Leave(absl::StrCat("this launcher was ", job::EndedBy(signal, from)));
  }
  const bool first = stops && campaign_.NoteStop();
  if (is_detached() && first) return detached_job_->Stop(signal, from);
  campaign_.OnSignal(signal, from);
}

void Runner::OnEnd() {
  exit_code_ = campaign_.verdict()->exit_code;
  campaign_.StopShowing();
  launch_.router().FlushLines();  // the report stays the last
  end_ = std::make_unique<JobEnd>(
      JobEnd::Around{loop_, launch_.options(), launch_.router(), launch_.records(),
                     launch_.timeline(), status_.get(), campaign_.attempt().now().slowest(),
                     launch_.clock().begin_unix_nanos},
      [this] { return campaign_.Facts(); }, [this] { Leave(); });
  end_->Begin(campaign_.attempt().details(), /*stopped=*/campaign_.stop_asked());
}

void Runner::LeaveJob(const std::string& text, int exit_code) {
  launch_.router().Say(text);
  exit_code_ = exit_code;
  loop_.Post([this] { Leave(); });
}

}  // namespace dtrain
