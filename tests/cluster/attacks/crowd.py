# SPDX-License-Identifier: Apache-2.0
"""Mallory, who sends an agent as much as it takes, HTTP/2's flow control respected.
crowd.py MODE ARGUMENT...: see the functions. PLACE is the path of a unix socket, or
ADDRESS:PORT:TLS_DIR."""
import contextlib
import os
import re
import resource
import select
import signal
import socket
import ssl
import sys
import threading
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from abuse import (ACK, ATTACHED, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RESERVE,  # noqa: E402
                   RST_STREAM, SETTINGS, UNARY, Connection, field, frame, hello, kept, link_frame, message, request)
from strangers import text  # noqa: E402

WINDOW_UPDATE, INITIAL_WINDOW = 8, 4
PATIENCE = 100


def connect(place):
    if place.startswith("/"):
        return Sender(place, 0, "")
    address, port, folder = place.split(":")
    return Sender(address, int(port), folder)


class Sender(Connection):
    def __init__(self, *where):
        super().__init__(*where)
        self.window = self.initial = 65535
        self.windows = {}
        self.ended = {}  # streams: how
        self.heard = {}  # streams: bytes of data
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def begin(self, stream, method):
        self.windows[stream] = self.initial
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream,
                                  request(b"/dtrain.v1.Agent/" + method)))

    def take(self, patience):
        """One frame. TimeoutError; another OSError when the connection has ended."""
        self.socket.settimeout(patience)
        while len(self.buffer) < 9 or len(self.buffer) < 9 + int.from_bytes(self.buffer[:3], "big"):
            piece = self.socket.recv(65536)
            if not piece:
                raise ConnectionResetError
            self.buffer += piece
        length = int.from_bytes(self.buffer[:3], "big")
        kind, flags = self.buffer[3], self.buffer[4]
        stream = int.from_bytes(self.buffer[5:9], "big")
        payload, self.buffer = self.buffer[9:9 + length], self.buffer[9 + length:]
        self.socket.settimeout(PATIENCE)
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, length, 6):
                if int.from_bytes(payload[at:at + 2], "big") == INITIAL_WINDOW:
                    new = int.from_bytes(payload[at + 2:at + 6], "big")
                    for each in self.windows:
                        self.windows[each] += new - self.initial
                    self.initial = new
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self.window += more
            elif stream in self.windows:
                self.windows[stream] += more
        elif kind == DATA:
            self.heard[stream] = self.heard.get(stream, b"") + payload
            if payload:
                more = len(payload).to_bytes(4, "big")
                self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, more))
        elif kind == RST_STREAM:
            self.ended[stream] = "reset"
        elif kind == HEADERS and flags & END_STREAM:
            status = re.search(rb"grpc-status.(\d+)", payload, re.S)
            self.ended[stream] = "status " + (status.group(1).decode() if status else "?")

    def push(self, stream, data, patience):
        """False when no more is taken for so long, or the call has ended."""
        data = memoryview(data)
        while data and stream not in self.ended:
            room = min(self.window, self.windows[stream], 16384, len(data))
            if room > 0:
                self.socket.sendall(frame(DATA, 0, stream, bytes(data[:room])))
                data = data[room:]
                self.window -= room
                self.windows[stream] -= room
                continue
            try:
                self.take(patience)
            except TimeoutError:
                return False
        return not data

    def wait(self, until):
        """True: it came; False: the connection has ended."""
        end = time.monotonic() + PATIENCE
        try:
            while not until():
                self.take(max(0.1, end - time.monotonic()))
            return True
        except TimeoutError:
            raise
        except OSError:
            return False


# A worker whose mode of stdin has ten bytes, of which five do: serialised again it is longer.
WORKER = field(13, field(1, 0) + b"\x48\xff\xff\xff\xff\x0f")


def namesakes(place, build, job, *attempts):
    """Sessions of a job's name, each with such an attempt, held until stdin ends. Prints how each began."""
    held = []
    for attempt in attempts:
        connection = connect(place)
        connection.begin(1, b"Session")
        first = hello(job.encode(), build.encode(), lease=200000)
        inner = first[2:] if first[1] < 128 else first[3:]
        first = field(1, inner + field(4, int(attempt)))
        connection.push(1, message(len(first), first), PATIENCE)
        connection.wait(lambda: ATTACHED in connection.heard.get(1, b"") or 1 in connection.ended)
        print(connection.ended.get(1, "joined"), flush=True)
        held.append(connection)
    sys.stdin.read()


def contained(place, build, job, image):
    """A session of a job's name, whose one worker sleeps in a container of docker's, until stdin ends. Prints how it
    began."""
    name = job.encode()
    connection = connect(place)
    connection.begin(1, b"Session")
    first = hello(name, build.encode(), lease=20000)  # a busy machine takes seconds
    connection.push(1, message(len(first), first), PATIENCE)
    connection.wait(lambda: ATTACHED in connection.heard.get(1, b"") or 1 in connection.ended)
    container = field(1, image.encode()) + field(2, b"docker")
    program = field(1, b"sleep") + field(1, b"600") + field(2, b"/") + field(5, container)
    part = (field(1, name) + field(4, 1) + field(5, 1) + field(6, 1) + field(7, b"here") + field(13, field(1, 0)) +
            field(14, field(1, b"127.0.0.1")) + field(17, 1000) + field(24, program))
    connection.push(1, RESERVE + kept(1, field(4, part)), PATIENCE)
    print(connection.ended.get(1, "joined"), flush=True)
    sys.stdin.read()


