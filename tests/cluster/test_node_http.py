# SPDX-License-Identifier: Apache-2.0
"""HTTP on a resident agent: the same routes as a launcher's, authorised by the agent's own rules."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import jsonschema
import pytest

import hosts
import launching
import leftovers
import residents
from launching import wait_until
from test_identity import as_alice, node  # noqa: F401 - a fixture
from test_nodes import GPUS, LIVE
from test_status import OnUnixSocket, ask, open_metrics, spec
from test_tcp import PORT, tcp  # noqa: F401 - a fixture

SOCKET = "/run/dtrain-agent/http.sock"
# As root or alice, from inside the host: prints the status, then the body.
ASK = """
import http.client, socket, sys
class Local(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/dtrain-agent/http.sock")
connection = Local("localhost", timeout=20)
connection.request("GET", sys.argv[1])
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


@pytest.fixture
def agent(cluster):
    made = residents.Resident(cluster.nodes[0]).start()
    yield made
    made.stop()


@pytest.fixture
def job(cluster, agent):
    launch = cluster.start_launch(["--grace", "1s", "-H", "node0:2", "--", *LIVE])
    launch.wait_for("up", count=2)
    launch.wait_for("trouble", count=2, stream="err")  # the tests read what was written, and how much
    connection = connect(agent)
    yield json.loads(ask(connection, "/v1/jobs")[2])["jobs"][0]["id"]
    if launch.process.poll() is None:
        launch.signal(signal.SIGTERM)
        launch.wait(20)


def connect(agent):
    return OnUnixSocket(agent.host.path(SOCKET))


def check_against_spec(connection, job, api):
    asked = 0
    for path, item in api["paths"].items():
        if item["get"].get("x-only", "agent") != "agent":
            continue
        status, headers, body = ask(connection, path.replace("{id}", job).replace("{rank}", "1"))
        kind = next(iter(item["get"]["responses"]["200"]["content"]))
        assert status == 200 and headers["Content-Type"].startswith(kind), (path, status, body)
        schema = item["get"]["responses"]["200"]["content"][kind].get("schema")
        if schema:
            jsonschema.validate(json.loads(body), {**schema, "components": api["components"]})
            asked += 1
    return asked


def test_answers_are_as_the_api_says(agent, job):
    connection = connect(agent)
    api = spec()
    assert check_against_spec(connection, job, api) == 7
    view = json.loads(ask(connection, f"/v1/jobs/{job}")[2])
    assert view["owner"] == "root" and view["ranks"]["running"] == 2, view
    assert ask(connection, f"/v1/jobs/{job}/ranks/1/log")[2] == b"up 1\n"
    assert ask(connection, f"/v1/jobs/{job}/ranks/1/log?stream=stderr")[2] == b"trouble 1\n"
    assert ask(connection, f"/v1/jobs/{job}/ranks/1/log?offset=3&limit=1")[2] == b"1"
    metrics = ask(connection, "/metrics")[2].decode()
    assert f'dtrain_node_job_state{{host="node0",job="{job}",owner="root",state="running"}} 1' in metrics
    checked = subprocess.run(["promtool", "check", "metrics"], input=metrics, text=True,
                             capture_output=True, check=False)
    assert checked.returncode == 0, (checked, metrics)
    told = open_metrics(connection)
    [state] = [sample for sample in told["dtrain_node_job_state"].samples
               if sample.labels["state"] == "running"]
    assert state.labels == {"host": "node0", "job": job, "owner": "root", "state": "running"}
    assert state.value == 1
    assert set(told) == {name.removesuffix("_total") for name in re.findall("^# TYPE ([^ ]+)", metrics, re.M)}


# kill -9: the socket is there again, and the job with it.
def test_the_next_agent_answers(agent, job):
    def ranks():
        return json.loads(ask(connect(agent), f"/v1/jobs/{job}/ranks")[2])

    # Shepherds report sizes once a second.
    wait_until(lambda: all(rank["log"]["stderr"]["end"] for rank in ranks()["ranks"]), 10, ranks)
    before = ranks()
    agent.kill()
    with pytest.raises(OSError):
        ask(connect(agent), "/healthz")
    agent.start()
    connection = connect(agent)
    assert json.loads(ask(connection, f"/v1/jobs/{job}/ranks")[2]) == before
    assert check_against_spec(connection, job, spec()) == 7


# I8, I11, I14, I16: more of it in component/http.
def test_what_is_not_there_is_refused(agent, job):
    connection = connect(agent)
    for path, expected in (("/v1/jobs/other", 404), ("/v1", 404), ("/v1/nodes/x", 404), ("/", 404),
                           (f"/v1/jobs/{job}/ranks/2", 404), (f"/v1/jobs/{job}/ranks/-1", 404),
                           (f"/v1/jobs/{job}/ranks/x/log", 404), (f"/v1/jobs/{job}/", 404),
                           (f"/v1/jobs/{job}/ranks/0/log?stream=both", 400),
                           (f"/v1/jobs/{job}/ranks/0/log?limit=x", 400),
                           ("/v1/jobs/%2e%2e", 400), ("/v1/jobs/../node", 400)):
        status, _, body = ask(connection, path)
        assert status == expected and json.loads(body)["error"], (path, status, body)
    for method, headers, expected in (("POST", {}, 405), ("DELETE", {}, 405),
                                      ("GET", {"Origin": "http://evil.example"}, 403),
                                      ("GET", {"Content-Length": "10"}, 413)):
        other = connect(agent)
        other.request(method, "/v1/jobs", headers=headers)
        assert other.getresponse().status == expected, (method, headers)


def test_output_is_followed_to_the_end(cluster, agent):
    launch = cluster.start_launch(
        ["--stdin", "0", "-H", "node0:1", "--tag-output", "none", "--", "sh", "-c",
         'echo first; read -r x; seq 20000; read -r x; printf "no newline"'], stdin=subprocess.PIPE)
    launch.wait_for("first")
    connection = connect(agent)
    job = json.loads(ask(connection, "/v1/jobs")[2])["jobs"][0]["id"]
    connection.request("GET", f"/v1/jobs/{job}/ranks/0/log?follow=true")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.readline() == b"first\n"
    launch.process.stdin.write(b"go\n")
    launch.process.stdin.flush()
    for number in range(1, 20001):
        assert answer.readline() == b"%d\n" % number
    launch.process.stdin.close()
    assert launch.wait(30).code == 0
    assert answer.read() in (b"no newline", b"")  # the job may be over first


# One user cannot take all the room.
def test_connections_of_one_user_are_bounded(agent):
    held = []
    for _ in range(32):
        held.append(connect(agent))
        assert ask(held[-1], "/healthz")[0] == 200
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(connect(agent), "/healthz")
    held.pop().close()
    wait_until(lambda: answers(agent), 20, "a place that was left is not given again")
    assert "too many HTTP connections" in agent.log


def answers(agent):
    try:
        return ask(connect(agent), "/healthz")[0] == 200
    except (http.client.HTTPException, OSError):
        return False


# I2 and I18: by the kernel's word.
def test_others_see_what_the_rules_say(node):  # noqa: F811
    agent = residents.Resident(node).start()
    launch = node.cluster.start_launch(["--grace", "1s", "-H", "node0:1", "--", *LIVE])
    launch.wait_for("up")
    job = json.loads(ask(connect(agent), "/v1/jobs")[2])["jobs"][0]["id"]

    def as_her(path):
        told = launching.Launch(node, ["/usr/bin/python3", "-I", "-c", ASK, path], cwd="/",
                                before_exec=as_alice).wait(30)
        status, _, body = told.out.partition(" ")
        return int(status), json.loads(body)

    status, listed = as_her("/v1/jobs")
    assert status == 200 and listed["jobs"][0]["owner"] == "root", listed
    assert not {"command", "ranks"} & set(listed["jobs"][0]), listed
    assert as_her("/v1/node")[0] == 200
    for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/ranks", f"/v1/jobs/{job}/ranks/0",
                 f"/v1/jobs/{job}/ranks/0/log", f"/v1/jobs/{job}/ranks/0/log?follow=true",
                 "/v1/jobs/nosuch"):
        status, body = as_her(path)
        assert status == 403 and "may not" in body["error"], (path, status, body)
    # A line for each route, however often she asks.
    assert agent.log.count("audit: denied") == 4, agent.log
    launch.signal(signal.SIGTERM)
    assert launch.wait(20).code == 143
    agent.stop()


