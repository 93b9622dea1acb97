// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/accelerate_variables.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/faces/translation.h"

namespace dtrain::faces {
namespace {

using Part = AccelerateSetting::Part;

absl::Status ChoosePath(AccelerateJob& job) {
  AccelerateValues& values = job.values;
  job.precision_is_the_files =
      values.given.count("mixed_precision") == 0 && !values.At("mixed_precision").is_null();
  if (values.Text("mixed_precision").empty()) values.of["mixed_precision"] = "no";
  const std::string precision = absl::AsciiStrToLower(
      values.At("mixed_precision") == false ? "no" : values.Text("mixed_precision"));
  if (precision != "no" && precision != "fp16" && precision != "bf16" && precision != "fp8") {
    return absl::InvalidArgumentError(absl::StrCat("mixed_precision: \"", Escape(precision, 60),
                                                   "\" is not no, fp16, bf16 or fp8"));
  }
  values.of["mixed_precision"] = precision;
  job.cpu = values.IsTruth("cpu") || values.IsTruth("use_cpu");
  if (values.IsTruth("cpu")) return absl::OkStatus();
  if (values.IsTruth("use_deepspeed")) {
    job.path = AccelerateJob::Path::kDeepSpeed;
  } else if (values.IsTruth("use_fsdp") || values.IsTruth("use_megatron_lm") ||
             values.IsTruth("multi_gpu")) {
    job.path = AccelerateJob::Path::kTorchrun;
  }
  return absl::OkStatus();
}

absl::Status CheckDynamo(AccelerateValues& values) {
  std::string backend = absl::AsciiStrToUpper(values.Text("dynamo_backend"));
  if (backend.empty() || values.At("dynamo_backend") == false) backend = "NO";
  for (absl::string_view known :
       {"NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS",
        "OFI", "FX2TRT", "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE",
        "TVM", "HPU_BACKEND", "NEURON"}) {
    if (backend != known) continue;
    values.of["dynamo_backend"] = backend;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dynamo_backend: \"", Escape(backend, 60), "\" is not one that accelerate has"));
}

void AddThreads(const AccelerateJob& job, const cli::Surroundings& surroundings, Variables& out) {
  if (job.path == AccelerateJob::Path::kDeepSpeed) return;
  std::string threads = job.values.Text("num_cpu_threads_per_process");
  int64_t inherited = 0;
  const bool has = absl::SimpleAtoi(Variable(surroundings, "OMP_NUM_THREADS"), &inherited);
  if (threads.empty() && has && inherited > 0) threads = absl::StrCat(inherited);
  // accelerate divides the machine's cores among ranks on CPUs; those of the nodes are not known
  // yet.
  if (threads.empty() && job.cpu) return;
  out.emplace_back("OMP_NUM_THREADS", threads.empty() ? "1" : threads);
}

absl::Status AddFsdp(const AccelerateJob& job, Variables& out) {
  const AccelerateValues& values = job.values;
  if (!values.IsTruth("use_fsdp")) return absl::OkStatus();
  if (values.IsTruth("fsdp_cpu_ram_efficient_loading") &&
      !values.IsTruth("fsdp_sync_module_states")) {
    return absl::InvalidArgumentError(
        "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states to be true");
  }
  out.emplace_back("ACCELERATE_USE_FSDP", "true");
  return AddPart(Part::kFsdp, values, out);
}

absl::Status AddDeepSpeed(const AccelerateJob& job, const cli::Surroundings& surroundings,
                          Variables& out) {
  std::vector<std::string> paths = absl::StrSplit(Variable(surroundings, "PYTHONPATH"), ':');
  paths.push_back(surroundings.working_directory);
  std::erase(paths, "");
  out.emplace_back("PYTHONPATH", absl::StrJoin(paths, ":"));
  // Of these the script may not have other values in DeepSpeed's own file.
  std::vector<std::string> fields;
  if (job.config) {
    const auto keys = job.config->keys.find("deepspeed_config");
    if (keys != job.config->keys.end() && keys->is_object()) {
      for (const auto& [key, value] : keys->items()) fields.push_back(key);
    }
    if (job.precision_is_the_files) fields.emplace_back("mixed_precision");
  }
  out.emplace_back("ACCELERATE_CONFIG_DS_FIELDS",
                   absl::AsciiStrToLower(absl::StrJoin(fields, ",")));
  out.emplace_back("ACCELERATE_USE_DEEPSPEED", "true");
  return AddPart(Part::kDeepSpeed, job.values, out);
}

}  // namespace

absl::Status PrepareVariables(AccelerateJob& job) {
  absl::Status status = ChoosePath(job);
  return status.ok() ? CheckDynamo(job.values) : status;
}

absl::StatusOr<Variables> MakeVariables(const AccelerateJob& job,
                                        const cli::Surroundings& surroundings) {
  const AccelerateValues& values = job.values;
  Variables out;
  if (job.path == AccelerateJob::Path::kPlain) {
    out.emplace_back("ACCELERATE_USE_CPU", job.cpu ? "True" : "False");
  }
  if (values.IsTruth("debug")) out.emplace_back("ACCELERATE_DEBUG_MODE", "true");
  out.emplace_back("ACCELERATE_MIXED_PRECISION", values.Text("mixed_precision"));
  absl::Status status;
  if (values.Text("mixed_precision") == "fp8") status = AddPart(Part::kFp8, values, out);
  if (status.ok() && job.path != AccelerateJob::Path::kDeepSpeed)
    status = AddPart(Part::kDynamo, values, out);
  if (status.ok() && job.path == AccelerateJob::Path::kTorchrun) status = AddFsdp(job, out);
  if (status.ok() && job.path == AccelerateJob::Path::kTorchrun &&
      values.IsTruth("use_megatron_lm")) {
    out.emplace_back("ACCELERATE_USE_MEGATRON_LM", "true");
    status = AddPart(Part::kMegatron, values, out);
  }
  if (status.ok() && job.path == AccelerateJob::Path::kDeepSpeed)
    status = AddDeepSpeed(job, surroundings, out);
  AddThreads(job, surroundings, out);
  if (values.IsTruth("enable_cpu_affinity")) out.emplace_back("ACCELERATE_CPU_AFFINITY", "1");
  if (values.IsTruth("ipex")) out.emplace_back("ACCELERATE_USE_IPEX", "true");
  if (status.ok() && job.path != AccelerateJob::Path::kPlain &&
      values.IsTruth("use_parallelism_config")) {
    out.emplace_back("ACCELERATE_USE_PARALLELISM_CONFIG", "true");
    status = AddPart(Part::kParallelism, values, out);
  }
  if (!status.ok()) return status;
  return out;
}

}  // namespace dtrain::faces
