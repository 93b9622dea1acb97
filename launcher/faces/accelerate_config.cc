// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/accelerate_config.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "launcher/faces/translation.h"

namespace dtrain::faces {
namespace {

// A map of the file, and what its keys begin with as flags.
struct Section {
  absl::string_view name, prefix;
};
constexpr std::array<Section, 8> kSections = {{{"fp8_config", "fp8_"},
                                               {"deepspeed_config", ""},
                                               {"fsdp_config", "fsdp_"},
                                               {"parallelism_config", ""},
                                               {"megatron_lm_config", ""},
                                               {"mpirun_config", ""},
                                               {"dynamo_config", "dynamo_"},
                                               {"ipex_config", ""}}};  // up to accelerate 1.11

constexpr absl::string_view kKeys[] = {
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug",
    "num_processes", "machine_rank", "num_machines", "gpu_ids", "main_process_ip",
    "main_process_port", "rdzv_backend", "same_network", "main_training_function",
    "enable_cpu_affinity", "downcast_bf16",
    // Of TPUs.
    "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands", "tpu_vm",
    "tpu_env",
    // As older releases wrote them.
    "fp16", "dynamo_backend"};

constexpr absl::string_view kDevices[] = {"MULTI_GPU",  "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA",
                                          "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU", "MULTI_NEURON"};
constexpr absl::string_view kOtherTypes[] = {"NO",   "MULTI_CPU", "DEEPSPEED",
                                             "FSDP", "XLA",       "MEGATRON_LM"};

template <typename List>
bool Contains(const List& list, absl::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

absl::Status InFile(const AccelerateConfig& config, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(Escape(config.path, 300), ": ", what));
}

// Where `accelerate config` writes; empty: nowhere.
std::string DefaultPath(const cli::Surroundings& surroundings) {
  const std::string home = Variable(surroundings, "HOME");
  std::string folder = Variable(surroundings, "HF_HOME");
  if (folder.empty()) {
    const std::string cache = Variable(surroundings, "XDG_CACHE_HOME");
    folder = absl::StrCat(cache.empty() ? "~/.cache" : cache, "/huggingface");
  }
  if (folder == "~" || absl::StartsWith(folder, "~/")) {
    if (home.empty()) return "";
    folder = absl::StrCat(home, folder.substr(1));
  }
  return absl::StrCat(folder, "/accelerate/default_config.yaml");
}

absl::Status CheckKeys(const AccelerateConfig& config) {
  if (!config.keys.is_object()) return InFile(config, "not a configuration of accelerate's");
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config.keys.items()) {
    const bool section = std::any_of(kSections.begin(), kSections.end(),
                                     [&key = key](auto& each) { return each.name == key; });
    if (section && !value.is_null() && !value.is_object()) {
      return InFile(config, absl::StrCat(key, " must be a map of keys and values"));
    }
    if (!section && !Contains(kKeys, key)) unknown.push_back(Escape(key, 60));
  }
  if (unknown.empty()) return absl::OkStatus();
  return InFile(config, absl::StrCat("unknown keys: ", absl::StrJoin(unknown, ", "),
                                     "; correct or remove them"));
}

std::string Word(const AccelerateConfig& config, const char* key) {
  const auto it = config.keys.find(key);
  return it == config.keys.end() || it->is_null() ? "" : PythonText(*it).value_or("?");
}

absl::Status CheckKind(AccelerateConfig& config) {
  const std::string environment = Word(config, "compute_environment");
  if (environment == "AMAZON_SAGEMAKER") {
    return InFile(config,
                  "compute_environment: AMAZON_SAGEMAKER is not supported: Amazon starts those "
                  "jobs, so use accelerate's own program");
  }
  if (!environment.empty() && environment != "LOCAL_MACHINE") {
    return InFile(config, absl::StrCat("compute_environment: \"", Escape(environment, 60),
                                       "\" is not LOCAL_MACHINE"));
  }
  config.distributed_type = Word(config, "distributed_type");
  if (config.distributed_type.empty()) return InFile(config, "distributed_type is missing");
  if (!Contains(kDevices, config.distributed_type) &&
      !Contains(kOtherTypes, config.distributed_type)) {
    return InFile(config, absl::StrCat("distributed_type: \"", Escape(config.distributed_type, 60),
                                       "\" is not one that accelerate has"));
  }
  if (config.distributed_type == "XLA") {
    return InFile(config,
                  "distributed_type: XLA is not supported: dtrain does not start TPU jobs, so use "
                  "accelerate's own program");
  }
  const auto mpirun = config.keys.find("mpirun_config");
  if (mpirun != config.keys.end() && mpirun->is_object() && mpirun->contains("mpirun_hostfile") &&
      !mpirun->at("mpirun_hostfile").is_null()) {
    return InFile(config,
                  "mpirun_config.mpirun_hostfile is not supported: dtrain starts the ranks itself; "
                  "remove it and give the file to --hostfile");
  }
  return absl::OkStatus();
}

// The older forms of keys, and what a missing one means.
void Complete(AccelerateConfig& config) {
  Value& keys = config.keys;
  if (!keys.contains("num_processes")) {
    keys["num_processes"] = config.distributed_type == "NO" ? 1 : -1;
  }
  if (!keys.contains("mixed_precision") && keys.contains("fp16") && keys["fp16"] == true) {
    keys["mixed_precision"] = "fp16";
  }
  if (keys.contains("dynamo_backend")) {
    const Value backend = keys["dynamo_backend"];
    keys["dynamo_config"] = Value::object();
    if (backend != "NO") keys["dynamo_config"]["dynamo_backend"] = backend;
  }
}

// What kind of job it is, when the command line says none.
void ApplyKind(const AccelerateConfig& config, AccelerateValues& values) {
  for (absl::string_view flag : {"multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"}) {
    if (values.IsTruth(flag)) return;
  }
  const std::string& type = config.distributed_type;
  values.of["use_deepspeed"] = type == "DEEPSPEED";
  values.of["multi_gpu"] = Contains(kDevices, type);
  values.of["use_fsdp"] = type == "FSDP";
  values.of["use_megatron_lm"] = type == "MEGATRON_LM";
  const auto parallelism = config.keys.find("parallelism_config");
  values.of["use_parallelism_config"] =
      parallelism != config.keys.end() && parallelism->is_object() && !parallelism->empty();
}

void ApplySections(const AccelerateConfig& config, AccelerateValues& values,
                   std::vector<std::string>& unknown) {
  for (const Section& section : kSections) {
    const auto keys = config.keys.find(std::string(section.name));
    if (keys == config.keys.end() || !keys->is_object()) continue;
    for (const auto& [name, value] : keys->items()) {
      // "fsdp" and not "fsdp_": as accelerate looks for it.
      const absl::string_view first = section.prefix.substr(0, section.prefix.find('_'));
      const std::string key = section.prefix.empty() || absl::StartsWith(name, first)
                                  ? name
                                  : absl::StrCat(section.prefix, name);
      const bool known = FindSetting(key) != nullptr || absl::StartsWith(key, "fp8_") ||
                         key == "ipex" || key == "use_xpu" || absl::StartsWith(key, "mpirun_");
      if (!known) unknown.push_back(absl::StrCat(section.name, ".", Escape(name, 60)));
      if (known && values.given.count(key) == 0) values.of[key] = value;
    }
  }
}

}  // namespace

