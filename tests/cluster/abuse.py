# SPDX-License-Identifier: Apache-2.0
"""A client that does to an agent what no launcher does: HTTP/2 by hand, over TLS or its unix socket.
abuse.py ADDRESS|PATH PORT TLS_DIR MODE [BUILD]: prints how it ended, one word or number a line."""
import random
import resource
import socket
import ssl
import struct
import sys
import time

from strangers import PREFACE, frame, text, varint

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
# Past every deadline of the agent.
PATIENCE = 100


def request(path):
    """The header block of a gRPC call, in HPACK without its dynamic table."""
    return (b"\x83\x86\x04" + text(path) + b"\x01" + text(b"agent") + b"\x0f\x10" +
            text(b"application/grpc") + b"\x00" + text(b"te") + text(b"trailers"))


def call(stream, message, method=b"Session", flags=END_HEADERS):
    return (frame(HEADERS, flags, stream, request(b"/dtrain.v1.Agent/" + method)) +
            frame(DATA, 0, stream, message))


def message(length, payload=b""):
    return b"\0" + struct.pack(">I", length) + payload


class Connection:
    def __init__(self, address, port, folder):
        self.buffer = b""
        if address.startswith("/"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(PATIENCE)
            self.socket.connect(address)
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(f"{folder}/ca.crt")
        context.load_cert_chain(f"{folder}/user.crt", f"{folder}/user.key")
        context.set_alpn_protocols(["h2"])
        self.socket = context.wrap_socket(socket.create_connection((address, port), PATIENCE),
                                          server_hostname=address)

    def start(self):
        self.send(PREFACE + frame(SETTINGS, 0, 0))
        return self

    def send(self, data):
        """False when the agent takes no more."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def read(self, count):
        while len(self.buffer) < count:
            try:
                piece = self.socket.recv(65536)
            except TimeoutError:
                raise
            except OSError:
                piece = b""
            if not piece:
                return None
            self.buffer += piece
        out, self.buffer = self.buffer[:count], self.buffer[count:]
        return out

    def frames(self):
        while (head := self.read(9)) is not None:
            length = int.from_bytes(head[:3], "big")
            payload = self.read(length) if length else b""
            if payload is None:
                return
            kind, flags = head[3], head[4]
            stream = int.from_bytes(head[5:9], "big")
            if kind == SETTINGS and not flags & ACK:
                self.send(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self.send(frame(PING, ACK, 0, payload))
            yield kind, flags, stream

    def end_of(self, stream):
        """How the agent ended a stream, or all."""
        for kind, flags, of in self.frames():
            if of == stream and kind == RST_STREAM:
                return "reset"
            if of == stream and kind == HEADERS and flags & END_STREAM:
                return "status"
        return "closed"

    def until_closed(self):
        for _ in self.frames():
            pass
        return "closed"


def lengths(connect):
    """I6: what no message may be as long as; a piece of it, and nothing more."""
    for length in (0xFFFFFFFF, 1 << 30, (64 << 20) + 1):
        connection = connect().start()
        connection.send(call(1, message(length, bytes(1000))))
        print(connection.end_of(1))


def garbage(connect):
    """I7: bytes that are no message, and cut ones."""
    chance = random.Random(7)
    for method in (b"Session", b"Logs", b"NodeStatus", b"ReadLog", b"StopJob", b"Nothing"):
        for _ in range(20):
            data = chance.randbytes(chance.randrange(1, 2000))
            connection = connect().start()
            connection.send(call(1, message(len(data), data), method) + frame(DATA, END_STREAM, 1))
            print(connection.end_of(1))
            connection.socket.close()
    for nested in (b"\x0a" * 10000, b"\x0b" * 10000, b"\x1a\x02\xff\xff"):  # groups, bad UTF-8
        connection = connect().start()
        connection.send(call(1, message(len(nested), nested)) + frame(DATA, END_STREAM, 1))
        print(connection.end_of(1))


def slow(connect):
    """I9: a preface that never ends, and a call of which nothing comes."""
    begin = time.monotonic()
    drip, silent = connect(), connect().start()
    silent.send(frame(HEADERS, END_HEADERS, 1, request(b"/dtrain.v1.Agent/Session")))
    drip.socket.settimeout(2)
    open_ = True
    for byte in PREFACE:
        if not (open_ and time.monotonic() - begin < PATIENCE):
            break
        drip.send(bytes([byte]))
        try:
            open_ = bool(drip.socket.recv(65536))
        except TimeoutError:
            pass
        except OSError:
            open_ = False
    print("open" if open_ else "closed")
    print(silent.end_of(1))


def settled(connect):
    """One that has acknowledged the agent's settings."""
    connection = connect().start()
    assert next(connection.frames())[0] == SETTINGS
    return connection


UNARY = (b"Logs", b"NodeStatus", b"ReadLog", b"StopJob")


def half(connect):
    """I9: calls whose message never comes, also after one that was answered; and no call at all.
    As many as one address may have at a time."""
    silent = []
    for i in range(125):
        connection = connect().start()
        first = 1
        if i % 5 == 4:
            connection.send(call(1, message(0), b"NodeStatus", END_HEADERS) + frame(DATA, END_STREAM, 1))
            if connection.end_of(1) != "status":
                print("refused")
            first = 3
        for stream in range(first, first + 20, 2):
            path = b"/dtrain.v1.Agent/" + UNARY[(i + stream // 2) % len(UNARY)]
            connection.send(frame(HEADERS, END_HEADERS, stream, request(path)))
            if i % 3 == 0:  # a piece of it
                connection.send(frame(DATA, 0, stream, message(100, b"x")))
        silent.append(connection)
    silent += [connect().start() for _ in range(2)]
    print("held", flush=True)
    for connection in silent:
        print(connection.until_closed())


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


PROTOCOL = 7  # kProtocolVersion of common/rpc
EPOCH = field(1, 7)  # of a Party, of both channels
JOB = 1  # the channel to the shepherd
ATTACHED = b"\xba\x01"  # how the event begins that opens it


def hello(job, build, lease=2000):
    return field(1, field(1, PROTOCOL) + field(2, build) + field(3, job) + field(5, bytes(16)) +
                 field(6, lease) + field(13, EPOCH) + field(14, EPOCH))


def link_frame(payload, sequence=0, more=False, ack=0, channel=JOB):
    """As common/link/frame.h has it; without a sequence it is not kept."""
    return struct.pack("<IBBHQQ", len(payload), channel, bool(sequence) + 2 * more, 0, sequence, ack) + payload


def kept(sequence, payload, piece=1 << 16):
    """The messages of gRPC that one message makes, the first of this sequence."""
    pieces = [payload[at:at + piece] for at in range(0, len(payload), piece)]
    frames = [link_frame(each, sequence + i, i + 1 < len(pieces)) for i, each in enumerate(pieces)]
    return b"".join(message(len(each), each) for each in frames)


# What a job uses: nothing. Without it none begins.
_RESERVE = link_frame(field(12, b""), sequence=1, channel=0)
RESERVE = message(len(_RESERVE), _RESERVE)


def begun(connect, acknowledged=True):
    """I12: ten thousand calls at a time, half of them with a Hello; from one who has read how many he
    may have, and from one who reads nothing."""
    connection = connect().start()
    if acknowledged:
        for kind, _, _ in connection.frames():
            if kind == SETTINGS:
                break
    for stream in range(1, 20001, 2):
        method = b"NodeStatus" if stream % 8 == 7 else b"Session"
        data = frame(HEADERS, END_HEADERS, stream, request(b"/dtrain.v1.Agent/" + method))
        if stream % 4 == 1:
            first = hello(b"job%d" % stream, BUILD)
            data += frame(DATA, 0, stream, message(len(first), first))
        if not connection.send(data):
            break
    print("sent", flush=True)
    print(connection.until_closed())


def unread(connect):
    begun(connect, acknowledged=False)


def unread_halves(connect):
    """I12: as many calls whose message never comes; gRPC holds who has not read how many he may have
    to nothing, and tells us of none."""
    connection = connect().start()
    for stream in range(1, 20001, 2):
        if not connection.send(frame(HEADERS, END_HEADERS, stream,
                                     request(b"/dtrain.v1.Agent/NodeStatus"))):
            break
    print("sent", flush=True)
    print(connection.until_closed())


def hellos(connect):
    """I12: sessions that begin, whose launchers are gone then; how many the agent took."""
    taken = 0
    for i in range(150):
        connection = connect().start()
        first = hello(b"job%d" % i, BUILD, lease=30000)
        connection.send(call(1, message(len(first), first)))
        for kind, flags, stream in connection.frames():
            if stream == 1 and (kind == DATA or flags & END_STREAM):
                taken += kind == DATA
                break
        connection.socket.close()
    print(taken, flush=True)


def stubborn(connect):
    """A launcher whose job was refused, which starts it all the same: no folder has such a name."""
    connection = connect().start()
    job = b"../evil"
    part = (field(1, job) + field(4, 1) + field(5, 1) + field(6, 1) + field(7, b"here") +
            field(8, b"/usr/bin/touch") + field(8, b"/tmp/evil") + field(9, b"/tmp") +
            field(13, field(1, 0)) + field(14, field(1, b"127.0.0.1")))
    first = hello(job, BUILD)
    connection.send(call(1, message(len(first), first)))
    for kind, flags, stream in connection.frames():
        if stream == 1 and (kind == DATA or flags & END_STREAM):
            break
    else:
        kind = None
    connection.send(frame(DATA, 0, 1, kept(1, field(4, part))))
    print("taken" if kind == DATA else "refused" if kind is not None else "silent")


def signals(connect):
    """K5: asks for signals of which there are none to be sent to the workers of a job of its own."""
    for number in (99, 0, (1 << 64) - 1, (1 << 31) - 1):
        connection = connect().start()
        job = b"dtrain-signal-%d" % number
        part = (field(1, job) + field(4, 1) + field(5, 1) + field(6, 1) + field(7, b"here") +
                field(24, field(1, b"/bin/sleep") + field(1, b"600") + field(2, b"/")) + field(13, field(1, 0)) +
                field(14, field(1, b"127.0.0.1")) + field(17, 1000))
        first = hello(job, BUILD)
        asked = RESERVE + kept(1, field(4, part)) + kept(2, field(5, field(1, number)))
        connection.send(call(1, message(len(first), first)))
        connection.socket.settimeout(10)
        heard = b""
        refusal = b"no signal has the number " + str(number - (number >> 63 << 64)).encode()  # an int32
        try:
            while refusal not in heard and (head := connection.read(9)) is not None:
                payload = connection.read(int.from_bytes(head[:3], "big"))
                if head[3] == DATA:
                    heard += payload
                if ATTACHED in heard and asked:
                    connection.send(frame(DATA, 0, 1, asked))
                    asked = b""
        except TimeoutError:
            pass
        print("refused" if refusal in heard else heard.hex())
        connection.socket.close()


def reset(connect):
    """I12: calls that are taken back at once; no sessions, of which it may have one."""
    connection = settled(connect)
    for stream in range(1, 20001, 2):
        if not connection.send(frame(HEADERS, END_HEADERS, stream,
                                     request(b"/dtrain.v1.Agent/NodeStatus")) +
                               frame(RST_STREAM, 0, stream, struct.pack(">I", 8))):
            break
    # It has been closed, or it serves on.
    connection.send(call(20001, message(0), b"NodeStatus") + frame(DATA, END_STREAM, 20001))
    print(connection.end_of(20001))


def settled_streams(connect):
    """I12: the same of who has acknowledged how many he may have."""
    call_without_end(settled(connect))


def streams(connect):
    """I12: more calls at once than anybody has."""
    call_without_end(connect().start())


def call_without_end(connection):
    for stream in range(1, 20001, 2):  # no sessions: of these it may have one
        if not connection.send(frame(HEADERS, END_HEADERS, stream,
                                     request(b"/dtrain.v1.Agent/NodeStatus"))):
            break
    connection.send(call(20001, message(0), b"NodeStatus") + frame(DATA, END_STREAM, 20001))
    print(connection.end_of(20001))


def bomb(connect):
    """I12: a header block that is small and says much."""
    connection = connect().start()
    big = b"\x40" + text(b"x") + b"\x7f" + bytes([(4000 - 127) & 127 | 128, (4000 - 127) >> 7]) + b"a" * 4000
    connection.send(frame(HEADERS, END_HEADERS, 1, request(b"/dtrain.v1.Agent/Session") + big))
    for stream in range(3, 203, 2):
        if not connection.send(frame(HEADERS, END_HEADERS, stream,
                                     request(b"/dtrain.v1.Agent/Session") + b"\xbe" * 8000)):
            break
    print(connection.end_of(201))


def continuation(connect):
    """I12: headers without an end."""
    connection = connect().start()
    connection.send(frame(HEADERS, 0, 1, request(b"/dtrain.v1.Agent/Session")))
    piece = (b"\x00" + text(b"y") + text(b"z" * 100)) * 150
    for _ in range(2000):
        if not connection.send(frame(CONTINUATION, 0, 1, piece)):
            break
    connection.send(frame(CONTINUATION, END_HEADERS, 1))
    print(connection.end_of(1))


def many(address, port):
    """I13: as many connections as one may try to have."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    held, refused = [], 0
    for _ in range(10000):
        try:
            held.append(socket.create_connection((address, port), PATIENCE))
        except OSError:
            refused += 1
        if len(held) > 2000:
            held.pop(0).close()
    # Those beyond the cap are closed by the agent.
    still = 0
    for each in held:
        each.settimeout(0.01)
        try:
            still += bool(each.recv(1))
        except TimeoutError:
            still += 1
        except OSError:
            pass
    print("still", still)


BUILD = sys.argv[5].encode() if len(sys.argv) > 5 else b""


def main(address, port, folder, mode):
    if mode == "many":
        return many(address, port)
    return globals()[mode](lambda: Connection(address, port, folder))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5])
