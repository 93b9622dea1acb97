# SPDX-License-Identifier: Apache-2.0
"""A bad cable, as this kernel has no netem: wire.py PORT FAR LOSS DELAY RATE SEED carries Ethernet frames
between two interfaces of its network namespace, loses some (LOSS of 1), delays each by DELAY seconds and lets
RATE bytes through per second and direction. `bad_cable` puts it between a host and the bridge:

    with wire.bad_cable(cluster, node, loss=0.2, delay=0.5, rate=125_000, seed=1):
"""
import array
import contextlib
import fcntl
import heapq
import random
import select
import socket
import struct
import subprocess
import sys
import time

ETH_P_ALL = 3
OUTGOING = 4
SIOCETHTOOL = 0x8946
# What a card would do behind our back: frames must be whole, with their checksums.
NO_OFFLOAD = (0x17, 0x1F, 0x24)  # ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO
QUEUE = 50_000  # bytes that wait for their turn; more are lost, as in a router


def without_offloads(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in NO_OFFLOAD:
            value = array.array("B", struct.pack("II", command, 0))
            fcntl.ioctl(any_socket, SIOCETHTOOL,
                        struct.pack("16sP8x", interface.encode(), value.buffer_info()[0]))


class Direction:
    def __init__(self, source, sink, loss, delay, rate, dice):
        self.source, self.sink, self.loss = source, sink, loss
        self.delay, self.rate, self.dice = delay, rate, dice
        self.free_at = 0.0
        self.waiting = []
        self.number = 0

    def read(self):
        frame, address = self.source.recvfrom(65536)
        now = time.monotonic()
        start = max(now, self.free_at)
        if address[2] == OUTGOING or self.dice.random() < self.loss:
            return
        if (start - now) * self.rate > QUEUE:
            return
        self.free_at = start + len(frame) / self.rate
        self.number += 1
        heapq.heappush(self.waiting, (self.free_at + self.delay, self.number, frame))

    def write(self):
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            with contextlib.suppress(OSError):
                self.sink.send(heapq.heappop(self.waiting)[2])


def open_port(name):
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.bind((name, 0))
    # SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC: frames for others, too.
    opened.setsockopt(263, 1, struct.pack("iHH8s", socket.if_nametoindex(name), 1, 0, b""))
    return opened


@contextlib.contextmanager
def bad_cable(cluster, host, loss, delay, rate, seed):
    """For as long as the context lasts."""
    interface = cluster.interface_of(host)
    cluster.fabric(f"link set {host.name} nomaster\nlink add far type veth peer name bridge-end\n"
                   "link set bridge-end master br0 up\nlink set far up\n")
    import hosts  # not in the program, which runs on a host

    script = ["/usr/bin/python3", hosts.HERE / "wire.py"]
    host.run([*script, "plain", interface])
    cluster.in_fabric(subprocess.run, [*script, "plain", "bridge-end"], check=True)
    cable = cluster.in_fabric(subprocess.Popen,
                              [*script, host.name, "far", *map(str, (loss, delay, rate, seed))],
                              stdout=subprocess.PIPE)
    try:
        assert cable.stdout.readline() == b"carries\n"
        yield
    finally:
        cable.kill()
        cable.wait()
        cable.stdout.close()
        cluster.fabric(f"link del far\nlink set {host.name} master br0\n")


def main(near, far, loss, delay, rate, seed):
    dice = random.Random(int(seed))
    ports = [open_port(near), open_port(far)]
    ways = {ports[i]: Direction(ports[i], ports[1 - i], float(loss), float(delay), float(rate), dice)
            for i in (0, 1)}
    print("carries", flush=True)
    while True:
        next_at = min((way.waiting[0][0] for way in ways.values() if way.waiting), default=None)
        patience = None if next_at is None else max(0, next_at - time.monotonic())
        for port in select.select(ports, [], [], patience)[0]:
            ways[port].read()
        for way in ways.values():
            way.write()


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        without_offloads(sys.argv[2])
    else:
        main(*sys.argv[1:])
