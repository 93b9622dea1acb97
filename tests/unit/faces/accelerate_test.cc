// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "launcher/faces/accelerate_settings.h"
#include "launcher/faces/face.h"

namespace dtrain::faces {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Kind = AccelerateSetting::Kind;
using Part = AccelerateSetting::Part;

constexpr char kDynamo[] =
    "ACCELERATE_DYNAMO_BACKEND=NO ACCELERATE_DYNAMO_MODE=default "
    "ACCELERATE_DYNAMO_USE_FULLGRAPH=False ACCELERATE_DYNAMO_USE_DYNAMIC=False "
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False";

class AccelerateTest : public ::testing::Test {
 public:
  AccelerateTest() {
    surroundings_.working_directory = "/home/me";
    surroundings_.read = [this](const std::string& path) -> absl::StatusOr<std::string> {
      const auto it = files_.find(path);
      if (it == files_.end()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
      return it->second;
    };
  }

  // Behind "accelerate launch", words by blanks.
  absl::StatusOr<Translation> Translate(const std::string& line) {
    std::vector<std::string> args = absl::StrSplit(line, ' ', absl::SkipEmpty());
    args.insert(args.begin(), "launch");
    return kAccelerate.translate(args, surroundings_);
  }
  std::string Error(const std::string& line) {
    const auto translation = Translate(line + " t.py");
    return translation.ok() ? "no error" : std::string(translation.status().message());
  }
  // dtrain's flags but for --export, and the command.
  std::string Words(const std::string& line) { return Pick(line, false); }
  // The variables of --export.
  std::string Exports(const std::string& flags) { return Pick(flags + " t.py", true); }

  cli::Surroundings surroundings_;
  std::map<std::string, std::string> files_;

 private:
  std::string Pick(const std::string& line, bool exports) {
    const auto translation = Translate(line);
    if (!translation.ok()) return std::string(translation.status().message());
    const std::vector<std::string> words = LaunchWords(*translation);
    std::vector<std::string> out;
    for (size_t i = 1; i < words.size(); ++i) {
      const bool is_export = words[i] == "--export";
      if (is_export) ++i;
      if (words[i] == "--" && exports) break;
      if (is_export == exports) out.push_back(words[i]);
    }
    return absl::StrJoin(out, " ");
  }
};

TEST_F(AccelerateTest, OnlyLaunchIsThere) {
  for (const char* word : {"config", "test", "env", "--version", "train.py"}) {
    EXPECT_THAT(std::string(kAccelerate.translate({word}, surroundings_).status().message()),
                HasSubstr("dtrain has accelerate launch only"));
  }
  EXPECT_THAT(std::string(kAccelerate.translate({}, surroundings_).status().message()),
              HasSubstr("a command is missing"));
  EXPECT_TRUE(WantsHelp(kAccelerate, {"launch", "--help"}));
  EXPECT_TRUE(WantsHelp(kAccelerate, {"--help"}));
  EXPECT_FALSE(WantsHelp(kAccelerate, {"launch", "t.py", "--help"}));
}

TEST_F(AccelerateTest, ProcessesAreThoseOfAllMachines) {
  const auto none = Translate("t.py --multi_gpu");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->this_machine && none->rank_per_gpu_or_one);
  EXPECT_EQ(Words("t.py --num_processes 2"), "-- python3 -u t.py --num_processes 2");
  EXPECT_EQ(Words("--num_processes 2 t.py"), "--np 2 -- python3 -u t.py");
  EXPECT_EQ(Words("--num-processes=2 --hostfile h t.py"), "--hostfile h --np 2 -- python3 -u t.py");
  const auto two = Translate("--num_processes 16 --num_machines 2 t.py");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_TRUE(two->needs_hosts && !two->this_machine);
  EXPECT_EQ(two->most_nodes, 2u);
  EXPECT_EQ(Words("--num_processes 16 --num_machines 2 t.py"), "--ppn 8 -- python3 -u t.py");
  EXPECT_TRUE(Translate("--num_machines 2 t.py")->rank_per_gpu_or_one);
  EXPECT_EQ(Translate("--num_machines 1 --hosts a,b t.py")->most_nodes, 1u);
  EXPECT_EQ(Words("--ppn 3 --num_processes 2 t.py"), "--ppn 3 -- python3 -u t.py");
  EXPECT_THAT(Error("--num_processes 3 --num_machines 2"), HasSubstr("cannot be divided"));
  EXPECT_THAT(Error("--num_processes 0"), HasSubstr("is not a number from 1"));
  EXPECT_THAT(Error("--num_processes x"), HasSubstr("is not a whole number"));
  EXPECT_THAT(Error("--num_machines 0"), HasSubstr("is not a number from 1"));
  EXPECT_THAT(Error("--num_machines 2 --machine_rank 1"), HasSubstr("run this line once"));
  // huggingface/accelerate#3319
  EXPECT_EQ(Error("--num_machines 2 --machine_rank -1"), "no error");
  EXPECT_THAT(Error("--num_machines 2 --machine_rank -2"), HasSubstr("is not a number from -1"));
}

TEST_F(AccelerateTest, ARankPerGpuOrOneIsThePlansWhereNothingElseSaysHowMany) {
  const auto none = Translate("t.py");
  cli::LaunchOptions options;
  BeforeHosts(*none, options);
  EXPECT_EQ(options.job.plan.per_node, plan::PerNode::kGpusOrOne);
  cli::LaunchOptions said;
  said.job.plan.ranks = 3;
  BeforeHosts(*none, said);
  EXPECT_FALSE(said.job.plan.per_node);
}

TEST_F(AccelerateTest, ModulesAndPrograms) {
  EXPECT_EQ(Words("-m pkg.train --x"), "-- python3 -u -m pkg.train --x");
  EXPECT_EQ(Words("--no_python ./a"), "-- ./a");
  EXPECT_THAT(Error("-m --no-python"), HasSubstr("needs Python"));
  EXPECT_EQ(Words(""), "no script to run");
  EXPECT_THAT(Error("--num_process 2"), HasSubstr("unknown flag --num_process; did you mean"));
}

// accelerate's own code printed these for the same lines.
TEST_F(AccelerateTest, VariablesAreThoseOfAccelerate) {
  EXPECT_EQ(Exports("--num_processes 2"),
            absl::StrCat("ACCELERATE_USE_CPU=False ACCELERATE_MIXED_PRECISION=no ", kDynamo,
                         " OMP_NUM_THREADS=1"));
  EXPECT_EQ(Exports("--multi_gpu --num_processes 2 --mixed_precision fp16"),
            absl::StrCat("ACCELERATE_MIXED_PRECISION=fp16 ", kDynamo, " OMP_NUM_THREADS=1"));
  EXPECT_EQ(Exports("--cpu --num_cpu_threads_per_process 4"),
            absl::StrCat("ACCELERATE_USE_CPU=True ACCELERATE_MIXED_PRECISION=no ", kDynamo,
                         " OMP_NUM_THREADS=4"));
  EXPECT_EQ(
      Exports("--use_fsdp --num_processes 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
              "--fsdp_transformer_layer_cls_to_wrap BertLayer --fsdp_offload_params True "
              "--fsdp_state_dict_type FULL_STATE_DICT --fsdp_min_num_params 2000"),
      absl::StrCat("ACCELERATE_MIXED_PRECISION=no ", kDynamo,
                   " ACCELERATE_USE_FSDP=true FSDP_VERSION=1 FSDP_SHARDING_STRATEGY=FULL_SHARD "
                   "FSDP_RESHARD_AFTER_FORWARD=true FSDP_OFFLOAD_PARAMS=true "
                   "FSDP_MIN_NUM_PARAMS=2000 FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP "
                   "FSDP_TRANSFORMER_CLS_TO_WRAP=BertLayer FSDP_STATE_DICT_TYPE=FULL_STATE_DICT "
                   "FSDP_FORWARD_PREFETCH=false FSDP_USE_ORIG_PARAMS=true "
                   "FSDP_CPU_RAM_EFFICIENT_LOADING=true FSDP_SYNC_MODULE_STATES=true "
                   "FSDP_ACTIVATION_CHECKPOINTING=false OMP_NUM_THREADS=1"));
  EXPECT_EQ(Exports("--use_deepspeed --num_processes 2 --zero_stage 2 --gradient_clipping 1"),
            "ACCELERATE_MIXED_PRECISION=no PYTHONPATH=/home/me ACCELERATE_CONFIG_DS_FIELDS= "
            "ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_ZERO_STAGE=2 "
            "ACCELERATE_GRADIENT_CLIPPING=1.0");
  EXPECT_EQ(Exports("--dynamo_backend inductor --dynamo_mode max-autotune --dynamo_use_dynamic"),
            "ACCELERATE_USE_CPU=False ACCELERATE_MIXED_PRECISION=no "
            "ACCELERATE_DYNAMO_BACKEND=INDUCTOR ACCELERATE_DYNAMO_MODE=max-autotune "
            "ACCELERATE_DYNAMO_USE_FULLGRAPH=False ACCELERATE_DYNAMO_USE_DYNAMIC=True "
            "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False OMP_NUM_THREADS=1");
  surroundings_.environment = {"OMP_NUM_THREADS=5", "PYTHONPATH=/a::/b"};
  EXPECT_THAT(Exports(""), HasSubstr("OMP_NUM_THREADS=5"));
  EXPECT_THAT(Exports("--use_deepspeed"), HasSubstr("PYTHONPATH=/a:/b:/home/me"));
}

TEST_F(AccelerateTest, Fp8) {
  EXPECT_THAT(
      Exports("--mixed_precision fp8 --fp8_backend te --fp8_override_linear_precision yes,no,1"),
      AllOf(HasSubstr("ACCELERATE_FP8_BACKEND=te"), HasSubstr("ACCELERATE_FP8_MARGIN=0"),
            HasSubstr("ACCELERATE_FP8_OVERRIDE_FPROP=1 ACCELERATE_FP8_OVERRIDE_DGRAD=0 "
                      "ACCELERATE_FP8_OVERRIDE_WGRAD=1")));
  EXPECT_THAT(Exports("--fp8_backend te"), Not(HasSubstr("FP8")));
  EXPECT_THAT(Error("--fp8_override_linear_precision 1,2"), HasSubstr("three times yes or no"));
}

// Every flag with a variable sets it, in the job in which it counts.
TEST_F(AccelerateTest, EverySettingHasItsVariable) {
  const std::map<Part, std::string> kJobs = {
      {Part::kDynamo, "--num_processes 1"},
      {Part::kFsdp, "--use_fsdp"},
      {Part::kDeepSpeed, "--use_deepspeed"},
      {Part::kMegatron, "--use_megatron_lm"},
      {Part::kFp8, "--mixed_precision fp8"},
      {Part::kParallelism,
       "--use_fsdp --fsdp_version 2 --use_parallelism_config --parallelism_config_cp_size 2 "
       "--parallelism_config_sp_size 2"},
  };
  size_t checked = 0;
  for (const AccelerateSetting& setting : AccelerateSettings()) {
    if (setting.part == Part::kNone || setting.kind == Kind::kFileOnly) continue;
    const bool choice = setting.values.find('|') != absl::string_view::npos;
    std::string value =
        choice ? std::string(setting.values.substr(setting.values.rfind('|') + 1)) : "7";
    std::string expected = value;
    if (setting.kind == Kind::kNumber) expected = "7.0";
    if (setting.kind == Kind::kSwitch || setting.kind == Kind::kAnyText) expected = "True";
    if (setting.kind == Kind::kDigit) value = expected = "0";
    if (setting.key == "dynamo_backend") value = "tvm", expected = "TVM";
    const std::string flag = absl::StrCat("--", setting.key, "=");
    const std::string exports = Exports(absl::StrCat(kJobs.at(setting.part), " --",
                                                     setting.kind == Kind::kSwitch
                                                         ? std::string(setting.key)
                                                         : absl::StrCat(setting.key, "=", value)));
    EXPECT_THAT(absl::StrCat(exports, " "),
                HasSubstr(absl::StrCat(" ", setting.variable, "=", expected, " ")));
    ++checked;
  }
  EXPECT_EQ(checked, 78u);
}

TEST_F(AccelerateTest, ChosenGpusAreAVariable) {
  EXPECT_EQ(Words("--gpu_ids 1,3 t.py"), "--np 2 --gpu-bind none -- python3 -u t.py");
  EXPECT_THAT(Exports("--gpu_ids 1,3"), HasSubstr("CUDA_VISIBLE_DEVICES=1,3 "));
  EXPECT_THAT(Exports("--gpu_ids all"), Not(HasSubstr("CUDA_VISIBLE_DEVICES")));
  EXPECT_EQ(Words("--cpu t.py"), "--np 1 --gpu-bind none -- python3 -u t.py");
  files_["xpu"] = "{distributed_type: MULTI_XPU, num_processes: 2, gpu_ids: '0,1'}";
  EXPECT_THAT(Exports("--config_file xpu"), HasSubstr("ZE_AFFINITY_MASK=0,1 "));
  files_["one"] = "{distributed_type: MULTI_GPU, num_processes: 2, gpu_ids: 0}";
  EXPECT_THAT(Error("--config_file one"), HasSubstr("is one GPU"));
}

TEST_F(AccelerateTest, TheFileSaysWhatTheLineDoesNot) {
  files_["c.yaml"] = R"(
compute_environment: LOCAL_MACHINE
debug: true
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_offload_params: true
  state_dict_type: SHARDED_STATE_DICT
  fsdp_ignored_modules: x
machine_rank: 0
mixed_precision: bf16
num_machines: 2
num_processes: 8
rdzv_backend: static
tpu_env: []
)";
  EXPECT_EQ(Words("--config_file c.yaml t.py"), "--ppn 4 -- python3 -u t.py");
  EXPECT_EQ(Words("--config_file c.yaml --num_machines 1 t.py"), "--np 8 -- python3 -u t.py");
  EXPECT_THAT(Exports("--config_file c.yaml"),
              AllOf(HasSubstr("ACCELERATE_DEBUG_MODE=true"), HasSubstr("FSDP_OFFLOAD_PARAMS=true"),
                    HasSubstr("FSDP_STATE_DICT_TYPE=SHARDED_STATE_DICT"), HasSubstr("=bf16"),
                    HasSubstr("FSDP_IGNORED_MODULES=x")));
  EXPECT_THAT(Exports("--config_file c.yaml --fsdp_offload_params no --mixed_precision no"),
              AllOf(HasSubstr("FSDP_OFFLOAD_PARAMS=no"), HasSubstr("MIXED_PRECISION=no")));
  // The line's kind of job wins.
  EXPECT_THAT(Exports("--config_file c.yaml --multi_gpu"), Not(HasSubstr("FSDP")));
  EXPECT_THAT(Exports("--config_file c.yaml --cpu"), HasSubstr("ACCELERATE_USE_CPU=True"));
}

