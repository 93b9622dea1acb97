# SPDX-License-Identifier: Apache-2.0
"""PyTorch's store, served by dtrain (--agent-store): with real PyTorch 1.13, and with ranks that speak
as a current one does."""
import importlib.util
import os
import re
import struct
import subprocess

import pytest

import hosts
import residents

PYTHON = "/usr/bin/python3"
RANK = [PYTHON, "-S", hosts.HERE / "programs/torch_store.py"]
TORCH = [PYTHON, hosts.HERE / "programs/torch_gloo.py"]
NOBODY = 65534
with_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="there is no python3-torch")

# Connects as often as is said, says what is said, and prints what it was answered; then, to "stay",
# keeps its connections.
KNOCK = r"""
import socket, sys, time
address, port, times, words, stays = sys.argv[1:]
answers, connections = set(), []
for _ in range(int(times)):
    try:
        connection = socket.create_connection((address, int(port)), 5)
        connections.append(connection)
        if words:
            connection.sendall(bytes.fromhex(words))
            answers.add(connection.recv(1000))
    except (ConnectionError, TimeoutError) as error:
        answers.add(type(error).__name__)
if not words and not stays:  # closed without a word
    answers.update(connection.recv(1) for connection in connections)
print("answers", sorted(map(str, answers - {b"", "ConnectionResetError", "BrokenPipeError"})), flush=True)
if stays:
    sys.stdin.read()
"""
CLASSIC_ADD = b"\3" + struct.pack("<Q", 5) + b"init/" + struct.pack("<q", 1)
RECENT_KEYS = b"\0" + struct.pack("<I", 0x3C85F7CE) + b"\x07"


def stores(node):
    return [int(line.split()[0]) for line in node.run(["ps", "-e", "-o", "pid=,comm="]).stdout.splitlines()
            if line.split()[1] == "dtrain-tcpstore"]


