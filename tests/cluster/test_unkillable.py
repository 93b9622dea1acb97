# SPDX-License-Identifier: Apache-2.0
"""D7: a worker that no signal ends, as one in a driver's call. It is frozen by the freezer of cgroup
v1, in which a process is in state D and even SIGKILL waits."""
import os
from pathlib import Path

import pytest

import hosts
import leftovers
from launching import wait_until
from test_faults_d import failing
from tls_cluster import TlsCluster

FREEZER = Path("/sys/fs/cgroup/freezer")


def can_freeze():
    return os.access(FREEZER / "cgroup.procs", os.W_OK)


@pytest.fixture
def frozen():
    folder = FREEZER / f"dtrain-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    hosts.remove_cgroup_tree(folder)


def thaw(folder):
    (folder / "freezer.state").write_text("THAWED")


# Where there is no such freezer, nothing else makes such a process.
if can_freeze():
    @pytest.mark.bound(20)
    def test_d7_a_rank_that_cannot_be_killed(frozen, tmp_path):
        with hosts.Cluster(2) as cluster:
            tls = TlsCluster(cluster, tmp_path)
            launch = tls.start("--grace", "1s", *tls.flags(1), "--", *failing(
                0, "echo up; until [ -e /run/fail ]; do sleep 0.05; done; exit 3",
                "echo up; exec sleep 600"))
            launch.wait_for("up", count=2)

            def victims():
                return [pid for pid, _, line in leftovers.processes(tls.nodes[1])
                        if line == "sleep 600"]

            wait_until(victims, 20, lambda: leftovers.processes(tls.nodes[1]))
            (pid,) = victims()
            try:
                (frozen / "cgroup.procs").write_text(str(pid))
                (frozen / "freezer.state").write_text("FROZEN")
                wait_until(lambda: (frozen / "freezer.state").read_text() == "FROZEN\n", 20, "it runs")
                check_unkillable(tls, launch, pid)
            finally:
                thaw(frozen)  # or its host would never end
            tls.wait_for_no_workers(20)
            # Its agent looks four times a second at most, whoever asks.
            wait_until(lambda: nodes(tls).stdout.count(" ok ") == 2, 10, lambda: nodes(tls))
            other = tls.start(*tls.flags(1), "--", "echo", "fine").wait(20)
            assert other.code == 0 and other.out.count("fine") == 2, other


def nodes(tls):
    return tls.head.run([hosts.bin_dir() / "dtrain", "nodes", *tls.reach()])


def check_unkillable(tls, launch, pid):
    fail = tls.nodes[0].path("/run/fail")
    fail.touch()
    # The agent goes on meanwhile: for who asks, and for other jobs.
    assert nodes(tls).stdout.count(" ok ") == 2
    other = tls.start(*tls.flags(1), "--", "echo", "fine").wait(20)
    assert other.code == 0 and other.out.count("fine") == 2, other
    result = launch.wait(100)
    fail.unlink()
    assert result.code == 204 and tls.nodes[1].address in result.err, result
    assert f"pid {pid_on(pid)} (state D, in " in result.err, result.err.splitlines()
    assert tls.nodes[0].address + ":" not in result.err, result
    check_quarantined(tls, f"pid {pid_on(pid)} of job ")


# Until the process has ended the node takes no jobs, also by an agent that is started anew.
def check_quarantined(tls, who):
    for anew in (False, True):
        if anew:
            tls.agents[1].kill()
            tls.agents[1].start()
        # It sees for itself for two seconds, whoever says so.
        told = None

        def quarantined():
            nonlocal told
            told = nodes(tls)
            return " quarantined " in told.stdout and who in told.stdout

        wait_until(quarantined, 10, lambda: told)
        refused = tls.start(*tls.flags(1), "--", "echo", "started").wait(20)
        assert refused.code == 200 and tls.nodes[1].address in refused.err, refused
        assert who in refused.err and "kernel log" in refused.err, refused
        assert "started" not in refused.out, refused
        other = tls.start(*tls.flags(1, [tls.nodes[0]]), "--", "echo", "fine").wait(20)
        assert other.code == 0, other


def pid_on(pid):
    """As the host itself counts."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise AssertionError("no NSpid")
