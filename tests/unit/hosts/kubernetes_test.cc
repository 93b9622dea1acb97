// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/kubernetes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::hosts {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PodTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::optional<Allocation>> Find(std::optional<uint32_t> nodes = {}) {
    return DetectAllocation(
        [this](const std::string& name) -> std::optional<std::string> {
          auto found = env_.find(name);
          if (found == env_.end()) return std::nullopt;
          return found->second;
        },
        [this](const std::string& path) -> absl::StatusOr<std::string> {
          auto found = files_.find(path);
          if (found != files_.end()) return found->second;
          return absl::NotFoundError(absl::StrCat("cannot read ", path));
        },
        nodes);
  }
  // "MPIJob: a:4 =b:?" with '=' for a host that is reached without --rsh; or the error.
  std::string Shown(std::optional<uint32_t> nodes = {}) {
    auto allocation = Find(nodes);
    if (!allocation.ok()) return std::string(allocation.status().message());
    if (!*allocation) return "none";
    std::string out = (*allocation)->manager + ":";
    for (const HostEntry& entry : (*allocation)->hosts.entries) {
      absl::StrAppend(&out, entry.way == Way::kSsh ? " =" : " ", entry.host, ":",
                      entry.slots ? absl::StrCat(*entry.slots) : "?");
    }
    return out;
  }
  std::string Rsh() {
    auto allocation = Find();
    if (!allocation.ok()) return std::string(allocation.status().message());
    return *allocation ? (*allocation)->rsh : "none";
  }

  std::map<std::string, std::string> env_;
  std::map<std::string, std::string> files_;
};

// As mpi_job_controller.go of v0.4 and later makes the launcher pod.
class MpiJobTest : public PodTest {
 protected:
  MpiJobTest() {
    env_ = {{"K_MPI_JOB_ROLE", "launcher"},
            {"HOSTNAME", "pi-launcher"},
            {"OMPI_MCA_orte_keep_fqdn_hostnames", "true"},
            {"OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"},
            {"OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10"},
            {"OMPI_MCA_orte_set_default_slots", "4"}};
    files_["/etc/mpi/hostfile"] = "pi-worker-0.pi.ml.svc slots=4\npi-worker-1.pi.ml.svc slots=4\n";
  }
};

TEST_F(MpiJobTest, TakesHostsAndSlotsOfOpenMpisHostfile) {
  EXPECT_EQ(Shown(), "MPIJob: pi-worker-0.pi.ml.svc:4 pi-worker-1.pi.ml.svc:4");
}

// Older operators named the pods alone there; cores would be those of the whole node.
TEST_F(MpiJobTest, TakesSlotsPerWorkerWhereTheHostfileHasNone) {
  files_["/etc/mpi/hostfile"] = "pi-worker-0.pi.ml.svc\npi-worker-1.pi.ml.svc slots=2\n";
  EXPECT_EQ(Shown(), "MPIJob: pi-worker-0.pi.ml.svc:4 pi-worker-1.pi.ml.svc:2");
  env_.erase("OMPI_MCA_orte_set_default_slots");
  EXPECT_THAT(Shown(), HasSubstr("pi-worker-0.pi.ml.svc:?"));
  env_["I_MPI_PERHOST"] = "3";
  EXPECT_THAT(Shown(), HasSubstr("pi-worker-0.pi.ml.svc:3"));
  for (const char* other : {"allcores", "0", "-1", "65536"}) {
    env_["I_MPI_PERHOST"] = other;
    EXPECT_THAT(Shown(), HasSubstr("pi-worker-0.pi.ml.svc:?")) << other;
  }
}

