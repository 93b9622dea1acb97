// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/cli/options.h"
#include "launcher/hosts/allocation.h"
#include "launcher/hosts/host_filter.h"
#include "launcher/hosts/rankfile.h"

namespace dtrain::cli {
namespace {

absl::StatusOr<std::string> Read(absl::string_view flag, const std::string& path,
                                 const Surroundings& surroundings) {
  absl::StatusOr<std::string> text = surroundings.read(path);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", text.status().message()));
}

// This machine offers whatever is asked of it, as a developer's machine must; more ranks than GPUs
// are still refused when they are pinned.
void UseThisMachine(LaunchOptions& options) {
  hosts::HostEntry entry;
  entry.host = "localhost";
  const plan::PlanOptions& plan = options.job.plan;
  if (plan.ranks_per_node) entry.slots = plan.ranks_per_node;
  if (plan.ranks) entry.slots = plan.ranks;
  entry.slots_asked = entry.slots.has_value();
  options.hosts.entries = {std::move(entry)};
  options.local = true;
}

// The allocation's command is the weakest answer to how hosts are reached.
bool ChoseWay(const LaunchOptions& options) {
  const transport::WayOptions& ways = options.transport;
  return !options.host_flag.empty() || !ways.rsh.empty() || ways.tcp || !ways.ssh_config.empty() ||
         ways.ssh_port != 0;
}

// A tmux that was started in it keeps the variables of an allocation for ever.
absl::Status CheckAllocation(const hosts::Allocation& allocation,
                             const Surroundings& surroundings) {
  if (allocation.manager != "Slurm" || surroundings.slurm_trouble == nullptr) {
    return absl::OkStatus();
  }
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOBID"}) {
    const auto id = FindVariable(surroundings, name);
    if (!id || id->empty()) continue;
    const std::string trouble = surroundings.slurm_trouble(std::string(*id));
    if (trouble.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        name, "=", Escape(*id),
        " and its hosts are left from another time or machine, as tmux and ",
        "screen keep them: ", trouble, "; unset SLURM_JOB_ID SLURM_JOBID, or name the hosts with ",
        "--hosts or --hostfile"));
  }
  return absl::OkStatus();
}

// Where each rank goes, unless flags say it in another way.
absl::Status TakePlaces(const hosts::Allocation& allocation, LaunchOptions& options) {
  plan::PlanOptions& plan = options.job.plan;
  if (allocation.places.empty() || !options.rankfile.empty() || plan.ranks_per_node ||
      plan.per_node || plan.nodes || plan.map_by != plan::MapBy::kSlot || !plan.programs.empty()) {
    return absl::OkStatus();
  }
  const size_t ranks = plan.ranks.value_or(allocation.places.size());
  if (ranks > allocation.places.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "-np ", ranks, ": SLURM_HOSTFILE has places for ", Count(allocation.places.size(), "rank"),
        "; add lines to it, or unset SLURM_HOSTFILE"));
  }
  plan.rankfile.assign(allocation.places.begin(), allocation.places.begin() + ranks);
  return absl::OkStatus();
}

absl::Status FindHosts(LaunchOptions& options, const Surroundings& surroundings) {
  if (options.local) {
    UseThisMachine(options);
    return absl::OkStatus();
  }
  absl::StatusOr<hosts::HostList> hosts = ReadHosts(options, surroundings);
  if (hosts.ok() && hosts->entries.empty()) {
    auto env = [&](const std::string& name) -> std::optional<std::string> {
      const auto value = FindVariable(surroundings, name);
      if (!value || value->empty()) return std::nullopt;
      return std::string(*value);
    };
    absl::StatusOr<std::optional<hosts::Allocation>> allocation =
        hosts::DetectAllocation(env, surroundings.read, options.job.plan.nodes);
    if (!allocation.ok()) return allocation.status();
    if (!*allocation) {
      if (const std::string& flag = options.host_flag; !flag.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            flag,
            " is given but no hosts: all ranks would run on this machine, which needs no "
            "connection; name the hosts with --hosts or --hostfile, or leave ",
            flag, " out"));
      }
      UseThisMachine(options);
      return absl::OkStatus();
    }
    if (absl::Status stale = CheckAllocation(**allocation, surroundings); !stale.ok()) return stale;
    hosts = std::move((*allocation)->hosts);
    if (absl::Status taken = TakePlaces(**allocation, options); !taken.ok()) return taken;
    if (!ChoseWay(options)) options.transport.rsh = (*allocation)->rsh;
  }
  if (!hosts.ok()) return hosts.status();
  options.hosts = *std::move(hosts);
  return absl::OkStatus();
}

absl::Status ChooseHosts(LaunchOptions& options) {
  if (options.include.empty() && options.exclude.empty()) return absl::OkStatus();
  absl::StatusOr<hosts::HostList> chosen =
      options.include.empty() ? hosts::ExcludeHosts(std::move(options.hosts), options.exclude)
                              : hosts::IncludeHosts(std::move(options.hosts), options.include);
  if (!chosen.ok()) return chosen.status();
  options.hosts = *std::move(chosen);
  return absl::OkStatus();
}

// -N MIN:MAX, or -N MAX with --min-nodes, is as many as the list has, those of --spare aside.
void LimitNodes(LaunchOptions& options) {
  std::optional<uint32_t>& nodes = options.job.plan.nodes;
  if (!nodes || options.local || options.job.min_nodes == 0) return;
  const auto listed = static_cast<uint32_t>(options.hosts.entries.size());
  const uint32_t left = listed - std::min(listed, options.spares);
  nodes = std::min(*nodes, std::max(left, options.job.min_nodes));
}

absl::Status LoadRankfile(LaunchOptions& options, const Surroundings& surroundings) {
  if (options.rankfile.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> text = Read("--rankfile", options.rankfile, surroundings);
  if (!text.ok()) return text.status();
  auto places = hosts::ParseRankfile(*text, options.rankfile);
  if (!places.ok()) return places.status();
  plan::PlanOptions& plan = options.job.plan;
  if (plan.ranks && *plan.ranks != places->size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "-np ", *plan.ranks, " and the rankfile ", Escape(options.rankfile), ", which has ",
        Count(places->size(), "rank"), ", contradict each other; leave out -np"));
  }
  plan.rankfile = *std::move(places);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<hosts::HostList> ReadHosts(const LaunchOptions& options,
                                          const Surroundings& surroundings) {
  if (!options.hostfile.empty()) {
    absl::StatusOr<std::string> text = Read("--hostfile", options.hostfile, surroundings);
    if (!text.ok()) return text.status();
    return hosts::ParseHostfile(*text, options.hostfile);
  }
  if (!options.host_list.empty()) return hosts::ParseHostList(options.host_list);
  return hosts::HostList();
}

absl::Status LoadHosts(LaunchOptions& options, const Surroundings& surroundings) {
  absl::Status status = FindHosts(options, surroundings);
  if (status.ok()) status = ChooseHosts(options);
  if (!status.ok()) return absl::InvalidArgumentError(status.message());
  LimitNodes(options);
  return LoadRankfile(options, surroundings);
}

}  // namespace dtrain::cli
