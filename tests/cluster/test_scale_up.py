# SPDX-License-Identifier: Apache-2.0
"""--scale-up: a job that goes on without a host is started again with it, once it is back and the program has written a
checkpoint; otherwise it is left alone."""
import json
import os
import re
import shutil
import signal
import time

import pytest

import leftovers
from detached import launch
from launching import wait_until
from residents import STATE
from test_detached import residents, state  # noqa: F401
from test_faults_efg import end_ssh_sessions, workers_gone
from test_faults_h import hanging
from test_supervised import kill_and_wait

LEASE, GRACE = 3, 1
FLAGS = ["--lease", f"{LEASE}s", "--grace", f"{GRACE}s", "--max-restarts", 1, "-N", "2:4"]
CHECKPOINT = "/root/scale-up-checkpoint"
NAMED = ["-x", f"DTRAIN_CHECKPOINT_FILE={CHECKPOINT}"]
# Each attempt lives until it is told otherwise.
LIVES = ["sh", "-c", 'echo "attempt $DTRAIN_ATTEMPT $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS of '
                     '$WORLD_SIZE on $(hostname)"; exec sleep 600']
BACK = "dtrain: restarting with 4 nodes: node3 is back\n"


@pytest.fixture
def checkpoint(cluster):
    """Rank 0's, by its path. It cannot be looked at until a test makes it a file."""
    path = cluster.nodes[0].path(CHECKPOINT)
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)
    yield path
    path.unlink(missing_ok=True)


def write(path):
    """As a program does that must never leave half of one."""
    new = path.with_suffix(".new")
    new.write_text("weights")
    new.rename(path)


def attempts_alive(cluster):
    """Of the workers on all hosts."""
    found = set()
    for host in cluster.nodes:
        for pid, _, _ in leftovers.processes(host):
            found.update(re.findall(rb"(?<=\0)DTRAIN_ATTEMPT=(\d+)(?=\0)", b"\0" + leftovers.environment_of(pid)))
    return sorted(int(attempt) for attempt in found)


def start(cluster, *flags):
    return cluster.start_launch([*FLAGS, *flags, *cluster.hosts_flag(1), "--", *LIVES])


def lose_and_heal(cluster, host, *jobs):
    """All of them go on without it, and it is there again, with nothing of theirs."""
    for job in jobs:
        job.wait_for("attempt 0 0/1 of 4", count=4)
    cluster.cut(host)
    try:
        for job in jobs:
            job.wait_for("attempt 1 1/1 of 3", count=3, timeout=60)
    finally:
        cluster.heal(host)
    workers_gone(host, LEASE + GRACE + 10)
    end_ssh_sessions(host)


def reboot(host, resident):
    """It knows nothing of before."""
    resident.kill()
    for pid, _, line in leftovers.processes(host):
        if "shepherd" in line:
            os.kill(pid, signal.SIGKILL)
    workers_gone(host, 10)
    shutil.rmtree(host.path(STATE), ignore_errors=True)
    resident.start()


def test_a_host_that_is_back_joins_after_a_checkpoint(cluster, checkpoint):
    results = cluster.work()
    job = start(cluster, "--scale-up=2s", *NAMED, "--result-json", "/root/work/r.json")
    lose_and_heal(cluster, cluster.nodes[3], job)
    # It is looked for, and nothing is there that could be continued from.
    job.wait_for("--scale-up waits for a checkpoint: node0: cannot look at the checkpoint " + CHECKPOINT, stream="err",
                 timeout=60)
    assert "attempt 2" not in job.out
    write(checkpoint)
    job.wait_for("attempt 2 2/1 of 4", count=4, timeout=60)
    assert attempts_alive(cluster) == [2]
    assert sorted(re.findall(r"attempt 2 2/1 of 4 on (node\d)", job.out)) == ["node0", "node1", "node2", "node3"]
    assert job.err.count(BACK) == 1, job.err
    told = json.loads(cluster.head.run([cluster.programs / "dtrain", "ps", "--json"]).stdout)["jobs"][0]
    assert (told["restarts"]["attempt"], told["restarts"]["restarts"]) == (2, 0), told
    assert told["restarts"]["ended"][-1]["cause"] == BACK[len("dtrain: "):-1], told
    job.signal(signal.SIGINT)
    result = job.wait(20)
    assert result.code == 130, result
    assert re.search(r"  attempt 1, ran [\d.]+ s: restarting with 4 nodes: node3 is back\n", result.err), result
    written = json.loads((results / "r.json").read_text())
    assert [each["restart_counts"] for each in written["attempts"]] == [False, False, False], written["attempts"]


# A checkpoint of 60 parts, of which each takes a moment: the restart comes when it is complete, and cuts none short.
def test_a_checkpoint_that_is_being_written_is_awaited(cluster, checkpoint):
    checkpoint.unlink()
    folder = cluster.nodes[0].path("/root/scale-up-parts")
    shutil.rmtree(folder, ignore_errors=True)
    saves = ('[ $RANK != 0 ] || [ $DTRAIN_ATTEMPT != 1 ] || { while [ ! -e go ]; do sleep 0.1; done; rm go; mkdir scale-up-parts; '
             'for part in $(seq 60); do echo weights >scale-up-parts/$part; sleep 0.15; done; }; ')
    job = cluster.start_launch([*FLAGS, "--scale-up=1s", "-x", "DTRAIN_CHECKPOINT_FILE=/root/scale-up-parts",
                                *cluster.hosts_flag(1), "--", "sh", "-c",
                                "cd /root; " + LIVES[2].replace("exec sleep", saves + "exec sleep")])
    lose_and_heal(cluster, cluster.nodes[3], job)
    job.wait_for("dtrain: node3 is back; the next checkpoint (DTRAIN_CHECKPOINT_FILE) is awaited before the restart "
                 "with 4 nodes\n", stream="err", timeout=60)
    cluster.nodes[0].path("/root/go").touch()
    job.wait_for("attempt 2 2/1 of 4", count=4, timeout=60)
    assert len(list(folder.iterdir())) == 60, job.err
    job.signal(signal.SIGINT)
    assert job.wait(20).code == 130
    shutil.rmtree(folder)


