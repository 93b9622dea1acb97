# SPDX-License-Identifier: Apache-2.0
"""Who means no good at HTTP (I9, I10, I11), at each of its doors: a launcher's unix socket, and an agent's
unix socket, loopback port and TLS port. More of I11 in component/http; of who has a certificate and speaks
gRPC in test_abuse.py; of a thousand readers at an agent in test_faults_i.py."""
import contextlib
import json
import re
import signal
import socket
import ssl
import subprocess
import time

import pytest

import hosts
import launching
import residents
from launching import wait_until
from test_faults_i import hung_up
from test_identity import as_alice, node  # noqa: F401 - a fixture
from test_node_http import SOCKET
from test_status import LIVE, OnUnixSocket, ask
from test_tcp import PORT, tcp  # noqa: F401 - a fixture

REQUEST_LIMIT, ANSWER_LIMIT = 10, 30  # seconds that a request's header, and a piece of an answer, may take
SLACK = 5  # of a busy machine
TLS = "/root/work/tls"


class Door:
    """Where HTTP is answered, and how one gets there: `connect()` makes a connection."""

    def __init__(self, connect, headers=""):
        self.connect = connect
        self.headers = headers

    def request(self, path="/v1/jobs"):
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{self.headers}\r\n".encode()

    def ask(self, path="/v1/jobs"):
        """How long a good question takes; its answer is 200."""
        begin = time.monotonic()
        with self.connect() as connection:
            connection.sendall(self.request(path))
            assert connection.recv(12) == b"HTTP/1.1 200"
            return time.monotonic() - begin

    def statuses(self, data):
        """Of all answers to these bytes, until the connection is closed."""
        with self.connect() as connection:
            said = b""
            try:
                connection.sendall(data)
                while piece := connection.recv(1 << 16):
                    said += piece
            except (ConnectionError, ssl.SSLError):  # closed with what it has not read
                pass
        return re.findall(rb"HTTP/1\.1 (\d+)", said)


def on_unix(path):
    def connect():
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(str(path))
        return connection
    return connect


def on_loopback(host, port):
    def connect():
        connection = hosts.socket_in_namespace(host.namespace("net"))
        connection.settimeout(20)
        connection.connect(("127.0.0.1", port))
        return connection
    return connect


def over_tls(head, address):
    folder = head.path(TLS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder / "ca.crt")
    context.load_cert_chain(folder / "user.crt", folder / "user.key")
    context.set_alpn_protocols(["http/1.1"])

    def connect():
        plain = hosts.socket_in_namespace(head.namespace("net"))
        plain.settimeout(20)
        plain.connect((address, PORT))
        return context.wrap_socket(plain, server_hostname=address)
    return connect


@pytest.fixture
def job(cluster):
    """One that runs, and its launcher's door."""
    launch = cluster.start_launch(["--grace", "1s", "-H", "node0:1", "--", *LIVE])
    launch.wait_for("up")
    [path] = cluster.head.path("/run/dtrain").glob("*.sock")
    yield Door(on_unix(path))
    assert launch.process.poll() is None, launch.wait(1)
    launch.signal(signal.SIGTERM)
    assert launch.wait(20).code == 143


@pytest.fixture
def agent(cluster):
    made = residents.Resident(cluster.nodes[0], flags=["--status-listen", "8123"]).start()
    yield made
    made.stop()


def loopback_door(agent):
    token = agent.host.path(f"{residents.STATE}/http.token").read_text().strip()
    return Door(on_loopback(agent.host, 8123), f"Authorization: Bearer {token}\r\n")


@pytest.fixture(params=["launcher", "agent", "loopback", "TLS"])
def door(request):
    if request.param == "launcher":
        return request.getfixturevalue("job")
    if request.param == "TLS":
        made = request.getfixturevalue("tcp")
        return Door(over_tls(made.node.cluster.head, made.node.address))
    made = request.getfixturevalue("agent")
    return loopback_door(made) if request.param == "loopback" else Door(on_unix(made.host.path(SOCKET)))