def ports(place, build, sessions):
    """Sessions with 1024 ports each, held until stdin ends. Prints for each whether it got them."""
    held = []
    for i in range(int(sessions)):
        connection = connect(place)
        connection.begin(1, b"Session")
        first = hello(b"ports%d" % i, build.encode(), lease=8000)
        connection.push(1, message(len(first), first), PATIENCE)
        connection.wait(lambda: ATTACHED in connection.heard.get(1, b"") or 1 in connection.ended)
        before = len(connection.heard.get(1, b""))
        asked = link_frame(field(3, field(1, 1024)), sequence=1, channel=0)
        connection.push(1, message(len(asked), asked), PATIENCE)
        connection.wait(lambda: len(connection.heard[1]) > before + 1024 or b"may hold" in connection.heard[1])
        print("refused" if b"one user's may hold" in connection.heard[1] else "held", flush=True)
        held.append(connection)
    sys.stdin.read()


def resumes(place, build, processes, count):
    """So many processes that sleep, and launchers that come back again and again for jobs that are not there, until
    stdin ends. Prints "asking" when there has been an answer for each."""
    closed = [(os.POSIX_SPAWN_CLOSE, fd) for fd in range(3)]
    asleep = [os.posix_spawn("/bin/sleep", ["sleep", "600"], {}, file_actions=closed) for _ in range(int(processes))]
    answers = []

    def come_back(job):
        first = hello(job, build.encode())
        inner = first[2:] if first[1] < 128 else first[3:]
        first = field(1, inner + field(9, 1))
        while True:
            with contextlib.suppress(OSError):
                connection = connect(place)
                for stream in range(1, 1 << 20, 2):
                    connection.begin(stream, b"Session")
                    connection.push(stream, message(len(first), first), PATIENCE)
                    if not connection.wait(lambda stream=stream: stream in connection.ended):
                        break
                    answers.append(connection.ended[stream])
            time.sleep(0.1)

    for i in range(int(count)):
        threading.Thread(target=come_back, args=(b"gone%d" % i,), daemon=True).start()
    while len(answers) < int(count):
        time.sleep(0.05)
    print("asking", flush=True)
    sys.stdin.read()
    for pid in asleep:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(0)


def has_words(messages):
    """Whether one is longer than a heartbeat."""
    while len(messages) >= 5:
        size = int.from_bytes(messages[1:5], "big")
        if size > 64:
            return True
        messages = messages[5 + size:]
    return False


def start(place, build, what):
    """A job whose part is BYTES long, or has so many variables: "67108764", "x100000". Prints how it
    ended."""
    job = b"mallory"
    connection = connect(place)
    connection.begin(1, b"Session")
    first = hello(job, build.encode(), lease=20000)  # a busy machine takes seconds to send it
    connection.push(1, message(len(first), first), PATIENCE)
    if not connection.wait(lambda: ATTACHED in connection.heard.get(1, b"") or 1 in connection.ended):
        return print("not welcome")
    part = (field(1, job) + field(4, 1) + field(5, 1) + field(6, 1) + field(7, b"here") +
            field(24, field(1, b"/bin/true") + field(2, b"/tmp")) + 40 * WORKER + field(14, field(1, b"127.0.0.1")))
    if what.startswith("x"):
        part += b"".join(field(10, field(1, b"V%06d" % i) + field(2, b"x")) for i in range(int(what[1:])))
    else:
        left = int(what) - len(part) - 40
        part += field(10, field(1, b"BIG") + field(2, bytes(left).replace(b"\0", b"x")))
    welcome = len(connection.heard.get(1, b""))
    with contextlib.suppress(OSError):
        connection.push(1, RESERVE + kept(1, field(4, part)), PATIENCE)
    came = connection.wait(
        lambda: 1 in connection.ended or has_words(connection.heard.get(1, b"")[welcome:]))
    print(connection.ended.get(1, "event") if came else "closed")


def one_message(place, method, sent, headers=b""):
    """A call with this message. Prints how it ended."""
    connection = connect(place)
    connection.windows[1] = connection.initial
    connection.socket.sendall(frame(HEADERS, END_HEADERS, 1,
                                    request(b"/dtrain.v1.Agent/" + method) + headers))
    with contextlib.suppress(OSError):
        if connection.push(1, sent, PATIENCE):
            connection.socket.sendall(frame(DATA, END_STREAM, 1))
    print(connection.ended.get(1, "event") if connection.wait(lambda: 1 in connection.ended)
          else "closed", flush=True)


