// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/loop/loop.h"
#include "launcher/cli/recorded.h"
#include "launcher/discovery/script.h"
#include "launcher/inherited.h"
#include "launcher/launch_detached.h"
#include "launcher/layout_of.h"
#include "launcher/plan/plan.h"
#include "launcher/report/containers.h"
#include "launcher/runner.h"

namespace dtrain {
namespace {

// Before there is a launch: what the user has said, or, if hosts were to be found, what came of it.
int UsageError(const absl::Status& status) {
  std::fprintf(stderr, "dtrain: %s\n", std::string(status.message()).c_str());
  return absl::IsUnavailable(status) ? kExitStartAgents : kExitUsage;
}

// --dry-run needs no node when the hostfile names the slots.
bool DryRunFromTheHostfileAlone(const cli::LaunchOptions& options) {
  return options.job.dry_run && plan::NeedsNoInventory(options.hosts, options.job.plan);
}

int PrintPlan(const cli::LaunchOptions& options) {
  auto placed = plan::Place(options.hosts, {}, options.job.plan);
  if (!placed.ok()) return UsageError(placed.status());
  placed->made_blind = !options.local;  // else nobody has given slots
  if (options.output.files) {
    absl::Status names = options.output.files->Check(LayoutOf(*placed, "job"));
    if (!names.ok()) return UsageError(names);
  }
  for (const std::string& warning : placed->warnings) {
    std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
  }
  std::fputs(plan::FormatRankTable(*placed).c_str(), stdout);
  std::fputs(report::ContainerLines(options.job.part).c_str(), stdout);
  return kExitOk;
}

// Spares are the hosts behind those that the plan is for.
absl::Status TakeSpares(cli::LaunchOptions& options) {
  if (options.spares == 0) return absl::OkStatus();
  const size_t listed = options.hosts.entries.size();
  std::optional<uint32_t>& nodes = options.job.plan.nodes;
  const uint64_t needed = uint64_t{nodes.value_or(1)} + options.spares;
  if (options.local || needed > listed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--spare ", options.spares, nodes ? absl::StrCat(" with -N ", *nodes) : "",
        " needs at least ", needed, " hosts, and the host list has ", options.local ? 0 : listed));
  }
  if (!nodes) nodes = static_cast<uint32_t>(listed) - options.spares;
  return absl::OkStatus();
}

absl::Status FindByCommand(cli::LaunchOptions& options) {
  const cli::ElasticOptions& elastic = options.elastic;
  auto found = discovery::AwaitHosts(elastic.discover, elastic.slots_per_host,
                                     options.restarts.join_timeout);
  if (!found.ok()) return absl::UnavailableError(found.status().message());
  options.hosts = *std::move(found);
  return absl::OkStatus();
}

// As a default it waits for a job that has use for it.
absl::Status CheckScaleUp(cli::LaunchOptions& options) {
  Duration& scale_up = options.restarts.scale_up;
  if (scale_up == Duration::zero()) return absl::OkStatus();
  const char* problem = nullptr;
  if (options.elastic.on) {
    problem =
        "--scale-up does not work with --elastic, which takes hosts that come back as they "
        "come: leave it out";
  } else if (options.job.min_nodes == 0) {
    problem = "--scale-up requires a job that can run on fewer hosts: add -N MIN:MAX";
  } else if (options.restarts.max_restarts == 0 && options.spares == 0) {
    problem = "--scale-up restarts the workers: add --max-restarts N, or --spare N";
  }
  if (problem == nullptr) return absl::OkStatus();
  scale_up = Duration::zero();
  return options.scale_up_asked ? absl::InvalidArgumentError(problem) : absl::OkStatus();
}

// All that must be known of hosts before the first connection.
absl::Status FindHosts(cli::LaunchOptions& options, const faces::Translation* translation,
                       const cli::Surroundings& surroundings) {
  if (translation != nullptr) faces::BeforeHosts(*translation, options);
  options.job.stdin_is_terminal = isatty(STDIN_FILENO) == 1;
  absl::Status found = options.elastic.discover.empty() ? cli::LoadHosts(options, surroundings)
                                                        : FindByCommand(options);
  if (found.ok() && translation != nullptr) found = faces::AfterHosts(*translation, options);
  if (found.ok()) found = TakeSpares(options);
  if (found.ok()) found = CheckScaleUp(options);
  const bool is_all = options.elastic.discover.empty();  // else others may come
  if (found.ok() && is_all) found = plan::CheckNumbers(options.hosts, options.job.plan);
  if (found.ok() && is_all && options.job.min_nodes > options.hosts.entries.size()) {
    found = absl::InvalidArgumentError(absl::StrCat(
        "--min-nodes ", options.job.min_nodes, ": the host list has ", options.hosts.entries.size(),
        options.hosts.entries.size() == 1 ? " host" : " hosts"));
  }
  return found;
}

// Never destroyed: gRPC's threads still post the end of calls that were cancelled when the runner
// went, until the process leaves.
loop::Loop& LoopOfLaunches() {
  static auto& loop = *new loop::Loop;
  return loop;
}

}  // namespace

int Launch(cli::LaunchOptions options, const faces::Translation* translation,
           std::unique_ptr<v1::Spec> read) {
  *options.job.part.mutable_inherited() = OwnInherited();
  cli::Surroundings surroundings = cli::ProcessSurroundings();
  if (read != nullptr) surroundings = cli::RecordInto(*read, std::move(surroundings));
  absl::Status found = FindHosts(options, translation, surroundings);
  if (!found.ok()) return UsageError(found);
  if (DryRunFromTheHostfileAlone(options)) return PrintPlan(options);
  if (options.detach.on && read == nullptr) {
    return UsageError(absl::InvalidArgumentError(
        "only dtrain launch starts jobs without a terminal (-d, --detach, DTRAIN_DETACH)"));
  }
  if (options.detach.on) return LaunchDetached(options, *std::move(read));
  Runner runner(LoopOfLaunches(), std::move(options), nullptr, std::move(read));
  return runner.Run();
}

int RunLauncher(const std::vector<std::string>& args) {
  auto taken = TakeJob(LoopOfLaunches(), args);
  if (!taken.ok()) return TellWhyNot(taken.status());
  const v1::Spec& spec = (*taken)->spec();
  AddToEnvironment(spec);
  const cli::Surroundings then = cli::SurroundingsOf(spec);
  auto command = cli::ParseLaunch({spec.argv().begin(), spec.argv().end()}, then);
  absl::Status found = command.ok() ? FindHosts(command->launch, nullptr, then) : command.status();
  if (!found.ok()) return UsageError(found);
  cli::LaunchOptions options = OptionsOf(**taken, std::move(command->launch));
  Runner runner(LoopOfLaunches(), std::move(options), *std::move(taken), nullptr);
  return runner.Run();
}

}  // namespace dtrain
