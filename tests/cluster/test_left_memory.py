# SPDX-License-Identifier: Apache-2.0
"""Shared memory that killed ranks leave in /dev/shm, which each host has for itself. That none is left after a
test is checked after each one."""
import re
import signal

import hosts
import leftovers
from launching import wait_until

AGENT = hosts.bin_dir() / "dtrain-agent"
# Ignores SIGTERM; its objects are those of its rank.
MAKES = ["/usr/bin/python3", "-c", """
import mmap, os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = []
for name in ("buffer\\n", "sem.lock"):
    fd = os.open(f"/dev/shm/rank{os.environ['RANK']}-{name}", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 3000000)
    kept.append(mmap.mmap(fd, 3000000))
    kept[-1].write(bytes(3000000))
    os.close(fd)
print("up", os.getpid(), flush=True)
time.sleep(600)
"""]


def shared(node):
    return node.run(["ls", "-A", "/dev/shm"]).stdout.split("\n")[:-1]


def start(cluster, *flags):
    launch = cluster.start_launch([*flags, "--grace", "1s", "-H", "node0:1,node1:1", "--", *MAKES])
    launch.wait_for("up", count=2)
    return launch


def recorded(node):
    return any(name.startswith("dtrain-left.") for name in shared(node))


def test_a_rank_that_is_killed_after_the_grace_leaves_none(cluster):
    launch = start(cluster)
    launch.signal(signal.SIGINT)
    result = launch.wait(30)
    assert result.code == 130, result
    assert "removed from /dev/shm what killed processes of the job had left: 2 objects, 6 MB" in result.err, result
    assert not shared(cluster.nodes[0]) and not shared(cluster.nodes[1])


def test_a_rank_that_somebody_kills_leaves_none(cluster):
    launch = start(cluster)
    wait_until(lambda: recorded(cluster.nodes[1]), 20, "the shepherd's look")
    cluster.nodes[1].run(["pkill", "-9", "-f", "sem.lock"])
    result = launch.wait(30)
    assert result.code == 137, result
    assert not shared(cluster.nodes[0]) and not shared(cluster.nodes[1])


def test_after_a_crash_of_a_shepherd_the_next_launch_warns_and_reap_removes(cluster):
    launch = start(cluster)
    node = cluster.nodes[1]
    wait_until(lambda: recorded(node), 20, "the shepherd's look")
    node.run(["sh", "-c", "set -- /dev/shm/dtrain-left.*; set -- ${1#*left.}; kill -9 ${1%.*}"])
    assert launch.wait(60).code == 203
    leftovers.wait_for_no_processes(cluster, 20)
    # Made by nobody's job: it stays.
    node.run(["sh", "-c", "echo mine > /dev/shm/mine"])
    warned = cluster.launch(["-H", "node0:1,node1:1", "--", "true"])
    assert warned.code == 0, warned
    assert re.search(r"node1: earlier jobs of this user have left 2 objects, 6 MB in /dev/shm; dtrain-agent reap "
                     r"removes what nobody uses$", warned.err, re.M), warned
    assert "node0: earlier" not in warned.err, warned
    listed = node.run([AGENT, "reap", "--dry-run"]).stdout
    assert "shared memory of jobs of user root: 2 objects, 6 MB\n" in listed, listed
    # One that somebody has open by now stays, too.
    held = node.popen(["sh", "-c", "exec 3< /dev/shm/rank1-sem.lock; echo open; exec sleep 600"])
    wait_until(lambda: "2 objects" not in node.run([AGENT, "reap", "--dry-run"]).stdout, 20, "it to be open")
    assert "removed shared memory of jobs of user root: 1 object, 3 MB\n" in node.run([AGENT, "reap"]).stdout
    assert "rank1-sem.lock" in shared(node) and "mine" in shared(node)
    held.kill()
    held.wait()
    assert "removed shared memory" in node.run([AGENT, "reap"]).stdout
    assert shared(node) == ["mine"]
    node.run(["rm", "/dev/shm/mine"])
