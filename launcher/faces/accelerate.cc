// SPDX-License-Identifier: Apache-2.0
// accelerate launch, as of accelerate 1.14 (src/accelerate/commands/launch.py). The script gets the
// variables that accelerate would set and is started as each rank: accelerate itself, once per
// rank, would make a world of each.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/faces/accelerate_config.h"
#include "launcher/faces/accelerate_settings.h"
#include "launcher/faces/accelerate_variables.h"
#include "launcher/faces/face.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::faces {
namespace {

using Becomes = FaceFlag::Becomes;

constexpr absl::string_view kTpu = "dtrain does not start TPU jobs; use accelerate's own program";
constexpr absl::string_view kAws = "Amazon starts SageMaker's jobs; use accelerate's own program";
constexpr absl::string_view kNoMpirun =
    "dtrain starts the ranks itself; give the file to --hostfile";

std::vector<FaceFlag> PlainFlags() {
  return {
      {"--config-file", "FILE", Becomes::kOwn, "",
       "YAML or JSON; default: $HF_HOME/accelerate/default_config.yaml"},
      {"--module,-m", "", Becomes::kOwn, "", "the script is a module: python3 -u -m MODULE"},
      {"--no-python", "", Becomes::kOwn, "", "the script is a program: run as it is"},
      {"--quiet,-q", "", Becomes::kIgnored, ""},
      {"--same-network", "", Becomes::kIgnored, ""},
      {"--main-process-ip", "ADDRESS", Becomes::kIgnored, kRendezvous},
      {"--main-process-port", "PORT", Becomes::kIgnored, kRendezvous},
      {"--rdzv-backend", "NAME", Becomes::kIgnored, kRendezvous},
      {"--rdzv-conf", "K=V,...", Becomes::kIgnored, kRendezvous},
      {"--max-restarts", "N", Becomes::kFlag, "--max-restarts"},
      {"--monitor-interval", "S", Becomes::kIgnored, ""},
      {"--role", "NAME", Becomes::kVariable, "ROLE_NAME"},
      {"--log-dir", "DIR", Becomes::kFlag, "--log-dir"},
      {"--tee,-t", "WHAT", Becomes::kIgnored,
       "the terminal gets all output, and with --log_dir files do too"},
      {"--tpu", "", Becomes::kRejected, kTpu},
      {"--tpu-cluster", "", Becomes::kRejected, kTpu},
      {"--no-tpu-cluster", "", Becomes::kIgnored, ""},
      {"--tpu-use-sudo", "", Becomes::kRejected, kTpu},
      {"--vm", "NAME", Becomes::kRejected, kTpu},
      {"--env", "NAME=VALUE", Becomes::kRejected, kTpu},
      {"--main-training-function", "NAME", Becomes::kIgnored, "it is for TPUs"},
      {"--downcast-bf16", "", Becomes::kIgnored, "it is for TPUs"},
      {"--aws-access-key-id", "ID", Becomes::kRejected, kAws},
      {"--aws-secret-access-key", "KEY", Becomes::kRejected, kAws},
      {"--mpirun-hostfile", "FILE", Becomes::kRejected, kNoMpirun},
      {"--mpirun-ccl", "N", Becomes::kIgnored, "no mpirun is started"},
  };
}

const std::vector<FaceFlag>& AccelerateFlags() {
  static const auto* flags = [] {
    auto* all = new std::vector<FaceFlag>(AccelerateSettingFlags());
    for (const FaceFlag& flag : PlainFlags()) all->push_back(flag);
    return all;
  }();
  return *flags;
}

absl::Status CheckLine(const AccelerateValues& values) {
  int kinds = 0;
  for (absl::string_view flag : {"cpu", "multi_gpu", "use_deepspeed", "use_fsdp"}) {
    kinds += values.IsTruth(flag) ? 1 : 0;
  }
  if (kinds > 1) {
    return absl::InvalidArgumentError(
        "--cpu, --multi_gpu, --use_deepspeed and --use_fsdp exclude each other: leave one");
  }
  const Value& processes = values.At("num_processes");
  if (values.IsTruth("multi_gpu") && processes.is_number() && processes.get<int64_t>() < 2) {
    return absl::InvalidArgumentError("--multi_gpu needs at least 2 processes");
  }
  if (values.IsTruth("use_parallelism_config") &&
      (!values.IsTruth("use_fsdp") || values.Text("fsdp_version") == "1")) {
    return absl::InvalidArgumentError(
        "--use_parallelism_config needs --use_fsdp and --fsdp_version 2");
  }
  return absl::OkStatus();
}

// The number, or `otherwise` if it is not set.
absl::StatusOr<int64_t> NumberOf(const AccelerateValues& values, absl::string_view key,
                                 int64_t otherwise, int64_t least, int64_t most) {
  const Value& value = values.At(key);
  if (value.is_null()) return otherwise;
  const int64_t number = value.is_number_integer() ? value.get<int64_t>() : least - 1;
  if (number >= least && number <= most) return number;
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", Escape(value.dump(), 60),
                                                 " is not a number from ", least, " to ", most));
}

