# SPDX-License-Identifier: Apache-2.0
"""Addresses and interfaces that the workers are given, on hosts whose networks differ."""
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


def test_a_network_that_not_all_hosts_share_is_not_chosen(make_cluster):
    cluster = make_cluster(3)
    cluster.add_network("br1", "192.168.7", ["eth1", "eth1", "eth1"])
    cluster.nodes[2].network("link set eth1 down\n")
    assert {row[0] for row in shown(cluster)} == {"10.77.0.1"}


def test_workers_meet_at_master_addr_and_port_without_dns(cluster):
    result = cluster.launch(["--tag-output", "none", *cluster.hosts_flag(2), "--", *TALK])
    assert result.code == 0, result
    assert sorted(result.lines) == [f"met {rank}" for rank in range(1, 8)]


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
