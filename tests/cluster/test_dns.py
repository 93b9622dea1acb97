# SPDX-License-Identifier: Apache-2.0
"""G15: names that are looked up slowly, not always, or not at all, and that have an address where nobody
answers: at the launch, and when a connection is made again. (G10: test_faults_efg.py.)"""
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import hosts
from launching import wait_until
from test_faults_g import Behind
from test_identity import node  # noqa: F401 - a fixture

CONNECT_TIMEOUT = 10  # seconds, the default
SLACK = 5  # of a busy machine
NOBODY = "10.77.0.250"


class Names:
    """The head's name server."""

    def __init__(self, cluster):
        self._head = cluster.head
        self._names = {host.name: [host.address] for host in cluster.nodes}
        self._told = cluster.work() / "names"
        self._said = cluster.base / "asked"
        self.set()
        resolv = cluster.work() / "resolv.conf"
        resolv.write_text("nameserver 127.0.0.1\n")
        self._head.run(["mount", "--bind", "/root/work/resolv.conf", os.path.realpath("/etc/resolv.conf")])
        with open(self._said, "wb") as said:
            self._server = self._head.popen(
                ["/usr/bin/python3", "-I", hosts.HERE / "nameserver.py", "/root/work/names"],
                stdin=subprocess.DEVNULL, stdout=said)
        wait_until(lambda: self.asked("serves"), 20, "no name server")
        config = self._head.base / "root/.ssh/config"
        text = config.read_text()
        for host in cluster.nodes:
            text = text.replace(f"  HostName {host.address}\n", "")
        config.write_text(text)

    def set(self, names=None, **how):
        draft = self._told.with_suffix(".new")
        draft.write_text(json.dumps({"names": {**self._names, **(names or {})}, **how}))
        draft.rename(self._told)

    def asked(self, name):
        """How often."""
        return self._said.read_text().split("\n").count(name)

    def close(self):
        self._server.kill()
        self._server.wait()


@pytest.fixture
def named(make_cluster):
    cluster = make_cluster(2)
    cluster.names = Names(cluster)
    yield cluster
    cluster.names.close()


WAYS = pytest.mark.parametrize("way", [[], ["--rsh", "ssh {host}"]], ids=["ssh", "rsh"])


@WAYS
def test_g15_a_slow_name_server(named, way):
    named.names.set(delay=2)
    result = named.launch([*way, *named.hosts_flag(1), "--", "echo", "ran"], timeout=40)
    assert result.code == 0 and result.out.count("ran") == 2, result
    assert named.names.asked("node0") and named.names.asked("node1")
    assert result.seconds < CONNECT_TIMEOUT + SLACK, result


# Of a zone that is far away, beside one that is near: the first answer comes too late, and says how late.
def test_g15_a_name_that_takes_longer_than_another(named):
    named.names.set(delay={"node1": 4})
    result = named.launch(["--start-timeout", "60s", *named.hosts_flag(1), "--", "echo", "ran"], timeout=60)
    assert result.code == 0 and result.out.count("ran") == 2, result


def test_g15_a_name_server_that_never_answers(named):
    named.names.set(drop=True)
    result = named.launch([*named.hosts_flag(1), "--", "echo", "ran"], timeout=60)
    assert result.code == 200 and "ran" not in result.out, result
    for name in ("node0", "node1"):
        assert name in result.err, result
    assert "name servers" in result.err, result
    assert result.seconds < CONNECT_TIMEOUT + SLACK, result


# Of the two questions that are asked first one gets no answer; resolvers ask again after five seconds.
def test_g15_a_name_server_that_drops_the_first_questions(named):
    named.names.set(drop=True)
    job = named.start_launch([*named.hosts_flag(1), "--", "echo", "ran"])
    wait_until(lambda: named.names.asked("node0") and named.names.asked("node1"), 20, "nobody asks")
    named.names.set()
    result = job.wait(40)
    assert result.code == 0 and result.out.count("ran") == 2, result
    assert result.seconds < CONNECT_TIMEOUT + SLACK, result


# A lost packet of one host, beside a host that /etc/hosts knows: that one's answer says nothing of name servers.
@pytest.mark.parametrize("lost", ["one question", "all for four seconds"])
def test_g15_a_lost_question_beside_a_host_of_etc_hosts(named, lost):
    local = named.work() / "hosts"
    local.write_text(f"{named.nodes[0].address} node0\n")
    named.head.run(["mount", "--bind", "/root/work/hosts", "/etc/hosts"])
    if lost == "one question":
        named.names.set(drop={"node1": 1})
    else:
        named.names.set(drop=True)
    job = named.start_launch([*named.hosts_flag(1), "--", "echo", "ran"])
    if lost != "one question":
        wait_until(lambda: named.names.asked("node1"), 20, "nobody asks")
        time.sleep(4)  # the fault is that long; glibc asks again after 5 s
        named.names.set()
    result = job.wait(40)
    assert result.code == 0 and result.out.count("ran") == 2, result
    assert not named.names.asked("node0") and named.names.asked("node1") > 1, result
    assert result.seconds < CONNECT_TIMEOUT + SLACK, result


