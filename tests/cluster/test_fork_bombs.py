# SPDX-License-Identifier: Apache-2.0
"""D6: processes that multiply while they are killed. A steady number of them is in test_faults_d.py; here
they take all that the node may have, so that nothing of ours can make a process either."""
import signal
import time

import pytest

import hosts
import leftovers
import residents
from launching import wait_until
from test_faults_d import python
from test_faults_h import pids_group

MOST = 150
LIMIT = 30  # seconds, of a job that is ended by its time limit
LEASE, GRACE = 3, 1
# Each makes as many as it gets, in sessions of their own, and ignores what can be ignored.
BOMB = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("up", flush=True)
end = time.monotonic() + 120
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        time.sleep(0.005)
"""


def explode(cluster, group, *args):
    """A job that has all processes there are. `launch.up`: when its worker was there."""
    launch = cluster.start_launch(
        ["--grace", f"{GRACE}s", "--bind", "none", *args, "--", *python(BOMB)])
    launch.wait_for("up")
    launch.up = time.monotonic()
    current = group / "pids.current"
    wait_until(lambda: int(current.read_text()) >= MOST - 2, 60, current.read_text)
    return launch


def seconds_to_die():
    """From the end that is asked for to the last process; a few are needed on a machine that is free."""
    return GRACE + 15 * (2 if hosts.is_sanitized() else 1)


@pytest.mark.parametrize("end", ["interrupt", "time limit", "launcher killed"])
@pytest.mark.parametrize("cgroup", ["v2", "none"])
@pytest.mark.launcher_killed
def test_d6_a_fork_bomb(make_cluster, cgroup, end):
    cluster = make_cluster(1, cgroup=cgroup)
    node = cluster.nodes[0]
    with pids_group(cluster, node) as (group, enter):
        node.restart_sshd(before_exec=enter)
        assert cluster.launch(["-H", "node0:1", "--", "true"]).code == 0
        (group / "pids.max").write_text(str(MOST))
        launch = explode(cluster, group, "-H", "node0:1",
                         *(["--timeout", f"{LIMIT}s"] if end == "time limit" else ["--lease", f"{LEASE}s"]))
        asked = launch.up + LIMIT if end == "time limit" else time.monotonic()
        if end == "interrupt":
            launch.signal(signal.SIGINT)
        elif end == "launcher killed":
            launch.signal(signal.SIGKILL)
            asked += LEASE
        deadline = asked + seconds_to_die()
        result = launch.wait(deadline - time.monotonic())
        assert result.code == {"interrupt": 130, "time limit": 209, "launcher killed": -9}[end], result
        leftovers.wait_for_no_processes(cluster, deadline - time.monotonic())
        node.stop_sshd()


# The agent lives beside it, in the same limit, and serves again.
def test_d6_a_fork_bomb_beside_a_resident_agent(make_cluster):
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    with pids_group(cluster, node) as (group, enter):
        agent = residents.Resident(node, before_exec=enter).start()
        assert cluster.launch(["-H", "node0:1", "--", "true"]).code == 0
        (group / "pids.max").write_text(str(MOST))
        launch = explode(cluster, group, "-H", "node0:1")
        launch.signal(signal.SIGINT)
        deadline = time.monotonic() + seconds_to_die()
        assert launch.wait(deadline - time.monotonic()).code == 130
        wait_until(lambda: [row[0] for row in leftovers.processes(node)] == [agent.pid],
                   deadline - time.monotonic(),
                   lambda: leftovers.processes(node))
        assert not agent.ended(), agent.log
        result = cluster.launch(["-H", "node0:1", "--", "echo", "fine"])
        assert result.code == 0 and "fine" in result.out, result
        agent.stop()
