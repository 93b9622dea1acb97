# SPDX-License-Identifier: Apache-2.0
"""What ranks of a current PyTorch (2.1 and later) do with the store at MASTER_PORT, byte for byte: they
greet, meet as a process group on Gloo does, sum over connections of their own, and go through a
store-based barrier; then each of the store's later operations. From PyTorch's sources:
TCPStore.cpp, TCPStoreBackend.hpp, ProcessGroupGloo.cpp, distributed_c10d.py.

With a file as its argument it waits for that file, in the store, before it meets again."""
import errno
import os
import socket
import struct
import sys
import threading
import time

SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE, APPEND, MULTI_GET, MULTI_SET = range(1, 12)
CANCEL_WAIT, PING, QUEUE_PUSH, QUEUE_POP, QUEUE_LEN, LIST_KEYS, BARRIER = range(12, 19)
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


class Store:
    """A connection, and keys with a prefix, as TCPStore and PrefixStore make them."""

    def __init__(self):
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self.connection = socket.create_connection(address, 60)
        self.connection.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE))
        nonce = struct.pack("<I", os.getpid())
        assert self.ask(PING, nonce, 4) == nonce
        self.add("init/", 1, raw=True)

    def ask(self, operation, words=b"", size=0):
        self.connection.sendall(bytes([operation]) + words)
        return self.read(size)

    def read(self, size):
        got = b""
        while len(got) < size:
            more = self.connection.recv(size - len(got))
            if not more:
                raise RuntimeError("the store has closed the connection")
            got += more
        return got

    def number(self):
        return struct.unpack("<q", self.read(8))[0]

    def blob(self):
        return self.read(self.number())

    @staticmethod
    def key(key):
        return text("/" + key)

    def keys(self, keys):
        return struct.pack("<Q", len(keys)) + b"".join(map(self.key, keys))

    def set(self, key, value):
        self.ask(SET, self.key(key) + text(value))

    def add(self, key, delta, raw=False):
        self.ask(ADD, (text(key) if raw else self.key(key)) + struct.pack("<q", delta))
        return self.number()

    def wait(self, keys):
        assert self.ask(WAIT, self.keys(keys), 1) == b"\0"

    def get(self, key):
        self.wait([key])
        self.ask(GET, self.key(key))
        return self.blob()


def exchange(addresses, listener):
    """The sum of all ranks' numbers, each of which every other has sent over a connection."""
    got = []

    def take():
        for _ in addresses:
            with listener.accept()[0] as connection:
                got.append(struct.unpack("!I", connection.recv(4, socket.MSG_WAITALL))[0])
    taker = threading.Thread(target=take)
    taker.start()
    for address in addresses:
        ip, port = address.decode().rsplit(":", 1)
        with socket.create_connection((ip, int(port)), 30) as connection:
            connection.sendall(struct.pack("!I", RANK))
    taker.join()
    return RANK + sum(got)


def meet(store, group, ranks):
    """A process group on Gloo: everybody's address, then a mesh of connections."""
    with socket.create_server(("", 0), backlog=SIZE + 1) as listener:
        store.set(f"{group}/0/{RANK}", f"{os.environ['DTRAIN_ADDRESS']}:{listener.getsockname()[1]}")
        peers = [f"{group}/0/{peer}" for peer in ranks if peer != RANK]
        store.wait(peers)
        store.ask(MULTI_GET, store.keys(peers))
        total = exchange([store.blob() for _ in peers], listener)
    assert total == sum(ranks), (total, ranks)
    arrived = store.add(f"{group}/store_based_barrier_key:1", 1)
    if arrived == len(ranks):
        store.set(f"{group}/store_based_barrier_key:1:last_worker", "1")
    store.wait([f"{group}/store_based_barrier_key:1:last_worker"])


def try_the_rest(store):
    store.ask(MULTI_SET, struct.pack("<Q", 2) + store.key(f"m{RANK}") + text("1")
              + store.key(f"n{RANK}") + text("2"))
    store.ask(APPEND, store.key(f"m{RANK}") + text("23"))
    assert store.get(f"m{(RANK + 1) % SIZE}")[:1] == b"1"
    store.ask(COMPARE_SET, store.key("chosen") + text("") + text(str(RANK)))
    chosen = store.blob()
    assert store.get("chosen") == chosen
    store.ask(QUEUE_PUSH, store.key(f"queue{(RANK + 1) % SIZE}") + text(f"from {RANK}"))
    store.wait([f"queue{RANK}"])
    store.ask(QUEUE_POP, store.key(f"queue{RANK}"))
    assert store.number() == 1 and store.blob() == b"from %d" % ((RANK - 1) % SIZE)
    store.ask(QUEUE_LEN, store.key(f"queue{RANK}"))
    assert store.number() == 0
    assert store.ask(CHECK, store.keys(["nobody's"]), 1) == b"\1"
    store.ask(WAIT, store.keys(["nobody's"]))
    assert store.ask(CANCEL_WAIT, size=1) == b"\1"
    assert store.ask(BARRIER, store.key("all here") + struct.pack("<q", SIZE), 1) == b"\0"
    store.ask(LIST_KEYS)
    listed = {store.blob() for _ in range(store.number())}
    assert b"/chosen" in listed and b"init/" in listed, listed
    store.ask(NUM_KEYS)
    assert store.number() >= len(listed)
    assert store.ask(BARRIER, store.key("all counted") + struct.pack("<q", SIZE), 1) == b"\0"
    store.ask(DELETE, store.key(f"n{RANK}"))
    assert store.number() == 1


def holders_of_master_port():
    """Names of the processes of this host that have a socket which listens there."""
    port, inodes = f":{int(os.environ['MASTER_PORT']):04X}", set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(table):
            words = line.split()
            if words[1].endswith(port) and words[3] == "0A":
                inodes.add(f"socket:[{words[9]}]")
    assert inodes, "nobody listens"
    names = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if inodes & set(files_of(pid)):
                names.add(open(f"/proc/{pid}/comm").read().strip())
        except (FileNotFoundError, PermissionError):
            pass  # it has ended, or is another user's
    return names


def files_of(pid):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            pass  # it has just been closed


def check_who_listens():
    names = holders_of_master_port()
    assert "dtrain-tcpstore" in names and all(name.startswith("dtrain") for name in names), names
    with socket.socket(socket.AF_INET6) as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taker.bind(("", int(os.environ["MASTER_PORT"])))
            taker.listen()
        except OSError as error:
            assert error.errno == errno.EADDRINUSE, error
        else:
            raise RuntimeError("MASTER_PORT could be bound")
    print("listening:", *sorted(names), flush=True)


def main(late):
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert os.environ["TORCHELASTIC_RESTART_COUNT"] == os.environ["DTRAIN_ATTEMPT"]
    began = time.monotonic()
    store = Store()
    meet(store, "default_pg", range(SIZE))
    if RANK % 2 == 0:
        meet(store, "even", range(0, SIZE, 2))
    try_the_rest(store)
    if RANK == 0:
        check_who_listens()
    print(f"met {SIZE} in {time.monotonic() - began:.2f} s", flush=True)
    if late:
        if RANK == 0:
            while not os.path.exists(late):
                time.sleep(0.01)
            store.set("late", "")
        store.wait(["late"])
        meet(store, "again", range(SIZE))
        print("met again", flush=True)


main(sys.argv[1] if len(sys.argv) > 1 else "")
