# SPDX-License-Identifier: Apache-2.0
"""What a rank of Horovod on Gloo does with the key-value server, byte for byte: for the global, the
local and the cross context it tells its host, then its address, polls for the addresses of the
others, connects to all of them, sums over them, and says that it is done. ROUNDS times, as after
shutdown() and init(). From Horovod's sources: horovod/common/gloo/{gloo_context,http_store}.cc."""
import os
import socket
import struct
import sys
import threading
import time

ADDRESS = (os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
           int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
HOST = os.environ["HOROVOD_HOSTNAME"]
DEADLINE = time.monotonic() + 60
requests = 0


def number(name):
    return int(os.environ["HOROVOD_" + name])


def request(method, scope, key, body=b""):
    """A connection for each; only 200 and 404 are answers."""
    global requests
    requests += 1
    with socket.create_connection(ADDRESS, 30) as connection:
        connection.sendall(f"{method} /{scope}/{key} HTTP/1.1\r\nHost: {ADDRESS[0]}\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            more = connection.recv(65536)
            if not more:
                raise RuntimeError(f"{method} /{scope}/{key}: closed after {answer!r}")
            answer += more
        header, _, got = answer.partition(b"\r\n\r\n")
        status = int(header.split()[1])
        [length] = [int(line[16:]) for line in header.split(b"\r\n")
                    if line.startswith(b"Content-Length: ")]
        while len(got) < length:
            got += connection.recv(65536)
    if status not in (200, 404):
        raise RuntimeError(f"{method} /{scope}/{key}: {status}")
    return got if status == 200 else None


def wait_for(scope, key):
    while (value := request("GET", scope, key)) is None:
        if time.monotonic() > DEADLINE:
            raise RuntimeError(f"no {key} in {scope}")
        time.sleep(0.01)
    return value


def exchange(rank, size, addresses, listener):
    """The sum of all ranks' numbers, each of which every other has sent over a connection."""
    got = []

    def take():
        for _ in range(size - 1):
            with listener.accept()[0] as connection:
                got.append(struct.unpack("!I", connection.recv(4, socket.MSG_WAITALL))[0])
    taker = threading.Thread(target=take)
    taker.start()
    for peer, address in addresses.items():
        ip, port = address.decode().rsplit(":", 1)
        with socket.create_connection((ip, int(port)), 30) as connection:
            connection.sendall(struct.pack("!I", rank))
    taker.join()
    return rank + sum(got)


def meet(scope, rank, size):
    request("PUT", scope, f"rank_{rank}", HOST.encode())
    for peer in range(size):
        request("GET", scope, f"rank_{peer}")  # whoever is there: it may be nobody
    with socket.create_server(("", 0), backlog=size + 1) as listener:
        ip = os.environ.get("DTRAIN_ADDRESS", "127.0.0.1")
        request("PUT", scope, str(rank), f"{ip}:{listener.getsockname()[1]}".encode())
        addresses = {peer: wait_for(scope, str(peer)) for peer in range(size) if peer != rank}
        total = exchange(rank, size, addresses, listener)
    request("DELETE", scope, str(rank))
    if total != size * (size - 1) // 2:
        raise RuntimeError(f"rank {rank} of {size} in {scope} has the sum {total}")


def main(rounds):
    if os.environ["HOROVOD_CONTROLLER"] != "gloo" or os.environ["HOROVOD_CPU_OPERATIONS"] != "gloo":
        raise RuntimeError("not told to use Gloo")
    if os.environ["HOROVOD_GLOO_IFACE"] not in os.listdir("/sys/class/net"):
        raise RuntimeError("no interface " + os.environ["HOROVOD_GLOO_IFACE"])
    began = time.monotonic()
    for turn in range(rounds):
        # Of rounds that follow each other, as each context ends with a barrier of its ranks.
        meet("global", number("RANK"), number("SIZE"))
        meet("local_" + HOST, number("LOCAL_RANK"), number("LOCAL_SIZE"))
        meet(f"cross_{number('LOCAL_RANK')}", number("CROSS_RANK"), number("CROSS_SIZE"))
        meet(f"global_process_set_hash_{turn:x}", number("RANK"), number("SIZE"))
    print("met", number("SIZE"), number("LOCAL_SIZE"), number("CROSS_SIZE"), requests,
          round(time.monotonic() - began, 3), flush=True)
    if len(sys.argv) > 2:
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        meet("late", number("RANK"), number("SIZE"))
        print("met again", flush=True)


main(int(sys.argv[1]))
