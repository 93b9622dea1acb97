# SPDX-License-Identifier: Apache-2.0
"""Nodes that share a home are sent the agent once, by what their network interfaces have received. The home
is a folder of this machine, which all hosts see: of NFS this has the sharing, not the caches."""
import contextlib
import os
import shutil
import signal
from pathlib import Path

import pytest

import hosts
import leftovers
from launching import wait_until

WAYS = pytest.mark.parametrize("way", [[], ["--rsh", "ssh {host}"]], ids=["ssh", "rsh"])
# Takes the agent from the stream, as head does in the bootstrap script. The first of all nodes to do so stops
# in the middle of it until there is a `go`.
HEAD = """#!/bin/sh
echo "$2" >>{home}/calls
case $2 in ??????*)
  hostname >>{home}/pushes
  if mkdir {home}/first 2>/dev/null; then
    /usr/bin/head -c 1000000
    hostname >{home}/held
    until [ -e {home}/go ]; do sleep 0.05; done
    exec /usr/bin/head -c $(($2 - 1000000))
  fi
esac
exec /usr/bin/head "$@"
"""


class SharedHome:
    def __init__(self, cluster):
        self.path = cluster.base / "shared-home"
        self.nodes = cluster.nodes[:3]
        (self.path / "tools").mkdir(parents=True)
        for node in self.nodes:
            node.restart_sshd(setenv={"XDG_CACHE_HOME": self.path / "cache",
                                      "PATH": f"{self.path}/tools:/usr/sbin:/usr/bin:/sbin:/bin"})

    def close(self):
        for node in self.nodes:
            node.restart_sshd()
        shutil.rmtree(self.path)

    def hold_the_first(self):
        head = self.path / "tools/head"
        head.write_text(HEAD.format(home=self.path))
        head.chmod(0o755)

    def lines(self, name):
        file = self.path / name
        return file.read_text().split() if file.exists() else []

    def held(self):
        """The node that was sent the agent first, and has a part of it; the others have asked for it."""
        wait_until(lambda: self.lines("held") and self.lines("calls").count("24") == 2 * len(self.nodes), 30,
                   lambda: self.lines("calls"))
        return next(node for node in self.nodes if [node.name] == self.lines("held"))

    def go(self):
        (self.path / "go").touch()


@pytest.fixture
def home(cluster):
    made = SharedHome(cluster)
    yield made
    made.go()
    made.close()


def received(node):
    """Bytes so far, by its only interface but loopback."""
    for line in Path(f"/proc/{node.pid}/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[0])
    raise AssertionError(f"{node.name} has no eth0")


def agent_size():
    return (hosts.bin_dir() / "dtrain-agent").stat().st_size


@WAYS
def test_one_of_three_is_sent_the_agent(cluster, home, way):
    before = [received(node) for node in home.nodes]
    result = cluster.launch([*way, *cluster.hosts_flag(1, home.nodes), "--", "hostname"])
    assert result.code == 0 and len(result.lines) == 3, result
    got = sorted(received(node) - was for node, was in zip(home.nodes, before))
    assert got[2] > agent_size() and got[1] < agent_size() / 10, got
    assert len(list(home.path.glob("cache/dtrain/agent-*/*"))) == 2  # the agent and `used`

    before = [received(node) for node in home.nodes]
    assert cluster.launch([*way, *cluster.hosts_flag(1, home.nodes), "--", "true"]).code == 0
    assert max(received(node) - was for node, was in zip(home.nodes, before)) < agent_size() / 10


@WAYS
def test_homes_of_their_own_are_each_sent_it(cluster, home, way):
    """As with copies of one disk: the names of the homes are the same."""
    for node in home.nodes:
        own = home.path / node.name / "dtrain"
        own.mkdir(parents=True)
        (own / "home").write_text("0123456789abcdef01234567\n")
        node.restart_sshd(setenv={"XDG_CACHE_HOME": own.parent})
    before = [received(node) for node in home.nodes]
    result = cluster.launch([*way, *cluster.hosts_flag(1, home.nodes), "--", "hostname"])
    assert result.code == 0 and len(result.lines) == 3, result
    assert min(received(node) - was for node, was in zip(home.nodes, before)) > agent_size()


@WAYS
def test_when_the_first_dies_in_the_middle_the_others_start(cluster, home, way):
    home.hold_the_first()
    launch = cluster.start_launch([*way, "--min-nodes", "2", *cluster.hosts_flag(1, home.nodes), "--", "hostname"])
    first = home.held()
    # Not by the kernel's list of sshd's children: that may lack one while another ends.
    sessions = [pid for pid, _, line in leftovers.processes(first) if "sshd" in line]
    assert sessions, leftovers.processes(first)
    for session in sessions:
        with contextlib.suppress(ProcessLookupError):  # with the other of its session
            os.kill(session, signal.SIGKILL)
    home.go()  # what it left behind ends, too
    result = launch.wait(30)
    # Its connection was lost, which passes: it is tried again.
    assert result.code == 0, result
    assert sorted(line.split()[-1] for line in result.lines) == sorted(node.name for node in home.nodes), result
    assert result.seconds < 10, result  # nobody has waited for it to the end
    assert len(home.lines("pushes")) in (2, 3, 4)
    wait_until(lambda: not list(home.path.glob("cache/dtrain/agent-*/new-*")), 5, "its half is removed")


def test_when_the_first_is_stuck_the_others_are_sent_it_too(cluster, home):
    home.hold_the_first()
    launch = cluster.start_launch([*cluster.hosts_flag(1, home.nodes), "--", "hostname"])
    home.held()
    wait_until(lambda: len(home.lines("pushes")) == 3, 30, lambda: home.lines("pushes"))
    home.go()
    result = launch.wait(30)
    assert result.code == 0 and len(result.lines) == 3, result


def test_nothing_is_named_in_the_home_where_links_cannot_be_made(cluster, home):
    (home.path / "tools/ln").write_text("#!/bin/sh\nexit 1\n")
    (home.path / "tools/ln").chmod(0o755)
    before = [received(node) for node in home.nodes]
    result = cluster.launch([*cluster.hosts_flag(1, home.nodes), "--", "hostname"])
    assert result.code == 0 and len(result.lines) == 3, result
    assert sum(received(node) - was for node, was in zip(home.nodes, before)) > 2 * agent_size()
    assert not (home.path / "cache/dtrain/home").exists()
