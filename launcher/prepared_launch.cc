// SPDX-License-Identifier: Apache-2.0
#include "launcher/prepared_launch.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/text.h"
#include "common/base/worker_needs.h"
#include "common/os/fd.h"
#include "common/rpc/channel.h"
#include "launcher/campaign_of.h"
#include "launcher/code_of.h"
#include "launcher/detached/ourselves.h"
#include "launcher/layout_of.h"
#include "launcher/plan/plan.h"
#include "launcher/report/write_result.h"

namespace dtrain {
namespace {

constexpr size_t kMayCome = 4096;  // hosts

// Per worker, which may make 100,000 a second: 1.8 MiB of memory that it shares with its shepherd.
constexpr uint32_t kTimelineRecords = 16384;

// Raises the own limit as far as allowed, where needed. `may_grow`: others may come, of whom nobody
// knows yet.
absl::Status CheckOpenFiles(size_t nodes, bool may_grow) {
  const rlim_t needed = OpenFilesForLaunch(nodes);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t wanted =
      may_grow ? std::max(needed, std::min(limit.rlim_max, rlim_t{OpenFilesForLaunch(kMayCome)}))
               : needed;
  if (limit.rlim_cur >= wanted) return absl::OkStatus();
  if (limit.rlim_max < needed) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a launch on ", Count(nodes, "node"), " takes ", needed,
                     " open files, and the limit is ", limit.rlim_max, "; raise it (ulimit -n)"));
  }
  limit.rlim_cur = wanted;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  return absl::OkStatus();
}

// Its threads and tables take some milliseconds, beside the certificates here or the first host's
// answer. Never let go: nobody waits for the end of its threads, as the process leaves by _exit.
void StartGrpc(loop::BlockingPool& beside) {
  beside.Run([] {
    alignas(rpc::Library) static std::byte room[sizeof(rpc::Library)];
    new (room) rpc::Library();
  });
}

// Null: nobody wants one.
absl::StatusOr<std::unique_ptr<report::Timeline>> MakeTimeline(cli::LaunchOptions& options,
                                                               TimePoint begin,
                                                               int64_t begin_unix_nanos) {
  std::string path = options.timeline;
  // Horovod's own library takes this name for itself: then no worker of ours tells a span, and the
  // file is left to it.
  const bool only_spans = path.empty();
  const auto look = [&](const auto& variables) {
    for (const v1::EnvVar& var : variables) {
      if (only_spans && var.name() == "HOROVOD_TIMELINE") path = var.value();
    }
  };
  look(options.job.part.env());
  for (const v1::Program& program : options.job.part.programs()) look(program.env());
  if (path.empty() || path == "DYNAMIC" || options.job.dry_run) return nullptr;
  absl::Status writable =
      report::CheckWritable(only_spans ? "HOROVOD_TIMELINE" : "--timeline", path);
  if (!writable.ok()) return writable;
  options.job.part.set_timeline_records(kTimelineRecords);
  return std::make_unique<report::Timeline>(std::move(path), only_spans, begin, begin_unix_nanos);
}

}  // namespace

PreparedLaunch::PreparedLaunch(loop::Loop& loop, cli::LaunchOptions options,
                               std::unique_ptr<JobRecords> records,
                               absl::AnyInvocable<void(absl::Status)> on_output_failed)
    : loop_(loop),
      options_(std::move(options)),
      records_(std::move(records)),
      clock_{loop.Now(), absl::GetCurrentTimeNanos()},
      agent_(loop),
      ways_(loop, Telling(options_.transport), agent_),
      router_(loop, options_.output,
              {std::move(on_output_failed),
               [this](std::string text) { Warn(absl::StrCat("dtrain: warning: ", text)); },
               [this](v1::OutputLost lost) {
                 if (records_ != nullptr) records_->OutputLost(std::move(lost));
               }}) {}

absl::Status PreparedLaunch::PrepareFiles() {
  StartGrpc(beside_);
  if (records_ == nullptr) options_.job.job_id = absl::StrCat("dtrain-", os::RandomHex(6));
  const v1::Launcher self = detached::Ourselves();
  absl::Status opened =
      router_.Open(options_.job.dry_run ? ""
                                        : absl::StrCat("job ", options_.job.job_id, " (process ",
                                                       self.pid(), " on ", self.host(), ")"),
                   records_ == nullptr ? v1::OutputLost() : records_->before().output_lost());
  if (!opened.ok()) return opened;
  if (!options_.result_json.empty()) {
    absl::Status writable = report::CheckWritable("--result-json", options_.result_json);
    if (!writable.ok()) return writable;
  }
  if (absl::Status staged = PrepareCode(); !staged.ok()) return staged;
  auto timeline = MakeTimeline(options_, clock_.begin, clock_.begin_unix_nanos);
  if (!timeline.ok()) return timeline.status();
  timeline_ = *std::move(timeline);
  return absl::OkStatus();
}

absl::Status PreparedLaunch::PrepareCode() {
  if (options_.stage.directory.empty() || options_.job.dry_run) return absl::OkStatus();
  // Hosts may come to an elastic job at any time.
  auto code = CodeOf(options_.stage, records_.get(), MayRestart(options_) || IsElastic(options_));
  if (!code.ok()) return code.status();
  code_ = *std::move(code);
  const stage::Snapshot& taken = code_->snapshot;
  for (const std::string& warning : taken.warnings) {
    Warn(absl::StrCat("dtrain: warning: ", warning));
  }
  code_facts_ = {absl::BytesToHexString(taken.sha256), taken.files.size(), taken.bytes, taken.git};
  options_.job.stage = code_->Request();
  if (code_->compare) return absl::OkStatus();
  for (v1::Program& program : *options_.job.part.mutable_programs()) {
    const std::string& directory = program.working_directory();
    std::optional<std::string> within = InTree(directory, taken.directory);
    // One that was asked for, with --wdir, stays.
    if (!within && directory == options_.launched_in) within = ".";
    if (within) program.set_working_directory(*std::move(within));
  }
  return absl::OkStatus();
}

absl::Status PreparedLaunch::PrepareHosts(const hosts::HostList& hosts) {
  options_.job.part.set_max_restarts(options_.restarts.max_restarts);
  if (MayRestart(options_) && !IsElastic(options_)) {
    options_.job.part.mutable_state();  // with --state-dir, or without
  } else {
    options_.job.part.clear_state();
  }
  absl::Status files = CheckOpenFiles(hosts.entries.size(), !options_.elastic.discover.empty());
  if (!files.ok()) return files;
  options_.job.protocol = rpc::kProtocolVersion;
  options_.job.build = DTRAIN_VERSION;
  if (options_.output.files) {
    options_.job.check_plan = [this](const plan::Plan& plan) {
      return options_.output.files->Check(LayoutOf(plan, options_.job.job_id));
    };
  }
  options_.job.time_of_day = [](int64_t unix_nanos) {
    return absl::FormatTime("%H:%M:%S", absl::FromUnixNanos(unix_nanos), absl::LocalTimeZone());
  };
  return ways_.Prepare(hosts, options_.local);
}

transport::WayOptions PreparedLaunch::Telling(transport::WayOptions ways) {
  if (options_.verbose) {
    ways.on_detail = [this](const std::string& text) { Warn(absl::StrCat("dtrain: ", text)); };
  }
  return ways;
}

void PreparedLaunch::Warn(absl::string_view text) {
  if (!options_.quiet) router_.Say(text);
}

}  // namespace dtrain
