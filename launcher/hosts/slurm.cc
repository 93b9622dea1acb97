// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/slurm.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/hosts/allocation.h"
#include "launcher/hosts/host_list_builder.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {
namespace {

// One task on the node, beside whatever the job already runs there, free to use all of its cores:
// the agent pins the workers itself.
//
// --unbuffered: otherwise slurmstepd keeps back what does not end with a line feed, and a binary
// stream stands still. --export: a job submitted with --export=NONE hands that on to its steps,
// which then have no PATH and HOME. The variables are srun flags that the job's own request left
// behind: with them our one task gets one GPU of the node's, or asks one node for the GPUs of all,
// or has the cores of one task, or has its output labelled, or is refused: SLURM_HOSTFILE and
// SLURM_DISTRIBUTION may mean -m arbitrary, which excludes --nodes.
constexpr absl::string_view kRsh =
    "env -u SLURM_GPUS -u SLURM_GPUS_PER_TASK -u SLURM_GPUS_PER_SOCKET -u SLURM_NTASKS_PER_GPU "
    "-u SLURM_TRES_PER_TASK -u SLURM_GPU_BIND -u SLURM_LABELIO -u SLURM_CPUS_PER_TASK "
    "-u SRUN_CPUS_PER_TASK -u SLURM_EXACT -u SLURM_THREADS_PER_CORE -u SLURM_DISTRIBUTION "
    "-u SLURM_HOSTFILE "
    "srun --nodes=1 --ntasks=1 --nodelist={host} --overlap --unbuffered --export=ALL "
    "--cpu-bind=none --mpi=none --kill-on-bad-exit=1 --quiet";

// Of a GPU request such as `a100:2`; nothing that splits or quotes a word of a command, and no
// list.
constexpr char kKindLetters[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-";

// Slurm's own reader is narrower than ours (no text behind the last bracket), so whatever it has
// written is read the same way here; names are never given slots or users.
absl::StatusOr<std::vector<HostSpec>> ParseNodeList(const Source& source, const std::string& text) {
  std::vector<HostSpec> nodes;
  size_t count = 0;
  for (const auto& [at, item] : SplitHostList(text, /*blanks_separate=*/true)) {
    auto pattern = HostPattern::Parse(source, at, item);
    if (!pattern.ok()) return pattern.status();
    count += pattern->count();
    if (count > kMaxHosts) {
      return source.Error(at, "too many hosts", item,
                          absl::StrCat("one list names at most ", kMaxHosts, " hosts"));
    }
    absl::Status status = pattern->Expand([&nodes, at = at](std::string host) {
      HostSpec node;
      node.at = at;
      node.pattern = HostPattern::Literal(host);
      nodes.push_back(std::move(node));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
  }
  return nodes;
}

// `2(x3),1`: a number for each node in turn, with how often it repeats.
absl::StatusOr<std::vector<uint32_t>> ParseCounts(const Variable& variable, size_t nodes) {
  Source source = Source::OneLine(variable.name);
  std::vector<uint32_t> counts;
  Position at;
  for (absl::string_view item : absl::StrSplit(variable.value, ',')) {
    absl::string_view number = item;
    uint32_t times = 1;
    if (size_t paren = item.find("(x"); paren != absl::string_view::npos) {
      number = item.substr(0, paren);
      absl::string_view repeat = item.substr(paren + 2);
      if (!absl::ConsumeSuffix(&repeat, ")")) {
        return source.Error(at, "'(x' without ')'", item, "Slurm writes counts like 2(x3),1");
      }
      auto parsed = ParseNumber(source, at.Plus(paren + 2), "repeat", repeat, 1, kMaxHosts);
      if (!parsed.ok()) return parsed.status();
      times = *parsed;
    }
    auto count = ParseNumber(source, at, "count", number, 1, kMaxSlots);
    if (!count.ok()) return count.status();
    if (counts.size() + times > nodes) {
      return source.Error(at, absl::StrCat("counts for more than the ", nodes, " nodes"), item,
                          "these variables are not those of one Slurm job");
    }
    counts.insert(counts.end(), times, *count);
    at = at.Plus(item.size() + 1);
  }
  if (counts.size() < nodes) {
    return source.Error({},
                        absl::StrCat("counts for only ", counts.size(), " of ", nodes, " nodes"),
                        variable.value, "these variables are not those of one Slurm job");
  }
  return counts;
}

// Started by srun on some of the job's nodes, whose tasks alone SLURM_TASKS_PER_NODE may count.
bool InPartOfTheJob(const EnvLookup& env, const std::string& job_nodes) {
  auto step_nodes = FirstSet(env, {"SLURM_STEP_NODELIST"});
  return step_nodes && step_nodes->value != job_nodes;
}

// A job that requested GPUs but no tasks means a rank for each GPU, while SLURM_TASKS_PER_NODE says
// one, or as many as there are cores. SLURM_NTASKS is set only if tasks were requested. Only where
// Slurm has given NVIDIA GPUs: nodes without them would report a slot for each core.
bool CountsGpusAlone(const EnvLookup& env) {
  return FirstSet(env, {"CUDA_VISIBLE_DEVICES"}) && !FirstSet(env, {"ROCR_VISIBLE_DEVICES"}) &&
         FirstSet(env,
                  {"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"}) &&
         !FirstSet(env,
                   {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU",
                    "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_CORE", "SLURM_GPUS_PER_TASK"});
}

// Tasks where the job asked for tasks, else as many as fit into its cores. Empty: what the nodes
// report.
absl::StatusOr<std::vector<uint32_t>> SlotsPerNode(const EnvLookup& env, size_t nodes,
                                                   bool in_part) {
  if (CountsGpusAlone(env)) return std::vector<uint32_t>();
  if (auto tasks = FirstSet(env, {"SLURM_TASKS_PER_NODE"})) {
    auto counts = ParseCounts(*tasks, nodes);
    // The shell that salloc starts as a step on one node keeps the job's counts.
    if (counts.ok() || !in_part) return counts;
  }
  if (auto tasks = FirstSet(env, {"SLURM_NTASKS_PER_NODE"})) {
    auto count = ParseNumber(Source::OneLine(tasks->name), {}, "count", tasks->value, 1, kMaxSlots);
    if (!count.ok()) return count.status();
    return std::vector<uint32_t>(nodes, *count);
  }
  auto cpus = FirstSet(env, {"SLURM_JOB_CPUS_PER_NODE"});
  if (!cpus) return std::vector<uint32_t>();
  auto counts = ParseCounts(*cpus, nodes);
  if (!counts.ok()) return counts;
  if (auto per_task = FirstSet(env, {"SLURM_CPUS_PER_TASK"})) {
    auto divisor =
        ParseNumber(Source::OneLine(per_task->name), {}, "count", per_task->value, 1, kMaxSlots);
    if (!divisor.ok()) return divisor.status();
    for (uint32_t& count : *counts) count = std::max<uint32_t>(1, count / *divisor);
  }
  return counts;
}

// GPUs asked for by task would give our one task those of one task, so ask for a node's share of
// them. Other requests Slurm gives to a step as they are.
std::string GpuFlag(const EnvLookup& env, const std::vector<uint32_t>& slots) {
  auto per_task = FirstSet(env, {"SLURM_GPUS_PER_TASK"});
  if (!per_task || slots.empty() || FirstSet(env, {"SLURM_GPUS_PER_NODE"})) return "";
  if (std::any_of(slots.begin(), slots.end(), [&](uint32_t n) { return n != slots[0]; })) return "";
  std::vector<std::string> kind = absl::StrSplit(per_task->value, ':');
  uint32_t gpus;
  if (!absl::SimpleAtoi(kind.back(), &gpus)) return "";
  if (per_task->value.find_first_not_of(kKindLetters) != std::string::npos) return "";
  kind.back() = absl::StrCat(uint64_t{gpus} * slots[0]);
  return absl::StrCat(" --gpus-per-node=", absl::StrJoin(kind, ":"));
}

// `srun dtrain launch` in a step of several tasks is as many launchers. SLURM_PROCID alone does not
// tell: the batch script has it too.
absl::Status RefuseCopy(const EnvLookup& env) {
  auto tasks = FirstSet(env, {"SLURM_STEP_NUM_TASKS"});
  auto own = FirstSet(env, {"SLURM_PROCID"});
  if (!tasks || !own || tasks->value == "1") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "srun has started ", Escape(tasks->value, 20),
      " copies of this command, of which this is "
      "number ",
      Escape(own->value, 20),
      ", and each would start the whole job; run it once, "
      "without srun, in the batch script or the shell of salloc: it starts the ranks on all nodes "
      "by itself. (In a step: srun -n1. If srun is not involved, unset SLURM_STEP_NUM_TASKS)"));
}

// One name in each line, or a list, or NAME*COUNT; "#" begins a comment.
absl::StatusOr<std::vector<RankPlace>> ParseTaskHosts(const std::string& text,
                                                      const std::string& name) {
  std::vector<RankPlace> places;
  uint32_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    uint32_t times = 1;
    if (const size_t star = line.rfind('*'); star != absl::string_view::npos) {
      if (!absl::SimpleAtoi(line.substr(star + 1), &times) || times == 0 || times > kMaxSlots) {
        return absl::InvalidArgumentError(absl::StrCat(
            name, " line ", number, ": \"", Escape(line, 60), "\" is not a host, or HOST*COUNT"));
      }
      line = absl::StripAsciiWhitespace(line.substr(0, star));
    }
    if (line.empty()) continue;
    const std::string where = absl::StrCat(name, " line ", number);
    const Source source = Source::OneLine(where);
    auto nodes = ParseNodeList(source, std::string(line));
    if (!nodes.ok()) return nodes.status();
    for (const HostSpec& node : *nodes) {
      absl::Status taken = node.pattern.Expand([&](std::string host) {
        for (uint32_t i = 0; i < times && places.size() < kMaxRanks; ++i) {
          places.push_back({static_cast<uint32_t>(places.size()), host, std::nullopt, number});
        }
        return absl::OkStatus();
      });
      if (!taken.ok()) return taken;
    }
  }
  return places;
}

// SLURM_HOSTFILE: the allocation's hosts become those that it names, with a slot for each mention.
absl::Status TakeTaskHosts(const Variable& file, const FileReader& read, Allocation& allocation) {
  const std::string name = absl::StrCat("SLURM_HOSTFILE=", Escape(file.value));
  auto text = read(file.value);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", text.status().message(), "; unset SLURM_HOSTFILE"));
  }
  auto places = ParseTaskHosts(*text, name);
  if (!places.ok()) return places.status();
  if (places->empty()) return absl::InvalidArgumentError(absl::StrCat(name, " names no host"));
  HostList named;
  named.warnings = allocation.hosts.warnings;
  for (const RankPlace& place : *places) {
    const auto is_it = [&](const HostEntry& entry) { return entry.host == place.host; };
    auto at = std::find_if(named.entries.begin(), named.entries.end(), is_it);
    if (at == named.entries.end()) {
      const auto& all = allocation.hosts.entries;
      const auto found = std::find_if(all.begin(), all.end(), is_it);
      if (found == all.end()) {
        return absl::InvalidArgumentError(absl::StrCat(name, " line ", place.line, ": ", place.host,
                                                       " is not one of the Slurm job's nodes"));
      }
      named.entries.push_back(*found);
      at = named.entries.end() - 1;
      at->slots = 0;
    }
    at->slots = *at->slots + 1;
  }
  allocation.hosts = std::move(named);
  allocation.places = *std::move(places);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Allocation> ReadSlurm(const EnvLookup& env, const FileReader& read) {
  if (absl::Status copy = RefuseCopy(env); !copy.ok()) return copy;
  if (FirstSet(env, {"SLURM_HET_SIZE", "SLURM_PACK_SIZE"})) {
    return absl::InvalidArgumentError(
        "inside a heterogeneous Slurm job, whose components dtrain does not join; name the hosts "
        "with --hosts or --hostfile");
  }
  auto list = FirstSet(env, {"SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (!list) {
    return absl::InvalidArgumentError(
        "SLURM_JOB_ID is set but SLURM_JOB_NODELIST is not, so the hosts of the Slurm job are not "
        "known; name them with --hosts or --hostfile, or unset SLURM_JOB_ID");
  }
  Source source = Source::OneLine(list->name);
  auto nodes = ParseNodeList(source, list->value);
  if (!nodes.ok()) return nodes.status();
  auto slots = SlotsPerNode(env, nodes->size(), InPartOfTheJob(env, list->value));
  if (!slots.ok()) return slots.status();

  HostListBuilder builder(source);
  for (size_t i = 0; i < nodes->size(); ++i) {
    if (!slots->empty()) (*nodes)[i].slots = (*slots)[i];
    absl::Status status = builder.Add((*nodes)[i]);
    if (!status.ok()) return status;
  }
  auto hosts = std::move(builder).Finish();
  if (!hosts.ok()) return hosts.status();
  Allocation allocation{"Slurm", *std::move(hosts), absl::StrCat(kRsh, GpuFlag(env, *slots)), {}};
  if (auto file = FirstSet(env, {"SLURM_HOSTFILE"})) {
    if (absl::Status taken = TakeTaskHosts(*file, read, allocation); !taken.ok()) return taken;
  }
  return allocation;
}

}  // namespace dtrain::hosts
