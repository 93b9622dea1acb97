# SPDX-License-Identifier: Apache-2.0
"""Faults of group C: hosts that do not join, and strangers at the ports of the rendezvous.
C13 is in test_network.py too, more of C5 in test_port_scanners.py."""
import os
import signal
import socket

import pytest

import hosts
import leftovers
from launching import wait_until


def slow_rsh(cluster, host):
    """A way to `host` that opens only when /root/work/go is there; the others are reached at once."""
    script = cluster.work() / "rsh"
    script.write_text(f'#!/bin/sh\n[ "$1" != {host} ] || until [ -e /root/work/go ]; do '
                      'sleep 0.05; done\nexec ssh "$1" "$2"\n')
    script.chmod(0o755)
    (cluster.work() / "go").unlink(missing_ok=True)
    return ["--rsh", "/root/work/rsh {host}", "--connect-timeout", "60s"]


# C1
def test_c1_missing_host_is_named_at_the_start_timeout(cluster):
    # So that the others need no copy of the agent, which takes its time on a busy machine.
    assert cluster.launch([*cluster.hosts_flag(1), "--", "true"]).code == 0
    result = cluster.launch([*slow_rsh(cluster, "node2"), "--start-timeout", "6s",
                             *cluster.hosts_flag(2), "--", "sh", "-c", "echo started"], timeout=20)
    assert result.code == 201, result
    assert "node2" in result.err and "node1" not in result.err, result
    assert "started" not in result.out
    leftovers.wait_for_no_processes(cluster, 10)


# C1: an agent that stops in its tracks instead of reporting.
def test_c1_agent_that_never_reports(cluster):
    launch = cluster.start_launch([*slow_rsh(cluster, "node3"), "--start-timeout", "6s",
                                   *cluster.hosts_flag(1), "--", "sh", "-c", "echo started"])
    (agent, *_), *_ = wait_until(
        lambda: [row for row in leftovers.processes(cluster.nodes[1])
                 if row[2].endswith("bridge") and "dtrain-agent" in row[2]], 10, "an agent")
    os.kill(agent, signal.SIGSTOP)
    (cluster.work() / "go").touch()
    result = launch.wait(20)
    os.kill(agent, signal.SIGKILL)
    assert result.code in (200, 201, 202), result
    assert "node1" in result.err and "started" not in result.out, result


