# SPDX-License-Identifier: Apache-2.0
"""What run() and its workers tell each other.

The function goes to every worker's stdin. Results come within the workers' output, so that they
need no way of their own to us: a worker writes its result to its stdout as lines that begin with a
marker which only this job knows; all other lines are the program's own output. So come the texts of
log_to_driver().
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
TAG = re.compile(rb"(\d{4}-\d\d-\d\dT\S* )?(\[[^\]\s]*\] )?")
_OF_A_RANK = re.compile(rb"(\d{4}-\d\d-\d\dT\S* )?\[([^\]\s]*:)?\d+\] ")


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


def lines(marker, sender, data):
    """`data` as lines of bytes. `sender`: a rank, whose result it is; or a text's speaker()."""
    for start in range(0, max(1, len(data)), _CHUNK):
        piece = base64.b64encode(data[start : start + _CHUNK]).decode()
        yield f"{marker} {sender} {start} {len(data)} {piece}\n".encode()


def speaker(rank, process):
    """Who sends a text to be shown: one process of a rank, which may have forked."""
    return f"{rank}-{process}"


class Lines:
    """Cuts output into whole lines. No I/O."""

    _ends = (b"\n",)

    def __init__(self):
        self._rest = b""

    def feed(self, data):
        """Returns what is to be shown of it, in whole lines."""
        data = self._rest + data
        end = max(map(data.rfind, self._ends)) + 1
        self._rest = data[end:]
        return self._own(data[:end])

    def finish(self):
        """The rest of what is to be shown."""
        rest, self._rest = self._rest, b""
        return self._own(rest)

    def _own(self, text):
        return text


class Collector(Lines):
    """Takes the output of a job apart."""

    def __init__(self, marker, quiet=False, whole=False):
        """`quiet`: of the program's own output only the texts of log_to_driver() are wanted.
        `whole`: parts of a line, which end with a carriage return, have to wait for its end."""
        super().__init__()
        self._marker = marker.encode()
        self.quiet = quiet
        if not whole:
            self._ends = (b"\n", b"\r")
        self._pieces = {}
        self.results = {}  # rank: bytes

    def _own(self, text):
        if self._marker not in text:
            return b"" if self.quiet else text
        return b"".join(map(self._line, _whole_lines(text)))

    def _line(self, line):
        before, found, frame = line.partition(self._marker)
        if not found:
            return b"" if self.quiet else line
        tag, text = TAG.match(before)[0], self._take(frame)
        shown = b"" if text is None else _with_tag(tag, text)
        # Otherwise the program has begun a line, without ending it.
        return shown if before == tag or self.quiet else before + b"\n" + shown

    def _take(self, frame):
        """Keeps a piece. Returns the text that it completes, else None."""
        try:
            sender, start, length, piece = frame.split()
            data = base64.b64decode(piece, validate=True)
        except (ValueError, binascii.Error):
            fields = frame.split()
            # An empty result has no fourth field.
            if len(fields) != 3:
                return None
            (sender, start, length), data = fields, b""
        start, length = int(start), int(length)
        pieces = self._pieces.setdefault(sender, bytearray())
        if start == len(pieces):
            pieces += data
        if len(pieces) != length:
            return None
        whole = bytes(self._pieces.pop(sender))
        if not sender.isdigit():
            return whole
        self.results[int(sender)] = whole
        return None


class LaunchersLines(Lines):
    """Takes the ranks' lines out of the launcher's stderr, in which each has its rank's tag."""

    def _own(self, text):
        return b"".join(line for line in _whole_lines(text) if not _OF_A_RANK.match(line))


def _whole_lines(text):
    # Not splitlines(), for which a rank could begin a line without its tag.
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


def _with_tag(tag, text):
    return b"".join(tag + line + b"\n" for line in text.splitlines() or [b""])
