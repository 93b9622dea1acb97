# SPDX-License-Identifier: Apache-2.0
"""`dtrain ps`, `status`, `logs`, `stop` and the HTTP API of a running job."""
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess

import jsonschema
import pytest
from prometheus_client.openmetrics import parser

import hosts
import leftovers
from launching import wait_until

DTRAIN = hosts.bin_dir() / "dtrain"
LIVE = ["sh", "-c", 'echo "up $PMI_RANK"; exec sleep 600']


def dtrain(cluster, *args, **options):
    return cluster.head.run([DTRAIN, *args], check=False, **options)


@pytest.fixture
def job(cluster):
    launch = cluster.start_launch(["--grace", "1s", *cluster.hosts_flag(1), "--", *LIVE])
    launch.wait_for("up", count=4)
    yield launch
    launch.signal(signal.SIGTERM)
    launch.wait(20)


def running(cluster):
    """The view of the only job, once its ranks are told to run."""
    def look():
        jobs = json.loads(dtrain(cluster, "ps", "--json").stdout)["jobs"]
        return jobs and jobs[0]["ranks"]["running"] == 4 and jobs[0]
    return wait_until(look, 20, "the job is not told to run")


def test_ps_and_status_tell_what_runs_where(cluster, job):
    view = running(cluster)
    listed = dtrain(cluster, "ps").stdout.splitlines()
    assert listed[0].split() == ["JOB", "PHASE", "RANKS", "NODES", "AGE", "COMMAND"], listed
    assert listed[1].startswith(f"{view['id']}  run    4 running  4 "), listed
    page = dtrain(cluster, "status").stdout
    for rank in range(4):
        assert re.search(rf"^{rank} +node{rank} +\d+ +running", page, re.M), page
    everything = json.loads(dtrain(cluster, "status", "--json", view["id"]).stdout)
    assert [rank["pid"] > 0 for rank in everything["ranks"]] == [True] * 4, everything
    assert [node["host"] for node in everything["nodes"]] == [f"node{n}" for n in range(4)]
    assert view["command"][0] == "sh" and view["launcher_pid"] > 0, view


def test_logs_are_told_and_followed_to_the_end(cluster):
    script = 'echo "first" >&2; echo "up"; read -r x; seq 200000; echo "last" >&2; printf "no newline"'
    launch = cluster.start_launch(["--stdin", "1", *cluster.hosts_flag(1), "--", "sh", "-c", script],
                                  stdin=subprocess.PIPE)
    launch.wait_for("up", count=4)
    assert dtrain(cluster, "logs", "--rank", "1").stdout == "up\n"
    in_json = dtrain(cluster, "logs", "--rank", "1", "--json").stdout.splitlines()
    assert sorted((json.loads(line) for line in in_json), key=lambda each: each["stream"]) == [
        {"rank": 1, "stream": "stderr", "line": "first"}, {"rank": 1, "stream": "stdout", "line": "up"}]
    follower = hosts.launching.Launch(cluster.head, [DTRAIN, "logs", "-f", "--rank=1"])
    errors = hosts.launching.Launch(
        cluster.head, [DTRAIN, "logs", "-f", "--rank=1", "--stream=stderr"])
    follower.wait_for("up")
    errors.wait_for("first")
    launch.process.stdin.write(b"go\n")
    launch.process.stdin.close()
    assert launch.wait(60).code == 0
    told = follower.wait(20)
    assert told.code == 0, told
    # All of it, or, had the follower been too slow, a line that says how much is missing.
    expected = "up\n" + "".join(f"{n}\n" for n in range(1, 200001)) + "no newline"
    assert told.out == expected or "bytes are no longer available]" in told.out, told
    assert told.out.endswith("200000\nno newline"), told
    assert errors.wait(20).out == "first\nlast\n"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_stop_ends_the_job_and_waits_for_it(cluster, flags):
    launch = cluster.start_launch(["--grace", "1s", *cluster.hosts_flag(1), "--", *LIVE])
    launch.wait_for("up", count=4)
    job = running(cluster)["id"]
    stopped = dtrain(cluster, "stop", *flags, job[:11], timeout=30)
    assert stopped.returncode == 0, stopped
    if flags:
        assert json.loads(stopped.stdout) == {"id": job, "ended": True} and not stopped.stderr
    else:
        assert f"{job} has ended" in stopped.stderr, stopped
    assert launch.wait(5).code == 143
    leftovers.wait_for_no_processes(cluster, 3)
    assert dtrain(cluster, "ps").stdout == "no jobs\n"


def test_who_has_stopped_it_is_told(cluster):
    launch = cluster.start_launch(["--grace", "1s", "-np", "1", "--", *LIVE])
    launch.wait_for("up")
    wait_until(lambda: json.loads(dtrain(cluster, "ps", "--json").stdout)["jobs"], 20, "the job")
    assert dtrain(cluster, "stop", timeout=30).returncode == 0
    result = launch.wait(5)
    assert "\ndtrain: stopped by dtrain stop (root, head)\n" in "\n" + result.err, result


