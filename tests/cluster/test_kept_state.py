# SPDX-License-Identifier: Apache-2.0
"""dtrain.elastic with --max-restarts: a new attempt continues from what the ranks before it have kept on the hosts."""
import os
import re
import shutil
import signal
import struct
from pathlib import Path

import pytest

import hosts
import leftovers
from launching import wait_until
from test_faults_efg import end_ssh_sessions, workers_gone
from test_python import PYTHON, as_flags, environment

LEASE, GRACE = 3, 1
STEPS = hosts.HERE / "programs/elastic_steps.py"
HOLD = 30  # where its first attempt waits
STATE = "/root/.cache/dtrain/state"


def start(cluster, *flags, steps=40, seconds="0"):
    return cluster.start_launch(
        ["--lease", f"{LEASE}s", "--grace", f"{GRACE}s", "--backoff", "10ms", "--max-restarts", 2, *flags,
         *as_flags(environment()), "-x", f"DTRAIN_STATE_SECONDS={seconds}", "--", PYTHON, STEPS, steps])


def kept(host, top=STATE):
    """Files of kept state, below the folders of the jobs."""
    return sorted(str(path.relative_to(host.path(top))) for path in host.path(top).glob("*/*/*"))


def nothing_kept(host, top=STATE):
    return not list(host.path(top).glob("*"))


@pytest.fixture
def three(cluster):
    yield cluster.nodes[:3]
    for host in cluster.hosts:
        shutil.rmtree(host.path(STATE), ignore_errors=True)


def commits(host, top=STATE):
    """Their numbers, of what the host has kept."""
    return [struct.unpack_from("<15sQ", path.read_bytes())[1] for path in host.path(top).glob("*/*/state-1")]


def wait_for_commit(job, host, number, ranks=3, top=STATE):
    """All have committed the step at which they wait, and that commit or a later one is on the host's disk."""
    job.wait_for(f"at step {HOLD}", count=ranks, timeout=60)
    wait_until(lambda: commits(host, top) and commits(host, top)[0] >= number, 30, lambda: kept(host))


def rank_of(host):
    return next(pid for pid, _, _ in leftovers.processes(host)
                if b"DTRAIN_RANK=" in leftovers.environment_of(pid) and b"elastic_steps" in
                Path(f"/proc/{pid}/cmdline").read_bytes())


def begins(job, attempt):
    """At which step each rank of the attempt has begun."""
    return [int(step) for step in re.findall(rf"attempt {attempt} of \d begins at (\d+)\n", job.out)]


def all_trained(result, ranks, steps=40):
    assert result.code == 0, result
    assert result.out.count(f"total {steps * (steps + 1) // 2}\n") == ranks, result


@pytest.mark.parametrize("seconds, first, last", [(0, HOLD, HOLD), (1000, 1, HOLD - 1)], ids=["all", "first"])
def test_a_rank_that_is_killed_costs_what_was_not_kept(cluster, three, seconds, first, last):
    job = start(cluster, *cluster.hosts_flag(1, three), seconds=seconds)
    wait_for_commit(job, three[1], first)
    assert all(oct(os.stat(three[1].path(path)).st_mode & 0o777) == "0o700" for path in
               [STATE, *(f"{STATE}/{name}" for name in os.listdir(three[1].path(STATE)))])
    os.kill(rank_of(three[1]), signal.SIGKILL)
    wait_until(lambda: len(begins(job, 1)) == 3, 60, lambda: job.out)
    steps = begins(job, 1)
    assert len(set(steps)) == 1 and first <= steps[0] <= last, job.out
    all_trained(job.wait(60), 3)
    assert re.search(rf"rank 0: the training continues from commit {steps[0]}, found by rank \d in "
                     rf"{STATE}/dtrain-\S+/node\d/state-1\n", job.err), job.err
    for host in cluster.hosts:
        assert nothing_kept(host), kept(host)


