# SPDX-License-Identifier: Apache-2.0
"""Horovod on Gloo: the key-value server at which its ranks meet, spoken to as its C++ client does."""
import os
import re
import subprocess

import pytest

import hosts
import residents

RANK = ["/usr/bin/python3", "-S", hosts.HERE / "programs/horovod_rank.py"]
NOBODY = 65534

# From another user, or another machine: what each request is answered with.
KNOCK = r"""
import socket, sys
answers = []
for words in (b"GET /x/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
              b"PUT /x/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nevil", b"\0" * 100, b""):
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as connection:
            connection.sendall(words)
            answers.append(connection.recv(1000))
    except (ConnectionError, TimeoutError) as error:
        answers.append(type(error).__name__)
print([each for each in answers if each not in (b"", "ConnectionResetError", "BrokenPipeError")])
"""


def port_of(launch):
    launch.wait_for("port ")
    return re.search(r"port (\d+)", launch.out).group(1)


def stores(node):
    return [int(line.split()[0]) for line in node.run(["ps", "-e", "-o", "pid=,comm="]).stdout.splitlines()
            if line.split()[1] == "dtrain-store"]


def knock(node, uid, address, port):
    process = node.popen(["/usr/bin/python3", "-I", "-c", KNOCK, address, port], cwd="/",
                         before_exec=lambda: os.setuid(uid), stdout=subprocess.PIPE, text=True)
    return process.communicate(timeout=hosts.patient(60))[0].strip()


@pytest.mark.parametrize("where, ranks", [
    ("node0:1", 1), ("node0:3", 3), ("node0:2,node1:2", 4), ("node2:1,node0:3,node1:2", 6),
    ("node0:2,node1:2,node2:2,node3:2", 8)])
def test_ranks_meet_in_every_context(cluster, where, ranks):
    result = cluster.launch(["--oversubscribe", "-H", where, "--", *RANK, 2])
    assert result.code == 0, result
    assert len(re.findall(rf"met {ranks} ", result.out)) == ranks, result
    assert not any(stores(node) for node in cluster.nodes)


def test_sixty_four_ranks(cluster):
    result = cluster.launch(["--oversubscribe", *cluster.hosts_flag(16), "--", *RANK, 1], timeout=120)
    assert result.code == 0 and len(re.findall(r"met 64 16 4", result.out)) == 64, result


def test_a_job_that_does_not_use_it_starts_no_server(cluster):
    result = cluster.launch([*cluster.hosts_flag(1), "--", "sh", "-c", "ps -e -o comm= | grep -c dtrain-store"])
    assert sorted(set(re.sub(r"\[.\] ", "", result.out).split())) == ["0"], result


def test_what_the_user_chooses_stays(cluster):
    result = cluster.launch([*cluster.hosts_flag(1, cluster.nodes[:2]), "-x", "HOROVOD_CONTROLLER=mpi", "-x",
                             "HOROVOD_TIMELINE=t.json", "-x", "HOROVOD_GLOO_IFACE=lo", "--", "sh", "-c",
                             "echo $HOROVOD_CONTROLLER $HOROVOD_TIMELINE $HOROVOD_GLOO_IFACE"])
    assert result.out.count("mpi t.json lo") == 2, result


@pytest.fixture
def waiting(cluster):
    """A job whose ranks say the port, wait, and meet once they are let go."""
    gate = cluster.base / "horovod-gate"

    class Waiting:
        def start(self, *flags):
            text = " ".join(map(str, RANK))
            self.launch = cluster.start_launch([*flags, "--", "sh", "-c",
                                                "echo port $HOROVOD_GLOO_RENDEZVOUS_PORT; "
                                                f"until [ -e {gate} ]; do sleep 0.05; done; exec {text} 1"])
            return self.launch, port_of(self.launch)

        def go(self):
            gate.touch()

    yield Waiting()
    gate.unlink(missing_ok=True)


def test_strangers_get_nothing(cluster, waiting):
    """Another user of the node, one before any rank has come; and a machine that is not the job's."""
    two = cluster.nodes[:2]
    launch, port = waiting.start(*cluster.hosts_flag(2, two))
    assert knock(two[0], NOBODY, "127.0.0.1", port) == "[]"
    assert knock(two[0], NOBODY, two[0].address, port) == "[]"
    assert knock(cluster.nodes[3], 0, two[0].address, port) == "[]"
    assert len(stores(two[0])) == 1 and not stores(two[1])
    waiting.go()
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("met 4 2 2") == 4, result


def test_garbage_of_the_jobs_own_user(cluster, waiting):
    launch, port = waiting.start(*cluster.hosts_flag(2, cluster.nodes[:2]))
    answers = knock(cluster.nodes[0], 0, cluster.nodes[0].address, port)
    assert "404" in answers and "200" in answers and "400" in answers, answers
    waiting.go()
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("met 4 2 2") == 4, result


def test_a_server_that_dies_before_it_is_used_is_started_again(cluster, waiting):
    launch, port = waiting.start(*cluster.hosts_flag(2, cluster.nodes[:2]))
    knock(cluster.nodes[0], NOBODY, "127.0.0.1", port)
    [store] = stores(cluster.nodes[0])
    cluster.nodes[0].run(["kill", "-9", store])
    waiting.go()
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("met 4 2 2") == 4, result


@pytest.fixture
def late(cluster):
    gate = cluster.base / "horovod-late"
    yield gate
    gate.unlink(missing_ok=True)


def test_a_server_that_dies_is_told_when_it_is_wanted_again(cluster, late):
    launch = cluster.start_launch([*cluster.hosts_flag(2, cluster.nodes[:2]), "--", *RANK, 1, late])
    launch.wait_for("met 4 2 2", count=4)
    [store] = stores(cluster.nodes[0])
    cluster.nodes[0].run(["kill", "-9", store])
    late.touch()
    result = launch.wait(30)
    assert result.code == 203, result
    assert re.search(r"node0: cannot start the key-value server of the ranks: the previous one \(dtrain-agent "
                     r"store\) was killed by signal 9, and what ranks had put there is lost", result.err), result


def test_it_outlives_the_agent(cluster, late):
    agents = [residents.Resident(host).start() for host in cluster.nodes[:2]]
    try:
        launch = cluster.start_launch([*cluster.hosts_flag(2, cluster.nodes[:2]), "--", *RANK, 1, late])
        launch.wait_for("met 4 2 2", count=4)
        for agent in agents:
            agent.kill()
            agent.start()
        late.touch()
        result = launch.wait(40)
        assert result.code == 0 and result.out.count("met again") == 4, result
    finally:
        for agent in agents:
            agent.stop()
