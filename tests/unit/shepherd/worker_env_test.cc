// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/worker_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/env_names.h"

namespace dtrain::shepherd {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

using Env = std::map<std::string, std::string>;

class WorkerEnvTest : public ::testing::Test {
 protected:
  WorkerEnvTest() {
    part_.set_job_id("job1");
    part_.add_programs();
    for (const v1::Contract contract : {v1::CONTRACT_TORCH, v1::CONTRACT_HOROVOD, v1::CONTRACT_MPI,
                                        v1::CONTRACT_JAX, v1::CONTRACT_DTRAIN}) {
      part_.add_contracts(contract);
    }
    part_.set_attempt(0);
    part_.set_node_rank(1);
    part_.set_node_count(2);
    part_.set_world_size(4);
    part_.set_universe_size(16);
    part_.set_host("node1");
    part_.mutable_network()->set_address("10.0.0.2");
    part_.mutable_network()->set_interface_name("eth0");
    part_.mutable_network()->set_master_address("10.0.0.1");
    part_.mutable_network()->set_master_port(4242);
    part_.mutable_network()->set_coordinator_port(61445);
    for (uint32_t local : {0u, 1u}) {
      v1::WorkerSpec* worker = part_.add_workers();
      worker->set_rank(2 + local);
      worker->set_local_rank(local);
      worker->set_cross_rank(1);
      worker->set_cross_size(2);
    }
  }
  void Forward(const std::string& name, const std::string& value, bool with_x = false) {
    v1::EnvVar* var = part_.add_env();
    var->set_name(name);
    var->set_value(value);
    if (with_x) part_.add_explicit_env(name);
  }
  Env Build(int worker = 1,
            WorkerTies ties = {.pmi = 3, .page = 4, .shepherd = "7:8:boot", .pid_namespace = "9"}) {
    Env out;
    for (const std::string& entry : WorkerEnv(part_, agent_).Of(part_.workers(worker), ties)) {
      size_t equals = entry.find('=');
      EXPECT_TRUE(out.emplace(entry.substr(0, equals), entry.substr(equals + 1)).second)
          << entry << " comes twice";
    }
    return out;
  }

