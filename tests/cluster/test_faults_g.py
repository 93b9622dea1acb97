# SPDX-License-Identifier: Apache-2.0
"""Faults of group G with resident agents: bad cables, and what stands between launchers and agents. G1, G2,
G3 and G10 are in test_faults_efg.py; messages that are lost, one by one, in test_lost_messages.py; G14 in
test_ipv6.py, G15 in test_dns.py."""
import contextlib
import json
import os
import random
import re
import shutil
import signal
import time

import pytest

import hosts
import leftovers
import residents
import wire
from certificates import agent_flags
from launching import wait_until
from test_collectives import loop  # noqa: F401 - a fixture
from test_identity import node  # noqa: F401 - a fixture
from test_resident import agents, check_lines, go, ranks, workers  # noqa: F401 - a fixture
from test_tcp import PORT, Tcp

BEHIND = PORT + 1
OURS = re.compile("dtrain-agent[^ ]* (bridge|serve|shepherd)|^[^ ]* shepherd$")
TOLD_OFF = re.compile("too_many_pings|ENHANCE_YOUR_CALM|GOAWAY", re.IGNORECASE)


# G4: heartbeats and output go on.
def test_g4_a_bad_cable_is_no_loss(cluster, agents):  # noqa: F811
    job = cluster.start_launch(["--lease", "30s", "--tag-output", "none", "-H", "node0:1,node1:1", "--",
                                "sh", "-c", "i=0; while [ $i -lt 250 ]; do echo $RANK $i; "
                                "i=$((i + 1)); sleep 0.1; done"])
    job.wait_for("0 3\n")
    job.wait_for("1 3\n")
    with wire.bad_cable(cluster, cluster.nodes[1], loss=0.2, delay=0.5, rate=125_000, seed=4):
        job.wait_for("1 100\n", timeout=60)
        workers_then = workers(cluster.nodes[1])
        assert workers_then
    result = job.wait(60)
    assert result.code == 0 and not result.tells_of_loss, result
    for rank in "01":
        lines = [line for line in result.lines if line.startswith(f"{rank} ")]
        assert lines == [f"{rank} {i}" for i in range(250)], lines[-3:]


# E, G1: all of dtrain's processes on a node stand still for ten seconds, less than the default lease.
@pytest.mark.parametrize("way", ["ssh", "resident"])
def test_a_node_whose_agent_is_stopped_is_suspect_and_no_more(cluster, request, way):
    if way == "resident":
        request.getfixturevalue("agents")
    node = cluster.nodes[1]  # noqa: F811
    job = cluster.start_launch([*cluster.hosts_flag(1), "--", "sh", "-c", "i=0; until [ -e /run/go ]; do "
                                "echo line $i; i=$((i + 1)); sleep 0.02; done; echo last $i"])
    for rank in range(cluster.size):
        job.wait_for(f"[{rank}] line 5\n")
    before = [ranks(host) for host in cluster.nodes]
    assert all(before)
    stopped = [pid for pid, _, line in leftovers.processes(node) if OURS.search(line)]
    assert len(stopped) == (3 if way == "resident" else 2), leftovers.processes(node)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    since = time.monotonic()
    try:
        job.wait_for("node1: no message from it for ", stream="err", timeout=60)
        assert states(cluster) == ["joined", "suspect", "joined", "joined"], job.err
        time.sleep(max(0, since + 10 - time.monotonic()))  # the fault is that long
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    job.wait_for("node1: heard from again after ", stream="err", timeout=60)
    assert states(cluster) == ["joined"] * 4, job.err
    assert [ranks(host) for host in cluster.nodes] == before
    go(cluster)
    result = job.wait(60)
    for host in cluster.nodes:
        host.path("/run/go").unlink()
    assert result.code == 0 and not result.tells_of_loss, result
    check_lines(result, cluster.size)


def states(cluster):
    told = json.loads(cluster.head.run([hosts.bin_dir() / "dtrain", "status", "--json"]).stdout)
    return [host["state"] for host in told["nodes"]]


def rounds(host):
    return int(host.path("/root/work/rounds").read_text().split()[0] or 0)