// Which hosts; the number of machines, 1 where all hosts of the line are meant.
absl::StatusOr<int64_t> ChooseMachines(const AccelerateJob& job, LineBuilder& line,
                                       Translation& out) {
  const AccelerateValues& values = job.values;
  const absl::StatusOr<int64_t> machines = NumberOf(values, "num_machines", 1, 1, hosts::kMaxHosts);
  if (!machines.ok()) return machines;
  // -1: scripts for DeepSpeed's own launchers have no rank to give.
  const absl::StatusOr<int64_t> rank = NumberOf(values, "machine_rank", 0, -1, hosts::kMaxHosts);
  if (!rank.ok()) return rank;
  if (*rank > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "machine_rank ", *rank, ": dtrain starts all machines of a job from one command; run this ",
        "line once, without --machine_rank, and with --hostfile or --hosts"));
  }
  const std::string file = values.Text("deepspeed_hostfile");
  bool given = line.HasOurs("hostfile") || line.HasOurs("hosts");
  if (*machines > 1 && job.path == AccelerateJob::Path::kDeepSpeed) {
    if (!given && !file.empty()) line.Flag("--hostfile", file);
    given = given || !file.empty();
    for (absl::string_view what : {"inclusion", "exclusion"}) {
      const std::string hosts = values.Text(absl::StrCat("deepspeed_", what, "_filter"));
      if (!hosts.empty()) line.Flag(what == "inclusion" ? "--include" : "--exclude", hosts);
    }
  }
  out.this_machine = *machines == 1 && !given;
  out.needs_hosts = *machines > 1;
  if (*machines > 1 || (given && values.given.count("num_machines") != 0)) {
    out.fewest_nodes = out.most_nodes = static_cast<uint32_t>(*machines);
  }
  return machines;
}

// The variable by which a device's library sees only some of them.
absl::string_view VisibleDevices(const AccelerateJob& job) {
  constexpr std::pair<absl::string_view, absl::string_view> kOthers[] = {
      {"MULTI_XPU", "ZE_AFFINITY_MASK"},          {"MULTI_MLU", "MLU_VISIBLE_DEVICES"},
      {"MULTI_SDAA", "SDAA_VISIBLE_DEVICES"},     {"MULTI_MUSA", "MUSA_VISIBLE_DEVICES"},
      {"MULTI_NPU", "ASCEND_RT_VISIBLE_DEVICES"}, {"MULTI_HPU", "HABANA_VISIBLE_MODULES"},
      {"MULTI_NEURON", "NEURON_RT_VISIBLE_CORES"}};
  for (const auto& [type, variable] : kOthers) {
    if (job.config && job.config->distributed_type == type) return variable;
  }
  return "CUDA_VISIBLE_DEVICES";
}

// The ids; empty: all.
absl::StatusOr<std::vector<std::string>> GpuIds(const AccelerateJob& job, int64_t machines) {
  const std::string text = job.values.Text("gpu_ids");
  if (text.empty() || text == "all") return std::vector<std::string>();
  std::vector<std::string> ids = absl::StrSplit(text, ',');
  if (job.config && ids.size() < 2 && job.values.IsTruth("multi_gpu") && machines == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpu_ids: ", Escape(text, 60),
                     " is one GPU, and the job is for several: name more, or all"));
  }
  return ids;
}

absl::Status ChooseRanks(const AccelerateJob& job, int64_t machines, size_t ids, LineBuilder& line,
                         Translation& out) {
  absl::StatusOr<int64_t> ranks =
      NumberOf(job.values, "num_processes", static_cast<int64_t>(ids) * machines, 1,
               hosts::kMaxHosts * int64_t{hosts::kMaxSlots});
  if (!ranks.ok()) return ranks.status();
  if (line.HasOurs("np") || line.HasOurs("ppn")) return absl::OkStatus();
  if (*ranks == 0 && job.cpu) ranks = machines;
  if (*ranks == 0) {
    out.rank_per_gpu_or_one = true;
    return absl::OkStatus();
  }
  if (*ranks % machines != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_processes ", *ranks, " cannot be divided among ", machines, " machines"));
  }
  if (machines > 1) {
    line.Flag("--ppn", absl::StrCat(*ranks / machines));
  } else {
    line.Flag("--np", absl::StrCat(*ranks));
  }
  out.cores_are_no_limit = true;
  return absl::OkStatus();
}