  v1::JobPart part_;
  std::vector<std::string> agent_ = {"HOME=/home/me", "USER=me", "PATH=/node/bin", "LANG=node"};
};

TEST_F(WorkerEnvTest, NamesTheFolderOfKeptStateOfThisJobOnly) {
  Forward("DTRAIN_STATE_FOLDER", "/of/the/job/that/launched/this/one");
  EXPECT_THAT(Build(), Not(Contains(Key("DTRAIN_STATE_FOLDER"))));
  EXPECT_THAT(Build(1, {.state = "/s"}), Contains(Pair("DTRAIN_STATE_FOLDER", "/s")));
}

TEST_F(WorkerEnvTest, SetsWhatTorchrunSets) {
  Env env = Build();
  Env expected = {{"RANK", "3"},
                  {"WORLD_SIZE", "4"},
                  {"LOCAL_RANK", "1"},
                  {"LOCAL_WORLD_SIZE", "2"},
                  {"GROUP_RANK", "1"},
                  {"GROUP_WORLD_SIZE", "2"},
                  {"NODE_RANK", "1"},
                  {"ROLE_NAME", "default"},
                  {"ROLE_RANK", "3"},
                  {"ROLE_WORLD_SIZE", "4"},
                  {"MASTER_ADDR", "10.0.0.1"},
                  {"MASTER_PORT", "4242"},
                  {"TORCHELASTIC_RESTART_COUNT", "0"},
                  {"TORCHELASTIC_MAX_RESTARTS", "0"},
                  {"TORCHELASTIC_RUN_ID", "job1"},
                  {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                  {"NCCL_ASYNC_ERROR_HANDLING", "1"},
                  {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                  {"OMP_NUM_THREADS", "1"}};
  for (const auto& entry : expected) EXPECT_THAT(env, Contains(entry));
  EXPECT_THAT(env, Not(Contains(Key("TORCHELASTIC_ERROR_FILE"))));
}

TEST_F(WorkerEnvTest, AnErrorFileUnlessTheUserNamesOne) {
  EXPECT_THAT(Build(1, {.error_file = "/run/x/rank3.json"}),
              Contains(Pair("TORCHELASTIC_ERROR_FILE", "/run/x/rank3.json")));
  Forward("TORCHELASTIC_ERROR_FILE", "/outer");
  EXPECT_THAT(Build(1, {.error_file = "/run/x/rank3.json"}),
              Contains(Pair("TORCHELASTIC_ERROR_FILE", "/run/x/rank3.json")));
  Forward("TORCHELASTIC_ERROR_FILE", "/mine", true);
  EXPECT_THAT(Build(1, {.error_file = "/run/x/rank3.json"}),
              Contains(Pair("TORCHELASTIC_ERROR_FILE", "/mine")));
}

TEST_F(WorkerEnvTest, SetsWhatMpiAndHorovodProgramsRead) {
  Env env = Build();
  Env expected = {{"LOCAL_SIZE", "2"},
                  {"CROSS_RANK", "1"},
                  {"CROSS_SIZE", "2"},
                  {"HOROVOD_RANK", "3"},
                  {"HOROVOD_SIZE", "4"},
                  {"HOROVOD_LOCAL_RANK", "1"},
                  {"HOROVOD_LOCAL_SIZE", "2"},
                  {"HOROVOD_CROSS_RANK", "1"},
                  {"HOROVOD_CROSS_SIZE", "2"},
                  {"HOROVOD_HOSTNAME", "node1"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_RANK", "3"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                  {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                  {"PMI_FD", "3"},
                  {"DTRAIN_PAGE_FD", "4"},
                  {"PMI_RANK", "3"},
                  {"PMI_SIZE", "4"},
                  {"PMI_SPAWNED", "0"},
                  {"MPI_LOCALRANKID", "1"},
                  {"MPI_LOCALNRANKS", "2"},
                  {"MPIR_CVAR_PMI_VERSION", "1"}};
  for (const auto& entry : expected) EXPECT_THAT(env, Contains(entry));
  EXPECT_THAT(env,
              Not(Contains(Key("OMPI_UNIVERSE_SIZE"))));  // a nested mpirun refuses to run by it
  EXPECT_THAT(Build(1, {}), Not(AnyOf(Contains(Key("PMI_FD")), Contains(Key("DTRAIN_PAGE_FD")))));
}

TEST_F(WorkerEnvTest, WhoHasChosenMpichsPmiVersionKeepsIt) {
  Forward("MPIR_CVAR_PMI_VERSION", "2");
  EXPECT_THAT(Build(), Contains(Pair("MPIR_CVAR_PMI_VERSION", "2")));
}

TEST_F(WorkerEnvTest, NothingClaimsAServerThatIsNotThere) {
  Env env = Build();
  for (const char* name : {"HOROVOD_CONTROLLER", "HOROVOD_GLOO_RENDEZVOUS_ADDR",
                           "OMPI_MCA_orte_launch", "OMPI_MCA_ess_base_jobid", "PMIX_RANK"}) {
    EXPECT_THAT(env, Not(Contains(Key(name))));
  }
}

TEST_F(WorkerEnvTest, HorovodFindsItsServerAndUsesGloo) {
  part_.mutable_network()->set_rendezvous_port(5151);
  Env env = Build();
  Env expected = {{"HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"},
                  {"HOROVOD_GLOO_RENDEZVOUS_PORT", "5151"},
                  {"HOROVOD_CONTROLLER", "gloo"},
                  {"HOROVOD_CPU_OPERATIONS", "gloo"},
                  {"HOROVOD_GLOO_IFACE", "eth0"}};
  for (const auto& entry : expected) EXPECT_THAT(env, Contains(entry));
  Forward("HOROVOD_CONTROLLER", "mpi", /*with_x=*/true);
  Forward("HOROVOD_GLOO_IFACE", "ib0");
  env = Build();
  EXPECT_EQ(env["HOROVOD_CONTROLLER"], "mpi");
  EXPECT_EQ(env["HOROVOD_GLOO_IFACE"], "ib0");
  part_.mutable_network()->clear_interface_name();
  part_.mutable_env()->Clear();
  part_.clear_explicit_env();
  EXPECT_EQ(Build()["HOROVOD_GLOO_IFACE"], "lo");
}

// The part is of one host; the numbers are of all.
TEST_F(WorkerEnvTest, AnElasticRankHasThePlaceOfItsFirstRound) {
  part_.clear_contracts();
  part_.add_contracts(v1::CONTRACT_HOROVOD);
  part_.mutable_network()->set_rendezvous_port(5151);
  Forward("HOROVOD_ELASTIC", "0");
  EXPECT_THAT(Build(), Not(Contains(Key("HOROVOD_ELASTIC"))));
  EXPECT_EQ(Build()["CROSS_SIZE"], "2");
  for (uint32_t local = 0; local < 2; ++local) {
    part_.mutable_elastic()->set_first_number(30);
    part_.mutable_elastic()->set_attempt(7);
    v1::Seat& seat = *part_.mutable_elastic()->add_seats();
    seat.set_rank(10 + local);
    seat.set_size(20);
    seat.set_local_rank(local);
    seat.set_local_size(3);
    seat.set_cross_rank(4);
    seat.set_cross_size(5);
  }
  Env env = Build();
  Env expected = {{"HOROVOD_RANK", "11"},
                  {"HOROVOD_SIZE", "20"},
                  {"HOROVOD_LOCAL_RANK", "1"},
                  {"HOROVOD_LOCAL_SIZE", "3"},
                  {"HOROVOD_CROSS_RANK", "4"},
                  {"HOROVOD_CROSS_SIZE", "5"},
                  {"HOROVOD_HOSTNAME", "node1"},
                  {"DTRAIN_RANK", absl::StrCat(30 + part_.workers(1).rank())},
                  {"DTRAIN_WORLD_SIZE", "20"},
                  {"DTRAIN_ATTEMPT", "7"},
                  {"HOROVOD_ELASTIC", "1"},
                  {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"},
                  {"HOROVOD_GLOO_RENDEZVOUS_PORT", "5151"},
                  {"HOROVOD_CONTROLLER", "gloo"},
                  {"NCCL_SOCKET_IFNAME", "=eth0"},
                  {"PYTHONUNBUFFERED", "1"}};
  for (const auto& entry : expected) EXPECT_THAT(env, Contains(entry));
  // Nobody would set them anew in the next round.
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "no_proxy", "NO_PROXY"}) {
    EXPECT_THAT(env, Not(Contains(Key(name)))) << name;
  }
  EXPECT_EQ(Build(0)["HOROVOD_RANK"], "10");
  Forward("PYTHONUNBUFFERED", "");
  EXPECT_EQ(Build()["PYTHONUNBUFFERED"], "");
}

TEST_F(WorkerEnvTest, AnElasticRankReachesItsServerPastProxies) {
  part_.mutable_elastic();
  // Variables, and what becomes of no_proxy and NO_PROXY ("-": not there).
  struct Row {
    Env given;
    std::string small, large;
  };
  const Row rows[] = {
      {{{"HTTP_PROXY", "http://p"}}, "10.0.0.1", "10.0.0.1"},
      {{{"https_proxy", "http://p"}, {"no_proxy", "a,b"}}, "a,b,10.0.0.1", "-"},
      {{{"http_proxy", "http://p"}, {"NO_PROXY", "a"}}, "-", "a,10.0.0.1"},
      {{{"http_proxy", "http://p"}, {"no_proxy", ""}, {"NO_PROXY", "a"}}, "10.0.0.1", "a,10.0.0.1"},
      {{{"http_proxy", "http://p"}, {"no_proxy", "b, 10.0.0.1"}}, "b, 10.0.0.1", "-"},
      {{{"http_proxy", "http://p"}, {"no_proxy", "*"}}, "*", "-"},
      {{{"http_proxy", "http://p"}, {"no_proxy", "10.0.0.11"}}, "10.0.0.11,10.0.0.1", "-"},
      {{{"http_proxy", ""}, {"no_proxy", "a"}}, "a", "-"},
      {{{"no_proxy", "a"}}, "a", "-"},
  };
  for (const bool with_x : {false, true}) {
    for (const Row& row : rows) {
      part_.clear_env();
      part_.clear_explicit_env();
      for (const auto& [name, value] : row.given) Forward(name, value, with_x);
      Env env = Build();
      EXPECT_EQ(env.contains("no_proxy") ? env["no_proxy"] : "-", row.small);
      EXPECT_EQ(env.contains("NO_PROXY") ? env["NO_PROXY"] : "-", row.large);
    }
  }
  part_.clear_elastic();
  part_.clear_env();
  Forward("http_proxy", "http://p");
  EXPECT_THAT(Build(), Not(Contains(Key("no_proxy"))));
}

// Its client splits the address at the first colon.
TEST_F(WorkerEnvTest, HorovodIsNotToldOfAnIpv6Address) {
  part_.mutable_network()->set_rendezvous_port(5151);
  part_.mutable_network()->set_master_address("fd00::1");
  Env env = Build();
  EXPECT_THAT(env, Not(Contains(Key("HOROVOD_GLOO_RENDEZVOUS_ADDR"))));
  EXPECT_THAT(env, Not(Contains(Key("HOROVOD_CONTROLLER"))));
}

TEST_F(WorkerEnvTest, OpenMpiFindsPmixWhereItIsServed) {
  Env env = Build(1, {.pmi = 3, .page = 4, .pmix = 40123, .shepherd = "7:8:boot"});
  for (const char* name : {"PMIX_SERVER_URI", "PMIX_SERVER_URI2", "PMIX_SERVER_URI21",
                           "PMIX_SERVER_URI3", "PMIX_SERVER_URI4", "PMIX_SERVER_URI41"}) {
    EXPECT_EQ(env[name], "job1-0-server.1;tcp4://127.0.0.1:40123") << name;
  }
  Env expected = {
      {"PMIX_NAMESPACE", "job1-0"},  {"PMIX_RANK", "3"},
      {"PMIX_HOSTNAME", "node1"},    {"PMIX_SECURITY_MODE", "native"},
      {"PMIX_GDS_MODULE", "hash"},   {"OMPI_MCA_schizo", "^orte,slurm,alps,flux,jsm,moab"},
      {"MPIR_CVAR_PMI_VERSION", "1"}};
  for (const auto& entry : expected) EXPECT_THAT(env, Contains(entry));
  EXPECT_THAT(env, Not(Contains(Key("OMPI_MCA_mpi_oversubscribe"))));
  env = Build(1, {.pmix = 40123, .traits = {.crowded = true}, .shepherd = ""});
  EXPECT_EQ(env["OMPI_MCA_mpi_oversubscribe"], "1");
  Forward("OMPI_MCA_schizo", "mine");
  EXPECT_EQ(Build(1, {.pmix = 40123, .shepherd = ""})["OMPI_MCA_schizo"], "mine");
}

TEST_F(WorkerEnvTest, JaxFindsTheCoordinatorEitherWay) {
  Env env = Build();
  EXPECT_EQ(env["JAX_COORDINATOR_ADDRESS"], "10.0.0.1:61445");
  EXPECT_EQ(env["OMPI_MCA_orte_hnp_uri"], "20480.0;tcp://10.0.0.1:61445");
  // JAX computes the port from the number before the dot.
  EXPECT_EQ(20480 / 4096 % 4096 + 61440, 61445);
}

TEST_F(WorkerEnvTest, JaxsPortFormulaCannotReachLowPortsAndSkipsZero) {
  part_.mutable_network()->set_coordinator_port(5000);
  EXPECT_EQ(Build()["OMPI_MCA_orte_hnp_uri"], "4096.0;tcp://10.0.0.1:5000");
  part_.mutable_network()->set_coordinator_port(61440);
  EXPECT_EQ(Build()["OMPI_MCA_orte_hnp_uri"], "16777216.0;tcp://10.0.0.1:61440");
}

TEST_F(WorkerEnvTest, IPv6AddressesAreBracketedForJaxAlone) {
  part_.mutable_network()->set_master_address("fd00::1");
  Env env = Build();
  EXPECT_EQ(env["MASTER_ADDR"], "fd00::1");
  EXPECT_EQ(env["JAX_COORDINATOR_ADDRESS"], "[fd00::1]:61445");
  EXPECT_EQ(env["OMPI_MCA_orte_hnp_uri"], "20480.0;tcp6://[fd00::1]:61445");
}

TEST_F(WorkerEnvTest, JaxIsToldItsDevicesOnlyWhenItWouldGuessWrong) {
  v1::WorkerSpec* worker = part_.mutable_workers(1);
  worker->set_set_visible_gpus(true);
  worker->add_gpu_uuids("GPU-b");
  EXPECT_THAT(Build(), Not(Contains(Key("JAX_LOCAL_DEVICE_IDS"))));
  worker->set_narrowed_gpus(true);
  worker->add_gpu_uuids("GPU-c");
  for (uint32_t own : {0u, 1u}) worker->add_own_gpus(own);
  EXPECT_EQ(Build()["JAX_LOCAL_DEVICE_IDS"], "0,1");
  EXPECT_EQ(Build()["CUDA_VISIBLE_DEVICES"], "GPU-b,GPU-c");
  Forward("JAX_LOCAL_DEVICE_IDS", "1");
  EXPECT_EQ(Build()["JAX_LOCAL_DEVICE_IDS"], "1");
}

TEST_F(WorkerEnvTest, AWorkerWithSeveralOfTheNodesGpusIsToldWhich) {
  v1::WorkerSpec* worker = part_.mutable_workers(1);
  worker->set_set_visible_gpus(true);
  for (const char* uuid : {"GPU-a", "GPU-b", "GPU-c", "GPU-d"}) worker->add_gpu_uuids(uuid);
  for (uint32_t own : {2u, 3u}) worker->add_own_gpus(own);
  EXPECT_EQ(Build()["DTRAIN_DEVICE"], "2");
  EXPECT_EQ(Build()["JAX_LOCAL_DEVICE_IDS"], "2,3");
}

TEST_F(WorkerEnvTest, TheDeviceIsTheWorkersOwnUnlessGivenWithX) {
  Forward("DTRAIN_DEVICE", "7");
  EXPECT_EQ(Build()["DTRAIN_DEVICE"], "7");  // --gpu-bind none, or no GPU
  v1::WorkerSpec* worker = part_.mutable_workers(1);
  worker->set_set_visible_gpus(true);
  worker->add_gpu_uuids("GPU-a");
  worker->add_own_gpus(0);
  EXPECT_EQ(Build()["DTRAIN_DEVICE"], "0");
  part_.add_explicit_env("DTRAIN_DEVICE");
  EXPECT_EQ(Build()["DTRAIN_DEVICE"], "7");
}

TEST_F(WorkerEnvTest, AloneOnItsNodeAJaxWorkerTakesAllGpus) {
  part_.mutable_workers()->DeleteSubrange(1, 1);
  v1::WorkerSpec* worker = part_.mutable_workers(0);
  worker->set_set_visible_gpus(true);
  for (const char* uuid : {"GPU-a", "GPU-b"}) worker->add_gpu_uuids(uuid);
  EXPECT_EQ(Build(0)["JAX_LOCAL_DEVICE_IDS"], "0,1");
}

TEST_F(WorkerEnvTest, VisibleGpusAreLeftAloneUnlessSet) {
  Forward("CUDA_VISIBLE_DEVICES", "2,3");
  EXPECT_EQ(Build()["CUDA_VISIBLE_DEVICES"], "2,3");
  part_.mutable_workers(1)->set_set_visible_gpus(true);
  EXPECT_EQ(Build()["CUDA_VISIBLE_DEVICES"], "");
}

TEST_F(WorkerEnvTest, InterfaceNamesAreSetUnlessTheUserDid) {
  Env env = Build();
  EXPECT_EQ(env["NCCL_SOCKET_IFNAME"], "=eth0");
  EXPECT_EQ(env["GLOO_SOCKET_IFNAME"], "eth0");
  EXPECT_EQ(env["TP_SOCKET_IFNAME"], "eth0");
  Forward("NCCL_SOCKET_IFNAME", "ib");
  env = Build();
  EXPECT_EQ(env["NCCL_SOCKET_IFNAME"], "ib");
  EXPECT_EQ(env["GLOO_SOCKET_IFNAME"], "eth0");
  part_.mutable_network()->clear_interface_name();
  EXPECT_THAT(Build(), Not(Contains(Key("GLOO_SOCKET_IFNAME"))));
}

TEST_F(WorkerEnvTest, MpiUsesTheNetworkThatWasProven) {
  Env env = Build();
  for (const char* name :
       {"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include",
        "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "UCX_NET_DEVICES"}) {
    EXPECT_EQ(env[name], "eth0") << name;
  }
  Forward("OMPI_MCA_btl_tcp_if_exclude", "docker0");
  Forward("UCX_NET_DEVICES", "all");
  Forward("FI_TCP_IFACE", "eth1");
  env = Build();
  EXPECT_EQ(env.count("OMPI_MCA_btl_tcp_if_include"), 0u) << "it would exclude the other";
  EXPECT_EQ(env["OMPI_MCA_oob_tcp_if_include"], "eth0");
  EXPECT_EQ(env["UCX_NET_DEVICES"], "all");
  EXPECT_EQ(env["FI_TCP_IFACE"], "eth1");
}

TEST_F(WorkerEnvTest, MpichHasTheAddressThatWasProven) {
  const std::string name = "MPIR_CVAR_INTERFACE_HOSTNAME";
  EXPECT_EQ(Build()[name], "10.0.0.2");
  // Both would end MPI_Init, and the older names would lose against ours.
  for (const char* own : {"MPIR_CVAR_NETWORK_IFACE", "MPICH_NEMESIS_TCP_NETWORK_IFACE",
                          "MPICH_INTERFACE_HOSTNAME", "MPICH_INTERFACE_HOSTNAME_R3"}) {
    part_.clear_env();
    Forward(own, "x");
    EXPECT_THAT(Build(), Not(Contains(Key(name)))) << own;
  }
  part_.clear_env();
  Forward(name, "10.1.0.2");
  EXPECT_EQ(Build()[name], "10.1.0.2");
  part_.clear_env();
  for (const char* address : {"fd00::2", "127.0.0.1"}) {
    part_.mutable_network()->set_address(address);
    EXPECT_THAT(Build(), Not(Contains(Key(name)))) << address;
  }
}

TEST_F(WorkerEnvTest, MpiKeepsItsNetworksWhereItHasBetterOrOthers) {
  Env env = Build(1, {.traits = {.rdma = true}});
  EXPECT_EQ(env.count("UCX_NET_DEVICES"), 0u);
  EXPECT_EQ(env["FI_TCP_IFACE"], "eth0") << "other providers do not read it";
  EXPECT_THAT(Build(1, {.traits = {.names_networks = true}}),
              Not(Contains(Key("OMPI_MCA_btl_tcp_if_include"))));
  part_.mutable_network()->set_address("127.0.0.1");
  env = Build();
  EXPECT_EQ(env.count("UCX_NET_DEVICES") + env.count("FI_TCP_IFACE"), 0u);
}

TEST_F(WorkerEnvTest, ThreadsAreOnlyLimitedWhereWorkersShareANode) {
  Forward("OMP_NUM_THREADS", "8");
  EXPECT_EQ(Build()["OMP_NUM_THREADS"], "8");
  part_.clear_env();
  part_.mutable_workers()->DeleteSubrange(1, 1);
  EXPECT_THAT(Build(0), Not(Contains(Key("OMP_NUM_THREADS"))));
}

TEST_F(WorkerEnvTest, EitherErrorHandlingNameDecidesBoth) {
  Forward("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3");
  Env env = Build();
  EXPECT_EQ(env["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "3");
  EXPECT_THAT(env, Not(Contains(Key("NCCL_ASYNC_ERROR_HANDLING"))));
}

TEST_F(WorkerEnvTest, HostBoundNamesAreTheNodesOwn) {
  Forward("HOME", "/home/launcher");
  Forward("SSH_AUTH_SOCK", "/tmp/launcher");
  Forward("LANG", "launcher");
  Env env = Build();
  EXPECT_EQ(env["HOME"], "/home/me");
  EXPECT_EQ(env["USER"], "me");
  EXPECT_EQ(env["LANG"], "launcher");
  EXPECT_THAT(env, Not(Contains(Key("SSH_AUTH_SOCK"))));
  EXPECT_THAT(env, Not(Contains(Key("PATH"))));  // not host-bound, and not forwarded here
  Forward("HOME", "/mine", true);
  EXPECT_EQ(Build()["HOME"], "/mine");
}

TEST_F(WorkerEnvTest, TheNodesEnvironmentIsTheBaseWhenAsked) {
  part_.set_inherit_agent_env(true);
  Forward("LANG", "mine", true);
  Env env = Build();
  EXPECT_EQ(env["PATH"], "/node/bin");
  EXPECT_EQ(env["LANG"], "mine");
}

TEST_F(WorkerEnvTest, AnOuterLaunchersVariablesAreRemoved) {
  for (const char* name :
       {"SLURM_PROCID", "SLURM_NTASKS_PER_NODE", "PMI_ID", "PMIX_RANK", "OMPI_MCA_ess",
        "OMPI_MCA_orte_launch", "HYDI_CONTROL_FD", "FLUX_JOB_ID", "JSM_NAMESPACE_RANK",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR", "TORCHELASTIC_ERROR_FILE", "MV2_COMM_WORLD_RANK",
        "JOB_COMPLETION_INDEX", "HOROVOD_ELASTIC"}) {
    Forward(name, "outer");
    agent_.push_back(std::string(name) + "=outer");
  }
  Forward("SLURM_JOB_ID", "17");
  Forward("HOROVOD_TIMELINE", "t.json");
  Forward("OMPI_MCA_btl", "tcp");
  part_.set_inherit_agent_env(true);
  Env env = Build();
  for (const auto& [name, value] : env) EXPECT_NE(value, "outer") << name;
  EXPECT_EQ(env["SLURM_JOB_ID"], "17");
  EXPECT_EQ(env["HOROVOD_TIMELINE"], "t.json");
  EXPECT_EQ(env["OMPI_MCA_btl"], "tcp");
}

TEST_F(WorkerEnvTest, WhatTheUserGaveWithXIsNeverReplaced) {
  Forward("MASTER_ADDR", "elsewhere", true);
  Forward("RANK", "99", true);
  Forward("OMPI_MCA_orte_x", "kept", true);
  Env env = Build();
  EXPECT_EQ(env["MASTER_ADDR"], "elsewhere");
  EXPECT_EQ(env["RANK"], "99");
  EXPECT_EQ(env["OMPI_MCA_orte_x"], "kept");
  EXPECT_EQ(env["DTRAIN_RANK"], "3");
}

TEST_F(WorkerEnvTest, SetsOurOwn) {
  part_.set_attempt(2);
  part_.set_max_restarts(3);
  Env env = Build();
  Env expected = {{"DTRAIN_JOB_ID", "job1"},         {"DTRAIN_ATTEMPT", "2"},
                  {"DTRAIN_SHEPHERD", "7:8:boot"},   {"DTRAIN_RANK", "3"},
                  {"DTRAIN_WORLD_SIZE", "4"},        {"DTRAIN_LOCAL_RANK", "1"},
                  {"DTRAIN_LOCAL_SIZE", "2"},        {"DTRAIN_NODE_RANK", "1"},
                  {"DTRAIN_NODE_COUNT", "2"},        {"DTRAIN_ADDRESS", "10.0.0.2"},
                  {"DTRAIN_HOST", "node1"},          {"TORCHELASTIC_RESTART_COUNT", "2"},
                  {"PYTHONUNBUFFERED", "1"},         {"DTRAIN_PID_NAMESPACE", "9"},
                  {"TORCHELASTIC_MAX_RESTARTS", "3"}};
  for (const auto& entry : expected) EXPECT_THAT(env, Contains(entry));
}

// A12
TEST_F(WorkerEnvTest, ValuesAreByteExact) {
  Forward("ODD", std::string("a=b\nc\xff", 6));
  Forward("EMPTY", "");
  Env env = Build();
  EXPECT_EQ(env["ODD"], std::string("a=b\nc\xff", 6));
  EXPECT_EQ(env["EMPTY"], "");
}

TEST_F(WorkerEnvTest, AStoreOfTheAgentsIsWhereRankZeroWouldServeIt) {
  part_.set_agent_store(true);
  part_.set_attempt(2);
  const Env env = Build();
  EXPECT_EQ(env.at("TORCHELASTIC_USE_AGENT_STORE"), "True");
  EXPECT_EQ(env.at("MASTER_PORT"), "4242");
  EXPECT_EQ(env.at("TORCHELASTIC_RESTART_COUNT"), "2");
}

TEST_F(WorkerEnvTest, TheWorkingDirectoryIsPwd) {
  EXPECT_THAT(Build(), Not(Contains(Key("PWD"))));
  part_.mutable_programs(0)->set_working_directory("/data");
  EXPECT_EQ(Build()["PWD"], "/data");
}

TEST(EnvNamesTest, PrefixesMatchOnlyWhereListed) {
  EXPECT_TRUE(IsHostBound("SSH_CONNECTION"));
  EXPECT_TRUE(IsHostBound("XDG_SESSION_ID"));
  EXPECT_FALSE(IsHostBound("HOMEBREW_PREFIX"));
  EXPECT_FALSE(IsHostBound("XDG_CONFIG_HOME"));
  EXPECT_FALSE(IsHostBound(""));
  EXPECT_TRUE(IsScrubbed("PMI_RANK"));
  EXPECT_TRUE(IsScrubbed("SLURM_STEP_NODELIST"));
  EXPECT_FALSE(IsScrubbed("SLURM_JOB_NODELIST"));
  EXPECT_FALSE(IsScrubbed("RANKS"));
  EXPECT_FALSE(IsScrubbed("OMPI_MCA_btl"));
}

TEST_F(WorkerEnvTest, ProgramsHaveTheirOwnOnTop) {
  v1::Program& second = *part_.add_programs();
  v1::EnvVar& mine = *second.add_env();
  mine.set_name("MINE");
  mine.set_value("2");
  v1::EnvVar& rank = *second.add_env();
  rank.set_name("RANK");
  rank.set_value("x");
  second.add_explicit_env("MINE");
  second.add_explicit_env("RANK");
  part_.mutable_workers(1)->set_program(1);
  EXPECT_EQ(Build(0).count("MINE"), 0u);
  EXPECT_NE(Build(0)["RANK"], "x");
  EXPECT_EQ(Build(1)["MINE"], "2");
  EXPECT_EQ(Build(1)["RANK"], "x");
}

TEST_F(WorkerEnvTest, OnlyTheContractsThatAreWanted) {
  part_.clear_contracts();
  Env none = Build();
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_FD", "HOROVOD_RANK", "LOCAL_SIZE",
                           "JAX_COORDINATOR_ADDRESS", "NCCL_SOCKET_IFNAME", "PMIX_RANK",
                           "DTRAIN_PAGE_FD", "MASTER_ADDR"}) {
    EXPECT_EQ(none.count(name), 0u) << name;
  }
  EXPECT_EQ(none["DTRAIN_RANK"], "3");
  part_.add_contracts(v1::CONTRACT_DTRAIN);
  Env own = Build();
  EXPECT_EQ(own["PMI_FD"], "3");
  EXPECT_EQ(own["DTRAIN_PAGE_FD"], "4");
  EXPECT_EQ(own.count("OMPI_COMM_WORLD_RANK"), 0u);
  part_.add_contracts(v1::CONTRACT_TORCH);
  Env torch = Build();
  EXPECT_EQ(torch["RANK"], "3");
  EXPECT_EQ(torch["CROSS_SIZE"], "2");
  EXPECT_EQ(torch.count("HOROVOD_RANK"), 0u);
  EXPECT_EQ(torch.count("JAX_COORDINATOR_ADDRESS"), 0u);
}

TEST_F(WorkerEnvTest, TensorflowsTaskIsTheRanksOwn) {
  Forward("TF_CONFIG", "an outer launcher's");
  EXPECT_EQ(Build().count("TF_CONFIG"), 0u);
  part_.add_contracts(v1::CONTRACT_TENSORFLOW);
  part_.mutable_whole()->set_tensorflow_cluster("{\"worker\": [\"10.0.0.1:1\"]}");
  part_.mutable_workers(1)->set_tensorflow_type("worker");
  part_.mutable_workers(1)->set_tensorflow_index(2);
  EXPECT_EQ(Build()["TF_CONFIG"],
            "{\"cluster\": {\"worker\": [\"10.0.0.1:1\"]}, \"task\": {\"type\": \"worker\", "
            "\"index\": 2}}");
}

TEST_F(WorkerEnvTest, ATaskOfSlurmsIsImitated) {
  Forward("SLURM_PROCID", "9");
  Forward("SLURM_JOB_ID", "77");
  part_.add_contracts(v1::CONTRACT_SLURM);
  for (const char* host : {"node0", "node1", "node2"}) part_.mutable_whole()->add_hosts(host);
  for (const uint32_t ranks : {2, 2, 1}) part_.mutable_whole()->add_ranks(ranks);
  Env env = Build();
  EXPECT_EQ(env["SLURM_PROCID"], "3");
  EXPECT_EQ(env["SLURM_LOCALID"], "1");
  EXPECT_EQ(env["SLURM_NODEID"], "1");
  EXPECT_EQ(env["SLURM_NTASKS"], "4");
  EXPECT_EQ(env["SLURM_STEP_NODELIST"], "node0,node1,node2");
  EXPECT_EQ(env["SLURM_TASKS_PER_NODE"], "2(x2),1");
  EXPECT_EQ(env.count("SLURM_NTASKS_PER_NODE"), 0u);
  EXPECT_EQ(env["SLURM_JOB_ID"], "77");
  part_.clear_env();
  const int64_t number = std::stoll(Build()["SLURM_JOB_ID"]);
  EXPECT_GT(number, 0);
  EXPECT_LT(number, int64_t{1} << 31);
}

TEST_F(WorkerEnvTest, SlurmsTasksPerNodeAreTheSameEverywhere) {
  Forward("SLURM_NTASKS_PER_NODE", "8");
  EXPECT_EQ(Build().count("SLURM_NTASKS_PER_NODE"), 0u);
  part_.add_contracts(v1::CONTRACT_SLURM);
  for (const char* host : {"node0", "node1"}) part_.mutable_whole()->add_hosts(host);
  for (int node = 0; node < 2; ++node) part_.mutable_whole()->add_ranks(2);
  Env env = Build();
  EXPECT_EQ(env["SLURM_NTASKS_PER_NODE"], "2");
  EXPECT_EQ(env["SLURM_TASKS_PER_NODE"], "2(x2)");
}

TEST_F(WorkerEnvTest, SagemakersVariablesAreJson) {
  part_.add_contracts(v1::CONTRACT_SAGEMAKER);
  for (const char* host : {"node0", "no\"de1"}) part_.mutable_whole()->add_hosts(host);
  part_.mutable_workers(1)->add_gpu_uuids("GPU-1");
  Env env = Build();
  EXPECT_EQ(env["SM_HOSTS"], "[\"node0\", \"no\\\"de1\"]");
  EXPECT_EQ(env["SM_CURRENT_HOST"], "node1");
  EXPECT_EQ(env["SM_NUM_GPUS"], "1");
  EXPECT_EQ(env["SM_TRAINING_ENV"],
            "{\"hosts\": [\"node0\", \"no\\\"de1\"], \"current_host\": \"node1\", "
            "\"network_interface_name\": \"eth0\", \"num_gpus\": 1, \"job_name\": \"job1\"}");
}

TEST_F(WorkerEnvTest, ATorchrunOnEachNodeFindsTheOthers) {
  part_.add_contracts(v1::CONTRACT_TORCHRUN_AGENT);
  Env env = Build();
  EXPECT_EQ(env["PET_NNODES"], "2");
  EXPECT_EQ(env["PET_NODE_RANK"], "1");
  EXPECT_EQ(env["PET_MASTER_ADDR"], "10.0.0.1");
  EXPECT_EQ(env["PET_MASTER_PORT"], "4242");
}

TEST_F(WorkerEnvTest, CachesGetAFolderOfTheNodesUnlessTheyHaveOne) {
  EXPECT_THAT(Build(), Not(Contains(Key("TRITON_CACHE_DIR"))));
  Forward("TORCH_EXTENSIONS_DIR", "/mine");
  const WorkerTies ties{.traits = {.caches = "/var/tmp/dtrain-7/caches"}};
  EXPECT_THAT(Build(1, ties), Contains(Pair("TORCH_EXTENSIONS_DIR", "/mine")));
  EXPECT_THAT(Build(1, ties),
              Contains(Pair("TRITON_CACHE_DIR", "/var/tmp/dtrain-7/caches/triton")));
  EXPECT_THAT(Build(1, ties), Contains(Key("CUDA_CACHE_PATH")));
  EXPECT_THAT(Build(1, ties), Contains(Key("TORCHINDUCTOR_CACHE_DIR")));
  Forward("TRITON_HOME", "/mine");
  EXPECT_THAT(Build(1, ties), Not(Contains(Key("TRITON_CACHE_DIR"))));
  part_.mutable_programs(0)->mutable_container()->set_image("i");
  EXPECT_THAT(Build(1, ties), Not(Contains(Key("CUDA_CACHE_PATH"))));
}

}  // namespace
}  // namespace dtrain::shepherd