TEST_F(AccelerateTest, DeepSpeedHearsWhichFieldsAreTheFiles) {
  files_["d.json"] = R"({"distributed_type": "DEEPSPEED", "num_processes": 2, "num_machines": 2,
      "mixed_precision": "fp16", "deepspeed_config": {"zero_stage": 3, "gradient_clipping": 1.0,
      "deepspeed_hostfile": "hosts", "deepspeed_multinode_launcher": "pdsh"}})";
  EXPECT_EQ(Words("--config_file d.json t.py"), "--hostfile hosts --ppn 1 -- python3 -u t.py");
  EXPECT_EQ(Words("--config_file d.json --hosts a,b --deepspeed_inclusion_filter a:0 t.py"),
            "--hosts a,b --include a:0 --ppn 1 -- python3 -u t.py");
  EXPECT_THAT(Exports("--config_file d.json"),
              HasSubstr("ACCELERATE_CONFIG_DS_FIELDS=zero_stage,gradient_clipping,"
                        "deepspeed_hostfile,deepspeed_multinode_launcher,mixed_precision "));
  EXPECT_THAT(Exports("--config_file d.json --mixed_precision no"),
              Not(HasSubstr("launcher,mixed_precision ")));
}

TEST_F(AccelerateTest, WithoutAFileTheDefaultOneCounts) {
  files_["/home/me/.cache/huggingface/accelerate/default_config.yaml"] =
      "{distributed_type: 'NO', mixed_precision: bf16}";
  EXPECT_THAT(Exports(""), HasSubstr("PRECISION=no"));  // no HOME
  surroundings_.environment = {"HOME=/home/me"};
  EXPECT_THAT(Exports(""), HasSubstr("PRECISION=bf16"));
  EXPECT_THAT(Exports("--cpu"), HasSubstr("PRECISION=no"));
  surroundings_.environment = {"HOME=/home/me", "XDG_CACHE_HOME=/cache"};
  EXPECT_THAT(Exports(""), HasSubstr("PRECISION=no"));
  files_["/home/me/hf/accelerate/default_config.yaml"] =
      "{distributed_type: 'NO', fp16: true, dynamo_backend: EAGER, use_cpu: yes}";
  surroundings_.environment = {"HOME=/home/me", "HF_HOME=~/hf"};
  EXPECT_THAT(Exports(""), AllOf(HasSubstr("PRECISION=fp16"), HasSubstr("BACKEND=EAGER"),
                                 HasSubstr("USE_CPU=True")));
}

