// SPDX-License-Identifier: Apache-2.0
// dtrain: the wiring of its subcommands and nothing else.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/os/crash.h"
#include "common/os/leave.h"
#include "common/os/scheduling.h"
#include "launcher/bench/bench.h"
#include "launcher/cli/options.h"
#include "launcher/env/env.h"
#include "launcher/faces/face.h"
#include "launcher/layout_of.h"
#include "launcher/plan/plan.h"
#include "launcher/reference/reference.h"
#include "launcher/report/containers.h"
#include "launcher/runner.h"
#include "launcher/status/commands.h"
#include "launcher/version/version.h"

namespace {

using dtrain::cli::Command;

// Opens descriptors 0, 1 and 2 on /dev/null where they were closed. Otherwise the next descriptor
// would become our stdin or stdout, and the first ones are opened by static initialisers of
// libraries: so this runs before all of them, and before a sanitizer is ready.
__attribute__((no_sanitize("address", "undefined", "thread"))) void OpenStandardFds(int, char**,
                                                                                    char**) {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (syscall(SYS_fcntl, fd, F_GETFD) < 0) syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
  }
}
__attribute__((section(".preinit_array"), used)) void (*const kOpenFirst)(int, char**,
                                                                          char**) = OpenStandardFds;

int UsageError(const absl::Status& status) {
  std::fprintf(stderr, "dtrain: %s\n", std::string(status.message()).c_str());
  return dtrain::kExitUsage;
}

// --dry-run needs no node when the hostfile names the slots.
bool DryRunFromTheHostfileAlone(const dtrain::cli::LaunchOptions& options) {
  return options.job.dry_run && dtrain::plan::NeedsNoInventory(options.hosts, options.job.plan);
}

int PrintPlan(const dtrain::cli::LaunchOptions& options) {
  auto plan = dtrain::plan::Place(options.hosts, {}, options.job.plan);
  if (!plan.ok()) return UsageError(plan.status());
  if (options.output.files) {
    absl::Status names = options.output.files->Check(dtrain::LayoutOf(*plan, "job"));
    if (!names.ok()) return UsageError(names);
  }
  for (const std::string& warning : plan->warnings) {
    std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
  }
  std::fputs(dtrain::plan::FormatRankTable(*plan).c_str(), stdout);
  std::fputs(dtrain::report::ContainerLines(options.job.part).c_str(), stdout);
  return dtrain::kExitOk;
}

// `translation`: of another launcher's command line; null: it was our own.
int Launch(dtrain::cli::LaunchOptions options, const dtrain::faces::Translation* translation) {
  if (translation != nullptr) dtrain::faces::BeforeHosts(*translation, options);
  absl::Status loaded = dtrain::cli::LoadHosts(options, dtrain::cli::ProcessSurroundings());
  if (loaded.ok() && translation != nullptr) {
    loaded = dtrain::faces::AfterHosts(*translation, options);
  }
  if (!loaded.ok()) return UsageError(loaded);
  absl::Status numbers = dtrain::plan::CheckNumbers(options.hosts, options.job.plan);
  if (numbers.ok() && options.job.min_nodes > options.hosts.entries.size()) {
    numbers = absl::InvalidArgumentError(absl::StrCat(
        "--min-nodes ", options.job.min_nodes, ": the host list has ", options.hosts.entries.size(),
        options.hosts.entries.size() == 1 ? " host" : " hosts"));
  }
  if (!numbers.ok()) return UsageError(numbers);
  if (DryRunFromTheHostfileAlone(options)) return PrintPlan(options);
  // Never destroyed: gRPC's threads still post the end of calls that were cancelled when the runner
  // went, until the process leaves.
  static auto& loop = *new dtrain::loop::Loop;
  dtrain::Runner runner(loop, std::move(options));
  return runner.Run();
}

int Bench(const std::vector<std::string>& args) {
  const auto options = dtrain::bench::Parse(args);
  if (!options.ok()) return UsageError(options.status());
  return dtrain::bench::Run(*options, dtrain::cli::ProcessSurroundings().environment);
}

int LaunchAs(const dtrain::faces::Face& face, const std::vector<std::string>& args) {
  if (dtrain::faces::WantsHelp(face, args)) {
    std::fputs(dtrain::cli::FormatHelp(dtrain::faces::PageOf(face)).c_str(), stdout);
    return dtrain::kExitOk;
  }
  const dtrain::cli::Surroundings surroundings = dtrain::cli::ProcessSurroundings();
  const auto translation = face.translate(args, surroundings);
  if (!translation.ok()) {
    const std::string name(face.name);
    return UsageError(absl::InvalidArgumentError(absl::StrCat(
        name, ": ", translation.status().message(), "\nSee dtrain ", name, " --help")));
  }
  auto command =
      dtrain::cli::ParseCommandLine(dtrain::faces::LaunchWords(*translation), surroundings);
  if (!command.ok()) return UsageError(command.status());
  return Launch(std::move(command->launch), &*translation);
}

bool WantsAllVersions(const std::vector<std::string>& args) {
  return args.size() == 2 && (args[0] == "version" || args[0] == "--version" || args[0] == "-V") &&
         (args[1] == "--verbose" || args[1] == "-v");
}

// A link to us of another launcher's name is that launcher.
const dtrain::faces::Face* FaceOf(absl::string_view program, std::vector<std::string>& args) {
  const dtrain::faces::Face* face = dtrain::faces::Find(program.substr(program.rfind('/') + 1));
  if (face != nullptr || args.empty()) return face;
  face = dtrain::faces::Find(args[0]);
  if (face != nullptr) args.erase(args.begin());
  return face;
}

}  // namespace

int main(int argc, char** argv) {
  dtrain::os::InterruptNobody();
  dtrain::os::WriteNoCores();
  dtrain::log::Init("dtrain", std::getenv("DTRAIN_DEBUG") != nullptr
                                  ? dtrain::log::Level::kDebug
                                  : dtrain::log::Level::kWarning);
  std::vector<std::string> args(argv + 1, argv + argc);
  if (const dtrain::faces::Face* face = FaceOf(argv[0], args); face != nullptr) {
    dtrain::os::Leave(LaunchAs(*face, args));
  }
  if (!args.empty() && args[0] == "env") {
    return dtrain::env::Run({args.begin() + 1, args.end()}, dtrain::cli::ProcessSurroundings());
  }
  if (!args.empty() && args[0] == "bench") {
    return Bench(std::vector<std::string>(args.begin() + 1, args.end()));
  }
  if (!args.empty() && dtrain::status::IsCommand(args[0])) {
    dtrain::os::Leave(dtrain::status::RunCommand(args));
  }
  if (!args.empty() && dtrain::reference::IsCommand(args[0])) {
    return dtrain::reference::RunCommand(args, {DTRAIN_VERSION, DTRAIN_DATE});
  }
  if (WantsAllVersions(args)) {
    std::fputs(dtrain::version::Describe(DTRAIN_VERSION).c_str(), stdout);
    return dtrain::kExitOk;
  }
  auto command = dtrain::cli::ParseCommandLine(args, dtrain::cli::ProcessSurroundings());
  if (!command.ok()) return UsageError(command.status());
  switch (command->kind) {
    case Command::Kind::kHelp:
      std::fputs(command->help.c_str(), stdout);
      return dtrain::kExitOk;
    case Command::Kind::kVersion:
      std::printf("dtrain %s\n", DTRAIN_VERSION);
      return dtrain::kExitOk;
    case Command::Kind::kLaunch:
      dtrain::os::Leave(Launch(std::move(command->launch), nullptr));
  }
  return dtrain::kExitUsage;
}