def test_g15_a_name_server_in_trouble(named):
    named.names.set(fail=True)
    result = named.launch([*named.hosts_flag(1), "--", "echo", "ran"], timeout=60)
    assert result.code == 200 and "node0" in result.err and "node1" in result.err, result
    assert result.seconds < CONNECT_TIMEOUT + SLACK, result
    named.names.set()
    assert named.launch([*named.hosts_flag(1), "--", "true"]).code == 0


# Nobody has the first address: the second gets its time.
@WAYS
def test_g15_a_first_address_where_nobody_answers(named, way):
    first, second = named.nodes
    # Packets to it vanish; without this the bridge finds out that nobody has it.
    named.head.network(f"neigh add {NOBODY} lladdr 02:00:00:00:00:fe dev eth0 nud permanent\n")
    named.names.set({"node1": [NOBODY, second.address]})
    result = named.launch([*way, "-H", "node0:1,node1:1", "--", "hostname"], timeout=40)
    assert result.code == 0 and sorted(line.split()[-1] for line in result.lines) == ["node0", "node1"], result
    assert result.seconds < CONNECT_TIMEOUT + SLACK, result


class ByName(Behind):
    """A resident agent that is reached by its name."""

    def __init__(self, host, folder):
        super().__init__(host, folder)
        self.names = Names(host.cluster)

    def flags(self, *flags):
        return ["--agent", "tcp", "--tls-dir", "/root/work/tls", "--wdir", "/", *flags, "-H", "node0:2",
                "--tag-output", "none", "--"]

    def start_counting(self, *flags):
        """Prints little until it is told to go on, then a lot."""
        script = ("echo up; until [ -e /run/go ]; do sleep 0.05; done; i=0; "
                  "while [ $i -lt 4000 ]; do printf '%d %099d\\n' $RANK $i; i=$((i + 1)); done")
        job = self.node.cluster.start_launch([*self.flags(*flags), "sh", "-c", script])
        job.wait_for("up", count=2)
        return job

    def check(self, job, timeout=60):
        result = job.wait(timeout)
        assert result.code == 0 and not result.tells_of_loss, result.err
        for rank in range(2):
            lines = [line for line in result.lines if line.startswith(f"{rank} ")]
            assert lines == [f"{rank} {i:099d}" for i in range(4000)], (rank, len(lines))


@pytest.fixture
def by_name(node, tmp_path):  # noqa: F811
    made = ByName(node, tmp_path)
    yield made
    made.names.close()
    Path(node.path("/run/go")).unlink(missing_ok=True)
    made.tcp.agent.stop()


# The connection breaks while no name is known: it is made again, before the lease is over.
@pytest.mark.parametrize("outage", ["ends", "goes on"])
def test_g15_a_connection_that_breaks_while_no_name_is_known(by_name, outage):
    with by_name.cutting("output", 200_000) as said:
        job = by_name.start_counting("--lease", f"{CONNECT_TIMEOUT + SLACK}s")
        known = by_name.names.asked("node0")
        by_name.names.set(drop=True)
        by_name.node.path("/run/go").touch()
        wait_until(lambda: "reset" in said(), 20, said)
        if outage == "ends":
            wait_until(lambda: by_name.names.asked("node0") > known or job.process.poll() is not None, 20,
                       "nobody asks")
            by_name.names.set()
        by_name.check(job)


def test_g15_a_connection_that_breaks_while_names_come_slowly(by_name):
    with by_name.cutting("output", 200_000) as said:
        job = by_name.start_counting("--lease", f"{CONNECT_TIMEOUT + SLACK}s")
        by_name.names.set(delay=2)
        by_name.node.path("/run/go").touch()
        wait_until(lambda: "reset" in said(), 20, said)
        by_name.check(job)


# The name has come to mean an address where nobody answers: the one that was good is tried as well.
def test_g15_a_connection_that_breaks_while_the_name_means_nobody(by_name):
    with by_name.cutting("output", 200_000) as said:
        job = by_name.start_counting("--lease", "60s", "--connect-timeout", "2s")
        by_name.names.set({"node0": [NOBODY]})
        by_name.node.path("/run/go").touch()
        wait_until(lambda: "reset" in said(), 20, said)
        by_name.check(job, 90)
