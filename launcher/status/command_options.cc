// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/command_options.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/cli/cli11.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/words.h"

namespace dtrain::status {
namespace {

struct Description {
  absl::string_view command;
  absl::string_view usage;
  absl::string_view text;
};

constexpr Description kDescriptions[] = {
    {"ps", "dtrain ps [--json]", "Lists the jobs that this user has launched on this machine."},
    {"status", "dtrain status [--json] [JOB]",
     "Shows a job: its phase, its nodes, and what each rank does."},
    {"top", "dtrain top [JOB]", "Shows a job like status, again every second, until it ends."},
    {"logs", "dtrain logs [-f] [--rank R] [--stream stdout|stderr] [JOB]",
     "Prints what a rank has written lately. A launcher keeps up to 1 MiB of each rank and\n"
     "stream; dtrain launch --log-dir keeps all."},
    {"stop", "dtrain stop [JOB]",
     "Ends a job as Ctrl-C does where it was launched, and waits until nothing of it is left."},
};

const Description& Describe(absl::string_view command) {
  return *std::find_if(std::begin(kDescriptions), std::end(kDescriptions),
                       [&](const Description& d) { return d.command == command; });
}

absl::Status Ignore(absl::string_view, cli::RawLaunch&) { return absl::OkStatus(); }

std::vector<cli::Flag> FlagsOf(absl::string_view command) {
  constexpr absl::string_view kGroup = "Flags";
  std::vector<cli::Flag> flags;
  if (command == "ps" || command == "status") {
    flags.push_back({"--json", kGroup, "", "for programs to read", Ignore});
  }
  if (command == "logs") {
    flags.push_back({"--follow,-f", kGroup, "", "go on until the job ends", Ignore});
    flags.push_back({"--rank,-r", kGroup, "RANK", "of this rank, default 0", Ignore});
    flags.push_back(
        {"--stream", kGroup, "NAME", "stdout (default) or stderr", Ignore, {"stdout", "stderr"}});
  }
  flags.push_back({"--help,-h", kGroup, "", "print this", Ignore});
  return flags;
}

absl::Status Set(absl::string_view name, const std::string& value, CommandOptions& out) {
  if (name == "json") out.json = value == "true";
  if (name == "follow") out.follow = value == "true";
  if (name == "rank" && !absl::SimpleAtoi(value, &out.rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank: \"", Escape(value, 60), "\" is no rank"));
  }
  if (name == "stream") {
    if (value != "stdout" && value != "stderr") {
      return absl::InvalidArgumentError(
          absl::StrCat("--stream: \"", Escape(value, 60), "\" is not stdout or stderr"));
    }
    out.stream = value;
  }
  return absl::OkStatus();
}

absl::Status Read(const std::vector<cli::Flag>& flags, std::vector<std::string> args,
                  CommandOptions& out) {
  // Flags may stand behind the job, too.
  while (!args.empty()) {
    absl::StatusOr<cli::Words> words = cli::SplitWords(flags, args);
    if (!words.ok()) return words.status();
    absl::StatusOr<std::vector<cli::Given>> given = cli::ParseFlags(flags, words->flags);
    if (!given.ok()) return given.status();
    for (const cli::Given& one : *given) {
      const absl::string_view name = cli::FlagName(flags[static_cast<size_t>(one.flag)]);
      if (name == "help") out.help = cli::FormatHelp(PageOf(out.command));
      if (absl::Status set = Set(name, one.value, out); !set.ok()) return set;
    }
    args = std::move(words->command);
    if (args.empty()) break;
    if (out.command == "ps" || !out.job.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected \"", Escape(args[0], 60), "\""));
    }
    out.job = args[0];
    args.erase(args.begin());
  }
  return absl::OkStatus();
}

}  // namespace

cli::Page PageOf(absl::string_view command) {
  const Description& description = Describe(command);
  cli::Page page;
  page.command = absl::StrCat("dtrain ", command);
  page.text = absl::StrCat(description.text, "\n");
  page.usage = std::string(description.usage);
  page.flags = FlagsOf(command);
  page.notes =
      R"(JOB is an id of dtrain ps, or how it begins; it can be left out when one job runs. The launcher of
the job is asked, over a socket that only this user and root can use.
)";
  page.operand = command == "ps" ? cli::Page::Operand::kNone : cli::Page::Operand::kJob;
  return page;
}

absl::StatusOr<CommandOptions> ParseCommand(const std::vector<std::string>& args) {
  CommandOptions options;
  options.command = args[0];
  const std::vector<cli::Flag> flags = FlagsOf(options.command);
  absl::Status status = Read(flags, {args.begin() + 1, args.end()}, options);
  if (status.ok()) return options;
  return absl::InvalidArgumentError(absl::StrCat(options.command, ": ", status.message(),
                                                 "\nSee dtrain ", options.command, " --help"));
}

}  // namespace dtrain::status
