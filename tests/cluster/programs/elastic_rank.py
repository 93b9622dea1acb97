# SPDX-License-Identifier: Apache-2.0
"""A rank of an elastic Horovod script, as the server of its launcher sees it: STEPS sums over all ranks, of PAUSE seconds
each, with a commit after each. It meets the others as Horovod's Gloo client does (three tries for a request, 30 s for the
addresses of the others, and SIGABRT when either fails), goes back to what it has committed when a sum breaks, takes
notices of changed hosts, and asks for its place again after either. From Horovod's sources:
horovod/common/gloo/{gloo_context,http_store}.cc, horovod/common/elastic.py, horovod/runner/elastic/worker.py and
horovod/runner/common/util/{network,secret,codec}.py.

    elastic_rank.py STEPS PAUSE

Behaves badly where asked: ELASTIC_FAIL="RANK:STEP:CODE" exits with that code at that step of its first round;
ELASTIC_LATE="HOST:SECONDS" imports slowly there; ELASTIC_STRANGE=1 puts an address that is none."""
import base64
import enum
import fcntl
import hashlib
import hmac
import os
import pickle
import socket
import socketserver
import struct
import sys
import threading
import time
import types
import urllib.request

DOOR = (os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
HOST = os.environ["HOROVOD_HOSTNAME"]
NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
TRIES, BETWEEN_TRIES = 3, 0.5
GATHER = float(os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", 30))  # of collectives, too
POLL = 0.01


class Broken(Exception):
    """A collective failed: HorovodInternalError."""


class HostsChanged(Exception):
    def __init__(self, skip_sync):
        super().__init__()
        self.skip_sync = skip_sync


def number(name):
    return int(os.environ["HOROVOD_" + name])


def say(*words):
    print(*words, flush=True)


def give_up(why):
    """An exception in Horovod's background thread, which nobody catches."""
    sys.stderr.write(f"elastic_rank: {why}\n")
    sys.stderr.flush()
    os.abort()


# ---- the server ---------------------------------------------------------------------------

def ask_once(method, scope, key, body):
    with socket.create_connection(DOOR, None) as connection:
        connection.sendall(f"{method} /{scope}/{key} HTTP/1.1\r\nHost: {DOOR[0]}\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            more = connection.recv(65536)
            if not more:
                raise OSError(f"closed after {answer!r}")
            answer += more
        header, _, got = answer.partition(b"\r\n\r\n")
        status = int(header.split()[1])
        [length] = [int(line[16:]) for line in header.split(b"\r\n") if line.startswith(b"Content-Length: ")]
        while len(got) < length:
            more = connection.recv(65536)
            if not more:
                raise OSError("closed within the body")
            got += more
    if status not in (200, 404):
        raise OSError(f"status {status}")
    return got if status == 200 else None


def ask(method, scope, key, body=b""):
    why = None
    for attempt in range(TRIES):
        try:
            return ask_once(method, scope, key, body)
        except OSError as error:
            why = error
            time.sleep(BETWEEN_TRIES)
    return give_up(f"{method} /{scope}/{key}: {why}")


# ---- a round ------------------------------------------------------------------------------

def address_of(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        got = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", interface.encode()[:15]))  # SIOCGIFADDR
    return socket.inet_ntoa(got[20:24])


class Mesh:
    """A connection between each two ranks of a scope."""

    def __init__(self, scope, rank, size):
        self.rank, self.size = rank, size
        self.peers = {}
        ask("PUT", scope, f"rank_{rank}", HOST.encode())
        for peer in range(size):
            ask("GET", scope, f"rank_{peer}")
        with socket.create_server(("", 0), backlog=size + 1) as listener:
            where = f"{address_of(os.environ['HOROVOD_GLOO_IFACE'])}:{listener.getsockname()[1]}"
            ask("PUT", scope, str(rank), where.encode())
            until = time.monotonic() + GATHER
            for peer in range(rank):
                while (address := ask("GET", scope, str(peer))) is None:
                    if time.monotonic() > until:
                        give_up(f"no address of {peer} in {scope} within {GATHER} s")
                    time.sleep(POLL)
                ip, port = address.decode().rsplit(":", 1)
                try:
                    connection = socket.create_connection((ip, int(port)), GATHER)
                    connection.sendall(struct.pack("!I", rank))
                except OSError as error:
                    give_up(f"cannot connect to {peer} of {scope} at {ip}:{port}: {error}")
                self.peers[peer] = connection
            listener.settimeout(GATHER)
            while len(self.peers) < size - 1:
                try:
                    connection = listener.accept()[0]
                except OSError:
                    give_up(f"{size - 1 - len(self.peers)} of {scope} have not connected within {GATHER} s")
                connection.settimeout(GATHER)
                self.peers[struct.unpack("!I", self.read(connection, 4))[0]] = connection
        ask("DELETE", scope, str(rank))

    @staticmethod
    def read(connection, size):
        got = b""
        while len(got) < size:
            try:
                more = connection.recv(size - len(got))
            except OSError as error:
                raise Broken() from error
            if not more:
                raise Broken()
            got += more
        return got

    def exchange(self, data):
        """What each rank gave: all give as many bytes."""
        try:
            for connection in self.peers.values():
                connection.sendall(data)
        except OSError as error:
            raise Broken() from error
        all_of = {peer: self.read(connection, len(data)) for peer, connection in self.peers.items()}
        return {**all_of, self.rank: data}

    def close(self):
        for connection in self.peers.values():
            connection.close()


class World:
    def __init__(self):
        self.mesh = None
        self.rounds = 0

    def init(self, again):
        if again:
            got = ask("GET", "rank_and_size", f"{HOST}:{os.environ['HOROVOD_LOCAL_RANK']}")
            numbers = [int(each) for each in (got or b"0,0,0,0,0,0").split(b",")]
            if numbers == [-1] * 6:
                give_up("this worker has been removed from the job")
            for name, value in zip(NUMBERS, numbers):
                os.environ["HOROVOD_" + name] = str(value)
        self.rounds += 1
        self.mesh = Mesh("global", number("RANK"), number("SIZE"))
        for scope, of in ((f"local_{HOST}", "LOCAL"), (f"cross_{number('LOCAL_RANK')}", "CROSS")):
            Mesh(scope, number(of + "_RANK"), number(of + "_SIZE")).close()

    def sum(self, value):
        return sum(struct.unpack("!q", each)[0] for each in self.mesh.exchange(struct.pack("!q", value)).values())

    def from_rank_0(self, numbers):
        return struct.unpack(f"!{len(numbers)}q", self.mesh.exchange(struct.pack(f"!{len(numbers)}q", *numbers))[0])


# ---- notices ------------------------------------------------------------------------------

class HostUpdateResult(enum.IntFlag):
    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class HostsUpdatedRequest:
    def __init__(self, timestamp, res=HostUpdateResult.no_update):
        self.timestamp, self.res = timestamp, res


class AckResponse:
    pass


def make_modules():
    """What is unpickled names these."""
    for name, classes in (("horovod", ()), ("horovod.runner", ()), ("horovod.runner.elastic", ()),
                          ("horovod.runner.elastic.worker", (HostUpdateResult, HostsUpdatedRequest)),
                          ("horovod.runner.common", ()), ("horovod.runner.common.util", ()),
                          ("horovod.runner.common.util.network", (AckResponse,))):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        for each in classes:
            each.__module__ = name
            setattr(module, each.__name__, each)


class Notices(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    address_family = socket.AF_INET

    def __init__(self):
        super().__init__(("", 0), None)
        self.key = os.urandom(32)
        self.got = []
        threading.Thread(target=self.serve_forever, daemon=True).start()
        interface = os.environ["HOROVOD_GLOO_IFACE"]
        value = ({interface: [(address_of(interface), self.server_address[1])]}, self.key)
        if os.environ.get("ELASTIC_STRANGE"):
            value = {"no": "address"}
        request = urllib.request.Request(
            f"http://{DOOR[0]}:{DOOR[1]}/worker_addresses/{HOST}:{os.environ['HOROVOD_LOCAL_RANK']}",
            base64.b64encode(pickle.dumps(value, 5)), method="PUT")
        urllib.request.urlopen(request).close()

    def finish_request(self, request, client_address):
        got = request.makefile("rb")
        while True:
            digest = got.read(32)
            if len(digest) < 32:
                return
            body = got.read(struct.unpack("i", got.read(4))[0])
            if not hmac.compare_digest(digest, hmac.new(self.key, body, hashlib.sha256).digest()):
                say("notice with a wrong digest")
                return
            notice = pickle.loads(body)
            self.got.append((notice.timestamp, HostUpdateResult(notice.res)))
            answer = pickle.dumps(AckResponse(), 5)
            request.sendall(hmac.new(self.key, answer, hashlib.sha256).digest() + struct.pack("i", len(answer)) + answer)


class State:
    def __init__(self, world, notices):
        self.world, self.notices = world, notices
        self.step = self.saved = 0
        self.last = 0

    def commit(self):
        self.saved = self.step
        before, now, change = self.last, self.last, HostUpdateResult.no_update
        while self.notices.got:
            timestamp, what = self.notices.got.pop(0)
            if timestamp > now:
                now = timestamp
                change |= what
        before, self.last, change = self.world.from_rank_0((before, now, int(change)))
        if self.last > before:
            raise HostsChanged(change == HostUpdateResult.removed)

    def restore(self):
        self.step = self.saved

    def sync(self):
        self.step, = self.world.from_rank_0((self.step,))
        self.saved = self.step

    def on_reset(self):
        self.notices.got.clear()


def train(state, steps, pause):
    world = state.world
    where = [int(each) for each in os.environ.get("ELASTIC_FAIL", "-1:-1:0").split(":")]
    while state.step < steps:
        if world.rounds == 1 and [number("RANK"), state.step] == where[:2]:
            sys.exit(where[2])
        if world.sum(1) != number("SIZE"):
            give_up("a wrong sum")
        state.step += 1
        say("step", state.step, "round", world.rounds, "rank", number("RANK"), "of", number("SIZE"), "local", number("LOCAL_RANK"),
            "of", number("LOCAL_SIZE"), "pid", os.getpid())
        time.sleep(pause)
        state.commit()


def main(steps, pause):
    late = os.environ.get("ELASTIC_LATE", ":0").split(":")
    if late[0] == HOST:
        time.sleep(float(late[1]))
    if os.environ.get("HOROVOD_ELASTIC") != "1":
        raise RuntimeError("not told that the job is elastic")
    make_modules()
    world = World()
    world.init(again=False)
    notices = Notices()
    state = State(world, notices)
    skip_sync = False
    while True:
        try:
            if not skip_sync:
                state.sync()
            train(state, steps, pause)
            break
        except Broken:
            say("a sum broke at step", state.step, "and goes back to", state.saved)
            state.restore()
            skip_sync = False
        except HostsChanged as change:
            say("hosts changed at step", state.step)
            skip_sync = change.skip_sync
        world.mesh.close()
        world.init(again=True)
        state.on_reset()
    say("done", state.step, "rank", number("RANK"), "of", number("SIZE"))
    world.mesh.close()


main(int(sys.argv[1]), float(sys.argv[2]))