def test_the_copy_of_another_host_does_when_one_is_lost(cluster, three):
    gone = three[0]  # with rank 0
    job = start(cluster, "-N", "2:3", *cluster.hosts_flag(1, three))
    for host in three[1:]:
        wait_for_commit(job, host, HOLD)
    cluster.cut(gone)
    try:
        wait_until(lambda: len(begins(job, 1)) == 2, 60, lambda: job.out)
        assert begins(job, 1) == [HOLD] * 2, job.out
        all_trained(job.wait(60), 2)
    finally:
        cluster.heal(gone)
    for host in three[1:]:
        assert nothing_kept(host), kept(host)
    workers_gone(gone, LEASE + GRACE + 10)
    end_ssh_sessions(gone)


def test_all_hosts_are_replaced_and_share_a_directory(cluster, three):
    shared = cluster.base / "shared"
    shared.mkdir()
    try:
        job = start(cluster, "-N", "1", "--spare", 1, "--state-dir", shared, *cluster.hosts_flag(1, three[:2]))
        wait_for_commit(job, three[0], HOLD, ranks=1, top=shared)
        cluster.cut(three[0])
        try:
            wait_until(lambda: begins(job, 1), 60, lambda: job.out)
            assert begins(job, 1) == [HOLD], job.out
            all_trained(job.wait(60), 1)
        finally:
            cluster.heal(three[0])
        # That of the lost host stays, until it is old.
        assert [path.parent.name for path in shared.glob("*/*/*")] == ["node0"]
        workers_gone(three[0], LEASE + GRACE + 10)
        end_ssh_sessions(three[0])
    finally:
        shutil.rmtree(shared)


def test_a_job_that_fails_leaves_what_it_has_kept(cluster, three):
    job = start(cluster, *cluster.hosts_flag(1, three))
    for host in three:
        wait_for_commit(job, host, HOLD)
    job.signal(signal.SIGINT)
    assert job.wait(60).code == 130
    for host in three:
        assert [re.sub(r"^dtrain-[^/]+", "JOB", name) for name in kept(host)] == [f"JOB/{host.name}/state-1"]


def test_other_jobs_leave_no_trace(cluster, three):
    result = cluster.launch(["--max-restarts", 1, *cluster.hosts_flag(1, three), "--", "sh", "-c",
                             "echo $DTRAIN_STATE_FOLDER; exec sh -c 'exit 0'"])
    assert result.code == 0 and result.out.count(f"{STATE}/dtrain-") == 3, result
    result = cluster.launch([*cluster.hosts_flag(1, three), "--", "sh", "-c", "echo \"none:$DTRAIN_STATE_FOLDER\""],
                            env=cluster.environment({"DTRAIN_STATE_FOLDER": "/of/another/job"}))
    assert result.code == 0 and result.out.count("none:\n") == 3, result
    assert not any(host.path(STATE).exists() for host in cluster.hosts)


# Somebody who can guess the job's id has been there first. The training goes on, and says what a restart will cost.
@pytest.mark.parametrize("planted", ["link", "folder"])
def test_a_stranger_in_a_shared_directory(cluster, three, planted):
    shared = cluster.base / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    hers = shared / "hers"
    hers.mkdir()
    os.chown(hers, 12345, 12345)
    script = f"""j={shared}/$DTRAIN_JOB_ID
case $RANK,{planted} in
0,link) ln -s {hers} $j; chown -h 12345:12345 $j;;
0,folder) mkdir -p $j/node0; chown -R 12345:12345 $j;;
esac
exec {PYTHON} {STEPS} 20"""
    try:
        result = cluster.launch(["--max-restarts", 1, "--state-dir", shared, *cluster.hosts_flag(1, three[:1]),
                                 *as_flags(environment()), "-x", "DTRAIN_STATE_SECONDS=0", "--", "sh", "-c", script])
        all_trained(result, 1, steps=20)
        why = "is a link, or not a folder" if planted == "link" else r"belongs to another user \(id 12345\)"
        assert re.search(rf"rank 0: the state of commit \d+ cannot be kept for a restart: \w+Error: "
                         rf"{shared}/dtrain-\S+ {why}\n", result.err), result
        assert not list(hers.iterdir()) and not list(shared.glob("*/*/state*"))
    finally:
        shutil.rmtree(shared)