@pytest.fixture
def training(cluster, agents, loop):  # noqa: F811
    """Starts a job of two nodes that sums, and writes on each how far it is."""
    used = cluster.nodes[:2]

    def start(*flags):
        for host in used:
            cluster.work(host)
        job = cluster.start_launch([*flags, "--grace", "1s", "-x", "PROGRESS=/root/work/rounds",
                                    *cluster.hosts_flag(1, used), "--", loop])
        job.wait_for(" goes", count=2)
        return job

    yield start
    for host in used:
        shutil.rmtree(host.path("/root/work"), ignore_errors=True)


# G5, G7: the launcher's own cable. Nobody is killed at once; the nodes go on among themselves.
def test_g5_g7_the_launcher_is_cut_off_for_a_moment(cluster, training):
    job = training("--lease", "12s")
    cluster.cut(cluster.head)
    try:
        for host in cluster.nodes[:2]:
            far = rounds(host) + 200
            wait_until(lambda host=host, far=far: rounds(host) > far, 20, lambda host=host: rounds(host))
    finally:
        cluster.heal(cluster.head)
    before = [workers(host) for host in cluster.nodes[:2]]
    assert all(before)
    job.signal(signal.SIGTERM)
    result = job.wait(30)
    # Workers that end lose each other.
    assert result.code == 143 and "agent is lost" not in result.err, result


# G5, G7: for longer than the lease, both sides come to the same end.
@pytest.mark.bound(20)
def test_g5_g7_the_launcher_is_cut_off_for_good(cluster, training):
    job = training("--lease", "3s")
    cluster.cut(cluster.head)
    try:
        result = job.wait(30)
        assert result.code == 202 and "node0" in result.err and "node1" in result.err, result
        for host in cluster.nodes[:2]:
            wait_until(lambda host=host: not workers(host), 20, lambda host=host: workers(host))
    finally:
        cluster.heal(cluster.head)


# G6: the nodes' own network, while the launcher sees both.
def test_g6_only_the_data_path_is_cut(make_cluster, loop):  # noqa: F811
    cluster = make_cluster(2)
    cluster.add_network("br1", "192.168.7", ["ib0", "ib0"])
    made = [residents.Resident(host).start() for host in cluster.nodes]
    job = cluster.start_launch(["--net", "192.168.7.0/24", "--collective-timeout", "3s", "--grace",
                                "1s", *cluster.hosts_flag(1), "--", loop])
    job.wait_for(" goes", count=2)
    cluster.fabric("link set br1n1 nomaster\n")
    result = job.wait(60)
    assert result.code == 205, result
    for name in ("rank 0 on node0", "rank 1 on node1"):
        assert name in result.err, result
    for agent in made:
        agent.stop()


class Behind:
    """A node whose agent is reached through cutting.py only."""

    def __init__(self, node, folder):  # noqa: F811
        self.tcp = Tcp(node, folder)
        self.node = node
        flags = agent_flags(BEHIND)
        self.tcp.agent.flags = [f"127.0.0.1:{BEHIND}" if flag.startswith("0.0.0.0") else flag
                                for flag in flags]
        self.tcp.agent.start()

    @contextlib.contextmanager
    def cutting(self, mode, *numbers):
        """Hands over what it has said so far."""
        script = hosts.SOURCE_DIR / "tests/cluster/cutting.py"
        with open(self.node.base / "cuts", "w+b") as said:
            process = self.node.popen(["/usr/bin/python3", script, str(PORT), str(BEHIND), mode,
                                       *map(str, numbers)], stdout=said)
            text = (self.node.base / "cuts").read_text
            wait_until(lambda: text().startswith("cuts"), 20, "the proxy")
            try:
                yield text
            finally:
                process.kill()
                process.wait()

    def start(self, *command, flags=()):
        return self.node.cluster.start_launch([*self.tcp.flags(*flags), *command])


@pytest.fixture
def behind(node, tmp_path):  # noqa: F811
    made = Behind(node, tmp_path)
    node.path("/home/alice/once").mkdir()
    node.run(["chown", "alice:", "/home/alice/once"])
    yield made
    made.tcp.agent.stop()


