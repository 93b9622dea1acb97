# SPDX-License-Identifier: Apache-2.0
"""Resident agents over TCP with TLS: certificates of dtrain-pki, identities, and what is refused."""
import re
import shutil
import signal
import subprocess

import pytest

import hosts
import residents
from certificates import Authority, agent_flags, pki
from launching import wait_until
from test_faults_c import listening_ports
from test_identity import IDS, REPORT, node  # noqa: F401 - a fixture

PORT = 9797


class Tcp:
    """A node whose agent listens, and launches of alice from the head."""

    def __init__(self, node, folder):  # noqa: F811
        self.node = node
        self.authority = Authority(folder, [node])
        self.node_tls = node.path("/root/work/tls")
        self.authority.bundle("node:node0", self.node_tls)
        self.authority.user("alice")
        self.become("user:alice")
        self.agent = residents.Resident(node, flags=agent_flags(PORT))

    def become(self, name):
        folder = self.node.cluster.head.path("/root/work/tls")
        shutil.rmtree(folder, ignore_errors=True)
        self.authority.bundle(name, folder)

    def flags(self, *flags):
        return ["--agent", "tcp", "--tls-dir", "/root/work/tls", "--wdir", "/", *flags,
                "-H", f"{self.node.address}:2", "--tag-output", "none", "--"]

    def launch(self, *command, flags=()):
        return self.node.cluster.launch([*self.flags(*flags), *command], timeout=30)


@pytest.fixture
def tcp(node, tmp_path):  # noqa: F811
    made = Tcp(node, tmp_path)
    made.agent.start()
    yield made
    made.agent.stop()


def test_a_certificate_leads_to_its_account(tcp):
    result = tcp.launch("/usr/bin/python3", "-c", REPORT)
    assert result.code == 0, result
    assert result.lines.count(IDS) == 2 and "regained" not in result.out, result
    assert 'who="user:alice"' in tcp.agent.log and "allowed" in tcp.agent.log


# What it says is what it is bound to, and it is bound to nothing else (C14).
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "[::1]"])
def test_an_agent_says_where_it_listens(tcp, address):
    flags = agent_flags(0)
    flags[1] = f"{address}:0"
    agent = residents.Resident(tcp.node, flags=[*flags, "--state-dir", "/run/other-agent"]).start()
    [said] = re.findall(r"serving with TLS on (\S+):(\d+)\n", agent.log)
    assert said[0] == address and said[1] != "0", agent.log
    assert listening_ports(tcp.node) == {PORT, int(said[1])}
    agent.signal(signal.SIGTERM)
    assert agent.process.wait(10) == 0, agent.log
    shutil.rmtree(tcp.node.path("/run/other-agent"))


# One host by its resident agent, the head itself without.
def test_a_hostfile_says_which_hosts_have_agents(tcp):
    head = tcp.node.cluster.head
    hostfile = tcp.node.cluster.work() / "hosts"
    hostfile.write_text(f"localhost slots=1\n{tcp.node.address} slots=1 agent=tcp\n")
    flags = ["--tls-dir", "/root/work/tls", "--wdir", "/", "--tag-output", "none",
             "--hostfile", "/root/work/hosts"]
    result = tcp.node.cluster.launch([*flags, "--", "hostname"], timeout=30)
    assert result.code == 0 and sorted(result.lines) == ["head", "node0"], result
    assert "allowed" in tcp.agent.log
    told = head.run([hosts.bin_dir() / "dtrain", "nodes", *flags[:2], *flags[-2:]], check=False)
    rows = [line.split()[:2] for line in told.stdout.splitlines()]
    assert ["localhost", "no"] in rows and [tcp.node.address, "ok"] in rows, told
    # What is wrong is told of the host that asks for it.
    shutil.rmtree(head.path("/root/work/tls"))
    result = tcp.node.cluster.launch([*flags, "--", "true"], timeout=30)
    assert result.code == 206 and f"agent=tcp of host {tcp.node.address}" in result.err, result


