# SPDX-License-Identifier: Apache-2.0
"""linger.py SOCKET...: connects to each socket again and again, and sends it a descriptor: with a byte, out of band, in the
queue of another socket, and on more connections than it serves. Prints, for each socket, "refused" or "sent", or what
failed; then waits for the end of stdin. What is given is always a TCP connection that takes a minute to close, because
its other end does not read what was written."""
import errno
import os
import socket
import struct
import sys

SECONDS = 60
CONNECTIONS = 40  # one user has 32 places


def slow_to_close():
    """(one end, the other end, which mallory keeps)"""
    listener = socket.create_server(("127.0.0.1", 0))
    mine = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, SECONDS))
    mine.setblocking(False)
    try:
        while True:
            mine.send(bytes(1 << 20))
    except BlockingIOError:
        return mine, other


def nested(given):
    """One end of a pair, in whose queue `given` is."""
    one, other = socket.socketpair()
    socket.send_fds(one, [b"x"], [given.fileno()])
    given.close()
    return other


def give(path, flags, wrap):
    given, other = slow_to_close()
    to = socket.socket(socket.AF_UNIX)
    to.connect(path)
    kept.extend([other, to])
    given = wrap(given)
    try:
        socket.send_fds(to, [b"G"], [given.fileno()], flags)
        given.close()  # another has it: this one takes no time
        return "sent"
    except OSError as error:
        kept.append(given)
        return "refused" if error.errno == errno.EPERM else str(error)


kept = []
for path in sys.argv[1:]:
    ends = {give(path, 0, nested), give(path, socket.MSG_OOB, lambda given: given)}
    ends |= {give(path, 0, lambda given: given) for _ in range(CONNECTIONS)}
    print(" ".join(sorted(ends)), flush=True)
sys.stdin.read()
os._exit(0)  # without closing any of them, which takes a minute