# G8: the connection is reset behind every few bytes of a launch: it happens once, or it is told.
def test_g8_a_reset_when_the_agent_has_acted(behind):
    once = behind.node.path("/home/alice/once")
    rode_through, cut = 0, 0
    for limit in range(1, 100):
        with behind.cutting("reset", limit * 300) as said:
            result = behind.start("sh", "-c", "mkdir /home/alice/once/$RANK && echo did $RANK",
                                  flags=("--lease", "4s")).wait(40)
            was_cut = "reset" in said()
        starts = sorted(path.name for path in once.iterdir())
        for name in starts:
            (once / name).rmdir()
        wait_until(lambda: not behind.tcp.agent.jobs(), 20, lambda: behind.tcp.agent.log)
        if result.code == 0:
            assert starts == ["0", "1"] and sorted(result.lines) == ["did 0", "did 1"], result
        else:
            assert was_cut and not starts and result.code in (200, 202), (limit, starts, result)
        cut += was_cut
        rode_through += was_cut and result.code == 0
        if not was_cut:
            break
    print(f"{cut} resets, {rode_through} ridden through")
    assert result.code == 0 and cut >= 5 and rode_through >= 1


# G9: a job that says nothing keeps its connection alive for who forgets idle ones.
def test_g9_idle_connections_are_kept_alive(behind):
    with behind.cutting("idle", 3) as said:
        job = behind.start("sh", "-c", "echo up; sleep 10", flags=("--lease", "5s"))
        result = job.wait(40)
        assert result.code == 0, result
        assert said().count("open") == 1 and "forgotten" not in said(), said()
    assert not TOLD_OFF.search(result.err + behind.tcp.agent.log), result


# G9: and one that forgets faster than any heartbeat costs connections, no job.
def test_g9_connections_that_are_forgotten_at_once(behind):
    with behind.cutting("idle", 1) as said:
        job = behind.start("sh", "-c", "echo up; sleep 10; echo end $RANK", flags=("--lease", "20s"))
        result = job.wait(60)
        assert result.code == 0 and sorted(result.lines) == ["end 0", "end 1", "up", "up"], result
        assert "forgotten" in said(), said()
    assert not TOLD_OFF.search(result.err + behind.tcp.agent.log), result


# G3: a connection that carries nothing any more, and another one would: nobody waits for TCP to find out.
def test_g3_a_silent_connection_is_gone_around(behind):
    with behind.cutting("swallow") as said:
        job = behind.start("sh", "-c", "echo up; until [ -e /home/alice/once/go ]; do sleep 0.05; done; "
                           "echo end $RANK", flags=("--lease", "9s"))
        job.wait_for("up\n", count=2)
        [proxy] = [pid for pid, _, line in leftovers.processes(behind.node) if "cutting.py" in line]
        os.kill(proxy, signal.SIGUSR1)
        job.wait_for("heard from again after ", stream="err", timeout=30)
        assert said().count("swallowed") == 1 and said().count("open") >= 2, said()
        behind.node.path("/home/alice/once/go").touch()
        result = job.wait(30)
        assert result.code == 0 and sorted(result.lines) == ["end 0", "end 1", "up", "up"], result


# G3, with the launcher killed while it dials anew: nobody tells the node, which ends the job by itself.
@pytest.mark.launcher_killed
def test_g3_a_launcher_killed_behind_a_silent_connection(behind):
    with behind.cutting("swallow"):
        job = behind.start("sh", "-c", "echo up; exec sleep 600", flags=("--lease", "9s"))
        job.wait_for("up\n", count=2)
        [proxy] = [pid for pid, _, line in leftovers.processes(behind.node) if "cutting.py" in line]
        os.kill(proxy, signal.SIGUSR1)
        job.wait_for("no message from it for ", stream="err", timeout=30)
        job.signal(signal.SIGKILL)
        assert job.wait(10).code == -signal.SIGKILL
        wait_until(lambda: not behind.tcp.agent.jobs(), 30, lambda: behind.tcp.agent.log)
        assert not [line for _, _, line in leftovers.processes(behind.node) if "sleep" in line]


# G11: the output comes again from where it was cut, each byte once.
def test_g11_output_over_connections_that_break(behind):
    dice = random.Random(11)
    limits = [dice.randrange(50_000, 300_000) for _ in range(12)]
    script = ("import os\nrank = int(os.environ['RANK'])\nfor i in range(30000):\n"
              "    print('%d %099d' % (rank, i), flush=i % 100 == 0)")
    with behind.cutting("output", *limits) as said:
        result = behind.start("/usr/bin/python3", "-c", script).wait(120)
        assert said().count("reset") == len(limits), f"{said()}\n{result.err}\n{result.out[-300:]}"
    assert result.code == 0, result.err
    for rank in range(2):
        lines = [line for line in result.lines if line.startswith(f"{rank} ")]
        assert lines == [f"{rank} {i:099d}" for i in range(30000)], (rank, len(lines))