// People forget that it is there.
TEST_F(AccelerateTest, WhatComesFromTheDefaultFileIsNoted) {
  const std::string path = "/home/me/.cache/huggingface/accelerate/default_config.yaml";
  surroundings_.environment = {"HOME=/home/me"};
  files_[path] = "{distributed_type: MULTI_GPU, num_processes: 8}";
  EXPECT_THAT(Translate("t.py")->notes, ElementsAre("dtrain: 8 processes, from " + path));
  EXPECT_THAT(Translate("--num_processes 2 t.py")->notes, IsEmpty());
  EXPECT_THAT(Translate("--config_file " + path + " t.py")->notes, IsEmpty());
  files_[path] = "{distributed_type: MULTI_GPU, num_processes: 8, num_machines: 2}";
  EXPECT_THAT(Translate("--hosts a,b t.py")->notes,
              ElementsAre("dtrain: 8 processes on 2 machines, from " + path));
  files_[path] = "{distributed_type: MULTI_GPU, num_processes: 7, num_machines: 2}";
  EXPECT_THAT(Error(""), HasSubstr("num_processes 7 cannot be divided among 2 machines; what no "
                                   "flag says is from " +
                                   path));
  files_[path] = "{distributed_type: 'NO', gpu_ids: [0]}";
  EXPECT_EQ(Error(""), path + ": gpu_ids: [0] is not a word") << "the file is named already";
}

