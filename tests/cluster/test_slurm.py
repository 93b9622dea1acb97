# SPDX-License-Identifier: Apache-2.0
"""Inside allocations of a real Slurm: dtrain takes the hosts from it and reaches them by srun.
PBS, LSF and Grid Engine have no packages: unit tests feed dtrain their files and variables."""
import os
import re
import signal
import subprocess

import pytest

import hosts
import launching
import leftovers
import slurm as slurm_hosts

MISSING = slurm_hosts.missing_programs()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"there is no {', '.join(MISSING)}: "
                                                      "tools/install-deps test installs Slurm")
DTRAIN = hosts.bin_dir() / "dtrain"
TWO_BY_TWO = ["salloc", "-Q", "-N2", "--ntasks-per-node=2"]
WHERE = ["sh", "-c", 'echo "$RANK of $WORLD_SIZE on $(hostname)"']
WHERE_TWO_BY_TWO = ["[0] 0 of 4 on node0", "[1] 1 of 4 on node0",
                    "[2] 2 of 4 on node1", "[3] 3 of 4 on node1"]
OF_A_STEP = re.compile(
    "SLURM_(STEP|TASK|NTASKS|NPROCS|PROCID|LOCALID|NODEID|GTIDS|CPU_BIND|CPUS_ON|GPUS_ON|SRUN"
    "|LAUNCH|TOPOLOGY|UMASK|MPI)|SRUN_|SLURMD_|PMIX_MCA_|PMIX_SERVER_TMPDIR")


@pytest.fixture(scope="module")
def slurm():
    with hosts.Cluster(3) as made, slurm_hosts.Slurm(made) as running:
        yield running


@pytest.fixture(scope="module")
def shared_cluster(slurm):
    """What the fixture `cluster`, with its check for leftovers, stands on."""
    return slurm.cluster


def launch(slurm, allocate, args, **options):
    return slurm.start([*allocate, DTRAIN, "launch", *args], **options).wait(30)


def test_the_allocation_gives_hosts_and_slots(cluster, slurm):
    result = launch(slurm, TWO_BY_TWO, WHERE)
    assert result.code == 0 and sorted(result.lines) == WHERE_TWO_BY_TWO, result


def test_a_host_file_of_slurms_says_where_each_rank_goes(cluster, slurm):
    (cluster.work() / "tasks").write_text("node1\nnode0\nnode1\n")
    allocate = [*TWO_BY_TWO, "env", "SLURM_HOSTFILE=/root/work/tasks"]
    result = launch(slurm, allocate, WHERE)
    assert result.code == 0 and sorted(result.lines) == [
        "[0] 0 of 3 on node1", "[1] 1 of 3 on node0", "[2] 2 of 3 on node1"], result
    (cluster.work() / "tasks").write_text("node7\n")
    result = launch(slurm, allocate, WHERE)
    assert result.code == 2 and "line 1: node7 is not one of the Slurm job's nodes" in result.err, result


def test_each_srun_ends_by_itself(cluster, slurm):
    # One that is told to cancels its step, and Slurm keeps the node for as long as its KillWait.
    cancelled = slurm.logs().count("CANCELLED")
    steps_gone = 'until [ -z "$(squeue -h -s -j $SLURM_JOB_ID)" ]; do :; done'
    command = ["sh", "-c", f"{DTRAIN} launch true && {steps_gone}"]
    result = slurm.start([*TWO_BY_TWO, *command]).wait(30)
    assert result.code == 0, result
    assert slurm.logs().count("CANCELLED") == cancelled, slurm.logs()


def test_tasks_that_do_not_divide_evenly(cluster, slurm):
    result = launch(slurm, ["salloc", "-Q", "-N2", "-n3"], WHERE)
    assert result.code == 0, result
    assert sorted(result.lines) == ["[0] 0 of 3 on node0", "[1] 1 of 3 on node0",
                                    "[2] 2 of 3 on node1"], result


def test_the_failing_ranks_exit_code_comes_through(cluster, slurm):
    result = launch(slurm, TWO_BY_TWO, ["sh", "-c", '[ "$RANK" != 3 ] || exit 7; sleep 60'])
    assert result.code == 7, result
    assert re.search(r"rank 3 .*node1", result.err), result


def test_a_launcher_that_is_a_step_of_the_job_itself(cluster, slurm):
    # SLURM_TASKS_PER_NODE is that step's then, and must not pass for the job's.
    result = launch(slurm, [*TWO_BY_TWO, "srun", "-N1", "-n1"], WHERE)
    assert result.code == 0 and sorted(result.lines) == WHERE_TWO_BY_TWO, result


@pytest.mark.parametrize("command", [["launch"], ["torchrun", "--nnodes", "2", "--no-python"]])
def test_every_copy_in_a_step_of_several_tasks_refuses(cluster, slurm, command):
    result = slurm.start([*TWO_BY_TWO, "srun", "-N2", "-n2", DTRAIN, *command, *WHERE]).wait(30)
    assert result.code == 2 and result.out == "", result
    assert result.err.count("srun has started 2 copies of this command") == 2, result


def test_copies_that_stay_on_their_own_node_are_not_refused(cluster, slurm):
    result = slurm.start([*TWO_BY_TWO, "srun", "-N2", "-n2", DTRAIN, "launch", "-np", "-1", *WHERE]).wait(30)
    assert result.code == 0, result
    assert sorted(result.lines) == ["0 of 1 on node0", "0 of 1 on node1"], result


