# SPDX-License-Identifier: Apache-2.0
"""What an agent must bear from who has a certificate, or is a user of its node, and means no good
(group I): while a job runs there, which may not notice."""
import os
import threading
import time
from pathlib import Path

import pytest

import hosts
import leftovers
from launching import wait_until
from test_faults_j import peak_kib
from test_identity import as_alice, node  # noqa: F401 - a fixture
from test_resident import stat_of
from test_tcp import PORT, tcp  # noqa: F401 - a fixture

MIB = 1 << 20


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_quiet(pid):
    before = cpu_seconds(pid)
    time.sleep(0.5)
    return cpu_seconds(pid) - before < 0.1


@pytest.fixture
def busy(tcp):  # noqa: F811
    """An agent with a job that counts, of which every line must come."""
    started = tcp.node.cluster.start_launch(
        [*tcp.flags("--lease", "10"), "sh", "-c",
         "i=0; until [ -e /run/go ]; do echo line $i; i=$((i + 1)); sleep 0.05; done; echo last"])
    started.wait_for("line 3\n", count=2)
    yield tcp
    tcp.node.path("/run/go").touch()
    result = started.wait(40)
    tcp.node.path("/run/go").unlink()
    assert result.code == 0 and result.out.count("last") == 2, result
    numbers = sorted(int(line.split()[1]) for line in result.lines if line.startswith("line "))
    half = sorted(set(numbers))
    assert half == list(range(len(half))) and len(numbers) >= 2 * len(half) - 50, result.err


def start_abuse(tcp, mode, local=False):  # noqa: F811
    """Of alice: from the head, with her certificate, or on the node itself."""
    script = hosts.SOURCE_DIR / "tests/cluster/abuse.py"
    build = tcp.node.run([hosts.bin_dir() / "dtrain-agent", "version"]).stdout.split()[1]
    where = "/run/dtrain-agent/agent.sock" if local else tcp.node.address
    host, options = (tcp.node, {"before_exec": as_alice, "cwd": "/"}) if local else (
        tcp.node.cluster.head, {})
    return host.popen(["/usr/bin/python3", "-B", script, where, PORT, "/root/work/tls", mode, build],
                      stdout=-1, stderr=-1, **options)


def abuse(tcp, mode, local=False):  # noqa: F811
    process = start_abuse(tcp, mode, local)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err.decode()
    return out.decode().split()


def check_unharmed(tcp, before, more=8 * MIB):  # noqa: F811
    pid = tcp.agent.pid
    assert not tcp.agent.ended(), tcp.agent.log
    wait_until(lambda: is_quiet(pid), 5, "the agent is busy with nothing")
    result = tcp.launch("echo", "fine", flags=("--bind", "none"))
    assert result.code == 0 and result.out.count("fine") == 2, result
    if hosts.is_sanitized():
        return  # which keeps what is freed
    # What is given back goes with the end of a connection, for which gRPC may need ten seconds.
    wait_until(lambda: resident_bytes(pid) - before < more, 30,
               lambda: f"{(resident_bytes(pid) - before) / MIB:.1f} MiB more")


def warm_up(tcp):  # noqa: F811
    assert tcp.launch("true", flags=("--bind", "none")).code == 0
    return resident_bytes(tcp.agent.pid)


def test_i6_lengths_that_no_message_has(busy):
    before = warm_up(busy)
    ends = abuse(busy, "lengths")
    assert len(ends) == 3 and set(ends) <= {"status", "reset", "closed"}, ends
    check_unharmed(busy, before)


def test_i7_bytes_that_are_no_message(busy):
    before = warm_up(busy)
    ends = abuse(busy, "garbage")
    assert len(ends) == 6 * 20 + 3 and set(ends) <= {"status", "reset", "closed"}, ends
    check_unharmed(busy, before)


def test_i9_who_comes_and_says_nothing_is_closed(busy):
    before = warm_up(busy)
    ends = abuse(busy, "slow")
    assert ends[0] == "closed" and ends[1] in ("status", "reset", "closed"), ends
    check_unharmed(busy, before)


# Calls whose message never comes keep no connection, of which one address has only so many.
def test_i9_calls_that_never_come_are_closed(busy):
    before = warm_up(busy)
    assert abuse(busy, "half") == ["held"] + ["closed"] * 127
    assert "no complete call" in busy.agent.log, busy.agent.log
    check_unharmed(busy, before)


