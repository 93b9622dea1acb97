// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch.h"

#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/loop/loop.h"
#include "launcher/layout_of.h"
#include "launcher/plan/plan.h"
#include "launcher/report/containers.h"
#include "launcher/runner.h"

namespace dtrain {
namespace {

int UsageError(const absl::Status& status) {
  std::fprintf(stderr, "dtrain: %s\n", std::string(status.message()).c_str());
  return kExitUsage;
}

// --dry-run needs no node when the hostfile names the slots.
bool DryRunFromTheHostfileAlone(const cli::LaunchOptions& options) {
  return options.job.dry_run && plan::NeedsNoInventory(options.hosts, options.job.plan);
}

int PrintPlan(const cli::LaunchOptions& options) {
  auto placed = plan::Place(options.hosts, {}, options.job.plan);
  if (!placed.ok()) return UsageError(placed.status());
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

}  // namespace

int Launch(cli::LaunchOptions options, const faces::Translation* translation) {
  if (translation != nullptr) faces::BeforeHosts(*translation, options);
  absl::Status loaded = cli::LoadHosts(options, cli::ProcessSurroundings());
  if (loaded.ok() && translation != nullptr) {
    loaded = faces::AfterHosts(*translation, options);
  }
  if (!loaded.ok()) return UsageError(loaded);
  absl::Status numbers = plan::CheckNumbers(options.hosts, options.job.plan);
  if (numbers.ok() && options.job.min_nodes > options.hosts.entries.size()) {
    numbers = absl::InvalidArgumentError(absl::StrCat(
        "--min-nodes ", options.job.min_nodes, ": the host list has ", options.hosts.entries.size(),
        options.hosts.entries.size() == 1 ? " host" : " hosts"));
  }
  if (!numbers.ok()) return UsageError(numbers);
  if (DryRunFromTheHostfileAlone(options)) return PrintPlan(options);
  // Never destroyed: gRPC's threads still post the end of calls that were cancelled when the runner
  // went, until the process leaves.
  static auto& loop = *new loop::Loop;
  Runner runner(loop, std::move(options));
  return runner.Run();
}

}  // namespace dtrain
