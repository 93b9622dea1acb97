# SPDX-License-Identifier: Apache-2.0
"""Mallory is many, or says too much: connections that say nothing, calls that are never whole, a job of
64 MiB. Alice's job beside it counts lines, and loses none."""
import json
import os
import subprocess
import threading

import pytest

import hosts
from launching import wait_until
from test_abuse import MIB, resident_bytes
from test_identity import node  # noqa: F401 - a fixture
from test_node_http import connect
from test_status import ask
from test_tcp import PORT, Tcp

DTRAIN = hosts.bin_dir() / "dtrain"
CROWD = hosts.SOURCE_DIR / "tests/cluster/attacks/crowd.py"
SOCKET = "/run/dtrain-agent/agent.sock"
HTTP_SOCKET = "/run/dtrain-agent/http.sock"
TLS = "/root/work/mallory"
NOBODY = 65534


def as_mallory():
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


class Attacked(Tcp):
    def __init__(self, node, folder):  # noqa: F811
        super().__init__(node, folder)
        node.path("/root/work/map").write_text("mallory = nobody\n")
        self.agent.flags += ["--account-map", "/root/work/map"]
        self.authority.user("mallory")
        self.authority.bundle("user:mallory", node.cluster.head.path(TLS))
        self.tls = f"{node.address}:{PORT}:{TLS}"
        self.build = node.run([hosts.bin_dir() / "dtrain-agent", "version"]).stdout.split()[1]

    def crowd(self, *words, local=False):
        """Mallory with her certificate, from the head; or as an ordinary user of the node."""
        host, options = (self.node, {"before_exec": as_mallory, "cwd": "/"}) if local else (
            self.node.cluster.head, {})
        return host.popen(["/usr/bin/python3", "-B", CROWD, *words], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture
def attacked(node, tmp_path):  # noqa: F811
    """An agent of many users, with a job of alice's of which every line must come."""
    made = Attacked(node, tmp_path)
    made.agent.start()
    started = node.cluster.start_launch(
        [*made.flags("--lease", "15", "--bind", "none"), "sh", "-c",
         "i=0; until [ -e /run/go ]; do echo line $i; i=$((i + 1)); sleep 0.05; done; echo last $i"])
    started.wait_for("line 3\n", count=2)
    yield made
    node.path("/run/go").touch()
    result = started.wait(60)
    node.path("/run/go").unlink()
    assert result.code == 0, (result, made.agent.log)
    lasts = sorted(int(line.split()[1]) for line in result.lines if line.startswith("last "))
    wanted = sorted([*range(lasts[0]), *range(lasts[1])])
    assert sorted(int(line.split()[1]) for line in result.lines if line.startswith("line ")) == wanted
    made.agent.stop()


def resumed(attacked):
    """Whether a launcher is connected to alice's job again, by what the agent tells root."""
    jobs = ask(connect(attacked.agent), "/v1/jobs")[2]
    return b"running" in jobs and b"away" not in jobs


def told(process, timeout=200):
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return out.split("\n")[:-1]


# The agent reads none of it. She heeds no window, which the agent may see first (DATA_LOSS), or her shepherd
# finds it too long, or the system does not start it: she is told, and nobody else notices.
@pytest.mark.parametrize("what", [64 * MIB - 100, 64 * MIB + 1, 32 * MIB, 8 * MIB + 1000, "x100000"])
def test_a_job_of_many_bytes(attacked, what):
    pid = attacked.agent.pid
    [end] = told(attacked.crowd("start", SOCKET, attacked.build, str(what), local=True))
    assert end in ("event", "status 15"), (end, attacked.agent.log)
    assert not attacked.agent.ended() and attacked.agent.pid == pid, attacked.agent.log
    result = attacked.launch("echo", "fine", flags=("--bind", "none"))
    assert result.code == 0 and result.out.count("fine") == 2, result
    # Hers ends when its launcher is not heard from.
    wait_until(lambda: len(attacked.agent.jobs()) == 1, 60, attacked.agent.jobs)


# Nor does her launcher ask for it.
def test_a_launch_with_many_bytes_is_a_usage_error(attacked):
    many = {f"V{i:06}": "x" for i in range(100_000)}
    result = attacked.node.cluster.launch(
        [*attacked.flags("--bind", "none"), "echo", "ran"], timeout=60, env=many)
    assert result.code == 2 and "at most 1572864 can be given" in result.err, result


class Peak:
    def __init__(self, pid):
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.memory = 0

    def _look(self):
        while not self._over.wait(0.02):
            self.memory = max(self.memory, resident_bytes(self._pid))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("way", ["tls", "unix", "plain"])
def test_calls_that_are_never_whole(attacked, way):
    assert attacked.launch("true", flags=("--bind", "none")).code == 0
    before = resident_bytes(attacked.agent.pid)
    with Peak(attacked.agent.pid) as peak:
        if way == "plain":
            crowd = attacked.crowd("plain", attacked.tls, "64", str(8 * MIB))
        else:
            place = SOCKET if way == "unix" else attacked.tls
            crowd = attacked.crowd("halves", place, "64", "8", str(MIB), local=way == "unix")
            assert crowd.stdout.readline().startswith("held"), crowd.stderr.read()
        result = attacked.launch("echo", "meanwhile", flags=("--bind", "none"))
        assert result.code == 0 and result.out.count("meanwhile") == 2, result
        assert told(crowd)[-1] == "closed 64"
    if not hosts.is_sanitized():
        assert peak.memory - before < 64 * MIB, f"{(peak.memory - before) / MIB:.0f} MiB more"
    if way != "plain":
        assert "unfinished messages have more than" in attacked.agent.log, attacked.agent.log


# Few bytes that ask for much memory, before anybody has looked at them.
@pytest.mark.parametrize("way", ["tls", "unix"])
@pytest.mark.parametrize("what", ["empties", "questions", "bombs"])
def test_messages_that_grow_when_they_are_read(attacked, way, what):
    assert attacked.launch("true", flags=("--bind", "none")).code == 0
    before = resident_bytes(attacked.agent.pid)
    words = {"empties": (32 * MIB, 3), "questions": (MIB,), "bombs": (1024 * MIB, 2)}[what]
    place = SOCKET if way == "unix" else attacked.tls
    with Peak(attacked.agent.pid) as peak:
        ends = told(attacked.crowd(what, place, *map(str, words), local=way == "unix"))
    # Refused: as more than there may be, or as what no launcher does.
    wanted = {"empties": ["status 8"] * 3, "questions": ["status 8"] * 4, "bombs": ["closed"] * 2}
    assert ends == wanted[what], (ends, attacked.agent.log)
    if not hosts.is_sanitized():
        assert peak.memory - before < 160 * MIB, f"{(peak.memory - before) / MIB:.0f} MiB more"


def test_connections_that_say_nothing(attacked):
    """As many as she has addresses for, and as many more on the unix socket."""
    node, head = attacked.node, attacked.node.cluster.head  # noqa: F811
    attacked.authority.user("ops", "--admin")
    attacked.authority.bundle("user:ops", head.path("/root/work/ops"))
    device = head.run(["ip", "-o", "-4", "route", "get", node.address]).stdout.split(" dev ")[1].split()[0]
    sources = [f"10.77.9.{i}" for i in range(1, 21)]
    for source in sources:
        head.run(["ip", "addr", "add", f"{source}/32", "dev", device])
        node.run(["ip", "route", "replace", f"{source}/32", "via", head.address])
    crowds = [attacked.crowd("silent", attacked.tls, ",".join(sources), "64"),
              attacked.crowd("silent", SOCKET, "-", "500", local=True)]
    try:
        for crowd in crowds:
            assert crowd.stdout.readline() == "there\n"
        wait_until(lambda: "refused" in attacked.agent.log, 20, lambda: attacked.agent.log)
        for _ in range(3):
            result = attacked.launch("echo", "by tls", flags=("--bind", "none"))
            assert result.code == 0 and result.out.count("by tls") == 2, (result, attacked.agent.log)
            result = node.cluster.launch(
                ["--wdir", "/", "--bind", "none", "-H", "alice@node0:2", "--", "echo", "by unix"],
                timeout=60)
            assert result.code == 0 and result.out.count("by unix") == 2, (result, attacked.agent.log)
            said = head.run([DTRAIN, "nodes", "--agent", "tcp", "--tls-dir", "/root/work/ops", "-H",
                             node.address, "--json"], check=False)
            assert said.returncode == 0, (said, attacked.agent.log)
            assert [each["state"] for each in json.loads(said.stdout)["nodes"]] == ["ok"], said
        # Alice's launcher finds its way back to the next agent.
        attacked.agent.kill()
        attacked.agent.start()
        wait_until(lambda: resumed(attacked), 30, lambda: attacked.agent.log)
    finally:
        for crowd in crowds:
            crowd.stdin.close()
            assert crowd.wait(20) == 0
            crowd.stdout.close()
            crowd.stderr.close()


# She shares a login node, and its address, with who else launches from there.
@pytest.mark.parametrize("begin", ["", "begin"])
def test_connections_that_say_nothing_from_the_address_of_others(attacked, begin):
    address = attacked.node.cluster.head.address
    crowd = attacked.crowd("silent", attacked.tls, address, "64" if not begin else "24", begin)
    try:
        assert crowd.stdout.readline() == "there\n"
        wait_until(lambda: "refused" in attacked.agent.log, 20, lambda: attacked.agent.log)
        tries = [attacked.launch("echo", "by tls", flags=("--bind", "none")) for _ in range(6)]
        came = [result.code == 0 and result.out.count("by tls") == 2 for result in tries]
        # Before, none came. One may still be caught before it has begun, and among those that have,
        # chance decides.
        assert sum(came) >= (2 if begin else 3), (tries, attacked.agent.log)
    finally:
        crowd.stdin.close()
        assert crowd.wait(20) == 0
        crowd.stdout.close()
        crowd.stderr.close()


# As many users as it takes: each has his share.
def test_connections_that_say_nothing_over_http(attacked):
    def become(uid):
        def inside():
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        return inside

    crowds = [attacked.node.popen(["/usr/bin/python3", "-B", CROWD, "silent", HTTP_SOCKET, "-", "40"],
                                  before_exec=become(uid), cwd="/", stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
              for uid in (NOBODY, 1, 2, 3, 13)]
    try:
        for crowd in crowds:
            assert crowd.stdout.readline() == "there\n", crowd.stderr.read()
        wait_until(lambda: "too many HTTP connections" in attacked.agent.log, 20,
                   lambda: attacked.agent.log)
        for _ in range(20):
            assert ask(connect(attacked.agent), "/v1/jobs")[0] == 200, attacked.agent.log
    finally:
        for crowd in crowds:
            crowd.stdin.close()
            assert crowd.wait(20) == 0
            crowd.stdout.close()
            crowd.stderr.close()


# With a grace of 49 days, which the agent was to wait for them.
def test_shepherds_that_are_stopped_and_left(attacked):
    [line] = told(attacked.crowd("stopped", SOCKET, attacked.build, "160", local=True))
    most, left = map(int, line.split())
    assert 20 < most <= 129 and left == 0, (line, attacked.agent.log)
    result = attacked.launch("echo", "fine", flags=("--bind", "none"))
    assert result.code == 0 and result.out.count("fine") == 2, result
