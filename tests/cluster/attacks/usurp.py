# SPDX-License-Identifier: Apache-2.0
"""usurp.py SOCKET AGENT SEED: as the agent's user, ends the agent, takes its place at the spawner's SOCKET and asks for
what it should not get. Users who connect to /run/dtrain-agent/usurped.sock are whom it has connections of: one each
of root, a system user and mallory. Prints what was answered as JSON: {what: [stage, words]}."""
import array
import contextlib
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import time

# spawner/protocol.h
SPAWN, KILL, ALIVE, LIST, NONCE, REFUSED, SPAWNED, DONE, JOBS, ENDED = 1, 2, 3, 4, 5, 64, 65, 66, 67, 96
CONNECTION, ACCOUNT = 1, 2
USURPED = "/run/dtrain-agent/usurped.sock"
REQUESTS = 100_000
PATIENCE = 20
SYSTEM = 999


def header(kind, tag, version=1):
    return struct.pack("=HHI", version, kind, tag)


def spawn(tag, job, proof, account="", lease=10_000, reserved=0):
    return header(SPAWN, tag) + struct.pack("=68s5IQ64s", job.encode(), 0, lease, 1000, proof, reserved, 0,
                                            account.encode())


def kill(tag, job, uid):
    return header(KILL, tag) + struct.pack("=68sII", job.encode(), uid, 0)


class Spawner:
    def __init__(self, path):
        """Waits until the agent's own connection is gone."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.connect(path)
            self._answers, self._tag = {}, 0
            with contextlib.suppress(EOFError, ConnectionError):
                self.ask(lambda tag: header(ALIVE, tag))
                return
            if time.monotonic() > deadline:
                raise SystemExit("the spawner serves somebody else")
            time.sleep(0.01)

    def send(self, packet, fds=()):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._socket.sendmsg([packet], rights)

    def next_tag(self):
        self._tag += 1
        return self._tag

    def read(self):
        """(tag, type, packet); of events the tag is 0. Descriptors that come with it are closed."""
        if not select.select([self._socket], [], [], PATIENCE)[0]:
            raise SystemExit("no answer")
        packet, fds, _, _ = socket.recv_fds(self._socket, 1 << 14, 4)
        for fd in fds:
            os.close(fd)
        if not packet:
            raise EOFError
        _, kind, tag = struct.unpack_from("=HHI", packet)
        return tag, kind, packet

    def ask(self, request, fds=(), tag=None):
        """The answer to `request(tag)`. `tag`: 0 for packets that are answered without theirs."""
        own = self.next_tag()
        self.send(request(own), fds)
        while True:
            answered, kind, packet = self.read()
            if kind < ENDED and answered == (own if tag is None else tag):
                return kind, packet

    def wait_for_end(self, job):
        while True:
            _, kind, packet = self.read()
            if kind == ENDED and packet[8:76].rstrip(b"\0").decode() == job:
                return

    def is_closed(self):
        try:
            while True:
                self.read()
        except (EOFError, ConnectionError):
            return True


def told(answer):
    kind, packet = answer
    if kind != REFUSED:
        return [0, f"type {kind}"]
    stage, _ = struct.unpack_from("=Ii", packet, 8)
    return [stage, packet[16:].rstrip(b"\0").decode()]


def connections():
    """{uid: accepted connection} of the users who are to come."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(USURPED)
    os.chmod(USURPED, 0o777)
    listener.listen()
    print("listening", flush=True)
    found = {}
    while len(found) < 3:
        connection, _ = listener.accept()
        uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        found[uid] = connection
    os.unlink(USURPED)
    return found


