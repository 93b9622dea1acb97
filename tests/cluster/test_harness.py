# SPDX-License-Identifier: Apache-2.0
"""The hosts are what they claim to be, and the check for leftovers finds what is left behind."""
import subprocess
import sys
import types

import pytest

import conftest
import hosts
import leftovers

LEAVE = {
    "process": "setsid sleep 300 >/dev/null 2>&1 </dev/null &",
    "zombie": "python3 -c 'import os, time; os.fork() or os._exit(0); os.setsid(); time.sleep(300)'"
              " >/dev/null 2>&1 </dev/null &",
    "cgroup": "mkdir -p /sys/fs/cgroup/dtrain-x",
    "file": "touch /tmp/dtrain-x",
    "directory": "mkdir -p /root/.dtrain-x",
    "directory in /run": "mkdir -p /run/dtrain-x/y",
    "directory in shared memory": "mkdir /dev/shm/dtrain-x",
    "shared memory": "touch /dev/shm/dtrain-x",
    "half-written agent": "mkdir -p ~/.cache/dtrain/agent-ab && touch ~/.cache/dtrain/agent-ab/new-1",
    "port": "python3 -c 'import socket, time; s = socket.create_server((\"\", 4444)); time.sleep(300)'"
            " >/dev/null 2>&1 </dev/null &",
    "unix socket": "python3 -c 'import socket, time; s = socket.socket(socket.AF_UNIX);"
                   " s.bind(\"/tmp/dtrain-s\"); time.sleep(300)' >/dev/null 2>&1 </dev/null &",
}
CLEAN = ("rm -rf /tmp/dtrain-* /root/.dtrain-x /run/dtrain-x /dev/shm/dtrain-x ~/.cache/dtrain/agent-ab;"
         " rmdir /sys/fs/cgroup/dtrain-x 2>/dev/null || true")


def test_hosts_have_name_address_and_home_of_their_own(cluster):
    for index, node in enumerate(cluster.nodes):
        seen = cluster.head.run(
            ["ssh", node.name, "hostname; ls -A /root/.ssh; ls /sys/class/net; echo $$"])
        name, *rest = seen.stdout.split()
        assert name == f"node{index}"
        assert rest[:-1] == ["eth0", "lo"]
        assert int(rest[-1]) < 1000, "a process table of its own"


def test_a_cut_host_is_silent_and_a_healed_one_answers(cluster):
    ssh = ["ssh", "-o", "ConnectTimeout=1", "node2", "true"]
    for cut, heal in ((cluster.cut, cluster.heal), (cluster.cut_towards, cluster.heal_towards)):
        cut(cluster.nodes[2])
        assert "timed out" in cluster.head.run(ssh, check=False).stderr
        heal(cluster.nodes[2])
        assert cluster.head.run(ssh, check=False, timeout=30).returncode == 0


@pytest.mark.parametrize("kind", LEAVE)
def test_leftovers_are_found(cluster, kind):
    before = leftovers.Leftovers(cluster)
    try:
        cluster.head.run(["ssh", "node1", LEAVE[kind]])
        leftovers.wait_until_seen(before)
    finally:
        before.remove()
        cluster.head.run(["ssh", "node1", CLEAN])


@pytest.mark.xfail(strict=True, reason="canary: shows that the check after a test can fail it")
def test_canary(cluster):
    request = types.SimpleNamespace(
        node=types.SimpleNamespace(get_closest_marker=lambda _: types.SimpleNamespace(args=[0.5])))
    before = leftovers.Leftovers(cluster)
    cluster.head.run(["ssh", "node3", LEAVE["process"]])
    conftest.fail_on_leftovers(before, request)
