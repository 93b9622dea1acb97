# SPDX-License-Identifier: Apache-2.0
"""C5: port scanners, at every TCP port that dtrain opens: agents' for probes, for launchers with certificates
and for HTTP, launchers' for HTTP, and ranks' of libdtrain. They are dropped within ten seconds, where a port
outlives the rendezvous, and all goes on. (C15, and unix sockets: test_faults_tls.py and test_abuse.py.)"""
import contextlib
import http.client
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time

import pytest

import hosts
import residents
from launching import wait_until
from test_collectives import loop, pids_of  # noqa: F401 - a fixture
from test_faults_c import listening_ports, slow_rsh
from test_identity import node  # noqa: F401 - a fixture
from test_status import LIVE
from test_tcp import PORT, tcp  # noqa: F401 - a fixture

DROPPED_AFTER = 10  # seconds
SLACK = 5  # of a busy machine
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # TLS
SENT = {"reset": None, "nothing": b"", "three bytes": b"abc", "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "TLS": HELLO + bytes(500), "a megabyte": os.urandom(1 << 20),
        "half of HTTP": b"POST /v1/jobs HTTP/1.1\r\nContent-Le", "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}


class Scanner:
    """Connections from `host` that want nothing. Those that are not reset stay open until they are dropped."""

    def __init__(self, host):
        self._host = host
        self._open = {}  # connections, with what was sent

    def scan(self, address, port):
        since = time.monotonic()
        for what, data in SENT.items():
            connection = hosts.socket_in_namespace(self._host.namespace("net"))
            connection.settimeout(3)
            with contextlib.suppress(OSError):  # dropped already
                connection.connect((address, port))
                connection.sendall(data or b"")
            if data is None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.close()
                continue
            connection.setblocking(False)
            self._open[connection] = (what, port, since)

    def drop(self, seconds=DROPPED_AFTER + SLACK):
        """Fails when one has not been dropped so long after it came."""
        while self._open:
            end = min(since for _, _, since in self._open.values()) + seconds
            ready, _, _ = select.select(list(self._open), [], [], max(0, end - time.monotonic()))
            assert ready, f"still open after {seconds} s: {list(self._open.values())}"
            for connection in ready:
                with contextlib.suppress(BlockingIOError):
                    try:
                        over = not connection.recv(1 << 16)
                    except ConnectionError:
                        over = True
                    if over:
                        del self._open[connection]
                        connection.close()

    def close(self):
        for connection in self._open:
            connection.close()


@pytest.fixture
def scanner(cluster):
    made = Scanner(cluster.head)
    yield made
    made.close()


def test_c5_agents_that_wait_for_the_last_host(cluster, scanner):
    launch = cluster.start_launch([*slow_rsh(cluster, "node3"), *cluster.hosts_flag(2), "--", "sh", "-c",
                                   "echo ran"])
    waiting = cluster.nodes[:3]
    for host in waiting:
        wait_until(lambda host=host: listening_ports(host), 20, lambda host=host: host.name)
    for host in waiting:
        for port in listening_ports(host):
            scanner.scan(host.address, port)
    scanner.drop()
    (cluster.work() / "go").touch()
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("ran") == 8, result


def test_c5_the_tls_port(tcp):  # noqa: F811
    visitor = Scanner(tcp.node.cluster.head)
    job = tcp.node.cluster.start_launch(
        [*tcp.flags("--lease", "5s"), "sh", "-c",
         "echo up; until [ -e /run/go ]; do sleep 0.05; done; echo end"])
    job.wait_for("up", count=2)
    visitor.scan(tcp.node.address, PORT)
    result = tcp.launch("echo", "meanwhile", flags=("--bind", "none"))
    assert result.code == 0 and result.out.count("meanwhile") == 2, result
    visitor.drop()
    tcp.node.path("/run/go").touch()
    result = job.wait(30)
    tcp.node.path("/run/go").unlink()
    assert result.code == 0 and result.out.count("end") == 2, result


def ask(host, port, token):
    """The API's answer to one who has the token, asked on the host."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.sock = hosts.socket_in_namespace(host.namespace("net"))
    connection.sock.settimeout(20)
    connection.sock.connect(("127.0.0.1", port))
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_c5_an_agents_http_port(cluster):
    agent = residents.Resident(cluster.nodes[0], flags=["--status-listen", "8123"]).start()
    token = agent.host.path(f"{residents.STATE}/http.token").read_text().strip()
    visitor = Scanner(agent.host)
    job = cluster.start_launch(["--grace", "1s", "-H", "node0:2", "--", *LIVE])
    job.wait_for("up", count=2)
    visitor.scan("127.0.0.1", 8123)
    assert ask(agent.host, 8123, token) == 200
    visitor.drop()
    assert ask(agent.host, 8123, token) == 200 and job.process.poll() is None
    job.signal(signal.SIGTERM)
    assert job.wait(20).code == 143
    agent.stop()


def test_c5_a_launchers_http_port(cluster, scanner):
    job = cluster.start_launch([*slow_rsh(cluster, "node3"), "--grace", "1s", "--status-listen", "0",
                                *cluster.hosts_flag(1), "--", *LIVE])
    job.wait_for("token in", stream="err")
    port, file = re.search(r"http://127.0.0.1:(\d+)/\S+, token in (\S+)", job.err).groups()
    token = cluster.head.path(file).read_text().strip()
    for host in (cluster.head, *cluster.nodes):  # from elsewhere there is nobody to talk to
        with hosts.socket_in_namespace(host.namespace("net")) as stranger:
            stranger.settimeout(3)
            assert stranger.connect_ex((cluster.head.address, int(port))) != 0
    scanner.scan("127.0.0.1", int(port))
    assert ask(cluster.head, int(port), token) == 200
    scanner.drop()
    (cluster.work() / "go").touch()
    job.wait_for("up", count=4)
    scanner.scan("127.0.0.1", int(port))
    assert ask(cluster.head, int(port), token) == 200
    scanner.drop()
    assert listening_ports(cluster.head) == {int(port)}, "it is all that a launcher opens"
    job.signal(signal.SIGTERM)
    assert job.wait(20).code == 143


# Rank 2 says where it listens only when it is told to, so that the others wait with their ports open.
LATE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int listen(int fd, int backlog) {
  const char* rank = getenv("RANK");
  int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "listen");
  while (rank && strcmp(rank, "2") == 0 && access("/run/go", F_OK) != 0) usleep(10000);
  return real(fd, backlog);
}
"""


def ports_of(pid):
    """On which a process listens."""
    own = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        found |= {int(row[1].rpartition(":")[2], 16) for row in rows
                  if row[3] == "0A" and f"socket:[{row[9]}]" in own}
    return found


@contextlib.contextmanager
def scanning(scanner, nodes):
    """All of their ports, again and again."""
    over = threading.Event()

    def scan():
        while not over.wait(0.02):
            for host in nodes:
                for port in listening_ports(host):
                    scanner.scan(host.address, port)

    thread = threading.Thread(target=scan)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# Each leader listens on one port; who does not know its token is turned away.
def test_c5_ranks_that_wait_for_the_last_one(cluster, scanner, loop):  # noqa: F811
    nodes = cluster.nodes[:3]
    for host in nodes:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", cluster.work(host) / "late.so", "-x", "c", "-", "-ldl"],
                       input=LATE, text=True, check=True)
    job = cluster.start_launch(["--grace", "1s", "-x", "ROUNDS=200", "-x", "LD_PRELOAD=/root/work/late.so",
                                *cluster.hosts_flag(1, nodes), "--", loop])
    ranks = wait_until(lambda: len(pids_of(loop)) == 3 and pids_of(loop), 30, lambda: job.err)
    for rank in range(2):
        wait_until(lambda rank=rank: ports_of(ranks[rank]), 30, lambda: job.err)
    ports = [ports_of(ranks[rank]) for rank in range(3)]
    assert not ports[2]
    for host, its in zip(nodes, ports):
        for port in its:
            scanner.scan(host.address, port)
    assert job.process.poll() is None, job.wait(1)
    nodes[2].path("/run/go").touch()
    try:
        with scanning(scanner, nodes):
            job.wait_for(" goes", count=3, timeout=20)
        result = job.wait(60)
    finally:
        job.signal(signal.SIGTERM)
        job.process.wait(20)
        nodes[2].path("/run/go").unlink()
    assert result.code == 0, result


if hosts.is_sanitized():
    del test_c5_ranks_that_wait_for_the_last_one  # a sanitizer wants to be the first library