def ask_for_each(spawner, users):
    """Each kind once. A request that is by the rules comes in between: sixteen breaches in a row end it."""
    answers = {}

    def note(what, *args, **options):
        answers[what] = told(spawner.ask(*args, **options))
        assert told(spawner.ask(lambda tag: header(ALIVE, tag))) == [0, f"type {DONE}"]

    def by(uid):
        return [users[uid].fileno()]

    [mallory] = set(users) - {0, SYSTEM}
    note("root by name", lambda tag: spawn(tag, "a", ACCOUNT, "root"))
    note("root connected", lambda tag: spawn(tag, "a", CONNECTION), by(0))
    note("a system user by name", lambda tag: spawn(tag, "a", ACCOUNT, "system"))
    note("a system user connected", lambda tag: spawn(tag, "a", CONNECTION), by(SYSTEM))
    note("its own user", lambda tag: spawn(tag, "a", ACCOUNT, "dtrain"))
    ours = socket.socketpair()
    note("a socket pair", lambda tag: spawn(tag, "a", CONNECTION), [ours[0].fileno()])
    note("no connection", lambda tag: spawn(tag, "a", CONNECTION))
    # What its user may have: one job for a connection.
    note("mallory connected", lambda tag: spawn(tag, "hers", CONNECTION), by(mallory))
    note("the same descriptor", lambda tag: spawn(tag, "b", CONNECTION), by(mallory))
    copy = os.dup(users[mallory].fileno())
    note("a copy of it", lambda tag: spawn(tag, "b", CONNECTION), [copy])
    note("a job that is there", lambda tag: spawn(tag, "hers", ACCOUNT, "mallory"))
    note("it is killed", lambda tag: kill(tag, "hers", mallory))
    spawner.wait_for_end("hers")
    note("it is killed again", lambda tag: kill(tag, "hers", mallory))
    note("the same descriptor afterwards", lambda tag: spawn(tag, "b", CONNECTION), by(mallory))
    note("a job named ..", lambda tag: spawn(tag, "..", ACCOUNT, "mallory"))
    note("a job above", lambda tag: spawn(tag, "../../../etc", ACCOUNT, "mallory"))
    note("an account above", lambda tag: spawn(tag, "a", ACCOUNT, "../root"))
    note("a kill above", lambda tag: kill(tag, "../../..", 0))
    note("a nonce", lambda tag: header(NONCE, tag))
    note("an answer", lambda tag: header(SPAWNED, tag))
    note("another version", lambda tag: header(ALIVE, tag, version=7))
    note("descriptors with a list", lambda tag: header(LIST, tag), [0] * 2)
    note("a lease of weeks", lambda tag: spawn(tag, "a", ACCOUNT, "mallory", lease=0xffffffff))
    note("what is not yet", lambda tag: spawn(tag, "a", ACCOUNT, "mallory", reserved=1))
    note("a part of a request", lambda tag: spawn(tag, "a", ACCOUNT, "mallory")[:100])
    note("64 KiB", lambda tag: os.urandom(64 << 10), tag=0)
    return answers


def flood(spawner, seed):
    """Each tenth is by the rules, so that the connection stays. Descriptors are /dev/null's: a spawner that keeps them
    does not keep our output open. Returns how many were answered."""
    dice = random.Random(seed)
    left, answered = REQUESTS, 0
    while left > 0:
        waiting = set()
        for number in range(100):
            tag = spawner.next_tag()
            what = dice.choice(["kill", "type", "spawn", "cut", "fds"]) if number % 10 else "alive"
            if what == "spawn" and number > 10:
                what = "kill"  # a look-up of an account is a process
            spawner.send({"alive": header(ALIVE, tag), "kill": kill(tag, f"none{tag}", 0),
                          "type": header(dice.randint(5, 65535), tag), "cut": header(SPAWN, tag) + b"x" * 50,
                          "spawn": spawn(tag, f"j{tag}", ACCOUNT, "root"),
                          "fds": header(LIST, tag)}[what], [0] * 3 if what == "fds" else ())
            waiting.add(tag)
        while waiting:
            waiting.discard(spawner.read()[0])
        left -= 100
        answered += 100
    return answered


def main(path, agent, seed):
    users = connections()
    os.kill(int(agent), signal.SIGKILL)
    spawner = Spawner(path)
    answers = ask_for_each(spawner, users)
    second = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    second.connect(path)
    answers["a second connection"] = [0, "closed" if second.recv(100) == b"" else "served"]
    print(json.dumps({"answers": answers}), flush=True)
    print(json.dumps({"flood": flood(spawner, int(seed))}), flush=True)
    with contextlib.suppress(ConnectionError):
        for _ in range(16):
            spawner.send(b"rubbish")
    print(json.dumps({"closed": spawner.is_closed()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