TEST_F(AccelerateTest, WrongFilesAreErrors) {
  EXPECT_EQ(Error("--config_file none"), "configuration file: cannot read none");
  const std::map<std::string, std::string> kFiles = {
      {"[", "F:2:1: not YAML"},
      {"", "F: not a configuration"},
      {"{num_processes: 2}", "F: distributed_type is missing"},
      {"{distributed_type: MULTI_GPU}", "F: num_processes is missing"},
      {"{distributed_type: WARP}", "\"WARP\" is not one that accelerate has"},
      {"{distributed_type: XLA}", "does not start TPU jobs"},
      {"{compute_environment: AMAZON_SAGEMAKER}", "AMAZON_SAGEMAKER is not supported"},
      {"{compute_environment: [x]}", "is not LOCAL_MACHINE"},
      {"{distributed_type: 'NO', zzz: 1, b: 2}", "F: unknown keys: zzz, b; correct"},
      {"{distributed_type: FSDP, fsdp_config: 3}", "F: fsdp_config must be a map"},
      {"{distributed_type: 'NO', num_processes: two}", "num_processes: \"two\" is not a number"},
      {"{distributed_type: 'NO', gpu_ids: [0]}", "gpu_ids: [0] is not a word"},
      {"{distributed_type: 'NO', mixed_precision: half}", "\"half\" is not no, fp16"},
      {"{distributed_type: 'NO', machine_rank: 1}", "run this line once"},
      {"{distributed_type: MULTI_CPU, num_processes: 2, mpirun_config: {mpirun_hostfile: h}}",
       "give the file to --hostfile"},
      {"{distributed_type: FSDP, num_processes: 2, fsdp_config: {offload_params: [x]}}",
       "fsdp_offload_params is a list, and FSDP_OFFLOAD_PARAMS holds text"},
      {"{distributed_type: FSDP, num_processes: 2, fsdp_config: {sync_module_states: no}}",
       "needs fsdp_sync_module_states"},
      {"{distributed_type: 'NO', mixed_precision: fp8, fp8_config: {override_linear_precision: 1}}",
       "must be a list of three"},
  };
  for (const auto& [text, error] : kFiles) {
    files_["F"] = text;
    EXPECT_THAT(Error("--config_file F"), HasSubstr(error)) << text;
  }
  files_["F"] = "{distributed_type: FSDP, num_processes: 1, fsdp_config: {fsdp_new: 1}}";
  EXPECT_THAT(Translate("--config_file F t.py")->notes,
              ElementsAre("dtrain: F: fsdp_config.fsdp_new ignored: not known"));
}

