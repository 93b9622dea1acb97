# SPDX-License-Identifier: Apache-2.0
"""What stands between a launcher and an agent's port, and cuts: cutting.py PORT TARGET MODE NUMBER...
carries connections to PORT on to 127.0.0.1:TARGET. MODE "reset": the Nth connection is reset behind
its Nth number of bytes from the launcher, once; connections after those are left alone. MODE "output":
the same, of bytes to the launcher. MODE "idle": who has said nothing for NUMBER seconds is forgotten
as by a NAT, without a word, and is reset when he speaks. MODE "swallow": at SIGUSR1 the connections that
there are carry nothing any more, and neither side is told. Prints a line for each of these."""
import select
import signal
import socket
import struct
import sys
import time


class Pair:
    def __init__(self, near, target, limit):
        self.near = near
        self.far = socket.create_connection(("127.0.0.1", target))
        self.limit = limit
        self.carried = 0
        self.last = time.monotonic()
        self.forgotten = False
        self.swallowed = False

    def reset(self):
        for end in (self.near, self.far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()

    def end(self):
        self.near.close()
        self.far.close()


class Proxy:
    def __init__(self, port, target, mode, numbers):
        self.listener = socket.create_server(("0.0.0.0", port), backlog=64)
        self.target, self.mode, self.numbers = target, mode, numbers
        self.pairs = {}  # by socket
        self.swallowed = []  # which nobody closes
        signal.signal(signal.SIGUSR1, lambda *_: self.swallow())
        print("cuts", flush=True)

    def drop(self, pair, how):
        for end in (pair.near, pair.far):
            del self.pairs[end]
        how()

    def accept(self):
        near, _ = self.listener.accept()
        limit = self.numbers.pop(0) if self.mode != "idle" and self.numbers else None
        pair = Pair(near, self.target, limit)
        self.pairs[near] = self.pairs[pair.far] = pair
        print("open", flush=True)

    def swallow(self):
        for pair in set(self.pairs.values()):
            pair.swallowed = True
            self.swallowed.append(pair)
        print("swallowed", flush=True)

    def carry(self, source):
        pair = self.pairs[source]
        try:
            data = source.recv(4096)
        except OSError:
            data = b""
        if pair.forgotten:
            return self.drop(pair, pair.reset)
        if pair.swallowed:
            if not data:
                del self.pairs[source]
            return None
        if not data:
            return self.drop(pair, pair.end)
        pair.last = time.monotonic()
        try:
            (pair.far if source is pair.near else pair.near).sendall(data)
        except OSError:
            return self.drop(pair, pair.reset)
        if pair.limit is not None and (source is pair.near) == (self.mode == "reset"):
            pair.carried += len(data)
            if pair.carried >= pair.limit:
                print("reset", flush=True)
                self.drop(pair, pair.reset)

    def forget(self):
        now = time.monotonic()
        for pair in set(self.pairs.values()):
            if not pair.forgotten and now - pair.last > self.numbers[0]:
                pair.forgotten = True
                print("forgotten", flush=True)

    def run(self):
        while True:
            ready, _, _ = select.select([self.listener, *self.pairs], [], [],
                                        0.05 if self.mode == "idle" else None)
            for source in ready:
                if source is self.listener:
                    self.accept()
                elif source in self.pairs:
                    self.carry(source)
            if self.mode == "idle":
                self.forget()


Proxy(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], [float(word) for word in sys.argv[4:]]).run()
