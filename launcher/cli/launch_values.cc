// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/launch_values.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/cli/values.h"
#include "launcher/hosts/rankfile.h"
#include "launcher/plan/tensorflow.h"

namespace dtrain::cli {
namespace {

constexpr Choice<v1::Contract> kContracts[] = {
    {"torch", v1::CONTRACT_TORCH},   {"horovod", v1::CONTRACT_HOROVOD},
    {"mpi", v1::CONTRACT_MPI},       {"jax", v1::CONTRACT_JAX},
    {"dtrain", v1::CONTRACT_DTRAIN}, {"torchrun-agent", v1::CONTRACT_TORCHRUN_AGENT}};
constexpr Choice<v1::Contract> kEmulated[] = {{"slurm", v1::CONTRACT_SLURM},
                                              {"sagemaker", v1::CONTRACT_SAGEMAKER}};

// --scale-up: a host that is back for less may be rebooting still, or flap.
constexpr Duration kUsualScaleUp = std::chrono::minutes(5);
constexpr Duration kShortestScaleUp = std::chrono::seconds(1);

}  // namespace

// N or MIN:MAX.
absl::Status SetNodes(View value, RawLaunch& out) {
  // A stronger source's -N ends the range of a weaker one, but not its --min-nodes.
  if (std::exchange(out.least_nodes, 0) != 0) out.options.job.min_nodes = 0;
  const size_t colon = value.find(':');
  if (colon == View::npos) return Set(value, 1, hosts::kMaxHosts, out.options.job.plan.nodes);
  uint32_t least = 0, most = 0;
  if (absl::Status set = Set(value.substr(0, colon), 1, hosts::kMaxHosts, least); !set.ok()) {
    return set;
  }
  if (absl::Status set = Set(value.substr(colon + 1), least, hosts::kMaxHosts, most); !set.ok()) {
    return set;
  }
  out.options.job.plan.nodes = most;
  if (least < most) out.options.job.min_nodes = out.least_nodes = least;
  return absl::OkStatus();
}

absl::Status SetRestartOn(View value, RawLaunch& out) {
  bool failure = false, node = false, stall = false;
  for (View cause : absl::StrSplit(value, ',')) {
    const bool all = cause == "all";
    if (!all && cause != "failure" && cause != "node" && cause != "stall") {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", Escape(cause, 60), "\" is not failure, node, stall or all"));
    }
    failure = failure || all || cause == "failure";
    node = node || all || cause == "node";
    stall = stall || all || cause == "stall";
  }
  out.options.restarts.on_failure = failure;
  out.options.restarts.on_node = node;
  out.options.restarts.on_stall = stall;
  return absl::OkStatus();
}

// FIRST, or FIRST:LONGEST.
absl::Status SetBackoff(View value, RawLaunch& out) {
  job::CampaignOptions& restarts = out.options.restarts;
  const size_t colon = value.find(':');
  absl::Status set = Set(value.substr(0, colon), Duration::zero(), restarts.backoff);
  if (!set.ok()) return set;
  if (colon != View::npos) {
    set = Set(value.substr(colon + 1), restarts.backoff, restarts.longest_backoff);
  }
  restarts.longest_backoff = std::max(restarts.longest_backoff, restarts.backoff);
  return set;
}

// A switch, or how long.
absl::Status SetScaleUp(View value, RawLaunch& out) {
  Duration& after = out.options.restarts.scale_up;
  if (const auto on = ParseBool(value); on.ok()) {
    after = *on ? kUsualScaleUp : Duration::zero();
    return absl::OkStatus();
  }
  return Set(value, kShortestScaleUp, after);
}

absl::Status SetStateDir(View value, RawLaunch& out) {
  if (value.empty() || value[0] != '/') {
    return absl::InvalidArgumentError("an absolute path is needed, as it is one of the hosts");
  }
  out.options.job.part.mutable_state()->set_directory(std::string(value));
  return absl::OkStatus();
}

absl::Status SetRanks(View value, RawLaunch& out) {
  bool negative = !value.empty() && value[0] == '-';
  absl::StatusOr<uint64_t> n = ParseNumber(value.substr(negative ? 1 : 0), 1, hosts::kMaxRanks);
  if (!n.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Escape(value, 60), "\" is not a whole number from 1 to ",
                     hosts::kMaxRanks, ", or -1 and down for that many local ranks"));
  }
  out.options.job.plan.ranks = static_cast<uint32_t>(*n);
  out.options.local = negative;
  return absl::OkStatus();
}

absl::Status SetMapBy(View value, RawLaunch& out) {
  plan::PlanOptions& plan = out.options.job.plan;
  std::vector<View> parts = absl::StrSplit(value, ':');
  if (value == "slot" || value == "node") {
    plan.map_by = value == "slot" ? plan::MapBy::kSlot : plan::MapBy::kNode;
    out.per_node.reset();
    return absl::OkStatus();
  }
  if (parts.size() == 3 && parts[0] == "ppr" && parts[2] == "node") {
    uint32_t n = 0;
    if (absl::Status status = Set(parts[1], 1, hosts::kMaxSlots, n); !status.ok()) return status;
    plan.map_by = plan::MapBy::kPerNode;
    out.per_node = n;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", Escape(value, 60), "\" is not slot, node or ppr:N:node"));
}