absl::Status Fill(AccelerateJob& job, const cli::Surroundings& surroundings, LineBuilder& line,
                  Translation& out) {
  if (absl::Status status = PrepareVariables(job); !status.ok()) return status;
  const absl::StatusOr<int64_t> machines = ChooseMachines(job, line, out);
  if (!machines.ok()) return machines.status();
  const absl::StatusOr<std::vector<std::string>> ids = GpuIds(job, *machines);
  if (!ids.ok()) return ids.status();
  absl::Status status = ChooseRanks(job, *machines, ids->size(), line, out);
  if (!status.ok()) return status;
  if ((job.cpu || !ids->empty()) && !line.HasOurs("gpu-bind")) line.Flag("--gpu-bind", "none");
  if (!ids->empty()) line.Export(VisibleDevices(job), absl::StrJoin(*ids, ","));
  const absl::StatusOr<Variables> variables = MakeVariables(job, surroundings);
  if (!variables.ok()) return variables.status();
  for (const auto& [name, value] : *variables) line.Export(name, value);
  const bool has_threads = std::any_of(variables->begin(), variables->end(), [](const auto& each) {
    return each.first == "OMP_NUM_THREADS";
  });
  if (!has_threads && job.cpu && job.values.At("num_processes") > 1) {
    line.Note("each rank has one thread; --num_cpu_threads_per_process N gives it more");
  }
  return absl::OkStatus();
}

// What the file that nobody has named says: people forget that it is there.
void NoteDefaultFile(const AccelerateJob& job, LineBuilder& line) {
  const Value& processes = job.values.At("num_processes");
  if (job.values.given.count("num_processes") != 0 || !processes.is_number_integer()) return;
  if (line.HasOurs("np") || line.HasOurs("ppn")) return;
  const Value& machines = job.values.At("num_machines");
  const bool several = machines.is_number_integer() && machines.get<int64_t>() > 1;
  line.Note(absl::StrCat(processes.get<int64_t>(),
                         processes.get<int64_t>() == 1 ? " process" : " processes",
                         several ? absl::StrCat(" on ", machines.get<int64_t>(), " machines") : "",
                         ", from ", Escape(job.config->path, 300)));
}

absl::StatusOr<Translation> TranslateAccelerate(const std::vector<std::string>& args,
                                                const cli::Surroundings& surroundings) {
  if (args.empty() || args[0] != kAccelerate.verb) {
    return absl::InvalidArgumentError(absl::StrCat(
        args.empty() ? "a command is missing" : absl::StrCat("there is no ", Escape(args[0], 60)),
        ": dtrain has accelerate launch only; the rest is in accelerate's own program"));
  }
  absl::StatusOr<FaceWords> words =
      SplitFace(AccelerateFlags(), kAccelerate.spelling,
                std::vector<std::string>(args.begin() + 1, args.end()));
  if (!words.ok()) return words.status();
  Translation out;
  LineBuilder line(out);
  absl::Status status = line.Take(*words);
  if (!status.ok()) return status;
  AccelerateJob job;
  absl::StatusOr<AccelerateValues> values = TakeSettings(*words);
  if (!values.ok()) return values.status();
  job.values = *std::move(values);
  if (status = CheckLine(job.values); !status.ok()) return status;
  auto config =
      ReadAccelerateConfig(line.Value("config-file"), job.values.IsTruth("cpu"), surroundings);
  if (!config.ok()) return config.status();
  job.config = *std::move(config);
  std::vector<std::string> notes;
  if (job.config) status = ApplyAccelerateConfig(*job.config, job.values, notes);
  for (const std::string& note : notes) line.Note(note);
  if (status.ok()) status = Fill(job, surroundings, line, out);
  const bool by_default = job.config && line.Value("config-file").empty();
  if (!status.ok() && by_default && !absl::StrContains(status.message(), job.config->path)) {
    return absl::InvalidArgumentError(absl::StrCat(status.message(), "; what no flag says is from ",
                                                   Escape(job.config->path, 300)));
  }
  if (!status.ok()) return status;
  if (by_default) NoteDefaultFile(job, line);
  auto command =
      PythonCommand(line.line().command, line.Has("module"), line.Has("no-python"), surroundings);
  if (!command.ok()) return command.status();
  line.line().command = *std::move(command);
  out.programs.push_back(std::move(line.line()));
  return out;
}

}  // namespace

const Face kAccelerate = {
    .name = "accelerate",
    .usage = "accelerate launch [FLAGS] SCRIPT [ARGUMENTS...]",
    .text =
        "Starts a job as accelerate launch would, on all its machines, from one command. The\n"
        "configuration file that accelerate config writes counts here too.\n",
    .flags = AccelerateFlags,
    .spelling = {.one_dash = false, .abbreviations = false},
    .verb = "launch",
    .translate = TranslateAccelerate,
};

}  // namespace dtrain::faces