absl::StatusOr<std::optional<AccelerateConfig>> ReadAccelerateConfig(
    const std::string& path, bool cpu, const cli::Surroundings& surroundings) {
  AccelerateConfig config;
  config.path = path;
  if (path.empty() && !cpu) config.path = DefaultPath(surroundings);
  if (config.path.empty()) return std::nullopt;
  const absl::StatusOr<std::string> text = surroundings.read(config.path);
  if (path.empty() && absl::IsNotFound(text.status())) return std::nullopt;
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("configuration file: ", text.status().message()));
  }
  const bool json = absl::EndsWith(config.path, ".json");
  absl::StatusOr<Value> keys = json ? ParseJson(*text, config.path) : ParseYaml(*text, config.path);
  if (!keys.ok()) return keys.status();
  config.keys = *std::move(keys);
  absl::Status status = CheckKeys(config);
  if (status.ok()) status = CheckKind(config);
  if (!status.ok()) return status;
  Complete(config);
  return config;
}

absl::Status ApplyAccelerateConfig(const AccelerateConfig& config, AccelerateValues& values,
                                   std::vector<std::string>& notes) {
  ApplyKind(config, values);
  std::vector<std::string> unknown;
  ApplySections(config, values, unknown);
  if (!unknown.empty()) {
    notes.push_back(absl::StrCat(Escape(config.path, 300), ": ", absl::StrJoin(unknown, ", "),
                                 " ignored: not known"));
  }
  for (const auto& [key, value] : config.keys.items()) {
    const AccelerateSetting* setting = FindSetting(key);
    if (key != "use_cpu" && setting == nullptr) continue;
    if (value.is_null() || values.given.count(key) != 0) continue;
    const bool whole = setting != nullptr && setting->kind == AccelerateSetting::Kind::kWhole;
    if (whole ? !value.is_number_integer() : !PythonText(value).ok()) {
      return InFile(config, absl::StrCat(key, ": ", Escape(value.dump(), 60), " is not ",
                                         whole ? "a number" : "a word"));
    }
    values.of[key] = value;
  }
  if (values.At("num_processes") == -1) {
    return InFile(config, "num_processes is missing: give --num_processes");
  }
  return absl::OkStatus();
}

}  // namespace dtrain::faces
