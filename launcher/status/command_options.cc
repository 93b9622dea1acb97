// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/command_options.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/text.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/values.h"
#include "launcher/cli/words.h"

namespace dtrain::status {
namespace {

struct Description {
  absl::string_view command;
  absl::string_view usage;
  absl::string_view text;
};

constexpr Description kDescriptions[] = {
    {"ps", "dtrain ps [-a] [-H HOSTS] [--json]",
     "Lists the jobs that you have launched on this machine, your detached jobs, and the jobs "
     "that\n"
     "the resident agents of the named hosts report; without hosts, those of this machine."},
    {"status", "dtrain status [-H HOSTS] [--json] [JOB]",
     "Shows a job: its phase, its nodes, and what each rank does."},
    {"top", "dtrain top [-H HOSTS] [JOB]",
     "Shows a job as status does, refreshed every second, until it ends."},
    {"page", "dtrain page [--listen [IP:]PORT] [--open] [JOB | --node [HOST]]",
     "Shows a job in a web browser: its ranks, their output, who is late, what has happened; or "
     "with\n"
     "--node a node: its GPUs, the jobs on it, and its problems. It prints a link, and ends with\n"
     "Ctrl-C."},
    {"logs",
     "dtrain logs [-f] [--rank R] [--stream stdout|stderr] [-t] [--since TIME] [--tail N] "
     "[--attempt K]\n"
     "            [--raw] [--json] [-H HOSTS] [JOB]",
     "Prints the output of a job, rank by rank, the first rank that failed before the others. "
     "Lines\n"
     "begin with \"[3] \", or \"[3 stderr] \", for rank 3. With --rank the bytes of that rank "
     "are printed as\n"
     "it wrote them, on stdout and stderr."},
    {"stop", "dtrain stop [--json] [-H HOSTS] [JOB]",
     "Ends a job, as Ctrl-C would where it was launched, and waits until all of it is gone.\n"
     "Given again 3 s later or more, it kills the job's workers at once."},
    {"detach", "dtrain detach [--json] [JOB]",
     "Lets a job go on without the terminal it was launched from, as if it had been launched with "
     "-d."},
    {"nodes", "dtrain nodes [--hostfile FILE | -H HOSTS] [--json]",
     "Shows nodes: whether their resident agents answer, which cores and GPUs are free, the\n"
     "state of the GPUs, and the jobs that hold them. Without hosts, this machine."},
};

const Description& Describe(absl::string_view command) {
  return *std::find_if(std::begin(kDescriptions), std::end(kDescriptions),
                       [&](const Description& d) { return d.command == command; });
}

absl::Status Ignore(absl::string_view, cli::RawLaunch&) { return absl::OkStatus(); }

std::vector<cli::Flag> FlagsOf(absl::string_view command) {
  constexpr absl::string_view kGroup = "Flags";
  std::vector<cli::Flag> flags;
  if (command == "page") {
    flags.push_back({"--node", kGroup, "", "show a node: HOST, or this machine", Ignore});
    flags.push_back({"--listen", kGroup, "[IP:]PORT",
                     "where to listen, on loopback; default 127.0.0.1 and any free port", Ignore});
    flags.push_back({"--open", kGroup, "", "open the page with $BROWSER or xdg-open", Ignore});
  }
  if (command != "top" && command != "page") {
    flags.push_back({"--json", kGroup, "", "print JSON", Ignore});
  }
  if (command == "ps") {
    flags.push_back({"--all,-a", kGroup, "", "also jobs that have ended", Ignore});
  }
  if (command == "logs") {
    flags.push_back({"--follow,-f", kGroup, "", "follow the output until the job ends", Ignore});
    flags.push_back({"--raw", kGroup, "",
                     "print another user's output as written; on a terminal, control characters "
                     "in it are shown as text otherwise",
                     Ignore});
    flags.push_back({"--rank,-r", kGroup, "RANK", "only this rank", Ignore});
    flags.push_back({"--stream",
                     kGroup,
                     "NAME",
                     "only stdout or stderr; it is printed on stdout",
                     Ignore,
                     {"stdout", "stderr"}});
    flags.push_back({"--timestamps,-t", kGroup, "",
                     "begin each line with the time when the launcher got it", Ignore});
    flags.push_back({"--since", kGroup, "TIME",
                     "only what came in the last 10m (or 90s, 2h, 1d), or since\n"
                     "\"2026-11-27 04:00\"",
                     Ignore});
    flags.push_back({"--tail", kGroup, "N",
                     "begin with the last N lines of each rank and stream (not of a job\n"
                     "with a terminal while it runs)",
                     Ignore});
    flags.push_back({"--attempt", kGroup, "K", "of attempt K, default the last", Ignore});
  }
  flags.push_back({"--help,-h", kGroup, "", "print this help", Ignore});
  if (command == "detach") return flags;
  for (cli::Flag& flag : cli::HostFlags()) flags.push_back(std::move(flag));
  return flags;
}

// "10m": so long before now. Else a time of day in the user's zone, as docker and journalctl take
// it.
absl::StatusOr<absl::Time> ParseSince(const std::string& text, absl::Time now,
                                      absl::TimeZone zone) {
  if (const auto ago = cli::ParseDuration(text); ago.ok()) {
    return now - absl::FromChrono(std::chrono::duration_cast<std::chrono::nanoseconds>(*ago));
  }
  for (const char* format :
       {"%Y-%m-%d%ET%H:%M:%E*S%Ez", "%Y-%m-%d%ET%H:%M:%E*S", "%Y-%m-%d%ET%H:%M",
        "%Y-%m-%d %H:%M:%E*S", "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    absl::Time time;
    std::string error;
    if (absl::ParseTime(format, text, zone, &time, &error)) return time;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--since: \"", Escape(text, 60),
                   "\" is neither a duration, such as 10m, nor a time, such as \"2026-11-27 "
                   "04:00\""));
}

absl::Status Set(absl::string_view name, const std::string& value, CommandOptions& out) {
  if (name == "json") out.json = value == "true";
  if (name == "listen") out.listen = value;
  if (name == "open") out.open = value == "true";
  if (name == "node") out.node = value == "true";
  if (name == "all") out.all = value == "true";
  if (name == "raw") out.raw = value == "true";
  if (name == "follow") out.follow = value == "true";
  if (name == "timestamps") out.timestamps = value == "true";
  if (name == "rank" && !absl::SimpleAtoi(value, &out.rank.emplace())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank: \"", Escape(value, 60), "\" is not a rank"));
  }
  if (name == "since") {
    const auto since = ParseSince(value, absl::Now(), absl::LocalTimeZone());
    if (!since.ok()) return since.status();
    out.since_unix_nanos = absl::ToUnixNanos(*since);
  }
  if (name == "attempt") {
    const auto attempt = cli::ParseNumber(value, 0, std::numeric_limits<uint32_t>::max());
    if (!attempt.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--attempt: ", attempt.status().message()));
    }
    out.attempt = static_cast<uint32_t>(*attempt);
  }
  if (name == "tail") {
    const auto lines = cli::ParseNumber(value, 0, std::numeric_limits<uint64_t>::max());
    if (!lines.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--tail: ", lines.status().message()));
    }
    out.tail = *lines;
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

void AddHostWords(const cli::Flag& flag, const std::string& value, CommandOptions& out) {
  const absl::string_view name = cli::FlagName(flag);
  out.names_hosts = out.names_hosts || name == "hosts" || name == "hostfile";
  out.host_words.push_back(absl::StrCat("--", name, flag.value.empty() ? "=" + value : ""));
  if (!flag.value.empty()) out.host_words.push_back(value);
}

absl::Status Read(const std::vector<cli::Flag>& flags, const std::vector<std::string>& args,
                  CommandOptions& out) {
  const auto words = cli::SplitMixed(flags, args);
  if (!words.ok()) return words.status();
  for (const cli::Given& one : words->flags) {
    const cli::Flag& flag = flags[static_cast<size_t>(one.flag)];
    const absl::string_view name = cli::FlagName(flag);
    if (cli::FindLong(cli::HostFlags(), name) >= 0) {
      AddHostWords(flag, one.value, out);
      continue;
    }
    if (name == "help") out.help = cli::FormatHelp(PageOf(out.command));
    if (absl::Status set = Set(name, one.value, out); !set.ok()) return set;
  }
  for (const std::string& job : words->operands) {
    if (out.command == "ps" || out.command == "nodes" || !out.job.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected \"", Escape(job, 60), "\""));
    }
    out.job = job;
  }
  if (out.command == "page" && !out.node && !out.host_words.empty()) {
    return absl::InvalidArgumentError(
        "flags about hosts, as -H, are for a node's page; add --node, or leave them out");
  }
  return absl::OkStatus();
}

