# SPDX-License-Identifier: Apache-2.0
"""G14: hosts that have no IPv4 address at all, not even of loopback."""
import re

import pytest

import hosts
import residents
from certificates import Authority, agent_flags
from test_collectives import loop  # noqa: F401 - a fixture

PORT = 9797
TLS = "/root/work/tls"
SHOW = ["sh", "-c", 'echo "$RANK $MASTER_ADDR $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME"']
# As torchrun's workers meet: rank 0 listens at MASTER_ADDR, the others connect to it.
MEET = ["/usr/bin/python3", "-I", "-c", """
import os, socket, time
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(address, family=socket.AF_INET6, backlog=16) as server:
        for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
            print("met", server.accept()[0].recv(8).decode())
else:
    deadline = time.monotonic() + 20
    while True:
        try:
            peer = socket.create_connection(address, 5)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    peer.sendall(os.environ["RANK"].encode())
"""]


@pytest.fixture
def v6(make_cluster):
    cluster = make_cluster(3)
    config = cluster.head.base / "root/.ssh/config"
    text = config.read_text()
    for number, host in enumerate((*cluster.nodes, cluster.head), 1):
        before, host.address = host.address, f"fd77::{number}"
        host.run(["sh", "-c", "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 0 >$f; done"])
        host.network("addr flush dev eth0 scope global\naddr flush dev lo\naddr add ::1/128 dev lo nodad\n"
                     f"addr add {host.address}/64 dev eth0 nodad\n")
        shown = host.run(["ip", "addr"]).stdout
        assert "inet6 fd77::" in shown and "inet " not in shown, shown
        text = text.replace(f"Host {host.name}\n  HostName {before}\n",
                            f"Host {host.name} {host.address}\n  HostName {host.address}\n")
    config.write_text(text)
    return cluster


def check_meeting(result, ranks):
    assert result.code == 0, result
    assert sorted(result.lines) == [f"met {rank}" for rank in range(1, ranks)], result


@pytest.mark.parametrize("way", [[], ["--rsh", "ssh {host}"]], ids=["ssh", "rsh"])
def test_g14_launches_and_ranks_meet(v6, way):
    result = v6.launch([*way, "--tag-output", "none", *v6.hosts_flag(1), "--", *SHOW])
    assert result.code == 0, result
    assert sorted(result.lines) == [f"{rank} fd77::1 =eth0 eth0" for rank in range(3)], result
    check_meeting(v6.launch([*way, "--tag-output", "none", *v6.hosts_flag(2), "--", *MEET]), 6)


def test_g14_hosts_that_are_named_by_their_addresses(v6):
    flag = ["-H", ",".join(f"[{node.address}]:2" for node in v6.nodes)]
    check_meeting(v6.launch(["--tag-output", "none", *flag, "--", *MEET]), 6)
    # Of JAX the address is one word with the port.
    result = v6.launch(["--tag-output", "none", *flag, "--", "sh", "-c", "echo $JAX_COORDINATOR_ADDRESS"])
    assert result.code == 0 and len(result.lines) == 6, result
    assert all(re.fullmatch(r"\[fd77::1\]:\d+", line) for line in result.lines), result
    result = v6.launch(["--tag-output", "none", "--net", "fd77::/64", *flag, "--", "true"])
    assert result.code == 0, result


def test_g14_ranks_of_libdtrain_sum(v6, loop):  # noqa: F811
    result = v6.launch(["-x", "ROUNDS=100", *v6.hosts_flag(2), "--", loop])
    assert result.code == 0 and result.out.count("goes") == 6, result
    result = v6.launch(["-x", "ROUNDS=100", "-np", "-2", "--", loop])
    assert result.code == 0 and result.out.count("goes") == 2, result


def test_g14_resident_agents_over_tls(v6, tmp_path, loop):  # noqa: F811
    authority = Authority(tmp_path, v6.nodes)
    agents = []
    for node in v6.nodes:
        authority.bundle(f"node:{node.name}", node.path(TLS))
        flags = agent_flags(PORT)
        flags[1] = f"[::]:{PORT}"
        agents.append(residents.Resident(node, flags=[*flags, "--allow-root"]).start())
    authority.user("root")
    authority.bundle("user:root", v6.head.path(TLS))
    reach = ["--agent", "tcp", "--tls-dir", TLS, "-H",
             ",".join(f"[{node.address}]:2" for node in v6.nodes)]
    check_meeting(v6.launch([*reach, "--wdir", "/", "--tag-output", "none", "--bind", "none", "--", *MEET]), 6)
    result = v6.launch([*reach, "--wdir", "/", "--bind", "none", "-x", "ROUNDS=100", "--", loop])
    assert result.code == 0 and result.out.count("goes") == 6, result
    told = v6.head.run([hosts.bin_dir() / "dtrain", "nodes", *reach])
    assert len(re.findall(r"^fd77::\d +ok ", told.stdout, re.M)) == 3, told
    # The API by its address, and not by another's.
    for host, status in (("[fd77::1]", "200"), ("[fd77::9]", "403")):
        told = v6.head.run(
            ["curl", "-sS", "-g", "--http1.1", "-o", "/dev/null", "-w", "%{http_code}", "--cacert",
             f"{TLS}/ca.crt", "--cert", f"{TLS}/user.crt", "--key", f"{TLS}/user.key", "-H",
             f"Host: {host}:{PORT}", f"https://[fd77::1]:{PORT}/v1/node"])
        assert told.stdout == status, told
    for agent in agents:
        agent.stop()


# What strangers have tried is reported with their addresses.
def test_g14_a_host_that_is_not_there(v6):
    v6.cut(v6.nodes[1])
    result = v6.launch(["--connect-timeout", "3s", *v6.hosts_flag(1), "--", "echo", "ran"], timeout=30)
    v6.heal(v6.nodes[1])
    assert result.code == 200 and "node1" in result.err and "fd77::2" in result.err, result
    assert "ran" not in result.out, result


# libpmix's server listens on 127.0.0.1 only. Most jobs never ask for it.
def test_g14_what_cannot_be_served_without_ipv4_is_a_detail(v6):
    for flags, told in (([], False), (["--verbose"], True)):
        result = v6.launch([*flags, *v6.hosts_flag(1), "--", "true"])
        assert result.code == 0, result
        assert ("PMIx is not served" in result.err) == told, result