def empties(place, size, count):
    """Jobs of empty workers, two bytes each, one job after the other."""
    begun = field(4, b"\x6a\0" * (int(size) // 2 - 8))
    for _ in range(int(count)):
        one_message(place, b"Session", message(len(begun), begun))


def questions(place, size):
    """Each call with a question, which is long."""
    for method in (b"Logs", b"ReadLog", b"StopJob", b"NodeStatus"):
        asked = field(1, bytes(int(size)).replace(b"\0", b"x"))
        one_message(place, method, message(len(asked), asked))


def bombs(place, size, count):
    """Messages that are a thousandth as long before they are unpacked."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(int(size) >> 20)) + packer.flush()
    for _ in range(int(count)):
        one_message(place, b"Session", b"\1" + message(len(packed), packed)[1:],
                    b"\0" + text(b"grpc-encoding") + text(b"gzip"))


def shepherds():
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{entry}").st_uid == os.getuid():
                line = Path(f"/proc/{entry}/cmdline").read_bytes()
                state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
                if line.endswith(b"\0shepherd\0") and state != "Z":
                    found.add(int(entry))
    return found


def stopped(place, build, count):
    """So many launches whose shepherds she stops before they have a job, and which she leaves then. They
    may have as much time as there is. Prints how many shepherds there were, and how many after a while."""
    most = 0
    known = set()
    for i in range(int(count)):
        with contextlib.suppress(OSError):
            connection = connect(place)
            connection.begin(1, b"Session")
            first = hello(b"stopped%d" % i, build.encode(), lease=100)
            inner = first[2:] if first[1] < 128 else first[3:]
            first = field(1, inner + field(7, 0xffffffff))
            connection.push(1, message(len(first), first), PATIENCE)
            connection.wait(lambda: connection.heard.get(1) or 1 in connection.ended)
            for pid in shepherds() - known:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGSTOP)
                known.add(pid)
            connection.socket.close()
        most = max(most, len(shepherds()))
    end = time.monotonic() + 40
    while shepherds() and time.monotonic() < end:
        time.sleep(0.5)
    print(most, len(shepherds()), flush=True)


def halves(place, connections, calls, size):
    """Calls whose message is never whole. Prints "held" when nobody is let send more, then how many
    of the connections were closed."""
    sent = []
    closed = []
    door = threading.Lock()  # the agent takes so many handshakes at a time from one address
    # Many threads, as each connection waits for its own windows.
    ready = threading.Barrier(int(connections) + 1)

    def one():
        try:
            with door:
                connection = connect(place)
            for i in range(int(calls)):
                connection.begin(1 + 2 * i, UNARY[i % len(UNARY)])
            for i in range(int(calls)):
                if connection.push(1 + 2 * i, message(int(size) + 1, bytes(int(size))), 5):
                    sent.append(1)
        except OSError:
            closed.append(1)
            return ready.wait()
        ready.wait()
        if not connection.wait(lambda: False):
            closed.append(1)

    threads = [threading.Thread(target=one) for _ in range(int(connections))]
    for each in threads:
        each.start()
    ready.wait()
    print("held", len(sent), flush=True)
    for each in threads:
        each.join()
    print("closed", len(closed), flush=True)


def client_hello():
    """How TLS begins."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="agent").do_handshake()
    return out.read()


def silent(place, sources, count, begin=""):
    """So many connections that say nothing, from each of SOURCES (comma-separated; "-": wherever); with
    BEGIN, that begin a handshake and no more. Who is closed comes again, until standard input ends.
    Prints "there" when each has tried once."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    unix = place.startswith("/")
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    held = {}
    first = client_hello()

    def come(source):
        each = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        each.setblocking(False)
        with contextlib.suppress(OSError):
            if not unix:
                each.bind((source, 0))
            if begin:
                each.settimeout(1)
            each.connect(place if unix else (place.split(":")[0], int(place.split(":")[1])))
            if begin:
                each.sendall(first)
                each.setblocking(False)
        held[each.fileno()] = (each, source)
        poll.register(each, select.POLLIN | select.POLLRDHUP)

    for _ in range(int(count)):
        for source in sources.split(","):
            come(source)
    print("there", flush=True)
    again, due = [], time.monotonic() + 0.1
    while True:
        for fd, _ in poll.poll(100):
            if fd == 0:
                return
            each, source = held.pop(fd)
            poll.unregister(fd)
            each.close()
            again.append(source)
        if time.monotonic() >= due:
            for source in again:
                come(source)
            again, due = [], time.monotonic() + 0.1


def plain(place, connections, size):
    """Strangers who begin with calls of so many bytes, without TLS. Prints how many were closed."""
    address, port, _ = place.split(":")
    closed = 0
    data = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, request(b"/dtrain.v1.Agent/Logs"))
    data += message(int(size) + 1, bytes(int(size)))
    for _ in range(int(connections)):
        with contextlib.closing(socket.create_connection((address, int(port)), PATIENCE)) as each:
            try:
                each.sendall(data)
                while each.recv(65536):
                    pass
            except TimeoutError:
                continue
            except OSError:
                pass
            closed += 1
    print("closed", closed, flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
