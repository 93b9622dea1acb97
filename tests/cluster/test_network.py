# SPDX-License-Identifier: Apache-2.0
"""Addresses and interfaces that the workers are given, on hosts whose networks differ."""
import importlib.util
import shutil
import signal
import subprocess

import pytest

import hosts

SHOW = ["sh", "-c", 'echo "$RANK $MASTER_ADDR $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME"']
TALK = ["/usr/bin/python3", "-I", "-c", """
import os, socket, time
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", address[1]))
    server.listen(16)
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


def shown(cluster, *flags):
    result = cluster.launch([*flags, "--tag-output", "none", *cluster.hosts_flag(1), "--", *SHOW])
    assert result.code == 0, result
    rows = {}
    for line in result.lines:
        rank, master, *interfaces = line.split()
        rows[int(rank)] = (master, *[name.lstrip("=") for name in interfaces])
    return [rows[rank] for rank in range(cluster.size)]


def test_interfaces_may_have_another_name_on_every_host(make_cluster):
    names = ["eth0", "enp3s0f1", "ens5", "bond0"]
    cluster = make_cluster(4, interfaces=names)
    assert shown(cluster) == [("10.77.0.1", name, name) for name in names]


# docker0 has the same address on every host: whoever connects to it meets himself.
def test_docker0_is_never_chosen(make_cluster):
    cluster = make_cluster(3)
    for node in cluster.nodes:
        node.network("link add docker0 type bridge\naddr add 172.17.0.1/16 dev docker0\n"
                     "link set docker0 up\n")
    assert shown(cluster) == [("10.77.0.1", "eth0", "eth0")] * 3


def test_net_chooses_among_several_networks(make_cluster):
    cluster = make_cluster(3)
    cluster.add_network("br1", "192.168.7", ["ib0", "ib0", "mlx1"])
    assert shown(cluster, "--net", "192.168.7.0/24") == [
        ("192.168.7.1", name, name) for name in ("ib0", "ib0", "mlx1")]
    assert {row[0] for row in shown(cluster, "--net", "eth0")} == {"10.77.0.1"}
    result = cluster.launch(["--net", "10.9.0.0/16", *cluster.hosts_flag(1), "--", *SHOW])
    assert result.code == 2 and "10.9.0.0/16" in result.err and "node0" in result.err, result


@pytest.fixture
def two_networks(make_cluster):
    """eth0, which the launching machine has, too, and ib0, by which it reaches the hosts as well."""
    cluster = make_cluster(2)
    cluster.add_network("br1", "192.168.77", ["ib0", "ib0"])
    cluster.fabric(f"link add headib type veth peer name ib0 netns {cluster.head.pid}\n"
                   "link set headib master br1 up\n")
    cluster.head.network("addr add 192.168.77.100/24 dev ib0\nlink set ib0 up\n")
    config = cluster.head.base / "root/.ssh/config"
    config.write_text(config.read_text().replace("StrictHostKeyChecking yes", "") +
                      "Host *\n  StrictHostKeyChecking no\n")
    return cluster


def interfaces_of(result):
    assert result.code == 0, result
    return {tuple(line.split()[1:3]) for line in result.lines}


def test_an_address_that_was_written_is_the_network_of_the_workers(two_networks):
    plain = ["--tag-output", "none"]
    where = "192.168.77.1:1,192.168.77.2:1"
    result = two_networks.launch([*plain, "-H", where, "--", *SHOW])
    assert interfaces_of(result) == {("192.168.77.1", "=ib0")}, result
    assert ("the workers use 192.168.77.0/24 (ib0), which the list of hosts names; "
            "10.77.0.0/24 is there, too (--net chooses)\n") in result.err, result
    assert "10.77.0.1 on eth0" not in result.err, result
    result = two_networks.launch([*plain, "-v", "-H", where, "--", *SHOW])
    assert "192.168.77.1 has 192.168.77.1 on ib0, 10.77.0.1 on eth0" in result.err, result
    result = two_networks.launch([*plain, "-H", where, "--net", "eth0", "--", *SHOW])
    assert interfaces_of(result) == {("10.77.0.1", "=eth0")} and "workers use" not in result.err, result


def test_where_the_name_of_a_host_leads_is_the_network_of_the_workers(two_networks):
    config = two_networks.head.base / "root/.ssh/config"
    config.write_text("Host fast0\n  HostName 192.168.77.1\nHost fast1\n  HostName 192.168.77.2\n" +
                      config.read_text())
    result = two_networks.launch(["--tag-output", "none", "-H", "fast0:1,fast1:1", "--", *SHOW])
    assert interfaces_of(result) == {("192.168.77.1", "=ib0")}, result
    assert "192.168.77.0/24 (ib0), where the names of the hosts lead; " in result.err, result


# docker0 has the same address on every host, and MPI by itself tries every one.
@pytest.mark.parametrize("compiler", ["mpicc.openmpi", "mpicc.mpich"])
def test_mpi_uses_the_network_that_was_proven(make_cluster, compiler):
    cluster = make_cluster(2)
    for node in cluster.nodes:
        node.network("link add docker0 type bridge\naddr add 172.17.0.1/16 dev docker0\n"
                     "link set docker0 up\nlink add d0 type veth peer name d1\n"
                     "link set d1 master docker0 up\nlink set d0 up\n")
    binary = cluster.base / "sums"
    subprocess.run([compiler, "-O1", "-o", binary, hosts.HERE / "programs/mpi_allreduce.c"], check=True)
    for net in ([], ["--net", "10.77.0.0/24"]):
        result = cluster.launch([*net, "-x", "SKIP_FINALIZE=1", *cluster.hosts_flag(1), "--", binary],
                                timeout=30)
        assert result.code == 0 and "all sums are right" in result.out, result


def test_a_network_that_open_mpis_own_file_names_is_kept(make_cluster):
    cluster = make_cluster(2)
    show = ["sh", "-c", "env | grep -c _tcp_if_ || true"]
    result = cluster.launch(["--tag-output", "none", *cluster.hosts_flag(1), "--", *show])
    assert result.lines == ["2", "2"], result
    folder = cluster.nodes[1].base / "root/.openmpi"
    folder.mkdir()
    (folder / "mca-params.conf").write_text("# of this site\nbtl_tcp_if_exclude = docker0\n")
    result = cluster.launch(["--tag-output", "none", *cluster.hosts_flag(1), "--", *show])
    assert sorted(result.lines) == ["0", "2"], result
    shutil.rmtree(folder)


def test_a_network_that_not_all_hosts_share_is_not_chosen(make_cluster):
    cluster = make_cluster(3)
    cluster.add_network("br1", "192.168.7", ["eth1", "eth1", "eth1"])
    cluster.nodes[2].network("link set eth1 down\n")
    assert {row[0] for row in shown(cluster)} == {"10.77.0.1"}


def test_workers_meet_at_master_addr_and_port_without_dns(cluster):
    result = cluster.launch(["--tag-output", "none", *cluster.hosts_flag(2), "--", *TALK])
    assert result.code == 0, result
    assert sorted(result.lines) == [f"met {rank}" for rank in range(1, 8)]


# As two containers on the network of their host are.
def test_two_names_of_one_machine_are_two_nodes_on_request(cluster):
    where = ["-H", f"node0:1,{cluster.nodes[0].address}:1"]
    refused = cluster.launch([*where, "--", "true"])
    assert refused.code == 2 and "use --allow-same-machine" in refused.err, refused
    result = cluster.launch(["--allow-same-machine", *where, "--", *TALK])
    assert result.code == 0 and "met 1" in result.out, result


def test_interfaces_the_user_named_are_kept(cluster):
    result = cluster.launch(["-x", "NCCL_SOCKET_IFNAME=mine", *cluster.hosts_flag(1), "--", "sh",
                             "-c", "echo $NCCL_SOCKET_IFNAME"])
    assert result.code == 0 and result.out.count("mine") == 4, result


# C13: an address is taken only when a connection to it met the host that advertised it. Here one
# host has an address of another one: what it reaches there is itself.
def test_an_address_of_somebody_else_is_not_believed(make_cluster):
    cluster = make_cluster(3)
    # It must not also answer for the address when the others ask the wire who has it.
    cluster.nodes[1].run(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore"])
    cluster.nodes[1].network("link add fake0 type bridge\nlink set fake0 up\n"
                             "addr add 10.77.0.1/32 dev fake0\n")
    result = cluster.launch(["--tag-output", "none", "-H", "node1:1,node2:1", "--", *TALK])
    assert result.code == 0 and result.lines == ["met 1"], result
    result = cluster.launch([*cluster.hosts_flag(1), "--", "true"])
    assert result.code == 201 and "node0" in result.err and "node1" in result.err, result


def test_loopback_addresses_on_other_interfaces_are_not_believed(make_cluster):
    cluster = make_cluster(2)
    for node in cluster.nodes:
        node.network("link add a0 type bridge\nlink set a0 up\naddr add 127.9.9.9/32 dev a0\n")
    assert shown(cluster) == [("10.77.0.1", "eth0", "eth0")] * 2


# The program names its own machine as the place to meet. On one host that works, and nothing is said.
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="there is no python3-torch")
@pytest.mark.parametrize("how, said", [
    ("variables", "127.0.0.1:12355 on node1, where nobody listens; MASTER_ADDR was set to localhost by the program"),
    ("url", "127.0.0.1 on node1, where nobody listens; the program looks for rank 0 on its own machine")])
def test_ranks_that_look_for_rank_0_on_their_own_host_are_told(make_cluster, how, said):
    cluster = make_cluster(2)
    program = ["/usr/bin/python3", hosts.HERE / "programs/torch_localhost.py", how]
    alone = cluster.launch(["-H", "node0:2", "--", *program], timeout=120)
    assert alone.code == 0 and "waits" not in alone.err, alone
    launch = cluster.start_launch(["--grace", "1s", "-H", "node0:2,node1:2", "--", *program])
    launch.wait_for("up", count=4)
    launch.wait_for(f"node1: ranks 2, 3 wait to connect to {said}", stream="err", timeout=60)
    launch.signal(signal.SIGINT)
    result = launch.wait(30)
    assert result.err.count("wait to connect") == 1 and "(10.77.0.1:" in result.err, result
