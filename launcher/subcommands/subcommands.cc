// SPDX-License-Identifier: Apache-2.0
#include "launcher/subcommands/subcommands.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/bench/bench.h"
#include "launcher/bench/flags.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/help.h"
#include "launcher/cli/recorded.h"
#include "launcher/env/env.h"
#include "launcher/faces/face.h"
#include "launcher/history/commands.h"
#include "launcher/history/options.h"
#include "launcher/migrate/commands.h"
#include "launcher/migrate/options.h"
#include "launcher/reference/reference.h"
#include "launcher/status/command_options.h"
#include "launcher/status/commands.h"
#include "launcher/version/version.h"

namespace dtrain::subcommands {
namespace {

using Args = std::vector<std::string>;

const Subcommand* Find(absl::string_view name);

int UsageError(const absl::Status& status) {
  std::fprintf(stderr, "dtrain: %s\n", std::string(status.message()).c_str());
  return kExitUsage;
}

int Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

Args Behind(const Args& args) { return {args.begin() + 1, args.end()}; }

int Launch(const Program& program, const Args& args) {
  auto read = std::make_unique<v1::Spec>();
  absl::StatusOr<cli::Command> command =
      cli::ParseLaunch(args, cli::RecordInto(*read, cli::ProcessSurroundings()));
  if (!command.ok()) return UsageError(command.status());
  if (!command->help.empty()) return Print(command->help);
  return program.launch(std::move(command->launch), nullptr, std::move(read));
}

int LaunchAs(const Program& program, const Args& args) {
  const faces::Face& face = *faces::Find(args[0]);
  if (faces::WantsHelp(face, Behind(args))) return Print(cli::FormatHelp(faces::PageOf(face)));
  const cli::Surroundings surroundings = cli::ProcessSurroundings();
  const auto translation = face.translate(Behind(args), surroundings);
  if (!translation.ok()) {
    return UsageError(absl::InvalidArgumentError(absl::StrCat(
        args[0], ": ", translation.status().message(), "\nSee dtrain ", args[0], " --help")));
  }
  auto command = cli::ParseLaunch(faces::LaunchWords(*translation), surroundings);
  if (!command.ok()) return UsageError(command.status());
  command->launch.detach.words = args;  // for dtrain rerun
  return program.launch(std::move(command->launch), &*translation, nullptr);
}

int Env(const Program&, const Args& args) {
  return env::Run(Behind(args), cli::ProcessSurroundings());
}

cli::Page ResumePage(absl::string_view) {
  cli::Page page;
  page.command = "dtrain resume";
  page.text =
      "Is the launcher of a job that was launched with -d, from where the one before it left the\n"
      "job. dtrain launch -d starts one, and so does dtrain attach where a job has none.\n";
  page.usage = "dtrain resume JOB";
  page.flags = {reference::HelpFlag()};
  return page;
}

int Resume(const Program& program, const Args& args) {
  if (args.size() == 2 && (args[1] == "--help" || args[1] == "-h")) {
    return Print(cli::FormatHelp(ResumePage("")));
  }
  return program.launcher(args);
}

int Status(const Program&, const Args& args) { return status::RunCommand(args); }

// Words of a job as it was launched, with `dtrain launch` or another launcher's command line.
int LaunchAgain(const Program& program, const Args& words) {
  for (const auto run : {Launch, LaunchAs}) {
    const Subcommand* command = words.empty() ? nullptr : Find(words[0]);
    if (command != nullptr && command->run == run) return run(program, words);
  }
  return UsageError(absl::InvalidArgumentError(
      absl::StrCat("rerun: the job's command line is not known to this version: ",
                   words.empty() ? "it is empty" : Escape(words[0], 60))));
}

int History(const Program& program, const Args& args) {
  return history::RunCommand(args, [&](const Args& words) { return LaunchAgain(program, words); });
}

int Migrate(const Program&, const Args& args) { return migrate::RunCommand(args); }

int Bench(const Program&, const Args& args) {
  const auto options = bench::Parse(Behind(args));
  if (!options.ok()) return UsageError(options.status());
  return bench::Run(*options, cli::ProcessSurroundings().environment);
}

int Describe(const Program& program, const Args& args) {
  return reference::RunCommand(Reference(), args, program.release);
}

cli::Page VersionPage(absl::string_view) {
  cli::Page page;
  page.command = "dtrain version";
  page.text = "Prints the version.\n";
  page.usage = "dtrain version [--verbose]";
  page.flags = {
      {"--verbose,-v", "Flags", "",
       "also print the build, the libraries inside, and the libssh and agent in use", nullptr},
      reference::HelpFlag()};
  return page;
}

int Version(const Program& program, const Args& args) {
  const std::string version(program.release.version);
  if (args.size() == 1) return Print(absl::StrCat("dtrain ", version, "\n"));
  const bool is_verbose = args[1] == "--verbose" || args[1] == "-v";
  if (args.size() == 2 && is_verbose) return Print(version::Describe(version));
  if (args.size() == 2 && (args[1] == "--help" || args[1] == "-h")) {
    return Print(cli::FormatHelp(VersionPage("")));
  }
  const std::string& odd = is_verbose ? args[2] : args[1];
  return UsageError(absl::InvalidArgumentError(
      absl::StrCat("version: unexpected ", Escape(odd, 60), "\nSee dtrain version --help")));
}

cli::Page LaunchPage(absl::string_view) { return cli::LaunchPage(); }
cli::Page FacePage(absl::string_view name) { return faces::PageOf(*faces::Find(name)); }
cli::Page EnvPage(absl::string_view) { return env::EnvPage(); }
cli::Page BenchPage(absl::string_view) { return bench::GeneralPage(); }
cli::Page CompletionPage(absl::string_view) { return reference::CompletionPage(); }
cli::Page ManPage(absl::string_view) { return reference::ManPage(); }

constexpr absl::string_view kStart = "Start a job";
constexpr absl::string_view kLook = "Look at jobs";
constexpr absl::string_view kSteer = "Steer and end jobs";
constexpr absl::string_view kTools = "Hosts and tools";
constexpr absl::string_view kHidden = "";

constexpr Subcommand kAll[] = {
    {"launch", kStart, "start a job and wait for it to finish", LaunchPage, Launch},
    {"torchrun", kStart, "launch, with the command line of torchrun", FacePage, LaunchAs},
    {"mpirun", kStart, "launch, with the command line of mpirun", FacePage, LaunchAs},
    {"mpiexec", kHidden, "the same as mpirun", FacePage, LaunchAs},
    {"deepspeed", kStart, "launch, with the command line of DeepSpeed's launcher", FacePage,
     LaunchAs},
    {"accelerate", kStart, "launch, with the command line of accelerate launch", FacePage,
     LaunchAs},
    {"fabric", kStart, "launch, with the command line of Lightning's fabric run", FacePage,
     LaunchAs},
    {"horovodrun", kStart, "launch, with the command line of horovodrun", FacePage, LaunchAs},
    {"rerun", kStart, "launch a job again", history::PageOf, History},
    {"env", kStart, "print the environment that a worker would get, and why", EnvPage, Env},
    {"ps", kLook, "list running jobs", status::PageOf, Status},
    {"status", kLook, "show a job and its ranks", status::PageOf, Status},
    {"top", kLook, "like status, refreshed every second", status::PageOf, Status},
    {"page", kLook, "show a job in a web browser", status::PageOf, Status},
    {"logs", kLook, "print the output of a job; -f follows it", status::PageOf, Status},
    {"history", kLook, "list jobs that have ended", history::PageOf, History},
    {"show", kLook, "show all of a job, running or ended", history::PageOf, History},
    {"attach", kSteer, "follow a detached job until it ends", history::PageOf, History},
    {"wait", kSteer, "wait until detached jobs have ended", history::PageOf, History},
    {"detach", kSteer, "let a job go on without its terminal", status::PageOf, Status},
    {"migrate", kSteer, "move a detached job's launcher to another machine", migrate::PageOf,
     Migrate},
    {"stop", kSteer, "end a job", status::PageOf, Status},
    {"rm", kSteer, "remove jobs that have ended", history::PageOf, History},
    {"prune", kSteer, "remove old jobs", history::PageOf, History},
    {"resume", kHidden, "be the launcher of a job that has none", ResumePage, Resume},
    {"nodes", kTools, "show hosts: their cores, GPUs and jobs", status::PageOf, Status},
    {"bench", kTools, "measure communication and scaling", BenchPage, Bench},
    {"completion", kTools, "print a completion script for your shell", CompletionPage, Describe},
    {"man", kTools, "print a manual page", ManPage, Describe},
    {"version", kTools, "print the version", VersionPage, Version},
};

cli::Page GeneralPage() {
  cli::Page page;
  page.command = "dtrain";
  page.text = "dtrain runs a program on many machines as one job.\n";
  page.usage = "dtrain COMMAND ...";
  page.list_title = "Commands";
  for (const Subcommand& entry : kAll) {
    page.list.push_back({std::string(entry.name), std::string(entry.summary)});
  }
  page.examples = R"(  dtrain launch -np 4 python3 train.py
  dtrain launch --hostfile hosts.txt python3 train.py
  dtrain launch -H node1:8,node2:8 -x NCCL_DEBUG=INFO python3 train.py
)";
  page.notes = "dtrain help COMMAND explains a command and its flags.\n";
  page.operand = cli::Page::Operand::kListed;
  return page;
}

// As dtrain --help lists the commands: in groups, other launchers' on one line.
std::string GeneralHelp() {
  cli::Page page = GeneralPage();
  std::vector<absl::string_view> faces;
  for (const Subcommand& entry : kAll) {
    if (entry.run == LaunchAs && entry.group != kHidden) faces.push_back(entry.name);
  }
  page.list.clear();
  for (const Subcommand& entry : kAll) {
    if (entry.group == kHidden) continue;
    if (entry.run != LaunchAs) {
      page.list.push_back(
          {std::string(entry.name), std::string(entry.summary), std::string(entry.group)});
    } else if (entry.name == faces.front()) {
      page.list.push_back({absl::StrJoin(faces, ", "),
                           "the same, with the command line of that launcher",
                           std::string(entry.group)});
    }
  }
  return cli::FormatHelp(page);
}

void AddBenchTools(std::vector<reference::Command>& commands) {
  const std::vector<cli::Page::Entry> tools = bench::GeneralPage().list;
  for (size_t i = 0; i < tools.size(); ++i) {
    reference::Command command =
        reference::CommandOf(bench::PageOf(static_cast<bench::Tool>(i)), tools[i].summary);
    const std::vector<cli::Flag> own = command.accepts;
    for (const cli::Flag& flag : cli::LaunchFlags()) {
      const absl::string_view name = cli::FlagName(flag);
      if (!bench::IsTaken(name) && cli::FindLong(own, name) < 0) command.accepts.push_back(flag);
    }
    commands.push_back(std::move(command));
  }
}

const Subcommand* Find(absl::string_view name) {
  const auto* it = std::find_if(std::begin(kAll), std::end(kAll),
                                [&](const Subcommand& entry) { return entry.name == name; });
  return it == std::end(kAll) ? nullptr : it;
}

// Commands of docker, kubectl, git and the schedulers, and which of ours does that.
constexpr std::pair<absl::string_view, absl::string_view> kElsewhere[] = {
    {"run", "launch"},     {"exec", "launch"},      {"start", "launch"},
    {"srun", "launch"},    {"submit", "launch -d"}, {"sbatch", "launch -d"},
    {"qsub", "launch -d"}, {"bsub", "launch -d"},   {"list", "ps"},
    {"ls", "ps"},          {"jobs", "ps"},          {"squeue", "ps"},
    {"qstat", "ps"},       {"bjobs", "ps"},         {"get", "ps"},
    {"kill", "stop"},      {"cancel", "stop"},      {"scancel", "stop"},
    {"qdel", "stop"},      {"bkill", "stop"},       {"terminate", "stop"},
    {"down", "stop"},      {"delete", "rm"},        {"remove", "rm"},
    {"clean", "prune"},    {"log", "logs"},         {"tail", "logs -f"},
    {"inspect", "show"},   {"describe", "show"},    {"info", "show"},
    {"sacct", "history"},  {"restart", "rerun"},    {"retry", "rerun"},
    {"sinfo", "nodes"},    {"hosts", "nodes"},      {"dashboard", "page"},
    {"ui", "page"},        {"web", "page"},         {"monitor", "top"},
    {"bg", "detach"},      {"fg", "attach"},        {"benchmark", "bench"},
};

// A program, or a flag of launch, that stands where the command should.
bool BelongsToLaunch(absl::string_view word) {
  if (absl::StartsWith(word, "-")) return true;
  return absl::StrContains(word, '/') || absl::EndsWith(word, ".py") ||
         absl::EndsWith(word, ".sh") || absl::StartsWith(word, "python");
}

std::string WhatWasMeant(const std::string& name) {
  for (const auto& [theirs, ours] : kElsewhere) {
    if (name == theirs) return absl::StrCat("; did you mean dtrain ", ours, "?");
  }
  std::vector<std::string> known = {"--help", "--version"};
  if (!BelongsToLaunch(name)) {
    known = {"help"};
    for (const Subcommand& entry : kAll) known.emplace_back(entry.name);
  }
  std::string near = DidYouMean(name, known);
  if (near.empty() && BelongsToLaunch(name)) {
    near = absl::StrCat("; did you mean dtrain launch ", Escape(name, 80), " ...?");
  }
  return near;
}

int Unknown(const std::string& name) {
  return UsageError(absl::InvalidArgumentError(absl::StrCat(
      "unknown command ", Escape(name, 80), WhatWasMeant(name), "\nSee dtrain --help")));
}

// dtrain help COMMAND...
int Help(const Program& program, Args words) {
  if (words.empty() || words[0] == "help" || words[0] == "--help" || words[0] == "-h") {
    return Print(GeneralHelp());
  }
  const Subcommand* command = Find(words[0]);
  if (command == nullptr) return Unknown(words[0]);
  // Behind a program, or a flag that takes a value, it would be theirs.
  words.resize(command->run == Bench && words.size() > 1 ? 2 : 1);
  words.emplace_back("--help");
  return command->run(program, words);
}

}  // namespace

absl::Span<const Subcommand> All() { return kAll; }

std::vector<reference::Command> Reference() {
  std::vector<reference::Command> commands;
  commands.push_back(
      reference::CommandOf(GeneralPage(), "run a program on many machines as one job"));
  commands[0].accepts = {reference::HelpFlag(),
                         {"--version,-V", "Flags", "", "print the version", nullptr}};
  for (const Subcommand& entry : kAll) {
    commands.push_back(reference::CommandOf(entry.page(entry.name), entry.summary));
    if (entry.run == Bench) AddBenchTools(commands);
  }
  reference::ListPages(commands);
  return commands;
}

int Run(const Program& program, const std::vector<std::string>& args) {
  if (args.empty()) {
    return UsageError(absl::InvalidArgumentError("no command given. See dtrain --help"));
  }
  const std::string& name = args[0];
  if (name == "help") return Help(program, Behind(args));
  if (name == "--help" || name == "-h") return Print(GeneralHelp());
  if (name == "--version" || name == "-V") return Version(program, args);
  const Subcommand* command = Find(name);
  return command == nullptr ? Unknown(name) : command->run(program, args);
}

}  // namespace dtrain::subcommands
