# SPDX-License-Identifier: Apache-2.0
"""linger.py SOCKET...: sends a descriptor to each socket and prints "refused" or "sent"; then waits for the end of stdin.
The descriptor is a TCP connection that takes a minute to close, because its other end does not read what was written."""
import errno
import os
import socket
import struct
import sys

SECONDS = 60


def slow_to_close():
    """(one end, the other end, which mallory keeps)"""
    listener = socket.create_server(("127.0.0.1", 0))
    mine = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, SECONDS))
    mine.setblocking(False)
    try:
        while True:
            mine.send(bytes(1 << 20))
    except BlockingIOError:
        return mine, other


kept = []
for path in sys.argv[1:]:
    given, other = slow_to_close()
    to = socket.socket(socket.AF_UNIX)
    to.connect(path)
    kept += [other, to]
    try:
        socket.send_fds(to, [b"G"], [given.fileno()])
        given.close()  # another has it: this one takes no time
        print("sent", flush=True)
    except OSError as error:
        kept.append(given)
        print("refused" if error.errno == errno.EPERM else error, flush=True)
sys.stdin.read()
os._exit(0)  # without closing any of them, which takes a minute