# I15, I23: more of it in test_faults_i.py.
def test_the_token_of_a_loopback_port(cluster):
    agent = residents.Resident(cluster.nodes[0], flags=["--status-listen", "8123"]).start()
    token_file = agent.host.path("/run/dtrain-agent/http.token")
    first = token_file.read_text().strip()
    assert os.stat(token_file).st_mode & 0o777 == 0o600 and len(first) == 64

    def status(path, header):
        told = cluster.nodes[0].run(["python3", "-c", f"""
import http.client
connection = http.client.HTTPConnection("127.0.0.1", 8123, timeout=20)
name, _, value = {header!r}.partition(": ")
connection.request("GET", {path!r}, headers={{name: value}})
print(connection.getresponse().status)
"""])
        return told.stdout.strip()

    good = f"Authorization: Bearer {first}"
    assert status("/v1/node", good) == "200"
    assert status("/v1/node", "X: y") == "401"
    assert status("/v1/node", "Authorization: Bearer " + "0" * 64) == "401"
    assert status("/healthz", "X: y") == "200"
    assert status("/v1/node", "Host: evil.example") == "403"
    # O5, B14: beside a job, it stands in that file alone.
    launch = cluster.start_launch(["--grace", "1s", "-H", "node0:1", "--", *LIVE])
    launch.wait_for("up")
    assert not leftovers.secret_places(cluster, first)
    assert first not in agent.log
    launch.signal(signal.SIGTERM)
    result = launch.wait(20)
    assert result.code == 143 and first not in result.out + result.err
    agent.kill()
    agent.start()
    second = token_file.read_text().strip()
    assert second != first and second not in agent.log
    assert status("/v1/node", good) == "401"
    agent.stop()


