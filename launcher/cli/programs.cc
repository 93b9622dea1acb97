// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/programs.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/cli/cli11.h"
#include "launcher/cli/container_flags.h"
#include "launcher/cli/words.h"

namespace dtrain::cli {
namespace {

const std::vector<Flag>& ProgramFlags() {
  static const std::vector<Flag>* flags = [] {
    auto* own = new std::vector<Flag>();
    for (absl::string_view name :
         {"np", "export", "wdir", "gpus-per-rank", "hosts", "module", "container",
          "container-runtime", "container-mount", "container-option"}) {
      own->push_back(LaunchFlags()[FindLong(LaunchFlags(), name)]);
    }
    return own;
  }();
  return *flags;
}

absl::Status At(size_t number, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("program ", number, ": ", message));
}

absl::StatusOr<RawProgram> ParseOne(std::vector<std::string>& rest, size_t number) {
  absl::StatusOr<Words> words = SplitWords(ProgramFlags(), rest);
  if (!words.ok()) {
    const bool whole_job = SplitWords(LaunchFlags(), rest).ok();
    return At(number, absl::StrCat(words.status().message(),
                                   whole_job ? ". After ':' only -np, -x, --wdir, --gpus-per-rank, "
                                               "--hosts, -m and the --container flags are allowed; "
                                               "give the others before the first program"
                                             : ""));
  }
  absl::StatusOr<std::vector<Given>> given = ParseFlags(ProgramFlags(), words->flags);
  if (!given.ok()) return At(number, given.status().message());
  RawProgram program;
  for (const Given& one : *given) {
    const Flag& flag = ProgramFlags()[one.flag];
    absl::Status status = flag.set(one.value, program.raw);
    if (!status.ok()) {
      return At(number, absl::StrCat("--", FlagName(flag), ": ", status.message()));
    }
  }
  if (words->command.empty()) {
    return At(number, "no command; if ':' is an argument of the first, put -- before that");
  }
  program.command = std::move(words->command);
  rest = std::move(words->further);
  return program;
}

absl::Status CheckRanks(const std::vector<RawProgram>& programs) {
  for (size_t i = 0; i < programs.size(); ++i) {
    const LaunchOptions& options = programs[i].raw.options;
    if (!options.job.plan.ranks) {
      return At(i + 1, absl::StrCat("give the ranks of each program: -np N ",
                                    Escape(programs[i].command[0], 80),
                                    "; if ':' is an argument of a program, put -- before that"));
    }
    if (options.local != programs[0].raw.options.local) {
      return At(i + 1, "-np is negative, for ranks on this machine, for all programs or for none");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> HostNames(const RawProgram& program, size_t number) {
  std::vector<std::string> names;
  if (program.raw.options.host_list.empty()) return names;
  const absl::StatusOr<hosts::HostList> list = hosts::ParseHostList(program.raw.options.host_list);
  if (!list.ok()) return At(number, list.status().message());
  for (const hosts::HostEntry& entry : list->entries) names.push_back(entry.host);
  return names;
}

// With --hosts of each program's own the job has the hosts of all.
absl::Status JoinHosts(std::vector<RawProgram>& programs) {
  LaunchOptions& first = programs[0].raw.options;
  const bool own = std::any_of(programs.begin() + 1, programs.end(), [](const RawProgram& each) {
    return !each.raw.options.host_list.empty();
  });
  if (!own) return absl::OkStatus();
  if (first.local) return At(1, "a negative -np means this machine only: leave out --hosts");
  if (first.host_list.empty() && first.hostfile.empty()) {
    return At(1, "give its hosts as well, or all hosts with --hostfile");
  }
  const bool listed = first.hostfile.empty();
  std::string all = first.host_list;
  for (size_t i = 0; i < programs.size(); ++i) {
    absl::StatusOr<std::vector<std::string>> names = HostNames(programs[i], i + 1);
    if (!names.ok()) return names.status();
    first.job.plan.programs[i].hosts = *std::move(names);
    const std::string& list = programs[i].raw.options.host_list;
    if (i > 0 && !list.empty()) absl::StrAppend(&all, ",", list);
  }
  if (listed) first.host_list = std::move(all);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<RawProgram>> ParsePrograms(std::vector<std::string> further) {
  std::vector<RawProgram> programs;
  while (!further.empty()) {
    absl::StatusOr<RawProgram> program = ParseOne(further, programs.size() + 2);
    if (!program.ok()) return program.status();
    programs.push_back(*std::move(program));
  }
  return programs;
}

absl::Status JoinContainers(const v1::Container& shared, std::vector<RawProgram>& programs) {
  for (size_t i = 0; i < programs.size(); ++i) {
    v1::Container& own = programs[i].raw.container;
    v1::Container all = shared;
    all.MergeFrom(own);
    if (all.runtime() == "auto") all.clear_runtime();
    const absl::Status status = all.image().empty() ? CheckHasImage(own) : absl::OkStatus();
    if (!status.ok()) return programs.size() > 1 ? At(i + 1, status.message()) : status;
    own = std::move(all);
  }
  return absl::OkStatus();
}

absl::Status JoinPrograms(std::vector<RawProgram>& programs) {
  if (absl::Status status = CheckRanks(programs); !status.ok()) return status;
  plan::PlanOptions& plan = programs[0].raw.options.job.plan;
  uint64_t ranks = 0;
  uint32_t fewest_gpus = 0;
  for (const RawProgram& program : programs) {
    const plan::PlanOptions& own = program.raw.options.job.plan;
    plan.programs.push_back({*own.ranks, own.gpus_per_rank, {}});
    ranks += *own.ranks;
    if (own.gpus_per_rank > 0 && (fewest_gpus == 0 || own.gpus_per_rank < fewest_gpus)) {
      fewest_gpus = own.gpus_per_rank;
    }
  }
  if (ranks > hosts::kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat(ranks, " ranks in all: a job has at most ", hosts::kMaxRanks));
  }
  plan.ranks = static_cast<uint32_t>(ranks);
  plan.gpus_per_rank = std::max(fewest_gpus, 1u);
  return JoinHosts(programs);
}

}  // namespace dtrain::cli
