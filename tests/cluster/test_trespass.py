# SPDX-License-Identifier: Apache-2.0
"""I2 over TLS: another user's job, by every method and route that takes one. Sessions and the output that belongs to
them are of a user's own jobs: the same name is another job there (attacks/test_attacks_orders.py)."""
import json
import os
import re

import pytest

import hosts
from callers import message
from test_identity import UID, node  # noqa: F401 - a fixture
from test_tcp import PORT, Tcp

DTRAIN = hosts.bin_dir() / "dtrain"
TLS = "/root/work/tls"
HERE = hosts.SOURCE_DIR / "tests/cluster"
PERMISSION_DENIED, NOT_FOUND = "7", "5"
NOBODY = 65534


@pytest.fixture
def tcp(node, tmp_path):  # noqa: F811
    """Mallory has an account here, of the name nobody."""
    made = Tcp(node, tmp_path)
    node.path("/root/work/map").write_text("mallory = nobody\n")
    made.agent.flags += ["--account-map", "/root/work/map"]
    made.authority.user("mallory")
    made.agent.start()
    yield made
    made.agent.stop()


@pytest.fixture
def job(tcp):
    """One of alice's. From here on the head is mallory's."""
    launch = tcp.node.cluster.start_launch(
        [*tcp.flags("--grace", "1s", "--bind", "none"), "sh", "-c",
         "i=0; until [ -e /run/go ]; do echo line $i; i=$((i + 1)); sleep 0.05; done; echo last $i"])
    launch.wait_for("line 3\n", count=2)
    view = json.loads(tcp.node.cluster.head.run([DTRAIN, "ps", "--json"]).stdout)["jobs"][0]
    tcp.become("user:mallory")
    yield view["id"]
    tcp.node.path("/run/go").touch()
    result = launch.wait(40)
    tcp.node.path("/run/go").unlink()
    assert result.code == 0 and result.out.count("last") == 2, result


def methods_of_jobs(job):
    """All of the protocol's methods but NodeStatus, each about alice's job."""
    name = job.encode()
    protocol = int(re.search(r"kProtocolVersion = (\d+)", (
        hosts.SOURCE_DIR / "common/rpc/channel.h").read_text()).group(1))
    hello = {"f1": protocol, "f2": b"any", "f3": name, "f5": bytes(16), "f6": 15000}
    calls = [("ReadLog", message(f1=name, f4=1, f6=100)), ("StopJob", message(f1=name)), ("Logs", message(f1=name)),
             ("Session", message(f1=message(**hello, f9=1)))]
    declared = re.findall(r"^  rpc (\w+)\(", (
        hosts.SOURCE_DIR / "proto/dtrain/v1/agent.proto").read_text(), re.M)
    assert {name for name, _ in calls} == set(declared) - {"NodeStatus"}
    return [f"/dtrain.v1.Agent/{name}={data.hex()}" for name, data in calls]


def denied(tcp, method, job):
    return [line for line in tcp.agent.log.splitlines()
            if 'audit: denied who="user:mallory"' in line and f'method="{method}"' in line
            and f'job="{job}" owner="alice"' in line]


def test_i2_no_method_is_for_another_users_job(tcp, job):
    result = tcp.launch("id", "-u", flags=("--bind", "none"))
    assert result.code == 0 and result.lines == [str(NOBODY)] * 2, "she may launch, at least"
    calls = methods_of_jobs(job)
    told = tcp.node.cluster.head.run(
        ["/usr/bin/python3", "-B", HERE / "callers.py", tcp.node.address, PORT, TLS, *calls],
        timeout=120)
    assert told.stdout.split() == [PERMISSION_DENIED] * 2 + [NOT_FOUND] * 2, told
    for name in ("ReadLog", "StopJob"):
        assert len(denied(tcp, f"/dtrain.v1.Agent/{name}", job)) == 1, tcp.agent.log
    # Nothing was made in its name either.
    assert len([name for name in tcp.agent.jobs() if job in name]) == 1, tcp.agent.jobs()
    for name in tcp.agent.cgroups():
        assert job not in name or os.stat(tcp.node.cgroup_dir / name).st_uid == UID


def test_i2_no_route_is_for_another_users_job(tcp, job):
    routes = [f"/v1/jobs/{job}", f"/v1/jobs/{job}/ranks", f"/v1/jobs/{job}/ranks/0",
              f"/v1/jobs/{job}/ranks/0/log"]
    told = tcp.node.cluster.head.run(
        ["/usr/bin/python3", "-B", HERE / "strangers.py", tcp.node.address, PORT, f"{TLS}/ca.crt",
         f"{TLS}/user.crt", f"{TLS}/user.key", "any", *(f"GET {route}" for route in routes)])
    answers = told.stdout.split("\n")[:-1]
    assert len(answers) == len(routes)
    assert all(answer.startswith("b'HTTP/1.1 403 ") for answer in answers), told
    assert tcp.agent.log.count('audit: denied who="user:mallory"') == len(routes), tcp.agent.log


def test_i2_no_command_is_for_another_users_job(tcp, job):
    # From the node: on the head the launcher itself would answer, who takes root for alice.
    tcp.authority.bundle("user:mallory", tcp.node.path("/root/work/mallory"))
    flags = ["--agent", "tcp", "--tls-dir", "/root/work/mallory", "-H", tcp.node.address]
    commands = [["logs", job], ["logs", job, "--rank", "7"], ["stop", job]]
    for words in commands:
        told = tcp.node.run([DTRAIN, *words, *flags], check=False)
        assert told.returncode == 206 and "may not" in told.stderr and "line" not in told.stdout, told
    assert len(denied(tcp, "/dtrain.v1.Agent/ReadLog", job)) == 1, "one a minute: " + tcp.agent.log
    assert len(denied(tcp, "/dtrain.v1.Agent/StopJob", job)) == 1, tcp.agent.log
