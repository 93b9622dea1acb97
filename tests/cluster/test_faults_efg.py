# SPDX-License-Identifier: Apache-2.0
"""Faults of groups E, F and G: processes of ours that are killed, and networks that break."""
import contextlib
import json
import os
import signal

import pytest

import hosts
import leftovers
from launching import wait_until
from test_faults_d import ESCAPED, python

LIVE = python(ESCAPED + "print('up', flush=True); time.sleep(600)")


def running(cluster, *flags, per_host=2):
    launch = cluster.start_launch([*flags, *cluster.hosts_flag(per_host), "--", *LIVE])
    launch.wait_for("up", count=per_host * cluster.size)
    return launch


def ours(host, word):
    return [pid for pid, _, line in leftovers.processes(host)
            if word in line.split()[1:2]]


# E5
def test_e5_agent_killed(cluster):
    launch = running(cluster, "--grace", "1s")
    for pid in ours(cluster.nodes[1], "bridge"):
        os.kill(pid, signal.SIGKILL)
    leftovers.wait_for_no_processes(cluster, 5, [cluster.nodes[1]])
    result = launch.wait(20)
    assert result.code in (202, 203) and "node1" in result.err, result


# E5: the same, for the process that owns the workers. It is told at once, and not by a lease.
def test_e5_shepherd_killed(cluster):
    launch = running(cluster, "--grace", "1s", "--lease", "300s")
    shepherds = ours(cluster.nodes[2], "shepherd")
    assert shepherds
    for pid in shepherds:
        os.kill(pid, signal.SIGKILL)
    result = launch.wait(20)
    assert result.code == 203 and "node2" in result.err, result
    leftovers.wait_for_no_processes(cluster, 5)


# E5: what it had kept for a launcher that reads slowly is lost with it. That is told, and from where on.
@pytest.mark.parametrize("end", ["while its worker runs", "when its worker has ended"])
def test_e5_the_output_of_a_shepherd_that_is_killed(cluster, end):
    size = 24 << 20
    node = cluster.nodes[2]
    # Its agent hears of sizes once a second.
    rest = "; sleep 2; touch /run/reported; exec sleep 600" if "runs" in end else ""
    readable, writable = os.pipe()
    launch = cluster.start_launch(
        ["--grace", "1s", "--spool-limit", "64M", "--tag-output", "none", "-H", "node2:1", "--", "sh", "-c",
         f"head -c {size} /dev/zero; touch /run/written{rest}"], stdout=writable)
    os.close(writable)
    written = node.path("/run/written")
    wait_until(written.exists, 30, "the worker waits for the reader")
    written.unlink()
    (shepherd,) = ours(node, "shepherd")
    if rest:
        reported = node.path("/run/reported")
        wait_until(reported.exists, 10, "the sizes are reported")
        reported.unlink()
    else:
        # Which follows within a moment.
        wait_until(lambda: state_of_job(cluster) == "stopping" and is_asleep(shepherd), 10, "it has finished")
    os.kill(shepherd, signal.SIGKILL)
    count = 0
    with os.fdopen(readable, "rb") as reader:
        while piece := reader.read(1 << 20):
            count += len(piece)
    result = launch.wait(30)
    assert result.code == (203 if rest else 202), result
    assert 0 < count < size, count
    assert f"node2: output of rank 0 after byte {count} is lost: its shepherd" in result.err, (count, result.err)
    assert ("is gone: killed by signal 9" in result.err) == bool(rest), result.err
    leftovers.wait_for_no_processes(cluster, 5)


def state_of_job(cluster):
    told = cluster.head.run([hosts.bin_dir() / "dtrain", "status", "--json"]).stdout
    return json.loads(told)["job"]["state"]