absl::string_view NotesOn(absl::string_view command) {
  if (command == "nodes") {
    return R"(All hosts are queried at once, by ssh or over TCP with TLS as in dtrain launch, and each has
--connect-timeout to answer. "no agent": the host was reached, but no resident agent of this build
runs there. "quarantined": SIGKILL does not end a process of a job there, and the host takes no jobs
of that user until that process has ended. The exit code is 0 if all hosts answered, otherwise 200.
)";
  }
  if (command == "page") {
    return R"(JOB is an id as dtrain ps shows it, or its first four or more characters, or a name; leave it out if only one
job is running. It must have been launched on this machine; one that was launched with -d may have
ended. With --node, HOST is a host as dtrain nodes takes it, by ssh or over TCP with TLS; a
configured hostfile that lists HOST says how to reach it. The page only reads. Its link has a token
that lets in anyone who has it while this command runs, so it is printed to a terminal only. From
another machine: give --listen a port, run ssh -L PORT:127.0.0.1:PORT HOST there, and open the link
there.
)";
  }
  if (command == "logs") {
    return R"(JOB is an id as dtrain ps shows it, or its first four or more characters, or a name; leave it out if
only one job is running. Of a detached job up to --log-limit is kept, also after its end. Of other
jobs the launcher keeps up to 1 MiB of each rank and stream, also after the end; dtrain launch
--log-dir keeps everything. With -H, or where the launcher is not on this machine, the resident agents of
the hosts are asked, which know no times. They answer to the job's owner and to admins.
)";
  }
  if (command == "detach") {
    return R"(JOB is an id as dtrain ps shows it, or its first four or more characters; without it, the only running
job that was launched from this directory. Its workers go on, and notice nothing but the end of their stdin. dtrain launch ends where it
was started, with exit code 210. From then on dtrain attach, wait, stop and show know the job; its
output is kept from then on, and the last of what came before. Hosts without a resident agent get a private one.
)";
  }
  return R"(JOB is an id as dtrain ps shows it, or its first four or more characters, or the name of a detached job; leave
it out if only one job is running. For dtrain stop, leave it out if only one running job was launched
from this directory. If the job was launched on this machine, its launcher answers, over a socket that only this
user and root can use; otherwise the resident agents of the named hosts, or of this machine. They
answer to the job's owner and to admins.
)";
}

}  // namespace

cli::Page PageOf(absl::string_view command) {
  const Description& description = Describe(command);
  cli::Page page;
  page.command = absl::StrCat("dtrain ", command);
  page.text = absl::StrCat(description.text, "\n");
  page.usage = std::string(description.usage);
  page.flags = FlagsOf(command);
  page.notes = std::string(NotesOn(command));
  page.operand =
      command == "ps" || command == "nodes" ? cli::Page::Operand::kNone : cli::Page::Operand::kJob;
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