# Rank 1 hangs in what runs at its exit; the second and third host have no rank.
def test_status_tells_of_a_rank_that_hangs_after_its_traceback(cluster):
    hangs = ("import atexit, os, sys, time\nprint('up', flush=True)\natexit.register(lambda: time.sleep(600))\n"
             "if os.environ['RANK'] == '0': time.sleep(600)\nraise ValueError('it')")
    launch = cluster.start_launch(["-np", "2", "--grace", "1s", *cluster.hosts_flag(1), "--", "/usr/bin/python3",
                                   "-c", hangs])
    launch.wait_for("ValueError: it", stream="err")
    page = wait_until(lambda: (said := dtrain(cluster, "status").stdout) and "not exited" in said and said, 20,
                      "the rank's traceback in its status")
    assert re.search(r"^0 +node0 +\d+ +running", page, re.M), page
    assert re.search(r"^1 +node1 +\d+ +traceback \d+ s ago, not exited", page, re.M), page
    assert re.search(r"^node1 +joined ", page, re.M) and re.search(r"^node2 +not used ", page, re.M), page
    launch.signal(signal.SIGTERM)
    launch.wait(20)


def test_mistakes_are_told(cluster, job):
    for args, text in ((["status", "nosuch"], "have no job nosuch on this machine"),
                       (["logs", "--rank", "4"], "the job has no such rank"),
                       (["stop", "nosuch"], "have no job nosuch")):
        told = dtrain(cluster, *args)
        assert told.returncode == 1 and text in told.stderr, told
    assert dtrain(cluster, "logs", "--rank", "x").returncode == 2
    second = cluster.start_launch(["-np", "-1", "--grace", "1s", "--", *LIVE])
    second.wait_for("up")
    told = dtrain(cluster, "status")
    assert told.returncode == 2 and "several jobs are running; name one of them: dtrain-" in told.stderr, told
    second.signal(signal.SIGTERM)
    second.wait(20)


def test_a_stopped_launcher_is_told_apart_from_none(cluster, job):
    view = running(cluster)
    job.signal(signal.SIGSTOP)
    try:
        assert dtrain(cluster, "ps").stdout == f"{view['id']} does not answer\n"
        assert json.loads(dtrain(cluster, "ps", "--json").stdout)["not_answering"] == [view["id"]]
        told = dtrain(cluster, "status")
        assert told.returncode == 1 and "timed out" in told.stderr, told
    finally:
        job.signal(signal.SIGCONT)
    assert running(cluster)["id"] == view["id"]


# A launcher that was killed cannot remove its socket; nobody is misled by it.
def test_a_dead_launchers_socket_is_removed(cluster):
    launch = cluster.start_launch(["-np", "-1", "--grace", "1s", "--", *LIVE])
    launch.wait_for("up")
    folder = cluster.head.path("/run/dtrain")
    assert len(os.listdir(folder)) == 1
    launch.kill()
    leftovers.wait_for_no_processes(cluster, 10)
    assert len(os.listdir(folder)) == 1
    assert dtrain(cluster, "ps").stdout == "no jobs\n"
    assert os.listdir(folder) == []