@pytest.mark.parametrize("through", [[], ["srun", "-N1", "-n1"]])
def test_workers_see_the_job_but_no_step(cluster, slurm, through):
    result = launch(slurm, [*TWO_BY_TWO, *through],
                    ["--tag-output", "none", "-np", "1", "env"])
    names = {line.partition("=")[0] for line in result.lines}
    assert result.code == 0 and {"SLURM_JOB_ID", "SLURM_JOB_NODELIST"} <= names, result
    assert sorted(name for name in names if OF_A_STEP.match(name)) == [], result
    job = next(line for line in result.lines if line.startswith("DTRAIN_JOB_ID=")).partition("=")[2]
    ours = [line for line in result.lines if re.match(r"PMIX_(NAMESPACE|SERVER_URI)", line)]
    assert len(ours) == 7 and all(f"={job}-0" in line for line in ours), result


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_mpi_programs_are_one_world(cluster, slurm, mpi):
    binary = cluster.base / f"{mpi}-sums"
    subprocess.run([f"mpicc.{mpi}", "-O1", "-o", binary, hosts.HERE / "programs/mpi_allreduce.c"],
                   check=True)
    result = launch(slurm, TWO_BY_TWO, ["-x", "SKIP_FINALIZE=1", "--", binary])
    assert result.code == 0 and result.out.count("all sums are right") == 1, result


def test_a_batch_job_submitted_without_environment(cluster, slurm):
    work = cluster.work(cluster.nodes[0])
    script = cluster.work() / "job.sh"
    script.write_text(f"#!/bin/sh\n{DTRAIN} launch sh -c '{WHERE[2]}'\necho exit code $?\n")
    slurm.run(["sbatch", "--export=NONE", "-N2", "--ntasks-per-node=2", "-o", "/root/work/job.out",
               "/root/work/job.sh"])
    out = work / "job.out"
    launching.wait_until(lambda: out.exists() and "exit code" in out.read_text(), 20,
                         lambda: out.exists() and out.read_text())
    assert sorted(out.read_text().splitlines()) == [*WHERE_TWO_BY_TWO, "exit code 0"]


def test_labels_that_the_user_likes_on_srun_do_no_harm(cluster, slurm):
    result = launch(slurm, TWO_BY_TWO, WHERE, env={"SLURM_LABELIO": "1"})
    assert result.code == 0 and sorted(result.lines) == WHERE_TWO_BY_TWO, result


def test_megabytes_pass_unchanged_both_ways(cluster, slurm):
    text = "".join(f"line {number}\n" for number in range(200000))
    (cluster.work() / "lines").write_text(text)
    with open(cluster.work() / "lines", "rb") as stdin:
        result = launch(slurm, TWO_BY_TWO, ["--stdin", "2", "--tag-output", "none", "sh", "-c",
                                            '[ "$RANK" != 2 ] || exec cat'], stdin=stdin)
    assert result.code == 0 and result.out == text, result


def test_hosts_of_the_allocation_by_ssh(cluster, slurm):
    result = launch(slurm, TWO_BY_TWO, ["--rsh", "ssh {host}", *WHERE])
    assert result.code == 0 and sorted(result.lines) == WHERE_TWO_BY_TWO, result


@pytest.mark.parametrize("wanted", ["--gpus-per-node=2", "--gpus-per-task=1"])
def test_workers_get_the_gpus_of_the_job(cluster, slurm, wanted):
    description = slurm.base / "nvml"
    description.write_text("".join(f"gpu uuid=GPU-{n} pci=0000:0{n}:00.0 memory=80\n"
                                   for n in range(slurm_hosts.GPUS)))
    library = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
    result = launch(slurm, [*TWO_BY_TWO, wanted], ["sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"'],
                    env={"FAKE_NVML": description, "DTRAIN_NVML_LIBRARY": library})
    assert result.code == 0, result
    assert sorted(result.lines) == [f"[{rank}] GPU-0,GPU-1" for rank in range(4)], result


@pytest.fixture
def running(cluster, slurm):
    """A job whose workers would stay for long."""
    job = slurm.start([*TWO_BY_TWO, DTRAIN, "launch", "sh", "-c", "echo up; sleep 100"])
    job.wait_for("up", count=4)
    yield job
    job.kill()


def test_ctrl_c_leaves_nothing(cluster, running):
    # salloc gives what it runs a process group of its own, which the terminal then signals.
    [launcher] = [pid for pid, _, line in leftovers.processes(cluster.head)
                  if line.startswith(f"{DTRAIN} launch")]
    os.kill(launcher, signal.SIGINT)
    result = running.wait(15)
    assert result.code == 130, result


def test_a_cancelled_allocation_leaves_nothing(running, slurm):
    job = slurm.run(["squeue", "-h", "-o", "%i"]).stdout.split()
    slurm.run(["scancel", *job])
    result = running.wait(15)
    # Slurm signals the agents and the workers at the same time.
    assert result.code in (143, 202, 203), result


# As sbatch --signal=USR1@120 does. proctrack/linuxproc signals every process of a step.
def test_a_warning_from_slurm_reaches_each_rank_once_and_ends_nothing(cluster, slurm):
    script = ("trap 'echo warned' USR1; trap 'sleep 1; echo ends; exit 0' USR2; echo up; "
              "while :; do sleep 0.1; done")
    job = slurm.start([*TWO_BY_TWO, DTRAIN, "launch", "sh", "-c", script])
    try:
        job.wait_for("up", count=4)
        ids = slurm.run(["squeue", "-h", "-o", "%i"]).stdout.split()
        slurm.run(["scancel", "--signal=USR1", *ids])
        job.wait_for("warned", count=4)
        slurm.run(["scancel", "--signal=USR2", *ids])
        result = job.wait(30)
    finally:
        job.kill()
    # The second that "ends" waits is longer than an agent's own word takes.
    assert result.code == 0, result
    for word in ("warned", "ends"):
        assert sorted(re.findall(rf"^\[(\d)\] {word}$", result.out, re.M)) == list("0123"), result