# The other job shows when one would have been started again.
def test_without_the_flag_the_job_goes_on_as_it_is(cluster, checkpoint):
    without = start(cluster, *NAMED)
    job = start(cluster, "--scale-up=2s", *NAMED)
    lose_and_heal(cluster, cluster.nodes[3], without, job)
    checkpoint.unlink()
    write(checkpoint)
    job.wait_for("attempt 2 2/1 of 4", count=4, timeout=60)
    assert "attempt 2" not in without.out and "restarting with" not in without.err, without.err
    for each in (without, job):
        each.signal(signal.SIGINT)
        assert each.wait(20).code == 130


def test_a_program_without_a_checkpoint_is_told(cluster):
    job = start(cluster, "--scale-up=1s")
    lose_and_heal(cluster, cluster.nodes[3], job)
    job.wait_for("dtrain: warning: --scale-up waits for a checkpoint: node0: DTRAIN_CHECKPOINT_FILE is not set for",
                 stream="err", timeout=60)
    assert "attempt 2" not in job.out
    job.signal(signal.SIGINT)
    assert job.wait(20).code == 130


# As on an NFS server that is down. Neither heartbeats nor the end of the job wait for it.
def test_a_checkpoint_whose_server_does_not_answer_holds_nothing_up(cluster):
    folder = cluster.nodes[0].path("/root/scale-up-hangs")
    folder.mkdir()
    try:
        with hanging(cluster.nodes[0], "/root/scale-up-hangs"):
            job = start(cluster, "--scale-up=1s", "-x", "DTRAIN_CHECKPOINT_FILE=/root/scale-up-hangs/model")
            lose_and_heal(cluster, cluster.nodes[3], job)
            # Longer than the lease.
            job.wait_for("--scale-up waits for a checkpoint: node0: /root/scale-up-hangs/model does not answer within 10 s",
                         stream="err", timeout=60)
            assert "attempt 2" not in job.out, job.err
            job.signal(signal.SIGINT)
            assert job.wait(20).code == 130
    finally:
        folder.rmdir()


# Workers that were told to end by a launcher that died have not failed: the next one goes on with the restart.
@pytest.mark.launcher_killed
def test_a_launcher_that_dies_meanwhile_is_succeeded(cluster, residents, checkpoint):  # noqa: F811
    held = cluster.nodes[0].path("/root/scale-up-held")
    held.unlink(missing_ok=True)
    script = LIVES[2].replace("exec sleep 600", f"trap '[ $RANK != 0 ] || touch {held.name}; sleep 4; exit 0' TERM; "
                                                   "sleep 600 & wait")
    job = launch(cluster, [*FLAGS, "--grace", "20s", "--scale-up=1s", *NAMED, *cluster.hosts_flag(1), "--", "sh", "-c",
                           script])
    gone = cluster.nodes[3]

    def lines(attempt, size):
        return sum(f"attempt {attempt} {attempt}/1 of {size}".encode() in job.output(rank, attempt=attempt)
                   for rank in range(size))
    wait_until(lambda: lines(0, 4) == 4, 60, lambda: job.log)
    cluster.cut(gone)
    try:
        wait_until(lambda: lines(1, 3) == 3, 90, lambda: job.log)
        reboot(gone, residents[3])
    finally:
        cluster.heal(gone)

    def saved():
        if not checkpoint.exists() or time.time() - checkpoint.stat().st_mtime > 8:
            write(checkpoint)  # again and again, as programs do
        return held.exists()
    wait_until(saved, 90, lambda: job.log)
    kill_and_wait(job, 2)
    wait_until(lambda: lines(2, 4) == 4, 90, lambda: job.log)
    assert attempts_alive(cluster) == [2]
    assert job.stop().returncode == 0
    summary = job.wait(60)
    assert [each["restart_counts"] for each in summary["attempts"]] == [False, False, False], summary["attempts"]
    assert summary["attempts"][1]["cause"] == BACK[len("dtrain: "):-1], summary["attempts"]
    held.unlink(missing_ok=True)
    end_ssh_sessions(gone)


def test_wrong_flags(cluster):
    for flags, said in [
            (["--max-restarts", 1], "--scale-up requires a job that can run on fewer hosts: add -N MIN:MAX"),
            (["--max-restarts", 1, "-N", 4], "--scale-up requires a job that can run on fewer hosts: add -N MIN:MAX"),
            (["-N", "2:4"], "--scale-up restarts the workers: add --max-restarts N, or --spare N"),
            (["-N", "2:4", "--max-restarts", 1, "--elastic", "horovod"], "--scale-up does not work with --elastic")]:
        result = cluster.launch(["--scale-up", *flags, *cluster.hosts_flag(1), "--", "true"])
        assert result.code == 2 and said in result.err, (flags, result)
    result = cluster.launch(["--scale-up=soon", *FLAGS, *cluster.hosts_flag(1), "--", "true"])
    assert result.code == 2 and '--scale-up: "soon" is not a time' in result.err, result
    # As a default it waits for a job that has use for it.
    result = cluster.launch([*cluster.hosts_flag(1), "--", "true"], env=cluster.environment({"DTRAIN_SCALE_UP": "1"}))
    assert result.code == 0, result
