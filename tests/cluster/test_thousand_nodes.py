# SPDX-License-Identifier: Apache-2.0
"""One launcher and the agents of a thousand nodes, which are one process (programs/fake_crowd.cc): what the
launcher needs for them. How long it takes is printed (pytest -s)."""
import json
import re
import select
import signal
import subprocess
import time

import pytest

import hosts
import launching

NODES, RANKS = 1000, 8


class Crowd:
    def __init__(self, cluster, entries, size):
        self.socket = cluster.work() / "crowd"
        self.socket.unlink(missing_ok=True)
        self.process = cluster.head.popen([hosts.bin_dir() / "fake-crowd", "/root/work/crowd", str(NODES),
                                           str(entries), str(size)], stdout=subprocess.PIPE, bufsize=0)
        self.wait_for("listening")
        text = "".join(f"fake{i:04} slots={RANKS}\n" for i in range(NODES))
        # One process that answers for a thousand nodes is slower than they would be.
        self.flags = ["--lease", "60", "--rsh", f"{hosts.bin_dir()}/crowd-join /root/work/crowd", "--hostfile",
                      cluster.hostfile(text, "thousand"), "--", "true"]

    def wait_for(self, word, launch=None):
        """It says one thing after the other."""
        readable = select.select([self.process.stdout], [], [], 120)[0]
        assert readable and self.process.stdout.readline().decode() == word + "\n", launch and (launch.out, launch.err)

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def crowd(cluster):
    made = []

    def make(entries, size):
        made.append(Crowd(cluster, entries, size))
        return made[0]
    yield make
    for each in made:
        each.kill()


def wait_until_running(cluster):
    """The crowd has said that all have started; the launcher may still have to read it."""
    def phase():
        told = cluster.head.run([hosts.bin_dir() / "dtrain", "status", "--json"], check=False)
        return told.returncode == 0 and json.loads(told.stdout)["job"]["phase"]
    launching.wait_until(lambda: phase() == "run", 60, phase)


def peak_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"^VmHWM:\s+(\d+) kB", status.read(), re.M).group(1)) / 1024


def test_the_values_of_a_fence_exist_once_however_many_nodes_get_them(cluster, crowd):
    nodes = crowd(entries=RANKS, size=500)
    launch = cluster.start_launch(nodes.flags)
    nodes.wait_for("started", launch)
    before = peak_mib(launch.pid)
    begin = time.monotonic()
    nodes.wait_for("released", launch)  # 4 GB in all
    peak = peak_mib(launch.pid)
    print(f"{before:.0f} MiB when all had started after {begin - launch.started:.1f} s, {peak:.0f} MiB at the end "
          f"of the fence {time.monotonic() - begin:.1f} s later")
    result = launch.wait(60)
    assert result.code == 0, result
    assert peak < 300


def test_a_thousand_nodes_that_are_lost_at_once_are_one_report(cluster, crowd):
    nodes = crowd(entries=0, size=0)
    launch = cluster.start_launch(nodes.flags)
    nodes.wait_for("started", launch)
    wait_until_running(cluster)
    begin = time.monotonic()
    nodes.kill()
    result = launch.wait(60)
    print(f"lost, reported and over in {time.monotonic() - begin:.2f} s\n{result.err}")
    assert result.code == 202, result
    assert "fake0000" in result.err and len(result.err.splitlines()) < 20, result


def test_a_thousand_nodes_end_at_a_signal(cluster, crowd):
    nodes = crowd(entries=0, size=0)
    launch = cluster.start_launch(nodes.flags)
    nodes.wait_for("started", launch)
    begin = time.monotonic()
    launch.signal(signal.SIGINT)
    result = launch.wait(60)
    print(f"stopped in {time.monotonic() - begin:.2f} s\n{result.err}")
    assert result.code == 130, result