def is_asleep(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as text:
        return text.read().rpartition(")")[2].split()[0] == "S"


# E5: a shepherd that is stopped cannot end its workers. Its agent does, long before the launcher's 131 s.
def test_e5_a_stopped_shepherd_does_not_hold_up_the_end(cluster):
    launch = running(cluster, "--grace", "1s")
    (shepherd,) = ours(cluster.nodes[2], "shepherd")
    os.kill(shepherd, signal.SIGSTOP)
    for pid in ours(cluster.nodes[1], "shepherd"):
        os.kill(pid, signal.SIGKILL)
    result = launch.wait(40)
    assert result.code == 203 and "node1" in result.err, result
    leftovers.wait_for_no_processes(cluster, 5)


# A detail that matters when workers may be left: without a cgroup they are found by their processes alone.
@pytest.mark.bound(30)
@pytest.mark.parametrize("code", [0, 203, 204])
def test_e5_that_workers_had_no_cgroup_is_told_when_some_may_be_left(make_cluster, code):
    cluster = make_cluster(1, cgroup="none")
    launch = running(cluster, "--grace", "1s") if code else cluster.start_launch(
        [*cluster.hosts_flag(2), "--", "true"])
    if code:
        (shepherd,) = ours(cluster.nodes[0], "shepherd")
        os.kill(shepherd, signal.SIGKILL if code == 203 else signal.SIGSTOP)
    if code == 204:
        launch.signal(signal.SIGINT)
    result = launch.wait(30)
    assert result.code == code, result
    assert result.err.count("node0: workers get no cgroup of their own (") == (1 if code else 0), result


# E5: on this machine there is no ssh session whose end would tell.
@pytest.mark.parametrize("victim", ["bridge", "shepherd"])
def test_e5_local_agent_killed(cluster, victim):
    launch = cluster.start_launch(["-np", "2", "--grace", "1s", "--", *LIVE])
    launch.wait_for("up", count=2)
    victims = ours(cluster.head, victim)
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    result = launch.wait(20)
    assert result.code in (202, 203), result
    leftovers.wait_for_no_processes(cluster, 5)


# F2
@pytest.mark.launcher_killed
@pytest.mark.parametrize("where", ["ssh", "local"])
def test_f2_launcher_killed(cluster, where):
    if where == "ssh":
        launch = running(cluster, "--grace", "1s")
    else:
        launch = cluster.start_launch(["-np", "2", "--grace", "1s", "--", *LIVE])
        launch.wait_for("up", count=2)
    launch.kill()
    leftovers.wait_for_no_processes(cluster, 10)


# G1, G3
def test_g1_g3_cut_host_is_lost_and_ends_its_workers_by_itself(cluster):
    launch = running(cluster, "--grace", "1s", "--lease", "3s")
    lost = cluster.nodes[2]
    cluster.cut(lost)
    try:
        result = launch.wait(20)
        assert result.code == 202 and "node2" in result.err, result
        # The verdict ends the others; the cut host, which hears of nothing, ends its own.
        others = [host for host in cluster.hosts if host is not lost]
        leftovers.wait_for_no_processes(cluster, 3, others)
        workers_gone(lost, 6)
    finally:
        cluster.heal(lost)
    # sshd itself has yet to notice; the cable is back, so the next packet tells it.
    end_ssh_sessions(lost)


def workers_gone(host, seconds):

    wait_until(lambda: not [row for row in leftovers.processes(host) if "sshd" not in row[2]],
               seconds, lambda: leftovers.processes(host))


def end_ssh_sessions(host):
    for pid, _, line in leftovers.processes(host):
        if "sshd" in line:
            with contextlib.suppress(ProcessLookupError):  # with the other of its session
                os.kill(pid, signal.SIGKILL)


def started_by(host, mark):
    return [row for row in leftovers.processes(host)
            if b"LEASE=" + mark.encode() in leftovers.environment_of(row[0]).split(b"\0")]


# G1: the default lease is 15 s. A verdict comes neither with that of a job with a shorter one nor as late
# as that of one with a longer one, and no later do the workers on the cut host go.
def test_g1_default_lease(cluster):
    first, second = cluster.nodes[:2]
    jobs = {}
    for lease in ("8s", "default", "30s"):
        flags = [] if lease == "default" else ["--lease", lease]
        jobs[lease] = cluster.start_launch(
            [*flags, "--grace", "1s", "--bind", "none", "-x", f"LEASE={lease}",
             *cluster.hosts_flag(1, [first, second]), "--", *LIVE])
    for job in jobs.values():
        job.wait_for("up", count=2)
    cluster.cut(first)
    try:
        wait_until(lambda: not started_by(first, "8s"), 60, lambda: leftovers.processes(first))
        result = jobs["8s"].wait(60)
        assert result.code == 202 and "node0" in result.err, result
        assert jobs["default"].process.poll() is None and started_by(first, "default")
        result = jobs["default"].wait(60)
        assert result.code == 202 and "node0" in result.err, result
        wait_until(lambda: not started_by(first, "default"), 60, lambda: leftovers.processes(first))
        assert not started_by(second, "default")
        assert jobs["30s"].process.poll() is None and started_by(first, "30s")
        assert jobs["30s"].wait(60).code == 202
        workers_gone(first, 60)
    finally:
        cluster.heal(first)
    end_ssh_sessions(first)


# G2: the host is heard but hears nothing. Both sides come to the same verdict.
def test_g2_one_way_partition(cluster):
    launch = running(cluster, "--grace", "1s", "--lease", "3s")
    deaf = cluster.nodes[1]
    cluster.cut_towards(deaf)
    try:
        result = launch.wait(20)
        assert result.code == 202 and "node1" in result.err, result
        workers_gone(deaf, 8)
    finally:
        cluster.heal_towards(deaf)
    end_ssh_sessions(deaf)


# G1: a cut that is shorter than the lease is no loss.
def test_g1_short_cut_is_survived(cluster):
    launch = cluster.start_launch(["--lease", "10s", *cluster.hosts_flag(1), "--", "sh", "-c",
                                   "echo up; sleep 3; echo later"])
    launch.wait_for("up", count=4)
    cluster.cut(cluster.nodes[3])
    launch.wait_for("later", count=3)
    cluster.heal(cluster.nodes[3])
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("later") == 4, result


# G10: names are looked up before the start only. These hosts have no DNS to begin with.
def test_g10_names_that_no_longer_resolve(cluster):
    launch = cluster.start_launch([*cluster.hosts_flag(1), "--", "sh", "-c",
                                   "echo up; sleep 1; echo later"])
    launch.wait_for("up", count=4)
    config = cluster.head.base / "root/.ssh/config"
    kept = config.read_bytes()
    config.unlink()
    try:
        result = launch.wait(30)
    finally:
        config.write_bytes(kept)
    assert result.code == 0 and result.out.count("later") == 4, result
