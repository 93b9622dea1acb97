# SPDX-License-Identifier: Apache-2.0
"""D6: processes that multiply while they are killed. A steady number of them is in test_faults_d.py; here
they take all that the node may have, so that nothing of ours can make a process either."""
import signal

import pytest

import leftovers
import residents
from launching import wait_until
from test_faults_d import python
from test_faults_h import pids_group

MOST = 150
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
    """A job that has all processes there are."""
    launch = cluster.start_launch(["--grace", "1s", "--bind", "none", *args, "--", *python(BOMB)])
    launch.wait_for("up")
    current = group / "pids.current"
    wait_until(lambda: int(current.read_text()) >= MOST - 2, 60, current.read_text)
    return launch


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
                         *(["--timeout", "30s"] if end == "time limit" else ["--lease", "3s"]))
        if end == "interrupt":
            launch.signal(signal.SIGINT)
        elif end == "launcher killed":
            launch.signal(signal.SIGKILL)
        result = launch.wait(60)
        assert result.code == {"interrupt": 130, "time limit": 209, "launcher killed": -9}[end], result
        # Two seconds from the kill on, which comes after the lease and the grace where nobody asks for it.
        leftovers.wait_for_no_processes(cluster, 2 if end != "launcher killed" else 3 + 1 + 2 + 2)
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
        assert launch.wait(60).code == 130
        wait_until(lambda: [row[0] for row in leftovers.processes(node)] == [agent.pid], 2,
                   lambda: leftovers.processes(node))
        assert not agent.ended(), agent.log
        result = cluster.launch(["-H", "node0:1", "--", "echo", "fine"])
        assert result.code == 0 and "fine" in result.out, result
        agent.stop()
