# SPDX-License-Identifier: Apache-2.0
"""The hosts are what they claim to be, and the check for leftovers finds what is left behind."""
import shutil
import subprocess
import sys
import types

import pytest

import conftest
import hosts
import launching
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


MAKER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {cluster!r})
import chroot
def make(folder, lock):
    folder.mkdir()
    with open({log!r}, "a") as log:
        log.write("begun\\n")
    (folder / "one").touch()
    while not Path({go!r}).exists():
        time.sleep(0.01)
    (folder / "other").touch()
chroot.made_once(Path({path!r}), make)
print(sorted(file.name for file in Path({path!r}).iterdir()))
"""


def test_a_system_is_made_once_and_is_never_half_of_one(tmp_path):
    path, log, go = tmp_path / "roots/a system", tmp_path / "log", tmp_path / "go"
    script = MAKER.format(cluster=str(hosts.HERE), log=str(log), go=str(go), path=str(path))

    def start():
        return subprocess.Popen([sys.executable, "-B", "-c", script], stdout=subprocess.PIPE, text=True)

    def begun():
        return log.read_text().count("begun") if log.exists() else 0

    killed = start()
    launching.wait_until(lambda: begun() == 1, 20, "nobody makes it")
    killed.kill()
    killed.communicate()
    makers = [start() for _ in range(3)]
    launching.wait_until(lambda: begun() == 2, 20, "nobody makes it again")
    assert not path.exists()
    go.touch()
    for maker in makers:
        assert maker.communicate(timeout=20)[0] == "['one', 'other']\n" and maker.returncode == 0
    assert begun() == 2
    assert sorted(file.name for file in path.parent.iterdir()) == ["a system", "a system.lock"]


def test_programs_are_seen_wherever_the_checkout_lies(make_cluster):
    [node] = make_cluster(1).nodes
    for folder in ("/tmp", "/home", "/root", "/run", "/dev/shm"):
        node.run(["mount", "-t", "tmpfs", "tmpfs", folder])
    try:
        assert node.run([hosts.bin_dir() / "dtrain", "--version"]).stdout.startswith("dtrain ")
        node.run(["ls", hosts.HERE / "programs"])
    finally:
        for folder in ("/tmp", "/home", "/root", "/run", "/dev/shm"):
            node.run(["umount", "-l", folder], check=False)


# What dtrain itself does with such a path: the programs that are copied to nodes, and those that ranks run.
def test_a_folder_with_a_space_is_as_good_as_any(make_cluster):
    cluster = make_cluster(1)
    folder = cluster.base / "a b'c"
    shutil.copytree(hosts.bin_dir(), folder, ignore=lambda _, names: set(names) - {"dtrain", "dtrain-agent"})
    (folder / "worker.sh").write_text("#!/bin/sh\necho here\n")
    (folder / "worker.sh").chmod(0o755)
    job = launching.Launch(cluster.head, [folder / "dtrain", "launch", "-H", "node0:1", "--wdir", folder, "--",
                                          folder / "worker.sh"])
    result = job.wait(30)
    assert result.code == 0 and result.out == "here\n", result