NOT_HTTP = {
    "no CR": b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
    "no LF": b"GET /healthz HTTP/1.1\rHost: localhost\r\r",
    "NUL in a header's name": b"GET /healthz HTTP/1.1\r\nHo\0st: localhost\r\n\r\n",
    "NUL in a header's value": b"GET /healthz HTTP/1.1\r\nHost: local\0host\r\n\r\n",
    "NUL in the path": b"GET /heal\0thz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a negative length": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "a length beyond 64 bits": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (1 << 64),
    "a length that is no number": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x5\r\n\r\n",
    "a header without a colon": b"GET /healthz HTTP/1.1\r\nHost localhost\r\n\r\n",
    "bytes": bytes(range(256)) * 4 + b"\r\n\r\n",
}


# I11: refused, and no byte behind it is taken for another request.
@pytest.mark.parametrize("what", NOT_HTTP)
def test_i11_what_is_no_http_is_answered_with_400_and_closed(door, what):
    good = door.request("/healthz")
    assert door.statuses(NOT_HTTP[what] + good) == [b"400"]
    assert door.ask() >= 0


# I11: after a request that was answered, on the same connection.
@pytest.mark.parametrize("between", [b"\0", bytes(range(128, 256)), b"\x16\x03\x01\x02\x00" + bytes(200)],
                         ids=["NUL", "high", "TLS"])
def test_i11_binary_between_pipelined_requests(door, between):
    good = door.request("/healthz")
    assert door.statuses(good + good + between + good + good) == [b"200", b"200", b"400"]
    assert door.ask() >= 0


# Drips a byte a second on so many connections, and tells how they ended: at once, and after how long.
SLOW = """
import json, resource, socket, sys, time
where, count = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held, at_once, longest = [], 0, 0.0
begin = time.monotonic()
for _ in range(count):
    each = socket.socket(socket.AF_UNIX if where[0] == "/" else socket.AF_INET)
    try:
        each.connect(where if where[0] == "/" else ("127.0.0.1", int(where)))
        each.sendall(b"G")
        each.setblocking(False)
        held.append(each)
    except OSError:
        at_once += 1
print("held", flush=True)
line = iter(b"ET /v1/node HTTP/1.1\\r\\nX: " + 100 * b"x")
while held and time.monotonic() - begin < 60:
    time.sleep(1)  # how slow it is
    byte = bytes([next(line)])
    for each in list(held):
        try:
            over = not each.recv(100)
        except BlockingIOError:
            over = False
        except OSError:
            over = True
        try:
            each.send(byte)
        except OSError:
            over = True
        if over:
            held.remove(each)
            lived = time.monotonic() - begin
            if lived < 5:
                at_once += 1
            longest = max(longest, lived)
print(json.dumps({"at once": at_once, "longest": longest, "open": len(held)}))
"""