def knocker(node, uid, address, port, times, words=b"", stays=""):
    return node.popen([PYTHON, "-I", "-c", KNOCK, address, str(port), str(times), words.hex(), stays], cwd="/",
                      before_exec=lambda: os.setuid(uid), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def knock(*args):
    return knocker(*args).communicate(timeout=hosts.patient(60))[0].strip()


@with_torch
@pytest.mark.parametrize("where, ranks", [
    ("node0:3", 3), ("node1:1,node0:2", 3), ("node0:2,node1:1,node2:1,node3:1", 5)])
def test_pytorch_meets_and_sums(cluster, where, ranks):
    result = cluster.launch(["--agent-store", "--oversubscribe", "-H", where, "--", *TORCH], timeout=240)
    assert result.code == 0 and result.out.count(f"met {ranks}") == ranks, result
    assert not any(stores(node) for node in cluster.nodes)


@with_torch
def test_pytorch_rpc(cluster):
    result = cluster.launch(["--agent-store", "-H", "node0:1,node1:1", "--", *TORCH, "rpc"], timeout=240)
    assert result.code == 0 and result.out.count("called") == 2, result


@pytest.mark.parametrize("where, ranks", [
    ("node0:1", 1), ("node0:4", 4), ("node2:1,node0:3,node1:2", 6), ("node0:2,node1:2,node2:2,node3:2", 8)])
def test_ranks_of_a_current_pytorch_meet(cluster, where, ranks):
    result = cluster.launch(["--agent-store", "--oversubscribe", "-H", where, "--", *RANK])
    assert result.code == 0 and result.out.count(f"met {ranks} ") == ranks, result
    assert "listening: " in result.out, result
    assert not any(stores(node) for node in cluster.nodes)


def test_sixty_four_ranks(cluster):
    result = cluster.launch(["--agent-store", "--oversubscribe", *cluster.hosts_flag(16), "--", *RANK], timeout=180)
    assert result.code == 0 and result.out.count("met 64 ") == 64, result


def test_without_the_flag_rank_zero_serves_it_and_no_server_runs(cluster):
    script = ("import os, socket, subprocess; s = socket.create_server(('', int(os.environ['MASTER_PORT']))); "
              "names = subprocess.run(['ps', '-e', '-o', 'comm='], capture_output=True, text=True).stdout; "
              "print(os.environ['TORCHELASTIC_USE_AGENT_STORE'], names.count('tcpstore'))")
    result = cluster.launch(["-H", "node0:1", "--", PYTHON, "-c", script])
    assert result.out.strip() == "False 0", result


def test_with_the_flag_unused_no_server_runs(cluster):
    result = cluster.launch(["--agent-store", *cluster.hosts_flag(1), "--", "sh", "-c",
                             "echo $TORCHELASTIC_USE_AGENT_STORE; ps -e -o comm= | grep -c dtrain-tcpstore"])
    assert sorted(set(re.sub(r"\[.\] ", "", result.out).split())) == ["0", "True"], result


@pytest.fixture
def gate(cluster):
    file = cluster.base / "agent-store-gate"
    yield file
    file.unlink(missing_ok=True)


@pytest.fixture
def waiting(cluster, gate):
    """Starts a job whose ranks say the port, wait, and meet once the gate is there."""
    def start(*flags):
        text = " ".join(map(str, RANK))
        launch = cluster.start_launch(["--agent-store", *flags, "--", "sh", "-c",
                                       f"echo port $MASTER_PORT; until [ -e {gate} ]; do sleep 0.05; done; exec {text}"])
        launch.wait_for("port ")
        return launch, re.search(r"port (\d+)", launch.out).group(1)
    return start


def test_strangers_get_nothing(cluster, waiting, gate):
    """Another user of the node, one before any rank has come; and a machine that is not the job's."""
    two = cluster.nodes[:2]
    launch, port = waiting("-v", *cluster.hosts_flag(2, two))
    for words in (CLASSIC_ADD, RECENT_KEYS, b""):
        assert knock(two[0], NOBODY, "127.0.0.1", port, 1, words) == "answers []"
        assert knock(two[0], NOBODY, two[0].address, port, 1, words) == "answers []"
        assert knock(cluster.nodes[3], 0, two[0].address, port, 1, words) == "answers []"
    assert len(stores(two[0])) == 1 and not stores(two[1])
    gate.touch()
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("met 4 ") == 4, result
    assert f"refused a connection from {cluster.nodes[3].address}, which is not an address" in result.err, result


def test_garbage_and_silence_from_the_jobs_own_user(cluster, waiting, gate):
    """More connections than the node may have, on both hosts: those of ranks are served all the same."""
    two = cluster.nodes[:2]
    launch, port = waiting("-v", *cluster.hosts_flag(2, two))
    silent = [knocker(node, 0, two[0].address, port, 300, b"", "stay") for node in two]
    for process in silent:
        assert process.stdout.readline() == "answers []\n"
    assert knock(two[1], 0, two[0].address, port, 50, b"GET / HTTP/1.1\r\n\r\n") == "answers []"
    assert knock(two[0], 0, two[0].address, port, 50, os.urandom(2000)) == "answers []"
    gate.touch()
    result = launch.wait(60)
    for process in silent:
        process.communicate("", timeout=30)
    assert result.code == 0 and result.out.count("met 4 ") == 4, result
    assert re.search(r"node0: PyTorch's store \(--agent-store\) refused a client at \S+ and closed its connection: "
                     r"it sent operation 71, which", result.err), result
    assert "which has 192 already" in result.err, result


def test_a_server_that_dies_before_it_is_used_is_started_again(cluster, waiting, gate):
    node = cluster.nodes[0]
    launch, port = waiting(*cluster.hosts_flag(2, cluster.nodes[:2]))
    assert not stores(node)
    assert knock(node, 0, node.address, port, 1, b"\xff") == "answers []"
    [store] = stores(node)
    node.run(["kill", "-9", store])
    gate.touch()
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("met 4 ") == 4, result


LOST = (r"node0: PyTorch's store \(--agent-store\), a process of dtrain \(dtrain-agent tcpstore\), was killed by "
        r"signal 9, and what ranks had put there is lost")


def test_a_server_that_dies_while_ranks_wait_in_it_ends_the_job(cluster, gate):
    launch = cluster.start_launch(["--agent-store", *cluster.hosts_flag(2, cluster.nodes[:2]), "--", *RANK, gate])
    launch.wait_for("met 4 ", count=4)
    [store] = stores(cluster.nodes[0])
    cluster.nodes[0].run(["kill", "-9", store])
    result = launch.wait(30)
    assert result.code == 203 and re.search(LOST, result.err), result


@with_torch
def test_a_server_that_dies_while_pytorch_trains_ends_the_job(cluster, gate):
    launch = cluster.start_launch(["--agent-store", "-H", "node0:1,node1:1", "--", *TORCH, gate])
    launch.wait_for("met 2", count=2, timeout=200)
    [store] = stores(cluster.nodes[0])
    cluster.nodes[0].run(["kill", "-9", store])
    result = launch.wait(30)
    assert result.code == 203 and re.search(LOST, result.err), result


def test_ranks_that_fail_are_what_is_reported(cluster):
    """Not that their connections ended."""
    script = f"{' '.join(map(str, RANK))} && [ $RANK != 1 ] && sleep 60; exit 7"
    result = cluster.launch(["--agent-store", *cluster.hosts_flag(2, cluster.nodes[:2]), "--", "sh", "-c", script])
    assert result.code == 7 and "tcpstore" not in result.err, result


@with_torch
def test_it_outlives_the_agent(cluster, gate):
    agents = [residents.Resident(host).start() for host in cluster.nodes[:2]]
    try:
        launch = cluster.start_launch(["--agent-store", "-H", "node0:1,node1:1", "--", *TORCH, gate])
        launch.wait_for("met 2", count=2, timeout=200)
        for agent in agents:
            agent.kill()
            agent.start()
        gate.touch()
        result = launch.wait(60)
        assert result.code == 0 and result.out.count("met again") == 2, result
    finally:
        for agent in agents:
            agent.stop()
