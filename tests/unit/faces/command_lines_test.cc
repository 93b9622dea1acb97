// SPDX-License-Identifier: Apache-2.0
// Command lines of public projects' READMEs and scripts, as they stand there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "launcher/faces/face.h"

namespace dtrain::faces {
namespace {

using ::testing::HasSubstr;

// What a shell makes of blanks and double quotes.
std::vector<std::string> ShellWords(const std::string& line) {
  std::vector<std::string> words;
  bool quoted = false, open = false;
  for (char c : line) {
    if (c == '"') {
      quoted = !quoted;
      if (!open) words.emplace_back();
      open = true;
    } else if (c == ' ' && !quoted) {
      open = false;
    } else {
      if (!open) words.emplace_back();
      open = true;
      words.back() += c;
    }
  }
  return words;
}

struct Row {
  const char* line;      // from the launcher's name on
  const char* expected;  // behind "launch "; of an error: a part of it
};

std::string Launch(const std::string& line, cli::Surroundings surroundings) {
  std::vector<std::string> words = ShellWords(line);
  const Face* face = Find(words[0]);
  if (face == nullptr) return "no such face";
  words.erase(words.begin());
  const auto translation = face->translate(words, surroundings);
  if (!translation.ok()) return std::string(translation.status().message());
  const std::vector<std::string> launch = LaunchWords(*translation);
  return absl::StrJoin(launch.begin() + 1, launch.end(), " ");
}

class CommandLinesTest : public ::testing::TestWithParam<Row> {};

TEST_P(CommandLinesTest, MeansWhatItMeansThere) {
  cli::Surroundings surroundings;
  surroundings.environment = {"LD_LIBRARY_PATH=/lib", "PATH=/bin"};
  surroundings.read = [](const std::string& path) -> absl::StatusOr<std::string> {
    if (path == "myhostfile" || path == "/job/hostfile") return "worker-1 slots=4\n";
    if (path == "path/to/config/my_config_file.yaml") {
      return "{distributed_type: MULTI_CPU, num_processes: 4, use_cpu: true}";
    }
    return absl::NotFoundError(path);
  };
  const Row& row = GetParam();
  const std::string got = Launch(row.line, surroundings);
  if (std::string(row.expected).find("--") != std::string::npos) {
    EXPECT_EQ(got, row.expected) << row.line;
  } else {
    EXPECT_THAT(got, HasSubstr(row.expected)) << row.line;
  }
}

constexpr Row kTorchrunLines[] = {
    // karpathy/nanoGPT
    {"torchrun --standalone --nproc_per_node=8 train.py config/train_gpt2.py",
     "--ppn 8 --tag-output none -- python3 -u train.py config/train_gpt2.py"},
    {"torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=123.456.123.456 "
     "--master_port=1234 train.py",
     "--ppn 8 --tag-output none -- python3 -u train.py"},
    {"torchrun --nproc_per_node=8 --nnodes=2 --node_rank=1 --master_addr=123.456.123.456 "
     "--master_port=1234 train.py",
     "dtrain starts all nodes of a job from one command"},
    // pytorch/examples
    {"torchrun --nnodes=1 --nproc_per_node=2 --rdzv_id=101 --rdzv_endpoint=\"localhost:5972\" "
     "example.py",
     "--ppn 2 --export TORCHELASTIC_RUN_ID=101 --tag-output none -- python3 -u example.py"},
    {"torchrun --nnodes 1 --nproc_per_node 4  T5_training.py",
     "--ppn 4 --tag-output none -- python3 -u T5_training.py"},
    // pytorch/torchtitan
    {"torchrun --nnodes 4 --nproc_per_node 8 --rdzv_id 101 --rdzv_backend c10d --rdzv_endpoint "
     "\"node1:29500\" -m torchtitan.train --module llama3 --config llama3_8b",
     "--ppn 8 --export TORCHELASTIC_RUN_ID=101 --tag-output none -- python3 -u -m torchtitan.train "
     "--module llama3 "
     "--config llama3_8b"},
    {"torchrun --nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint=\"localhost:0\" "
     "--virtual-local-rank --local-ranks-filter 0 --role rank --tee 3 -m torchtitan.train --x",
     "--ppn 8 --export ROLE_NAME=rank --gpu-bind rank --export LOCAL_RANK=0 --tag-output rank -- "
     "python3 -u -m torchtitan.train --x"},
    // huggingface/accelerate
    {"torchrun --nproc_per_node 2 --nnodes 2 --rdzv_id 2299 --rdzv_backend c10d --rdzv_endpoint "
     "master_node_ip_address:29500 ./nlp_example.py",
     "--ppn 2 --export TORCHELASTIC_RUN_ID=2299 --tag-output none -- python3 -u ./nlp_example.py"},
    // pytorch/vision#4450, of torch.distributed.launch
    {"torchrun --nproc_per_node=8 --use_env train.py --use_env",
     "--ppn 8 --tag-output none -- python3 -u train.py --use_env"},
    {"torchrun --nproc_per_node=2 --nnodes=1 script.py --arg1",
     "--ppn 2 --tag-output none -- python3 -u script.py --arg1"},
};
INSTANTIATE_TEST_SUITE_P(Torchrun, CommandLinesTest, ::testing::ValuesIn(kTorchrunLines));

constexpr Row kAccelerateLines[] = {
    // huggingface/accelerate
    {"accelerate launch --multi_gpu --num_processes 2 examples/nlp_example.py",
     "--np 2 --export ACCELERATE_MIXED_PRECISION=no --export ACCELERATE_DYNAMO_BACKEND=NO --export "
     "ACCELERATE_DYNAMO_MODE=default --export ACCELERATE_DYNAMO_USE_FULLGRAPH=False --export "
     "ACCELERATE_DYNAMO_USE_DYNAMIC=False --export "
     "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False --export OMP_NUM_THREADS=1 -- python3 -u "
     "examples/nlp_example.py"},
    {"accelerate launch --multi_gpu --mixed_precision=fp16 --num_processes=2 script.py --arg1",
     "--np 2 --export ACCELERATE_MIXED_PRECISION=fp16 --export ACCELERATE_DYNAMO_BACKEND=NO "
     "--export ACCELERATE_DYNAMO_MODE=default --export ACCELERATE_DYNAMO_USE_FULLGRAPH=False "
     "--export ACCELERATE_DYNAMO_USE_DYNAMIC=False --export "
     "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False --export OMP_NUM_THREADS=1 -- python3 -u "
     "script.py --arg1"},
    {"accelerate launch --config_file path/to/config/my_config_file.yaml script.py --arg1",
     "--np 4 --gpu-bind none --export ACCELERATE_USE_CPU=True --export "
     "ACCELERATE_MIXED_PRECISION=no --export ACCELERATE_DYNAMO_BACKEND=NO --export "
     "ACCELERATE_DYNAMO_MODE=default --export ACCELERATE_DYNAMO_USE_FULLGRAPH=False --export "
     "ACCELERATE_DYNAMO_USE_DYNAMIC=False --export "
     "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False -- python3 -u script.py --arg1"},
    {"accelerate launch script.py --arg1",
     "--export ACCELERATE_USE_CPU=False --export ACCELERATE_MIXED_PRECISION=no --export "
     "ACCELERATE_DYNAMO_BACKEND=NO --export ACCELERATE_DYNAMO_MODE=default --export "
     "ACCELERATE_DYNAMO_USE_FULLGRAPH=False --export ACCELERATE_DYNAMO_USE_DYNAMIC=False --export "
     "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False --export OMP_NUM_THREADS=1 -- python3 -u "
     "script.py --arg1"},
    {"accelerate launch ../nlp_example.py --mixed_precision fp16 --cpu 0",
     "--export ACCELERATE_USE_CPU=False --export ACCELERATE_MIXED_PRECISION=no --export "
     "ACCELERATE_DYNAMO_BACKEND=NO --export ACCELERATE_DYNAMO_MODE=default --export "
     "ACCELERATE_DYNAMO_USE_FULLGRAPH=False --export ACCELERATE_DYNAMO_USE_DYNAMIC=False --export "
     "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False --export OMP_NUM_THREADS=1 -- python3 -u "
     "../nlp_example.py --mixed_precision fp16 --cpu 0"},
    {"accelerate launch --num_processes 16 --num_machines 4 --rdzv_backend c10d --main_process_ip "
     "node1 --main_process_port 29500 complete_nlp_example.py",
     "--ppn 4 --export ACCELERATE_USE_CPU=False --export ACCELERATE_MIXED_PRECISION=no --export "
     "ACCELERATE_DYNAMO_BACKEND=NO --export ACCELERATE_DYNAMO_MODE=default --export "
     "ACCELERATE_DYNAMO_USE_FULLGRAPH=False --export ACCELERATE_DYNAMO_USE_DYNAMIC=False --export "
     "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False --export OMP_NUM_THREADS=1 -- python3 -u "
     "complete_nlp_example.py"},
};
INSTANTIATE_TEST_SUITE_P(Accelerate, CommandLinesTest, ::testing::ValuesIn(kAccelerateLines));

constexpr Row kHorovodrunLines[] = {
    // horovod/horovod
    {"horovodrun -np 16 -H server1:4,server2:4,server3:4,server4:4 python train.py",
     "--np 16 --hosts server1:4,server2:4,server3:4,server4:4 -- python train.py"},
    {"horovodrun --gloo -np 2 python train.py", "--np 2 -- python train.py"},
    {"horovodrun -np 6 -hostfile myhostfile python train.py",
     "--np 6 --hostfile myhostfile -- python train.py"},
    {"horovodrun -np 16 -H host1:4,host2:4,host3:4,host4:4 -p 12345 python keras_mnist_advanced.py",
     "--np 16 --hosts host1:4,host2:4,host3:4,host4:4 --ssh-port 12345 -- python "
     "keras_mnist_advanced.py"},
    {"horovodrun -np 4 --autotune --cache-capacity 1024 --no-hierarchical-allgather python "
     "train.py",
     "--np 4 --export HOROVOD_CACHE_CAPACITY=1024 --export HOROVOD_HIERARCHICAL_ALLGATHER=0 "
     "--export HOROVOD_AUTOTUNE=1 -- python train.py"},
    {"horovodrun -np 4 --timeline-filename /path/to/timeline.json --timeline-mark-cycles python "
     "train.py",
     "--np 4 --export HOROVOD_TIMELINE=/path/to/timeline.json --export "
     "HOROVOD_TIMELINE_MARK_CYCLES=1 -- python train.py"},
    {"horovodrun -np 8 --host-discovery-script discover_hosts.sh --slots 4 python train.py",
     "--np 8 --elastic horovod --discover discover_hosts.sh --slots-per-host 4 --cool-down never "
     "-- "
     "python train.py"},
    {"horovodrun -np 8 --blacklist-cooldown-range 10 100 --min-np 4 --max-np 12 "
     "--host-discovery-script discover_hosts.py python train.py",
     "--np 8 --elastic horovod --discover discover_hosts.py --min-np 4 --max-np 12 --cool-down "
     "10:100 -- python train.py"},
};
INSTANTIATE_TEST_SUITE_P(Horovodrun, CommandLinesTest, ::testing::ValuesIn(kHorovodrunLines));

constexpr Row kDeepspeedLines[] = {
    {"deepspeed --hostfile=myhostfile --no_local_rank client_entry.py --deepspeed "
     "--deepspeed_config ds_config.json",
     "--hostfile myhostfile -- python3 -u client_entry.py --deepspeed --deepspeed_config "
     "ds_config.json"},
    {"deepspeed --num_nodes=2 client_entry.py --deepspeed --deepspeed_config ds_config.json",
     "--hostfile /job/hostfile --nnodes 2 -- /bin/sh -c exec 'python3' '-u' 'client_entry.py' "
     "'--local_rank='\"$LOCAL_RANK\"'' '--deepspeed' '--deepspeed_config' 'ds_config.json'"},
    {"deepspeed --exclude=\"worker-2:0@worker-3:0,1\" --no_local_rank client_entry.py",
     "--exclude worker-2:0@worker-3:0,1 --hostfile /job/hostfile -- python3 -u client_entry.py"},
    {"deepspeed --include=\"worker-2:0,1\" --no_local_rank client_entry.py",
     "--include worker-2:0,1 --hostfile /job/hostfile -- python3 -u client_entry.py"},
    {"deepspeed --include localhost:0,1 --hostfile none --no_local_rank client_entry.py",
     "--include localhost:0,1 -- python3 -u client_entry.py"},
    {"deepspeed --hostfile=myhostfile --no_ssh --node_rank=1 --master_addr=10.0.0.1 "
     "--master_port=9901 client_entry.py",
     "run this line once"},
    {"deepspeed --num_accelerators 4 --bind_cores_to_rank --bind_core_list 0-27,32-59 "
     "--no_local_rank inference.py",
     "--bind core --hostfile /job/hostfile --ppn 4 -- python3 -u inference.py"},
};
INSTANTIATE_TEST_SUITE_P(Deepspeed, CommandLinesTest, ::testing::ValuesIn(kDeepspeedLines));

constexpr Row kFabricLines[] = {
    // Lightning-AI/pytorch-lightning, examples/fabric
    {"fabric run train_fabric.py --devices 2 --strategy ddp --accelerator cpu",
     "--export LT_CLI_USED=1 --export LT_STRATEGY=ddp --export LT_ACCELERATOR=cpu --export "
     "LT_NUM_NODES=1 --gpu-bind none --ppn 2 --export LT_DEVICES=2 --tag-output none -- python3 -u "
     "train_fabric.py"},
    {"fabric run --devices=3 train_fabric_decoupled.py --num-envs 4 --cuda",
     "--export LT_CLI_USED=1 --export LT_NUM_NODES=1 --ppn 3 --export LT_DEVICES=3 --tag-output "
     "none -- python3 -u train_fabric_decoupled.py --num-envs 4 --cuda"},
};
INSTANTIATE_TEST_SUITE_P(Fabric, CommandLinesTest, ::testing::ValuesIn(kFabricLines));

constexpr Row kMpirunLines[] = {
    // huggingface/accelerate, Intel's mpirun
    {"mpirun -f hostfile -n 16 -ppn 4 accelerate launch examples/nlp_example.py",
     "--hostfile hostfile --np 16 --ppn 4 --tag-output none -- accelerate launch "
     "examples/nlp_example.py"},
    // DeepSpeed, MVAPICH2's mpirun
    {"mpirun -np 32 -ppn 4 -hostfile hosts -env MV2_USE_CUDA=1 -env MV2_ENABLE_AFFINITY=0 bash "
     "run_squad_mpi_onebitadam.sh",
     "--np 32 --ppn 4 --hostfile hosts --export MV2_USE_CUDA=1 --export MV2_ENABLE_AFFINITY=0 "
     "--tag-output none -- bash run_squad_mpi_onebitadam.sh"},
    // horovod/horovod
    {"mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 -bind-to none -map-by slot -x "
     "NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib python train.py",
     "--np 16 --hosts server1:4,server2:4,server3:4,server4:4 --bind none --export "
     "NCCL_DEBUG=INFO --export LD_LIBRARY_PATH --export PATH --tag-output none --export "
     "OMPI_MCA_pml=ob1 --export OMPI_MCA_btl=^openib -- python train.py"},
    {"mpirun -np 16 -H server1:4 -mca plm_rsh_args \"-p 12345\" python train.py",
     "--np 16 --hosts server1:4 --ssh-port 12345 --tag-output none --export "
     "OMPI_MCA_plm_rsh_args=-p 12345 -- python train.py"},
    {"mpirun -np 16 -x NCCL_SOCKET_IFNAME=^lo,docker0 -mca btl_tcp_if_exclude lo,docker0 python "
     "train.py",
     "--np 16 --export NCCL_SOCKET_IFNAME=^lo,docker0 --tag-output none --export "
     "OMPI_MCA_btl_tcp_if_exclude=lo,docker0 -- python train.py"},
    // NVIDIA/nccl-tests
    {"mpirun -np 64 -N 8 ./build/all_reduce_perf -b 8 -e 8G -f 2 -g 1",
     "--np 64 --ppn 8 --tag-output none -- ./build/all_reduce_perf -b 8 -e 8G -f 2 -g 1"},
    // chainer/chainer
    {"mpiexec -n 8 --hostfile hostfile python print_rank.py",
     "--np 8 --hostfile hostfile --tag-output none -- python print_rank.py"},
    // horovod/horovod#819
    {"mpirun -np 8 -H localhost:4,b:4 --allow-run-as-root --display-map --tag-output "
     "--timestamp-output -mca btl_tcp_if_exclude lo,docker0 -mca plm_rsh_args \"-p 12345\" -x "
     "NCCL_SOCKET_IFNAME=ens3 python keras_mnist_advanced.py",
     "--np 8 --hosts localhost:4,b:4 --verbose --timestamps --export NCCL_SOCKET_IFNAME=ens3 "
     "--ssh-port 12345 --tag-output rank --export OMPI_MCA_btl_tcp_if_exclude=lo,docker0 --export "
     "OMPI_MCA_plm_rsh_args=-p 12345 -- python keras_mnist_advanced.py"},
    // open-mpi/ompi#12645
    {"mpirun -x LD_LIBRARY_PATH=/opt/lib -hostfile nccl-tests/hostfile --map-by ppr:1:node "
     "--prtemca plm_base_verbose 100 --display alloc hostname",
     "--hostfile nccl-tests/hostfile --map-by ppr:1:node --export LD_LIBRARY_PATH=/opt/lib "
     "--verbose --tag-output none -- hostname"},
    // open-mpi/ompi#12090
    {"mpirun -bind-to none -map-by slot -oversubscribe -mca pml ob1 --prtemca plm_ssh_args \"-p "
     "6666\" -H a:1 -x PATH -np 1 python3 x.py : -H b:1 -x PATH -np 1 python3 x.py :",
     "--oversubscribe --hosts a:1 --np 1 --bind none --export PATH --ssh-port 6666 --tag-output "
     "none --export OMPI_MCA_pml=ob1 python3 x.py : --hosts b:1 --np 1 --export PATH --export "
     "OMPI_MCA_pml=ob1 python3 x.py"},
    // openpmix/prrte#1396
    {"mpirun --map-by rankfile:file=hostfile hostname",
     "--rankfile hostfile --tag-output none -- hostname"},
    // Open MPI 5
    {"mpirun --output tag,timestamp -np 2 ./a", "--np 2 --timestamps --tag-output rank -- ./a"},
};
INSTANTIATE_TEST_SUITE_P(Mpirun, CommandLinesTest, ::testing::ValuesIn(kMpirunLines));

// Each is a line that dtrain launch takes.
TEST(CommandLineTest, DtrainLaunchTakesThem) {
  cli::Surroundings surroundings;
  surroundings.working_directory = "/home/me";
  surroundings.environment = {"LD_LIBRARY_PATH=/lib", "PATH=/bin"};
  surroundings.read = [](const std::string& path) -> absl::StatusOr<std::string> {
    if (path == "path/to/config/my_config_file.yaml") {
      return "{distributed_type: MULTI_CPU, num_processes: 4, use_cpu: true}";
    }
    return absl::NotFoundError(path);
  };
  for (const auto& rows : {absl::MakeConstSpan(kTorchrunLines), absl::MakeConstSpan(kFabricLines),
                           absl::MakeConstSpan(kMpirunLines)}) {
    for (const Row& row : rows) {
      std::vector<std::string> words = ShellWords(row.line);
      const Face& face = *Find(words[0]);
      words.erase(words.begin());
      const auto translation = face.translate(words, surroundings);
      if (!translation.ok()) continue;
      const auto command = cli::ParseLaunch(LaunchWords(*translation), surroundings);
      EXPECT_TRUE(command.ok()) << row.line << ": " << command.status();
    }
  }
}

}  // namespace
}  // namespace dtrain::faces