def test_a_bad_status_listen_is_refused(cluster):
    for value in ("0.0.0.0:8123", "x", "70000"):
        told = cluster.nodes[0].run([hosts.bin_dir() / "dtrain-agent", "serve", "--status-listen",
                                     value], check=False)
        assert told.returncode == 2 and "--status-listen" in told.stderr, told
    shutil.rmtree(cluster.nodes[0].path(residents.STATE))


def test_elsewhere_only_with_a_certificate(tcp):  # noqa: F811
    launch = tcp.node.cluster.start_launch([*tcp.flags("--grace", "1s"), *LIVE])
    launch.wait_for("up", count=2)
    job = json.loads(ask(connect(tcp.agent), "/v1/jobs")[2])["jobs"][0]["id"]

    def curl(path, *flags):
        told = tcp.node.cluster.head.run(
            ["curl", "-sS", "--http1.1", "--max-time", "20", "-w", "\n%{http_code}", "--cacert",
             "/root/work/tls/ca.crt", *flags, f"https://{tcp.node.address}:{PORT}{path}"],
            check=False)
        body, _, status = told.stdout.rpartition("\n")
        return told.returncode, status, body

    mine = ["--cert", "/root/work/tls/user.crt", "--key", "/root/work/tls/user.key"]
    assert curl(f"/v1/jobs/{job}/ranks/0/log", *mine) == (0, "200", "up 0\n")
    assert json.loads(curl("/v1/node", *mine)[2])["jobs"][0]["owner"] == "alice"
    # I15: by the names that its certificate has, and the address at which it was found.
    for host in ("node0", "NODE0:9797", tcp.node.address, "localhost:1"):
        assert curl("/v1/node", *mine, "-H", f"Host: {host}")[1] == "200", host
    for host in ("evil.example", "node0.evil.example", "10.0.0.1", "node7"):
        assert curl("/v1/node", *mine, "-H", f"Host: {host}")[1] == "403", host
        assert curl("/healthz", *mine, "-H", f"Host: {host}")[1] == "403", host
    assert curl("/v1/node")[0] != 0, "without a certificate nothing is answered"
    tcp.authority.user("eve", "--observer")
    tcp.become("user:eve")
    assert curl(f"/v1/jobs/{job}", *mine)[1] == "200"
    assert curl("/metrics", *mine)[1] == "200"
    assert curl(f"/v1/jobs/{job}/ranks/0/log", *mine)[1] == "403"
    launch.signal(signal.SIGTERM)
    assert launch.wait(20).code == 143


# However many ask, the driver is opened once a second.
def test_a_thousand_questions_do_not_open_nvml_a_thousand_times(make_cluster):
    cluster = make_cluster(1)
    work = cluster.work(cluster.nodes[0])
    (work / "nvml").write_text(GPUS)
    library = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
    agent = residents.Resident(cluster.nodes[0], env={
        "FAKE_NVML": "/root/work/nvml", "DTRAIN_NVML_LIBRARY": str(library)}).start()
    connection = connect(agent)
    began = time.monotonic()
    before = (work / "reads").stat().st_size if (work / "reads").exists() else 0
    for _ in range(1000):
        assert len(json.loads(ask(connection, "/v1/node")[2])["gpus"]) == 2
    looks = (work / "reads").stat().st_size - before
    assert looks <= time.monotonic() - began + 2, looks
    agent.stop()