TEST_F(MpiJobTest, TakesThoseOfIntelAndMpich) {
  files_["/etc/mpi/hostfile"] = "pi-worker-0.pi.ml.svc:2\npi-worker-1.pi.ml.svc:2\n";
  const std::string hosts = "MPIJob: pi-worker-0.pi.ml.svc:2 pi-worker-1.pi.ml.svc:2";
  const std::string rsh = Rsh();
  env_ = {{"K_MPI_JOB_ROLE", "launcher"},
          {"I_MPI_HYDRA_HOST_FILE", "/etc/mpi/hostfile"},
          {"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "-o ConnectionAttempts=10"},
          {"I_MPI_PERHOST", "2"}};
  EXPECT_EQ(Shown(), hosts);
  EXPECT_EQ(Rsh(), rsh);
  env_ = {{"K_MPI_JOB_ROLE", "launcher"},
          {"HYDRA_HOST_FILE", "/etc/mpi/hostfile"},
          {"HYDRA_LAUNCH_EXTRA_ARGS", "-o ConnectionAttempts=10"}};
  EXPECT_EQ(Shown(), hosts);
  EXPECT_EQ(Rsh(), rsh);
}

TEST_F(MpiJobTest, ReadsTheHostfileThatOpenMpiWouldRead) {
  env_["OMPI_MCA_orte_default_hostfile"] = "/mine";
  files_["/mine"] = "pi-worker-1.pi.ml.svc slots=1\n";
  EXPECT_EQ(Shown(), "MPIJob: pi-worker-1.pi.ml.svc:1");
  env_.erase("OMPI_MCA_orte_default_hostfile");
  EXPECT_THAT(Shown(), HasSubstr("pi-worker-0"));
  env_["PRTE_MCA_prte_default_hostfile"] = "/mine";
  EXPECT_EQ(Shown(), "MPIJob: pi-worker-1.pi.ml.svc:1");
}

TEST_F(MpiJobTest, ReachesThePodsByTheSshThatOpenMpiWouldRun) {
  EXPECT_EQ(Rsh(),
            "ssh -x -o ConnectionAttempts=10 -o BatchMode=yes -o ServerAliveInterval=5 -o "
            "ServerAliveCountMax=3 {host}");
  env_["OMPI_MCA_plm_rsh_args"] = "-p 2222 -o ProxyCommand=a'b";
  EXPECT_THAT(Rsh(), HasSubstr("ssh -x -p 2222 -o 'ProxyCommand=a'\\''b' -o BatchMode"));
  env_["OMPI_MCA_plm_rsh_agent"] = "/opt/my-rsh -q : rsh";
  env_["OMPI_MCA_plm_rsh_args"] = "-v";
  EXPECT_EQ(Rsh(), "/opt/my-rsh -q -v {host}");
  env_.erase("OMPI_MCA_plm_rsh_agent");
  env_.erase("OMPI_MCA_plm_rsh_args");
  EXPECT_EQ(Rsh(), "");
}

TEST_F(MpiJobTest, StartsRanksInTheLaunchersOwnPodWithoutSsh) {
  files_["/etc/mpi/hostfile"] =
      "pi-launcher.pi.ml.svc slots=4\npi-worker-0.pi.ml.svc slots=4\npi-launcher2.pi.ml.svc:1\n";
  EXPECT_EQ(Shown(), "MPIJob: =pi-launcher:4 pi-worker-0.pi.ml.svc:4 pi-launcher2.pi.ml.svc:1");
  env_.erase("HOSTNAME");
  EXPECT_THAT(Shown(), HasSubstr(" pi-launcher.pi.ml.svc:4"));
}

TEST_F(MpiJobTest, IsAnErrorWithoutItsHostfile) {
  files_.clear();
  EXPECT_EQ(
      Shown(),
      "this is the launcher pod of an MPI job, but cannot read /etc/mpi/hostfile, so its hosts "
      "are not known; name them with --hosts or --hostfile, or unset K_MPI_JOB_ROLE");
  files_["/etc/mpi/hostfile"] = "a\nb;c slots=1\n";
  EXPECT_THAT(Shown(), HasSubstr("/etc/mpi/hostfile:2:2: host name must not contain ';'"));
}

TEST_F(MpiJobTest, IsNoneInAWorkerPod) {
  env_["K_MPI_JOB_ROLE"] = "worker";
  EXPECT_EQ(Shown(), "none");
  env_.erase("K_MPI_JOB_ROLE");
  EXPECT_EQ(Shown(), "none");
}

// As Kubeflow Trainer v2 makes it: the MPI operator's variables without a role, in an Indexed Job.
TEST_F(MpiJobTest, IsAlsoThatOfATrainJob) {
  env_.erase("K_MPI_JOB_ROLE");
  env_["JOB_COMPLETION_INDEX"] = "0";
  EXPECT_EQ(Shown(), "MPIJob: pi-worker-0.pi.ml.svc:4 pi-worker-1.pi.ml.svc:4");
  files_.clear();
  EXPECT_THAT(Shown(), HasSubstr("or unset OMPI_MCA_orte_default_hostfile"));
  env_["OMPI_MCA_orte_default_hostfile"] = "/mine";
  EXPECT_EQ(Shown(), "none");
}

// As v1 of the operator (tags up to v0.3.0) makes it: pod names, and a script for Open MPI.
class OldMpiJobTest : public PodTest {
 protected:
  OldMpiJobTest() {
    env_ = {{"OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh"},
            {"OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"}};
    files_["/etc/mpi/hostfile"] = "pi-worker-0 slots=8\npi-worker-1 slots=8\n";
    files_["/etc/mpi/kubexec.sh"] =
        "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n"
        "/opt/kube/kubectl exec ${POD_NAME} -- /bin/sh -c \"$*\"";
  }
};

// The script's own kubectl has no standard input.
TEST_F(OldMpiJobTest, ReachesThePodsByTheScriptsKubectlWithStandardInput) {
  EXPECT_EQ(Shown(), "MPIJob: pi-worker-0:8 pi-worker-1:8");
  EXPECT_EQ(Rsh(), "/opt/kube/kubectl exec -i {host} --");
}

TEST_F(OldMpiJobTest, KeepsTheContainer) {
  files_["/etc/mpi/kubexec.sh"] =
      "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n/opt/kube/kubectl cp /opt/kube/hosts "
      "${POD_NAME}:/etc/hosts_of_nodes\n/opt/kube/kubectl exec ${POD_NAME} --container main -- "
      "/bin/sh -c \"cat /etc/hosts_of_nodes >> /etc/hosts && $*\"\n";
  EXPECT_EQ(Rsh(), "/opt/kube/kubectl exec -i {host} --container main --");
}

TEST_F(OldMpiJobTest, RefusesAScriptThatIsAnother) {
  for (const char* script : {"", "kubectl exec", "kubectl exec --", "kubectl exec $1 -- sh",
                             "ssh exec ${POD_NAME} -- sh", "exec ${POD_NAME} -- kubectl"}) {
    files_["/etc/mpi/kubexec.sh"] = script;
    EXPECT_EQ(
        Rsh(),
        "OMPI_MCA_plm_rsh_agent is /etc/mpi/kubexec.sh, but it does not call kubectl exec as "
        "the MPI operator's script does, so dtrain does not know how to reach the pods; give --rsh "
        "'kubectl exec -i {host} --'")
        << script;
  }
  files_.erase("/etc/mpi/kubexec.sh");
  EXPECT_THAT(Rsh(), HasSubstr("but cannot read /etc/mpi/kubexec.sh, so"));
}

// As the Job controller and kubelet make the pods.
class IndexedJobTest : public PodTest {
 protected:
  IndexedJobTest() {
    env_ = {{"JOB_COMPLETION_INDEX", "0"}, {"HOSTNAME", "train-0"}};
    files_["/etc/hosts"] =
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n"
        "10.244.1.7\ttrain-0.peers.ml.svc.cluster.local\ttrain-0\n";
  }
};

TEST_F(IndexedJobTest, IndexZeroKnowsThePodsByTheirNames) {
  EXPECT_EQ(Shown(3),
            "Indexed Job: =train-0:? train-1.peers.ml.svc.cluster.local:? "
            "train-2.peers.ml.svc.cluster.local:?");
  auto allocation = Find(3);
  ASSERT_TRUE(allocation.ok());
  EXPECT_EQ((*allocation)->rsh, "");
}

// An array of jobs that have nothing to do with each other is as good a use.
TEST_F(IndexedJobTest, EachPodIsAJobOfItsOwnUnlessNodesAreAskedFor) {
  for (const char* index : {"0", "1", "7"}) {
    env_["JOB_COMPLETION_INDEX"] = index;
    EXPECT_EQ(Shown(), "none");
    EXPECT_EQ(Shown(1), "none");
  }
}

TEST_F(IndexedJobTest, TheOtherPodsRefuse) {
  env_["JOB_COMPLETION_INDEX"] = "2";
  env_["HOSTNAME"] = "train-2";
  EXPECT_EQ(
      Shown(3),
      "this is the pod with JOB_COMPLETION_INDEX 2 of a job on 3 nodes, and only the pod with "
      "index 0 launches it; in this one, run something that lets that pod in: sshd, or "
      "dtrain-agent "
      "serve --listen with certificates (docs/schedulers.md)");
  env_["JOB_COMPLETION_INDEX"] = "\x1b[31m";
  EXPECT_THAT(Shown(3), Not(HasSubstr("\x1b")));
}

// A JobSet names the pods of its jobs in the same way.
TEST_F(IndexedJobTest, TakesThePodsOfOneJobOfAJobSet) {
  env_["HOSTNAME"] = "run-workers-0-0";
  files_["/etc/hosts"] = "10.1.2.3 run-workers-0-0.run.ml.svc.cluster.local run-workers-0-0\n";
  EXPECT_EQ(Shown(2), "Indexed Job: =run-workers-0-0:? run-workers-0-1.run.ml.svc.cluster.local:?");
}

TEST_F(IndexedJobTest, KnowsAPodWhoseHostNameIsItsFullName) {
  env_["HOSTNAME"] = "train-0.peers.ml.svc.cluster.local";
  EXPECT_EQ(Shown(2),
            "Indexed Job: =train-0.peers.ml.svc.cluster.local:? "
            "train-1.peers.ml.svc.cluster.local:?");
}

TEST_F(IndexedJobTest, WithoutNamesItSaysWhatToDo) {
  const std::string advice =
      "; give the Job's pod template a headless service as its subdomain, or name the pods with "
      "--hosts";
  const std::string what = "-N in an Indexed Job: the names of its pods are not known: ";
  files_["/etc/hosts"] = "10.244.1.7\ttrain-0\n#10.244.1.7 train-0.peers train-0\n";
  EXPECT_EQ(Shown(2), what + "the pod has no domain name" + advice);
  files_.clear();
  EXPECT_EQ(Shown(2), what + "cannot read /etc/hosts" + advice);
  for (const char* name :
       {"", "gpu01", "-0", "train-1", "-oProxyCommand=x-0", "train-0.x;y", "train[0-9]-0"}) {
    env_["HOSTNAME"] = name;
    EXPECT_EQ(Shown(2),
              absl::StrCat(what, "HOSTNAME is \"", name, "\", which is not JOB-0", advice));
  }
}

TEST_F(IndexedJobTest, RefusesNamesThatCouldBeMore) {
  files_["/etc/hosts"] = "10.1.2.3 train-0.x;y train-0\n";
  EXPECT_THAT(Shown(2), HasSubstr("host name must not contain ';'"));
  files_["/etc/hosts"] = "10.1.2.3 train-0.x[0-9] train-0\n";
  EXPECT_THAT(Shown(2), HasSubstr("host name must not contain '['"));
  files_["/etc/hosts"] = "10.1.2.3 train-0.peers train-0\n";
  EXPECT_THAT(Shown(1000000), HasSubstr("range names too many hosts"));
}

}  // namespace
}  // namespace dtrain::hosts