absl::Status SetPerNode(View value, RawLaunch& out) {
  plan::PlanOptions& plan = out.options.job.plan;
  constexpr Choice<plan::PerNode> kCounted[] = {{"gpu", plan::PerNode::kGpus},
                                                {"cpu", plan::PerNode::kCores},
                                                {"auto", plan::PerNode::kAuto}};
  plan.per_node.reset();
  plan.ranks_per_node.reset();
  if (!value.empty() && absl::ascii_isalpha(value[0])) {
    absl::Status known = Choose(value, kCounted, plan.per_node);
    return known.ok() ? known
                      : absl::InvalidArgumentError(
                            absl::StrCat(known.message(), ", nor a number of ranks"));
  }
  return Set(value, 1, hosts::kMaxSlots, plan.ranks_per_node);
}

absl::Status SetModule(View value, RawLaunch& out) {
  if (ParseBool(value).ok()) return Set(value, out.module);
  return absl::InvalidArgumentError(absl::StrCat(
      "it takes no value; write the module where the command begins: -m ", Escape(value, 60)));
}

absl::Status SetContracts(View value, RawLaunch& out) {
  std::vector<v1::Contract> chosen;
  for (const View name : absl::StrSplit(value, ',')) {
    if (name == "none" && value == name) break;
    if (name == "auto") {
      chosen.insert(chosen.end(), std::begin(kUsualContracts), std::end(kUsualContracts));
      continue;
    }
    v1::Contract contract = v1::CONTRACT_UNSPECIFIED;
    if (absl::Status status = Choose(name, kContracts, contract); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(status.message(), ", nor auto, nor none alone"));
    }
    chosen.push_back(contract);
  }
  out.contracts = std::move(chosen);
  return absl::OkStatus();
}

absl::Status SetEmulation(View value, RawLaunch& out) {
  out.emulated.clear();
  for (const View name : absl::StrSplit(value, ',')) {
    absl::Status status = Choose(name, kEmulated, out.emulated.emplace_back());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SetTensorflow(View value, RawLaunch& out) {
  absl::StatusOr<std::vector<plan::TensorflowTasks>> layout = plan::ParseTensorflowLayout(value);
  if (layout.ok()) out.options.job.plan.tensorflow = std::move(*layout);
  return layout.status();
}

absl::Status SetNet(View value, RawLaunch& out) {
  bool plain = value.size() <= 64 && std::all_of(value.begin(), value.end(), [](char c) {
                 return absl::ascii_isalnum(c) || absl::StrContains("._:/-@", View(&c, 1));
               });
  if (!plain || value.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", Escape(value, 60), "\" is neither a network such as 10.0.0.0/8 nor an interface"));
  }
  return Set(value, out.options.job.net);
}

absl::Status SetOutput(View value, RawLaunch& out) {
  std::string text;
  if (absl::Status status = Set(value, text); !status.ok()) return status;
  absl::StatusOr<output::FilePattern> pattern = output::FilePattern::Parse(text);
  if (!pattern.ok()) return pattern.status();
  out.options.output.files = *std::move(pattern);
  return absl::OkStatus();
}

absl::Status SetShownRanks(View value, RawLaunch& out) {
  if (value == "all") {
    out.options.output.shown.ranks.clear();
    return absl::OkStatus();
  }
  auto ranks = ParseRanges(value, hosts::kMaxRanks - 1);
  if (!ranks.ok()) return ranks.status();
  out.options.output.shown.ranks = *std::move(ranks);
  return absl::OkStatus();
}

absl::Status SetStdin(View value, RawLaunch& out) {
  if (value != "none" && value != "all") {
    uint32_t rank = 0;
    if (!Set(value, 0, hosts::kMaxRanks - 1, rank).ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", Escape(value, 60), "\" is not none, all or a rank"));
    }
    out.options.job.stdin_rank = absl::StrCat(rank);
    return absl::OkStatus();
  }
  return Set(value, out.options.job.stdin_rank);
}

namespace {

absl::Status SetCode(View directory, bool compare, stage::Options& out) {
  if (directory.empty()) {
    return absl::InvalidArgumentError("which directory? \".\" is the current one");
  }
  if (!out.directory.empty() && out.compare != compare) {
    return absl::InvalidArgumentError(
        "--stage copies the code, and checks it; --verify-code checks what the hosts have: give "
        "one "
        "of the two");
  }
  out.directory = std::string(directory);
  out.compare = compare;
  return absl::OkStatus();
}

}  // namespace

absl::Status SetStage(View value, RawLaunch& out) {
  return SetCode(value, /*compare=*/false, out.options.stage);
}

absl::Status SetVerifyCode(View value, RawLaunch& out) {
  return SetCode(value, /*compare=*/true, out.options.stage);
}

absl::Status SetStageLimit(View value, RawLaunch& out) {
  absl::StatusOr<uint64_t> bytes = ParseSize(value);
  if (!bytes.ok()) return bytes.status();
  out.options.stage.most_bytes = *bytes;
  return absl::OkStatus();
}

absl::Status SetSpool(View value, RawLaunch& out) {
  absl::StatusOr<uint64_t> bytes = ParseSize(value);
  if (!bytes.ok()) return bytes.status();
  if (*bytes < (1 << 20)) return absl::InvalidArgumentError("it must be at least 1M");
  out.options.job.part.set_spool_limit_bytes(*bytes);
  return absl::OkStatus();
}

absl::Status SetLogLimit(View value, RawLaunch& out) {
  absl::StatusOr<uint64_t> bytes = ParseSize(value);
  if (!bytes.ok()) return bytes.status();
  // Enough for the first and the last page of each stream of 64 ranks.
  if (*bytes < (1 << 20)) return absl::InvalidArgumentError("it must be at least 1M");
  out.options.detach.log_limit = *bytes;
  return absl::OkStatus();
}

}  // namespace dtrain::cli