class OnUnixSocket(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Waits where too many wait to be accepted; a socket with a time-out does not.
        limit = struct.pack("@ll", self.timeout, 0)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.sock.connect(self._path)
        self.sock.settimeout(self.timeout)


def open_metrics(connection):
    """The families of /metrics in the OpenMetrics form, by name, as a parser of it reads them."""
    _, headers, body = ask(connection, "/metrics", Accept="application/openmetrics-text")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0"), headers
    families = list(parser.text_string_to_metric_families(body.decode()))
    told = {family.name: family for family in families}
    assert len(told) == len(families), "a family that comes twice"
    return told


def ask(connection, path, **headers):
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_http_on_the_unix_socket(cluster, job):
    view = running(cluster)
    with_socket = OnUnixSocket(cluster.head.path(f"/run/dtrain/{view['id']}.sock"))
    for path in ("/healthz", "/v1/jobs", f"/v1/jobs/{view['id']}", "/v1/nodes",
                 f"/v1/jobs/{view['id']}/ranks", f"/v1/jobs/{view['id']}/ranks/3"):
        status, headers, body = ask(with_socket, path)
        assert status == 200 and headers["Content-Type"] == "application/json", (path, status)
        json.loads(body)
    status, _, body = ask(with_socket, f"/v1/jobs/{view['id']}/ranks/3/log?offset=3&limit=2")
    assert (status, body) == (200, b"3\n")
    for path, expected in (("/v1/jobs/other", 404), ("/v1", 404), ("/v1/nodes/x", 404),
                           (f"/v1/jobs/{view['id']}/ranks/4", 404),
                           (f"/v1/jobs/{view['id']}/ranks/0/log?stream=both", 400),
                           (f"/v1/jobs/{view['id']}/ranks/0/log?offset=-1", 400),
                           ("/v1/jobs/%2e%2e", 400)):
        status, _, body = ask(with_socket, path)
        assert status == expected and json.loads(body)["error"], (path, status, body)


def spec():
    text = (hosts.SOURCE_DIR / "docs/api.md").read_text()
    return json.loads(text.partition("```json\n")[2].partition("\n```")[0])


# The description in docs/api.md is true of every path, for a job with ranks of all kinds.
def test_answers_are_as_the_api_says(cluster):
    loop = hosts.bin_dir() / "loop-allreduce"
    launch = cluster.start_launch(["--grace", "1s", "--exit-timeout", "0", *cluster.hosts_flag(1), "--",
                                   "sh", "-c", f'echo "up $PMI_RANK"; exec {loop}'])
    launch.wait_for("up", count=4)
    job = running(cluster)["id"]
    connection = OnUnixSocket(cluster.head.path(f"/run/dtrain/{job}.sock"))
    wait_until(lambda: b'"operations"' in ask(connection, f"/v1/jobs/{job}/ranks")[2], 20,
               "no collective is told")
    api = spec()
    asked = 0
    for path, item in api["paths"].items():
        if item["get"].get("x-only", "launcher") != "launcher":
            continue
        status, headers, body = ask(connection, path.replace("{id}", job).replace("{rank}", "1"))
        kind = next(iter(item["get"]["responses"]["200"]["content"]))
        assert status == 200 and headers["Content-Type"].startswith(kind), (path, status)
        schema = item["get"]["responses"]["200"]["content"][kind].get("schema")
        if schema:
            jsonschema.validate(json.loads(body), {**schema, "components": api["components"]})
            asked += 1
    assert asked == 10
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"rank": 1}, {"$ref": "#/components/schemas/Rank",
                                          "components": api["components"]})
    metrics = ask(connection, "/metrics")[2].decode()
    assert "dtrain_rank_collectives_total{" in metrics
    checked = subprocess.run(["promtool", "check", "metrics"], input=metrics, text=True,
                             capture_output=True, check=False)
    assert checked.returncode == 0, (checked, metrics)
    told = open_metrics(connection)
    counted = told["dtrain_rank_collectives"]
    assert counted.type == "counter" and counted.samples, told
    assert all(sample.name == "dtrain_rank_collectives_total" and sample.value > 0
               for sample in counted.samples), counted
    assert set(told) == {name.removesuffix("_total") for name in re.findall("^# TYPE ([^ ]+)", metrics, re.M)}
    launch.signal(signal.SIGTERM)
    assert launch.wait(20).code == 143


def test_http_on_loopback_needs_the_token(cluster):
    launch = cluster.start_launch(["-np", "-1", "--grace", "1s", "--status-listen", "0", "--", *LIVE])
    launch.wait_for("token in", stream="err")
    launch.wait_for("up")
    port, path, file = re.search(r"http://127.0.0.1:(\d+)(/\S+), token in (\S+)", launch.err).groups()
    token = cluster.head.path(file).read_text().strip()
    assert os.stat(cluster.head.path(file)).st_mode & 0o777 == 0o600 and len(token) == 64
    # From inside the host: its loopback is its own.
    for wanted, header in (("200", f"Authorization: Bearer {token}"), ("401", "X: y"),
                           ("401", "Authorization: Bearer " + "0" * 64)):
        told = cluster.head.run(["python3", "-c", f"""
import http.client
connection = http.client.HTTPConnection("127.0.0.1", {port}, timeout=20)
name, _, value = {header!r}.partition(": ")
connection.request("GET", {path!r}, headers={{name: value}})
print(connection.getresponse().status)
"""])
        assert told.stdout.strip() == wanted, (header, told)
    # B14: it stands in no command line and in no environment.
    for pid, _, line in leftovers.processes(cluster.head):
        assert token not in line and token.encode() not in leftovers.environment_of(pid)
    launch.signal(signal.SIGTERM)
    assert launch.wait(20).code == 143
    assert not cluster.head.path(file).exists()


def test_a_bad_status_listen_is_refused(cluster):
    for value, text in (("0.0.0.0:8080", "is not a loopback address"), ("x", "write it as PORT"),
                        ("70000", "write it as PORT")):
        result = cluster.launch(["-np", "-1", "--status-listen", value, "--", "echo", "never"])
        assert result.code == 2 and f"--status-listen: " in result.err and text in result.err, result
        assert "never" not in result.out
