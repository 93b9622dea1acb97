# SPDX-License-Identifier: Apache-2.0
"""An --rsh command over a link that loses a message: lossy.py HOST COMMAND runs the command there by
ssh and carries the bytes of gRPC between the two, frame by frame. /root/work/lose says which is not
carried, as "HOST up 3": the third frame of messages that the launcher sends. With it the link ends,
once; or, with "HOST up 3 silently", nothing more is carried and nobody is told."""
import os
import subprocess
import sys
import threading
from pathlib import Path

WORK = Path("/root/work")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HANDSHAKE = b"DTRAIN-AGENT/1 ready"
DATA = 0


class Link:
    def __init__(self, host, command):
        self.host = host
        self.child = subprocess.Popen(["ssh", host, *command], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE)
        self.counts = {"up": 0, "down": 0}
        self.silent = False

    def lost(self, direction):
        """Whether this message is the one, and if it is, how. It is lost once."""
        self.counts[direction] += 1
        try:
            wanted = (WORK / "lose").read_text().split()
        except OSError:
            return False
        if wanted[:3] != [self.host, direction, str(self.counts[direction])]:
            return False
        (WORK / "lose").unlink()
        return wanted[3:] or "ends"

    def end(self):
        self.child.kill()
        os._exit(255)

    def carry(self, source, sink, direction, begins_after):
        """First as it comes, until gRPC begins; then frame by frame."""
        pending, framed = b"", False
        while piece := os.read(source, 65536):
            pending += piece
            if not framed:
                at = pending.find(begins_after)
                end = pending.find(b"\n", at) + 1 if direction == "down" else at + len(PREFACE)
                framed = at >= 0 and end > 0
                if not framed:
                    keep = len(pending) - at if at >= 0 else beginning_at_the_end(pending, begins_after)
                    write(sink, pending[:len(pending) - keep])
                    pending = pending[len(pending) - keep:]
                    continue
                write(sink, pending[:end])
                pending = pending[end:]
            while len(pending) >= 9:
                size = 9 + int.from_bytes(pending[:3], "big")
                if len(pending) < size:
                    break
                lost = pending[3] == DATA and size > 9 and self.lost(direction)
                if lost == "ends":
                    self.end()
                if lost:
                    self.silent = True
                if self.silent:
                    swallow(source)
                    self.end()
                write(sink, pending[:size])
                pending = pending[size:]
        if direction == "down":
            write(sink, pending)
            self.end()
        self.child.stdin.close()


def beginning_at_the_end(text, marker):
    """How many bytes at the end of `text` may be the beginning of `marker`."""
    return next((n for n in range(len(marker) - 1, 0, -1) if text.endswith(marker[:n])), 0)


def write(fd, data):
    while data:
        data = data[os.write(fd, data):]


def swallow(fd):
    """Until who writes there ends it."""
    while os.read(fd, 65536):
        pass


def main(host, *command):
    link = Link(host, command)
    up = threading.Thread(target=link.carry, daemon=True,
                          args=(0, link.child.stdin.fileno(), "up", PREFACE))
    up.start()
    link.carry(link.child.stdout.fileno(), 1, "down", HANDSHAKE)


main(*sys.argv[1:])