# E1 over TCP: the connection breaks with the agent, and is made anew.
def test_jobs_outlive_the_agent(tcp):
    started = tcp.node.cluster.start_launch(
        [*tcp.flags(), "sh", "-c", "echo up; until [ -e /run/go ]; do sleep 0.01; done; exit 6"])
    started.wait_for("up", count=2)
    tcp.agent.kill()
    tcp.agent.start()
    tcp.node.path("/run/go").touch()
    result = started.wait(30)
    tcp.node.path("/run/go").unlink()
    assert result.code == 6 and not result.tells_of_loss, result


def refused(result, *words):
    assert result.code == 206, result
    for word in words:
        assert word in result.err, result
    assert "ran" not in result.out, result


def test_an_observer_may_not_launch(tcp):
    tcp.authority.user("grafana", "--observer")
    tcp.become("user:grafana")
    refused(tcp.launch("echo", "ran"), "grafana", "may not launch on this node")
    assert "denied" in tcp.agent.log


def test_a_certificate_of_another_authority_is_refused(tcp, tmp_path):
    other = Authority(tmp_path / "other", [tcp.node])
    other.user("alice")
    folder = tcp.node.cluster.head.path("/root/work/tls")
    kept = (folder / "ca.crt").read_bytes()
    shutil.rmtree(folder)
    other.bundle("user:alice", folder)
    refused(tcp.launch("echo", "ran"), tcp.node.address)
    # Nor does a launcher begin with files that do not belong together.
    (folder / "ca.crt").write_bytes(kept)
    refused(tcp.launch("echo", "ran"), "--agent tcp")


def test_no_certificate_at_all(tcp):
    shutil.rmtree(tcp.node.cluster.head.path("/root/work/tls"))
    refused(tcp.launch("echo", "ran"), "--agent tcp", "user.crt", "--tls-dir")


def test_no_agent_there(tcp):
    tcp.agent.stop()
    result = tcp.launch("echo", "ran")
    assert result.code == 200 and "--agent-port" in result.err, result


def test_a_user_without_an_account_here(tcp):
    tcp.authority.user("bob")
    tcp.become("user:bob")
    result = tcp.launch("echo", "ran")
    print(tcp.agent.log)
    refused(result, "bob")


def test_revoked_and_read_again(tcp):
    assert tcp.launch("true").code == 0
    pki("revoke", tcp.authority.folder, "user:alice")
    crl = (tcp.authority.folder / "crl.pem").read_bytes()
    (tcp.node_tls / "crl.pem").write_bytes(b"no list")
    tcp.agent.signal(signal.SIGHUP)
    wait_until(lambda: "keeping the old configuration" in tcp.agent.log, 10, lambda: tcp.agent.log)
    assert tcp.launch("true").code == 0
    (tcp.node_tls / "crl.pem").write_bytes(crl)
    tcp.agent.signal(signal.SIGHUP)
    wait_until(lambda: "were reloaded" in tcp.agent.log, 10, lambda: tcp.agent.log)
    refused(tcp.launch("echo", "ran"), "revoked")


# I19
def test_a_key_that_others_may_read(tcp):
    tcp.agent.stop()
    (tcp.node_tls / "node.key").chmod(0o644)
    process = tcp.node.popen([str(hosts.bin_dir() / "dtrain-agent"), "serve", *tcp.agent.flags],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 206 and b"node.key" in out and b"chmod" in out, out


# I17: once per peer and minute.
def test_plaintext_is_refused_and_told_once(tcp):
    for _ in range(3):
        code = ("import socket; s = socket.create_connection((%r, %d)); s.sendall(b'GET / HTTP/1.1"
                "\\r\\n\\r\\n'); s.settimeout(20); print(s.recv(100)[:4])"
                % (tcp.node.address, PORT))
        tcp.node.cluster.head.run(["/usr/bin/python3", "-c", code])
    wait_until(lambda: "refused" in tcp.agent.log, 20, lambda: tcp.agent.log)
    assert tcp.agent.log.count("refused") == 1, tcp.agent.log