TEST_F(AccelerateTest, WhatHasNoMeaningIsNoted) {
  EXPECT_THAT(Translate("--main_process_ip 10.0.0.1 --main_process_port 29500 --rdzv_backend c10d "
                        "--rdzv_conf a=b --max_restarts 2 --monitor_interval 1 --same_network -q "
                        "--tee 3 --log_dir d --role r t.py")
                  ->notes,
              ElementsAre(HasSubstr("--main_process_ip, --main_process_port, --rdzv_backend, "
                                    "--rdzv_conf ignored"),
                          HasSubstr("--tee ignored")));
  EXPECT_THAT(Translate("--cpu --num_processes 2 t.py")->notes,
              ElementsAre(HasSubstr("each rank has one thread")));
  EXPECT_THAT(Translate("--num_processes 2 t.py")->notes, IsEmpty());
}

TEST_F(AccelerateTest, WhatItCannotDoItRefuses) {
  for (const char* flags :
       {"--tpu", "--tpu_cluster", "--tpu_use_sudo", "--vm x", "--env A=1", "--aws_access_key_id x",
        "--aws_secret_access_key x", "--mpirun_hostfile h"}) {
    EXPECT_THAT(Error(flags), HasSubstr("is not supported")) << flags;
  }
  EXPECT_THAT(Error("--cpu --use_fsdp"), HasSubstr("exclude each other"));
  EXPECT_THAT(Error("--multi_gpu --num_processes 1"), HasSubstr("at least 2 processes"));
  EXPECT_THAT(Error("--use_parallelism_config"), HasSubstr("--fsdp_version 2"));
  EXPECT_THAT(Error("--mixed_precision half"), HasSubstr("is not no, fp16, bf16, fp8"));
  EXPECT_THAT(Error("--dynamo_backend x"), HasSubstr("is not one that accelerate has"));
  EXPECT_THAT(Error("--dynamo_mode x"), HasSubstr("is not default"));
}

}  // namespace
}  // namespace dtrain::faces
