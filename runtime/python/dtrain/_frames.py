# SPDX-License-Identifier: Apache-2.0
"""What run() and its workers tell each other.

The function goes to every worker's stdin. Results come within the workers' output, so that they
need no way of their own to us: a worker writes its result to its stdout as lines that begin with a
marker which only this job knows; all other lines are the program's own output.
"""

import base64
import binascii
import pickle
import re
import sys

# Four digits stand for three bytes; a line is then under 4096 bytes (PIPE_BUF), so that it stays in
# one piece when other threads or children of the worker write at the same time.
_CHUNK = 2880
_MAGIC = b"dtrain-run-1\n"
# What the launcher puts before a line: "2026-01-31T12:00:00.123 [3] ", either part or none.
_TAG = re.compile(rb"(\d{4}-\d\d-\d\dT\S* )?(\[[^\]\s]*\] )?")


def pack(contents):
    """A dictionary as the bytes that unpack() reads."""
    data = pickle.dumps(contents, 4)
    return _MAGIC + len(data).to_bytes(8, "big") + data


def unpack(stream):
    """What was packed, in a worker. Ends the process when it is not there."""
    head = stream.read(len(_MAGIC) + 8)
    if len(head) != len(_MAGIC) + 8 or not head.startswith(_MAGIC):
        sys.exit("dtrain._worker: stdin has no function; it is started by dtrain.run() only")
    length = int.from_bytes(head[len(_MAGIC) :], "big")
    data = stream.read(length)
    if len(data) != length:
        sys.exit(f"dtrain._worker: stdin ended after {len(data)} of {length} bytes")
    return pickle.loads(data)


def lines(marker, rank, data):
    """`data` as lines of bytes."""
    for start in range(0, max(1, len(data)), _CHUNK):
        piece = base64.b64encode(data[start : start + _CHUNK]).decode()
        yield f"{marker} {rank} {start} {len(data)} {piece}\n".encode()


class Collector:
    """Takes the output of a job apart. No I/O."""

    def __init__(self, marker):
        self._marker = marker.encode()
        self._rest = b""
        self._pieces = {}
        self.results = {}  # rank: bytes

    def feed(self, data):
        """Returns what is the program's own of it, in whole lines."""
        self._rest += data
        end = max(self._rest.rfind(b"\n"), self._rest.rfind(b"\r")) + 1
        whole, self._rest = self._rest[:end], self._rest[end:]
        return self._own(whole)

    def finish(self):
        """The rest of the program's own output."""
        rest, self._rest = self._rest, b""
        return self._own(rest)

    def _own(self, text):
        if self._marker not in text:
            return text
        return b"".join(self._line(line) for line in text.splitlines(keepends=True))

    def _line(self, line):
        before, found, frame = line.partition(self._marker)
        if not found:
            return line
        self._take(frame)
        # Otherwise the program has begun a line, without ending it.
        return b"" if _TAG.fullmatch(before) else before + b"\n"

    def _take(self, frame):
        try:
            rank, start, length, piece = frame.split()
            data = base64.b64decode(piece, validate=True)
        except (ValueError, binascii.Error):
            fields = frame.split()
            # An empty result has no fourth field.
            if len(fields) != 3:
                return
            (rank, start, length), data = fields, b""
        rank, start, length = int(rank), int(start), int(length)
        pieces = self._pieces.setdefault(rank, bytearray())
        if start == len(pieces):
            pieces += data
        if len(pieces) == length:
            self.results[rank] = bytes(pieces)