def slow(host, where, count, **options):
    """A process there that holds its connections already."""
    process = host.popen(["/usr/bin/python3", "-I", "-c", SLOW, where, str(count)], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    assert process.stdout.readline() == "held\n", process.communicate(timeout=20)
    return process


def check_slow(process, others):
    """Asks all the while, as often as a user may, and looks at how both fared."""
    took = []
    while process.returncode is None:
        took.append(others.ask())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    out, err = process.communicate(timeout=20)
    told = json.loads(out or "null")
    assert told and told["open"] == 0, (told, err)
    assert told["longest"] < REQUEST_LIMIT + SLACK, told
    # The row's bound for the median, and ten times of it for 99 %: this machine has other work, too.
    took.sort()
    assert len(took) > 100 and took[len(took) // 2] < 0.1 and took[len(took) * 99 // 100] < 1, took[-5:]
    return told


# I9: of a thousand slow connections of one user those beyond his share are closed at once, and the others
# when their time is over. Other users are answered meanwhile.
def test_i9_slow_requests_of_another_user(node):  # noqa: F811
    agent = residents.Resident(node).start()
    told = check_slow(slow(node, SOCKET, 1000, before_exec=as_alice, cwd="/"),
                      Door(on_unix(node.path(SOCKET))))
    assert told["at once"] >= 1000 - 32, told
    assert "too many HTTP connections" in agent.log, agent.log
    agent.stop()


# I9: strangers without the token. The port has room for 128 connections in all.
def test_i9_slow_requests_at_the_loopback_port(agent):
    check_slow(slow(agent.host, "8123", 100), loopback_door(agent))


# I9: our own user's, as no other is let in: those beyond the room are closed at once, and then there is room.
def test_i9_slow_requests_at_a_launcher(cluster, job):
    [path] = cluster.head.path("/run/dtrain").glob("*.sock")
    told = check_slow(slow(cluster.head, f"/run/dtrain/{path.name}", 100), job)
    assert told["at once"] == 0, told
    process = slow(cluster.head, f"/run/dtrain/{path.name}", 1000)
    out, err = process.communicate(timeout=60)
    told = json.loads(out)
    assert told["open"] == 0 and told["at once"] >= 1000 - 128, (told, err)
    assert told["longest"] < REQUEST_LIMIT + SLACK, told
    assert job.ask() >= 0


WRITTEN = 8_000_000


# I10: a launcher's reader who pauses is told how much it has missed; the worker does not wait for it.
def test_i10_a_reader_of_a_launcher_who_pauses(cluster):
    launch = cluster.start_launch(
        ["-H", "node0:1", "--tag-output", "none", "--", "sh", "-c",
         f"echo first; until [ -e /run/go ]; do sleep 0.05; done; head -c {WRITTEN} /dev/zero | tr '\\0' x; "
         "echo; echo written; until [ -e /run/end ]; do sleep 0.05; done; echo end"])
    launch.wait_for("first\n")
    [path] = cluster.head.path("/run/dtrain").glob("*.sock")
    pauses = OnUnixSocket(path)
    pauses.request("GET", f"/v1/jobs/{path.stem}/ranks/0/log?follow=true")
    answer = pauses.getresponse()
    assert answer.status == 200 and answer.readline() == b"first\n"
    go, end = (cluster.nodes[0].path(f"/run/{name}") for name in ("go", "end"))
    try:
        go.touch()
        launch.wait_for("written\n", timeout=ANSWER_LIMIT - SLACK)
        rank = json.loads(ask(OnUnixSocket(path), f"/v1/jobs/{path.stem}/ranks/0")[2])
        assert rank["log"]["stdout"]["end"] == len("first\n") + WRITTEN + len("\nwritten\n"), rank
        said = b""
        while not said.endswith(b"written\n"):
            said += answer.readline()
        end.touch()
        said += answer.read()
        result = launch.wait(20)
    finally:
        for path in (go, end):
            path.unlink(missing_ok=True)
    notice = rb"\n\[dtrain: (\d+) bytes are no longer available\]\n"
    missed = sum(map(int, re.findall(notice, said)))
    kept = len(re.sub(notice, b"", said))
    assert missed > 0 and missed + kept == WRITTEN + len("\nwritten\nend\n"), (missed, kept)
    assert result.code == 0 and len(result.out) == len("first\n") + WRITTEN + len("\nwritten\nend\n")


# I10: one who never reads is disconnected, as long as the job goes on; others still follow it.
def test_i10_a_reader_of_a_launcher_who_never_reads_is_cut(cluster):
    launch = cluster.start_launch(
        ["--grace", "1s", "-H", "node0:1", "--tag-output", "none", "--", "sh", "-c",
         "echo first; until [ -e /run/go ]; do seq 10000; sleep 0.05; done; echo end"],
        stdout=subprocess.DEVNULL)
    head = cluster.head
    wait_until(lambda: list(head.path("/run/dtrain").glob("*.sock")), 20, "no launcher")
    [path] = head.path("/run/dtrain").glob("*.sock")
    question = f"/v1/jobs/{path.stem}/ranks/0/log?follow=true"
    wait_until(lambda: json.loads(ask(OnUnixSocket(path), "/v1/jobs")[2])["jobs"][0]["ranks"]["running"] == 1,
               20, "it does not run")
    with on_unix(path)() as never:
        never.sendall(Door(None).request(question))
        begin = time.monotonic()
        wait_until(lambda: hung_up(never), ANSWER_LIMIT + 2 * SLACK, "it may stay")
        assert time.monotonic() - begin > ANSWER_LIMIT / 2, "it was not the time that ended it"
    follower = launching.Launch(head, [hosts.bin_dir() / "dtrain", "logs", "-f"])
    follower.wait_for("\n10000\n")
    cluster.nodes[0].path("/run/go").touch()
    assert launch.wait(30).code == 0
    cluster.nodes[0].path("/run/go").unlink()
    assert follower.wait(20).out.endswith("end\n")