def listening_ports(node):
    with open(f"/proc/{node.pid}/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    with open(f"/proc/{node.pid}/net/tcp6", encoding="ascii") as table:
        rows += [line.split() for line in table.readlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"} - {22}


def pester(head, address, port):
    """What port scanners send; the last two connections stay open and silent."""
    kept = []
    for data in (None, b"", b"abc", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                 b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500),
                 os.urandom(1 << 20)):
        connection = hosts.socket_in_namespace(head.namespace("net"))
        connection.settimeout(3)
        try:
            connection.connect((address, port))
            if data:
                connection.sendall(data)
            if data is None:  # a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.close()
        except OSError:
            pass
        kept.append(connection)
    return kept


# C5
def test_c5_port_scanner_during_the_rendezvous(cluster):
    launch = cluster.start_launch([*slow_rsh(cluster, "node3"), *cluster.hosts_flag(2), "--", "sh",
                                   "-c", "echo started; sleep 0.5"])
    ports = wait_until(lambda: listening_ports(cluster.nodes[0]), 15, "a port of the agent")
    kept = []
    for port in ports:
        kept += pester(cluster.head, cluster.nodes[0].address, port)
    (cluster.work() / "go").touch()
    launch.wait_for("started", count=8, timeout=30)
    for node in cluster.nodes:
        for port in listening_ports(node):
            kept += pester(cluster.head, node.address, port)
    result = launch.wait(30)
    for connection in kept:
        connection.close()
    assert result.code == 0, result


def fake_rsh(cluster, *words, name="fake"):
    """Leads to an agent that lies (programs/fake_agent.cc) in place of `name`, else to the host."""
    script = cluster.work() / "rsh"
    script.write_text(f'#!/bin/sh\n[ "$1" = {name} ] || exec ssh "$1" "$2"\n'
                      f'exec {hosts.bin_dir()}/fake-agent {" ".join(words)}\n')
    script.chmod(0o755)
    return ["--rsh", "/root/work/rsh {host}"]


STARTED = ["--", "sh", "-c", "echo started"]


# C3: a host that is still at an earlier attempt of the job.
def test_c3_node_of_an_earlier_attempt_is_refused(cluster):
    result = cluster.launch([*fake_rsh(cluster, "attempt=7"), "-H", "node0:1,fake:1", *STARTED],
                            timeout=20)
    assert result.code == 201 and "started" not in result.out, result
    assert "fake: rejected: its agent joins attempt 7" in result.err and "stale" in result.err, result
    assert "node0:" not in result.err, result


# C4: the agent of another job, of another launcher of a job with the same name, and one that tells
# nothing. The job it belongs to goes on.
@pytest.mark.parametrize("word", ["job={job}", "incarnation=another", "job="])
def test_c4_agent_of_another_job_is_refused_and_that_job_is_not_touched(cluster, word):
    other = cluster.start_launch(["-H", "node0:1,node1:1", "--", "sh", "-c",
                                  "echo up $DTRAIN_JOB_ID; until [ -e /root/work/end ]; do "
                                  "sleep 0.05; done; rm /root/work/end; echo done"])
    for node in cluster.nodes[:2]:
        cluster.work(node)
    other.wait_for("up", count=2)
    job = next(word for word in other.out.split() if word.startswith("dtrain-"))
    result = cluster.launch([*fake_rsh(cluster, word.format(job=job)), "-H", "node0:1,fake:1",
                             *STARTED], timeout=20)
    assert result.code == 201 and "started" not in result.out, result
    assert "fake: rejected: the agent at this address" in result.err, result
    assert job in result.err or "{job}" not in word, result
    for node in cluster.nodes[:2]:
        (cluster.work(node) / "end").touch()
    result = other.wait(20)
    assert result.code == 0 and result.out.count("done") == 2, result


def agents_of(host):
    return [row for row in leftovers.processes(host)
            if row[2].endswith((" bridge", " shepherd"))]


# C8: the launcher, at which all meet, dies while they wait for one of them.
@pytest.mark.launcher_killed
def test_c8_the_launcher_dies_before_the_barrier_is_complete(cluster):
    assert cluster.launch([*cluster.hosts_flag(1), "--", "true"]).code == 0  # the agents are there
    launch = cluster.start_launch([*slow_rsh(cluster, "node3"), *cluster.hosts_flag(1), "--",
                                   "sh", "-c", "echo started > /root/work/started"])
    waiting = [host for host in cluster.nodes if host.name != "node3"]
    for host in waiting:
        wait_until(lambda host=host: agents_of(host), 20, host.name)
    launch.signal(signal.SIGKILL)
    assert launch.wait(10).code == -signal.SIGKILL
    for host in waiting:
        wait_until(lambda host=host: not agents_of(host), 15, lambda host=host: agents_of(host))
    (cluster.work() / "go").touch()  # its way opens when nobody asks any more
    leftovers.wait_for_no_processes(cluster, 15)
    assert not any(host.path("/root/work/started").exists() for host in cluster.nodes)


# C9: the barrier is complete, the workers run, and a host joins again after a restart.
def test_c9_late_joiner_is_refused_by_name(cluster):
    result = cluster.launch([*fake_rsh(cluster, "again=1"), "-H", "fake:1", *STARTED], timeout=20)
    assert result.code in (201, 203), result
    assert "fake: rejected: it rejoined as a different machine" in result.err, result


# C4: an agent speaks for the workers of its own host, and tells each byte once.
@pytest.mark.parametrize("output,word,lies", [
    ("0:1:0", "sent output 1 of rank 0, which is not there", 0),
    ("70000:1:0", "sent output 1 of rank 70000, which is not there", 0),
    ("1:7:0", "sent output 7 of rank 1, which is not there", 0),
    ("1:1:100", "from byte 100 on where byte 0 was next", 0),
    ("1:1:0", "from byte 0 on where byte 6 was next", 1),
])
def test_c4_output_that_is_not_its_own_is_refused(cluster, output, word, lies):
    script = cluster.work() / "rsh"
    script.write_text(f'#!/bin/sh\n[ "$1" = fake ] || set -- "$1" boot=quiet address=10.77.0.98\n'
                      f'[ "$1" = fake ] && set -- "$1" address=10.77.0.99 output={output}\n'
                      f'shift; exec {hosts.bin_dir()}/fake-agent "$@"\n')
    script.chmod(0o755)
    result = cluster.launch(["--rsh", "/root/work/rsh {host}", "-H", "quiet:1,fake:1", "--",
                             "sleep", "600"], timeout=30)
    assert result.code in (200, 202) and word in result.err and "fake" in result.err, result
    assert result.out.count("a lie") == lies and "[0] a lie" not in result.out, result


# C9: the way to a host opens when the others have given up.
def test_c9_host_that_comes_after_the_end_starts_nothing(cluster):
    launch = cluster.start_launch([*slow_rsh(cluster, "node2"), "--start-timeout", "2s",
                                   *cluster.hosts_flag(1), *STARTED])
    result = launch.wait(20)
    (cluster.work() / "go").touch()
    assert result.code == 201 and "node2" in result.err and not result.out, result
    leftovers.wait_for_no_processes(cluster, 5)


# C13: addresses that mean something else on every host.
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "127.0.0.1", "::1", "127.8.8.8",
                                     "255.255.255.255", "224.0.0.1", "10.77.0.1", "node0", ""])
def test_c13_address_that_cannot_be_its_own_is_refused(cluster, address):
    result = cluster.launch([*fake_rsh(cluster, f"address={address}"), "-H", "node0:1,fake:1",
                             *STARTED], timeout=30)
    assert result.code == 201 and "fake" in result.err and not result.out, result
