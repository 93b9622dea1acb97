// SPDX-License-Identifier: Apache-2.0
#include "launcher/migrate/options.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/values.h"
#include "launcher/cli/words.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::migrate {
namespace {

absl::Status Ignore(absl::string_view, cli::RawLaunch&) { return absl::OkStatus(); }

std::vector<cli::Flag> Flags() {
  constexpr absl::string_view kGroup = "Flags";
  return {
      {"--to", kGroup, "[USER@]HOST", "move the launcher to this machine", Ignore},
      {"--program", kGroup, "PATH", "path of dtrain on HOST; default: dtrain, from PATH there",
       Ignore},
      {"--ssh-port", kGroup, "PORT", "of HOST's ssh", Ignore},
      {"--ssh-config", kGroup, "FILE", "for ssh, instead of your own and the system's", Ignore},
      {"--rsh", kGroup, "COMMAND", "instead of ssh, as for dtrain launch: {host}, {user}, {port}",
       Ignore},
      {"--connect-timeout", kGroup, "DURATION", "how long to try to reach HOST, default 10s",
       Ignore},
      {"--receive", kGroup, "", "act as the receiving end; ssh runs this on HOST", Ignore},
      {"--json", kGroup, "", "print JSON", Ignore},
      {"--help,-h", kGroup, "", "print this help", Ignore},
  };
}

absl::Status Set(absl::string_view name, const std::string& value, Options& out) {
  absl::Status status;
  if (name == "to") {
    auto target = ParseTarget(value);
    if (target.ok()) out.to = std::move(*target);
    status = target.status();
  }
  if (name == "program") out.program = value;
  if (name == "program" && value.empty()) status = absl::InvalidArgumentError("it is empty");
  if (name == "ssh-config") out.ssh_config = value;
  if (name == "rsh") out.rsh = value;
  if (name == "receive") out.receives = value == "true";
  if (name == "json") out.json = value == "true";
  if (name == "ssh-port") {
    const auto port = cli::ParseNumber(value, 1, std::numeric_limits<uint16_t>::max());
    if (port.ok()) out.ssh_port = static_cast<uint16_t>(*port);
    status = port.status();
  }
  if (name == "connect-timeout") {
    const auto duration = cli::ParseDuration(value);
    if (duration.ok()) out.connect_timeout = *duration;
    status = duration.status();
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", status.message()));
}

absl::Status Read(const std::vector<std::string>& args, Options& out) {
  const std::vector<cli::Flag> flags = Flags();
  const auto words = cli::SplitMixed(flags, args);
  if (!words.ok()) return words.status();
  for (const cli::Given& one : words->flags) {
    const absl::string_view name = cli::FlagName(flags[static_cast<size_t>(one.flag)]);
    if (name == "help") out.help = cli::FormatHelp(PageOf("migrate"));
    if (absl::Status set = Set(name, one.value, out); !set.ok()) return set;
  }
  for (const std::string& job : words->operands) {
    if (!out.job.empty() || job.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected \"", Escape(job, 60), "\""));
    }
    out.job = job;
  }
  if (!out.help.empty() || out.receives || !out.to.host.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("name the machine with --to HOST");
}

}  // namespace

absl::StatusOr<transport::Target> ParseTarget(const std::string& text) {
  const auto list = hosts::ParseHostList(text, "HOST");
  if (!list.ok()) return list.status();
  const hosts::HostEntry& first = list->entries[0];
  if (list->entries.size() > 1 || first.slots) {
    return absl::InvalidArgumentError("name one host, without slots");
  }
  transport::Target target;
  target.host = first.host;
  target.user = first.user;
  target.port = first.port;
  return target;
}

cli::Page PageOf(absl::string_view) {
  cli::Page page;
  page.command = "dtrain migrate";
  page.text =
      "Moves the launcher of a detached job, with its output and its history, to another machine. "
      "The\nworkers run on and notice nothing.\n";
  page.usage = "dtrain migrate [--json] --to [USER@]HOST [JOB]";
  page.flags = Flags();
  page.notes =
      R"(JOB is an id, a name (--name), or the first four or more characters of an id, with or without
"dtrain-". Without JOB, the only running detached job that was launched from this directory. HOST needs dtrain, and must reach the job's hosts as this
machine does. If anything fails, the job stays here. The exit code is 0 if it has moved, otherwise 1; 2 for a
mistake on the command line, 207 if the job's folder cannot be used.
)";
  page.operand = cli::Page::Operand::kJob;
  return page;
}

absl::StatusOr<Options> Parse(const std::vector<std::string>& args) {
  Options options;
  const absl::Status status = Read({args.begin() + 1, args.end()}, options);
  if (status.ok()) return options;
  return absl::InvalidArgumentError(
      absl::StrCat("migrate: ", status.message(), "\nSee dtrain migrate --help"));
}

}  // namespace dtrain::migrate
