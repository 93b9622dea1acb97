# SPDX-License-Identifier: Apache-2.0
"""Pods, played by hosts: kubectl exec as --rsh, the MPI operator's launcher, an Indexed Job. There is no Kubernetes: what
it sets is written as its sources have it, and kubectl is a script that takes what kubectl takes."""
import hosts
import pytest

DTRAIN = hosts.bin_dir() / "dtrain"
WHERE = ["sh", "-c", 'echo "$RANK of $WORLD_SIZE on $(hostname)"']
SERVICE = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443",
           "PATH": "/root/work/bin:/usr/bin:/bin"}

# Without KUBECONFIG kubectl uses the pod's service account, which it finds by these variables. Without -i the command
# has no standard input. ssh stands for the way through the API server.
KUBECTL = r"""#!/bin/sh
echo "$*" >> /root/work/kubectl.log
if [ -z "$KUBECONFIG" ] && [ "$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT" != 10.96.0.1:443 ]; then
  echo "The connection to the server localhost:8080 was refused" >&2
  exit 1
fi
[ "$1" = exec ] || exit 9
shift
stdin= pod=
while [ "$1" != -- ]; do
  case $1 in
    -i) stdin=yes ;;
    --container) [ "$2" = main ] || exit 9; shift ;;
    -*) exit 9 ;;
    *) [ -z "$pod" ] || exit 9; pod=$1 ;;
  esac
  shift
done
shift
[ "$#" -gt 0 ] && [ -n "$pod" ] || exit 9
[ "$stdin" ] || exec < /dev/null
exec ssh "$pod" "$@"
"""


@pytest.fixture
def kubectl(cluster):
    """The lines with which the kubectl of the head has been called, without its name."""
    folder = cluster.work() / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    log = cluster.work() / "kubectl.log"
    log.unlink(missing_ok=True)
    return lambda: sorted(log.read_text().splitlines())


@pytest.mark.parametrize("container", ["", "--container main "])
def test_kubectl_exec_gets_the_service_account(cluster, kubectl, container):
    result = cluster.launch(["-H", "node0:1,node1:1", "--rsh", f"kubectl exec -i {{host}} {container}--", *WHERE],
                            env=SERVICE)
    assert result.code == 0, result
    assert sorted(result.lines) == ["[0] 0 of 2 on node0", "[1] 1 of 2 on node1"], result
    assert kubectl() == [f"exec -i node{pod} {container}-- /bin/sh" for pod in range(2)]


def test_kubectl_exec_gets_the_configuration_file(cluster, kubectl):
    result = cluster.launch(["-H", "node0:1", "--rsh", "kubectl exec -i {host} --", *WHERE],
                            env={"PATH": SERVICE["PATH"], "KUBECONFIG": "/root/work/config"})
    assert result.code == 0 and len(kubectl()) == 1, result


def test_what_kubectl_says_is_shown(cluster, kubectl):
    result = cluster.launch(["-H", "node0:1", "--rsh", "kubectl exec -i {host} --", *WHERE],
                            env={"PATH": SERVICE["PATH"]})
    assert result.code == 200 and "localhost:8080 was refused" in result.err, result


def test_kubectl_exec_without_standard_input_is_an_error_at_once(cluster, kubectl):
    result = cluster.launch(["-H", "node0:1", "--rsh", "kubectl exec {host} --", *WHERE], env=SERVICE, timeout=20)
    assert result.code == 200 and "kubectl exec and docker exec need -i" in result.err, result


def test_the_mpi_operators_launcher_starts_the_workers(cluster):
    hostfile = cluster.hostfile("node0 slots=2\nnode1 slots=1\n")
    pod = {"K_MPI_JOB_ROLE": "launcher", "OMPI_MCA_orte_default_hostfile": hostfile,
           "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"}
    result = cluster.launch(WHERE, env=pod)
    assert result.code == 0, result
    assert sorted(result.lines) == ["[0] 0 of 3 on node0", "[1] 1 of 3 on node0", "[2] 2 of 3 on node1"], result
    result = cluster.launch(["-np", "1", "--tag-output", "none", "env"], env=pod)
    assert result.code == 0 and "K_MPI_JOB_ROLE" not in result.out, result


def in_pod(cluster, index, args):
    """`dtrain launch` on the head as the pod `index` of the Indexed Job "train", whose pod 1 is node0."""
    (cluster.work() / "pod-hosts").write_text(
        f"127.0.0.1\tlocalhost\n{cluster.head.address}\ttrain-{index}.peers.ml.svc.cluster.local\ttrain-{index}\n")
    (cluster.work() / "ssh-config").write_text(
        f"Host train-1.peers.ml.svc.cluster.local\nHostName {cluster.nodes[0].address}\nHostKeyAlias node0\n")
    start = f"hostname train-{index} && mount --bind /root/work/pod-hosts /etc/hosts && exec \"$@\""
    command = ["unshare", "--uts", "--mount", "sh", "-c", start, "sh", DTRAIN, *args]
    return cluster.head.run(command, check=False, timeout=60, env={
        "JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"train-{index}"})


SSH = ["--ssh-config", "/root/work/ssh-config"]


def test_pod_0_of_an_indexed_job_launches_on_itself_and_the_others(cluster):
    result = in_pod(cluster, 0, ["launch", "-N", "2", "--ppn", "1", *SSH, *WHERE])
    assert result.returncode == 0, result
    assert sorted(result.stdout.splitlines()) == ["[0] 0 of 2 on train-0", "[1] 1 of 2 on node0"], result


@pytest.mark.parametrize("command", [["launch", "-N", "2"], ["torchrun", "--nnodes", "2", "--no-python"]])
def test_the_other_pods_of_an_indexed_job_say_what_to_run_there(cluster, command):
    result = in_pod(cluster, 1, [*command, *WHERE])
    assert result.returncode == 2 and result.stdout == "", result
    assert "JOB_COMPLETION_INDEX 1" in result.stderr and "only the pod with index 0" in result.stderr, result


def test_without_nodes_each_pod_of_an_indexed_job_is_a_job_of_its_own(cluster):
    result = in_pod(cluster, 1, ["launch", "-np", "1", *WHERE])
    assert result.returncode == 0 and result.stdout == "0 of 1 on train-1\n", result
