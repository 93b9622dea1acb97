// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/elastic_flags.h"

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/cli/values.h"

namespace dtrain::cli {
namespace {

constexpr Choice<bool> kElastic[] = {{"horovod", true}, {"none", false}};

// Horovod's bounds.
constexpr Duration kShortestCoolDown = std::chrono::seconds(1);
constexpr Duration kLongestCoolDown = std::chrono::hours(1);

absl::Status SetCount(View value, std::optional<uint32_t>& out) {
  return Set(value, 1, hosts::kMaxRanks, out.emplace());
}

// LOW:HIGH, or never.
absl::Status SetCoolDown(View value, RawLaunch& out) {
  if (value == "never") {
    out.options.elastic.cool_down.reset();
    return absl::OkStatus();
  }
  const size_t colon = value.find(':');
  if (colon == View::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", Escape(value, 60), "\" is not LOW:HIGH, two times as in 10s:10m, or never"));
  }
  Duration low{}, high{};
  absl::Status set = Set(value.substr(0, colon), kShortestCoolDown, low);
  if (set.ok()) set = Set(value.substr(colon + 1), low, high);
  if (!set.ok()) return set;
  if (high > kLongestCoolDown) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Escape(value, 60), "\" is too long; at most 1h"));
  }
  out.options.elastic.cool_down = {low, high};
  return absl::OkStatus();
}

// What an elastic job is not able to do; null: it has asked for no such thing.
const char* NotWith(const RawLaunch& raw, bool several) {
  const LaunchOptions& options = raw.options;
  const plan::PlanOptions& plan = options.job.plan;
  if (several) return "several programs";
  if (options.detach.on) return "-d";
  if (!options.timeline.empty()) return "--timeline";
  if (!options.rankfile.empty()) return "--rankfile";
  if (plan.map_by == plan::MapBy::kNode) return "--map-by node";
  if (!plan.tensorflow.empty()) return "--tf-config";
  if (!raw.emulated.empty()) return "--emulate";
  if (options.job.part.agent_store()) return "--agent-store";
  if (options.spares > 0) return "--spare";
  if (options.local) return "a negative -np";
  return nullptr;
}

absl::Status CheckNumbersOf(const LaunchOptions& options) {
  const ElasticOptions& elastic = options.elastic;
  const uint32_t ranks = options.job.plan.ranks.value_or(0);
  if (elastic.least_ranks && ranks > 0 && *elastic.least_ranks > ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-np ", *elastic.least_ranks, " is more than -np ", ranks,
                     ": -np is the number of ranks at the start, --min-np the minimum"));
  }
  const uint32_t least = std::max(ranks, elastic.least_ranks.value_or(0));
  if (elastic.most_ranks && *elastic.most_ranks < least) {
    return absl::InvalidArgumentError(absl::StrCat("--max-np ", *elastic.most_ranks,
                                                   " is less than ",
                                                   ranks > 0 ? "-np " : "--min-np ", least));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Flag> ElasticFlags() {
  constexpr View kGroup = "Elastic Horovod";
  return {
      {"--elastic", kGroup, "horovod",
       "run an elastic Horovod script: ranks come and go with their hosts\n"
       "while the others keep running",
       [](View v, RawLaunch& o) { return Choose(v, kElastic, o.options.elastic.on); },
       Names(kElastic)},
      {"--min-np,--min-num-proc", kGroup, "N",
       "with --elastic: minimum number of ranks; default -np",
       [](View v, RawLaunch& o) { return SetCount(v, o.options.elastic.least_ranks); }},
      {"--max-np,--max-num-proc", kGroup, "N",
       "with --elastic: maximum number of ranks; default: no limit",
       [](View v, RawLaunch& o) { return SetCount(v, o.options.elastic.most_ranks); }},
      {"--discover", kGroup, "COMMAND",
       "with --elastic: command that lists the available hosts, HOST or\n"
       "HOST:SLOTS on each line; dtrain runs it here every second",
       [](View v, RawLaunch& o) { return Set(v, o.options.elastic.discover); }},
      {"--slots-per-host", kGroup, "N", "with --discover: slots of hosts listed without slots",
       [](View v, RawLaunch& o) {
         return Set(v, 1, hosts::kMaxSlots, o.options.elastic.slots_per_host.emplace());
       }},
      {"--cool-down",
       kGroup,
       "LOW:HIGH",
       "with --elastic: a failed host is not used for at least twice LOW,\n"
       "longer each time, at most HIGH; never: not again; default 10s:10m",
       SetCoolDown,
       {"never"}},
      {"--reset-limit", kGroup, "N",
       "with --elastic: end the job (exit code 208) at the N+1st change of\n"
       "ranks; default: no limit",
       [](View v, RawLaunch& o) {
         return Set(v, 0, 1000000, o.options.elastic.most_resets.emplace());
       }},
  };
}

absl::Status TakeElastic(const Mentions& mentions, bool several, RawLaunch& raw) {
  LaunchOptions& options = raw.options;
  ElasticOptions& elastic = options.elastic;
  if (!elastic.on) {
    // Elsewhere it is a default that waits for such a job.
    const int cool_down = FindMention(mentions, "cool-down");
    const bool cools_down = cool_down >= 0 && mentions[cool_down].source == kCommandLine;
    const char* only = elastic.least_ranks         ? "--min-np"
                       : elastic.most_ranks        ? "--max-np"
                       : cools_down                ? "--cool-down"
                       : !elastic.discover.empty() ? "--discover"
                       : elastic.slots_per_host    ? "--slots-per-host"
                       : elastic.most_resets       ? "--reset-limit"
                                                   : nullptr;
    if (only == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(only, " requires --elastic horovod"));
  }
  if (const char* other = NotWith(raw, several); other != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--elastic does not work with ", other, ": leave one out"));
  }
  if (!elastic.discover.empty() &&
      !(options.hostfile + options.host_list + options.include + options.exclude).empty()) {
    return absl::InvalidArgumentError(
        "--discover lists the hosts: leave out --hostfile, --hosts, --include and "
        "--exclude");
  }
  if (elastic.slots_per_host && elastic.discover.empty()) {
    return absl::InvalidArgumentError("--slots-per-host requires --discover");
  }
  for (const auto& [flag, value] : {std::pair("contract", "horovod"), {"stdin", "none"}}) {
    const int i = FindMention(mentions, flag);
    if (i < 0 || mentions[i].value == value) continue;
    return absl::InvalidArgumentError(absl::StrCat("--elastic does not work with --", flag, " ",
                                                   Escape(mentions[i].value, 60),
                                                   ": leave one out"));
  }
  raw.contracts = {v1::CONTRACT_HOROVOD};
  options.job.stdin_rank = "none";
  // A lone rank may be joined by others.
  if (!options.output.tag) options.output.tag = output::Tag::kRank;
  return CheckNumbersOf(options);
}

absl::Status CheckElasticEnvironment(const LaunchOptions& options) {
  if (!options.elastic.on) return absl::OkStatus();
  for (const v1::EnvVar& variable : options.job.part.env()) {
    if (variable.name() != "HOROVOD_CONTROLLER" || variable.value() == "gloo") continue;
    return absl::InvalidArgumentError(
        absl::StrCat("HOROVOD_CONTROLLER is \"", Escape(variable.value(), 60),
                     "\", and elastic Horovod works with gloo only: unset it"));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::cli
