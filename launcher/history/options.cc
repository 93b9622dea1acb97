// SPDX-License-Identifier: Apache-2.0
#include "launcher/history/options.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/text.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/values.h"
#include "launcher/cli/words.h"

namespace dtrain::history {
namespace {

constexpr size_t kAny = std::numeric_limits<size_t>::max();

struct Description {
  absl::string_view command;
  absl::string_view usage;
  absl::string_view text;
  size_t least_jobs;
  size_t most_jobs;
  absl::string_view notes;
};

constexpr absl::string_view kJobNotes =
    R"(JOB is an id, a name (--name), or the first four or more characters of an id, with or without
"dtrain-". Of several jobs with one name, the running one counts, otherwise the last.
)";

constexpr Description kDescriptions[] = {
    {"attach", "dtrain attach [--tail N] [--json] [JOB]",
     "Shows the output of a detached job: the last lines of each rank, then what they write, "
     "until\n"
     "the job ends, and then its failure report. Ctrl-C leaves; the job goes on.",
     0, 1,
     R"(Without JOB, the only detached job that is running. Of an ended job, its output and report are
printed at once. If the launcher of the job was lost, a new one is started. The exit code is that
of the job; 0 after Ctrl-C.
)"},
    {"wait", "dtrain wait [--timeout DURATION] [--json] JOB...",
     "Waits until all of these detached jobs have ended.", 1, kAny,
     R"(If the launcher of a job was lost, a new one is started. The exit code is the first of the jobs' that
is not 0, in the order in which they were named; 210 when --timeout was reached.
)"},
    {"history", "dtrain history [--limit N] [--json]",
     "Lists jobs that have ended, the last one first.", 0, 0, ""},
    {"show", "dtrain show [--json] JOB",
     "Shows all of a job: what was asked for, its attempts, how it ended, and its report.", 1, 1,
     ""},
    {"rerun", "dtrain rerun JOB",
     "Launches a job again: the same words and DTRAIN_ variables, in the same working directory, "
     "with\n"
     "the rest of your present environment. The new job has a new id, and is detached if the old "
     "one\n"
     "was.",
     1, 1,
     "Files that the words name are read again. A --key is left out, as it would name the old "
     "job, and\n--launcher-on, as the launcher runs here.\n"},
    {"rm", "dtrain rm [--force] [--json] JOB...",
     "Removes jobs that have ended, with all of their output.", 1, kAny, ""},
    {"prune", "dtrain prune [--keep-age DURATION] [--keep-jobs N] [--keep-bytes SIZE] [--json]",
     "Removes the oldest jobs that have ended, until all of these limits hold. Jobs that were\n"
     "launched with --keep stay.",
     0, 0,
     R"(keep, jobs and bytes are read from the section [history] of the configuration file. When a
job ends, its launcher removes old ones by the same rule, a hundred at most. The limits on the number
hold for detached jobs and for others each.
)"},
};

const Description* Find(absl::string_view command) {
  const auto* at = std::find_if(std::begin(kDescriptions), std::end(kDescriptions),
                                [&](const Description& d) { return d.command == command; });
  return at == std::end(kDescriptions) ? nullptr : at;
}

absl::Status Ignore(absl::string_view, cli::RawLaunch&) { return absl::OkStatus(); }

std::vector<cli::Flag> FlagsOf(absl::string_view command) {
  constexpr absl::string_view kGroup = "Flags";
  std::vector<cli::Flag> flags;
  const auto add = [&](absl::string_view names, absl::string_view value, absl::string_view help) {
    flags.push_back({names, kGroup, value, help, Ignore});
  };
  if (command == "attach") {
    add("--tail", "N", "begin with the last N lines of each rank and stream, default 20");
  }
  if (command == "wait") add("--timeout", "DURATION", "wait no longer than this: 30s, 10m, 2h");
  if (command == "history") add("--limit", "N", "list N jobs, default 100; 0: all");
  if (command == "prune") {
    add("--keep-age", "DURATION", "remove jobs that ended longer ago; default: keep, or 30d");
    add("--keep-jobs", "N", "keep N ended jobs; default: jobs, or 500");
    add("--keep-bytes", "SIZE", "keep so much in their folders; default: bytes, or 20G");
  }
  if (command == "rm") {
    add("--force", "",
        "also a job whose files are damaged, or that has not ended and has no launcher");
  }
  if (command != "rerun") add("--json", "", "print JSON");
  add("--help,-h", "", "print this help");
  return flags;
}

absl::Status Set(absl::string_view name, const std::string& value, Options& out) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  absl::Status status;
  const auto number = [&](uint64_t& to) {
    const auto parsed = cli::ParseNumber(value, 0, kMost);
    if (parsed.ok()) to = *parsed;
    status = parsed.status();
  };
  if (name == "json") out.json = value == "true";
  if (name == "force") out.force = value == "true";
  if (name == "tail") number(out.tail);
  if (name == "limit") number(out.limit);
  if (name == "keep-jobs") {
    uint64_t jobs = 0;
    number(jobs);
    out.keep_jobs = jobs;
  }
  if (name == "keep-bytes") {
    const auto bytes = cli::ParseSize(value);
    if (bytes.ok()) out.keep_bytes = *bytes;
    status = bytes.status();
  }
  if (name == "keep-age" || name == "timeout") {
    const auto duration = cli::ParseDuration(value);
    status = duration.status();
    if (duration.ok() && name == "timeout") out.timeout = *duration;
    if (duration.ok() && name == "keep-age") {
      out.keep_age =
          absl::FromChrono(std::chrono::duration_cast<std::chrono::nanoseconds>(*duration));
    }
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", status.message()));
}

absl::Status Read(const std::vector<cli::Flag>& flags, const std::vector<std::string>& args,
                  Options& out) {
  auto words = cli::SplitMixed(flags, args);
  if (!words.ok()) return words.status();
  for (const cli::Given& one : words->flags) {
    const absl::string_view name = cli::FlagName(flags[static_cast<size_t>(one.flag)]);
    if (name == "help") out.help = cli::FormatHelp(PageOf(out.command));
    if (absl::Status set = Set(name, one.value, out); !set.ok()) return set;
  }
  out.jobs = std::move(words->operands);
  if (!out.help.empty()) return absl::OkStatus();
  const Description& description = *Find(out.command);
  if (out.jobs.size() < description.least_jobs) return absl::InvalidArgumentError("name a job");
  if (out.jobs.size() > description.most_jobs) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected \"", Escape(out.jobs[description.most_jobs], 60), "\""));
  }
  for (const std::string& job : out.jobs) {
    if (job.empty()) return absl::InvalidArgumentError("the name of a job is empty");
  }
  return absl::OkStatus();
}

}  // namespace

cli::Page PageOf(absl::string_view command) {
  const Description& description = *Find(command);
  cli::Page page;
  page.command = absl::StrCat("dtrain ", command);
  page.text = absl::StrCat(description.text, "\n");
  page.usage = std::string(description.usage);
  page.flags = FlagsOf(command);
  page.notes = std::string(description.notes);
  if (description.most_jobs > 0) page.notes = absl::StrCat(kJobNotes, page.notes);
  page.operand = description.most_jobs > 0 ? cli::Page::Operand::kJob : cli::Page::Operand::kNone;
  return page;
}

absl::StatusOr<Options> Parse(const std::vector<std::string>& args) {
  Options options;
  options.command = args[0];
  const absl::Status status =
      Read(FlagsOf(options.command), {args.begin() + 1, args.end()}, options);
  if (status.ok()) return options;
  return absl::InvalidArgumentError(absl::StrCat(options.command, ": ", status.message(),
                                                 "\nSee dtrain ", options.command, " --help"));
}

}  // namespace dtrain::history