def shepherds(tcp):  # noqa: F811
    """How many; what one forks is called the same until it is another program."""
    pids = {str(pid) for pid, _, line in leftovers.processes(tcp.node) if line.endswith(" shepherd")}
    parents = [stat_of(pid)[1] for pid in pids]
    return sum(bool(parent) and parent not in pids for parent in parents)


def until_only_the_jobs_is_left(tcp, timeout=20):  # noqa: F811
    """That of a launch that is over ends a moment later."""
    wait_until(lambda: shepherds(tcp) == 1, timeout, lambda: shepherds(tcp))


class Watch:
    """The most that was seen of the agent's memory and of shepherds, while the context lasts."""

    def __init__(self, tcp):  # noqa: F811
        self._tcp = tcp
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.memory = self.shepherds = 0

    def _look(self):
        while not self._over.wait(0.02):
            self.memory = max(self.memory, resident_bytes(self._tcp.agent.pid))
            self.shepherds = max(self.shepherds, shepherds(self._tcp))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


# I12: one connection is good for one session, and so for one process; others are served meanwhile.
@pytest.mark.parametrize("mode,most", [("begun", 64 * MIB), ("unread", 64 * MIB),
                                       ("unread_halves", 64 * MIB)])
def test_i12_ten_thousand_calls_at_a_time(busy, mode, most):
    before = warm_up(busy)
    until_only_the_jobs_is_left(busy)
    with Watch(busy) as watch:
        process = start_abuse(busy, mode)
        result = busy.launch("echo", "meanwhile", flags=("--bind", "none"))
        assert result.code == 0 and result.out.count("meanwhile") == 2, result
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0 and out.split() == [b"sent", b"closed"], err.decode()
    # The job's, the launch's, and one of the other connection, for as long as its lease.
    assert watch.shepherds <= 3, watch.shepherds
    until_only_the_jobs_is_left(busy)
    if not hosts.is_sanitized():
        assert watch.memory - before < most, watch.memory
    check_unharmed(busy, before)


def test_i12_sessions_that_begin_and_are_taken_back(busy):
    before = warm_up(busy)
    until_only_the_jobs_is_left(busy)
    with Watch(busy) as watch:
        assert 1 <= int(abuse(busy, "hellos")[0]) <= 128
        # Their leases.
        until_only_the_jobs_is_left(busy, 100)
    assert watch.shepherds <= 1 + 128, watch.shepherds
    check_unharmed(busy, before)


def test_a_start_after_a_refusal(busy):
    before = warm_up(busy)
    until_only_the_jobs_is_left(busy)
    assert abuse(busy, "stubborn") == ["refused"]
    until_only_the_jobs_is_left(busy, 40)
    assert not busy.node.path("/tmp/evil").exists()
    check_unharmed(busy, before)


# K5: a launcher of one's own may ask for any number. It is refused by name, and its job ends.
def test_k5_signals_that_there_are_none_of(busy):
    before = warm_up(busy)
    until_only_the_jobs_is_left(busy)
    assert abuse(busy, "signals") == ["refused"] * 4
    until_only_the_jobs_is_left(busy, 40)
    check_unharmed(busy, before)


# Calls that are taken back, headers without an end, and calls that stay: the connection is closed, and the
# agent has not grown with their number.
@pytest.mark.parametrize("local", [False, True], ids=["tls", "unix"])
@pytest.mark.parametrize("mode,why", [
    ("reset", "it has taken back more than 100 calls"),
    ("continuation", "the headers of its call have no end"),
    ("streams", "it began more than 100 calls at once"),
    ("settled_streams", "")])  # gRPC's own
def test_i12_floods(busy, mode, why, local):
    before = warm_up(busy)
    Path(f"/proc/{busy.agent.pid}/clear_refs").write_text("5\n")  # its peak begins anew
    assert abuse(busy, mode, local) == ["closed"]
    if not hosts.is_sanitized():
        more = peak_kib(busy.agent.pid) * 1024 - before
        assert more < 32 * MIB, f"{more / MIB:.1f} MiB more"
    wait_until(lambda: why in busy.agent.log, 20, lambda: busy.agent.log)
    check_unharmed(busy, before)


def test_i12_headers_that_unfold(busy):
    before = warm_up(busy)
    assert abuse(busy, "bomb")[0] in ("status", "reset", "closed")
    check_unharmed(busy, before)


def test_i13_connections_without_number(busy):
    before = warm_up(busy)
    [_, still] = abuse(busy, "many")
    assert int(still) <= 128, still
    check_unharmed(busy, before)
