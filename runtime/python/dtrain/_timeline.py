# SPDX-License-Identifier: Apache-2.0
"""start_timeline(): a file of this program's collectives, as Horovod writes it.

`dtrain launch --timeline` sees all ranks and what happens within the library. This one is for
scripts that switch Horovod's on and off: rank 0 writes when it called each collective, and when it
saw that it was done. chrome://tracing and ui.perfetto.dev show it.
"""

from __future__ import annotations

import os
import threading
import time

from . import _errors, _job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The file that is being written, if any. Looked at for every collective.
active: Any = None


class _File:
    """JSON: a list of events. Written as they come, and complete when closed."""

    def __init__(self, path, mark_cycles):
        from json import dumps

        self._text = dumps
        self.mark_cycles = mark_cycles
        self._begun = time.monotonic_ns()
        self._lanes = {}
        self._lock = threading.Lock()
        self._file = open(path, "w", encoding="utf-8")
        self._file.write("[\n")
        since = {"start_time_since_epoch_in_micros": time.time_ns() // 1000}
        self._file.write(self._text({"name": "start", "ph": "M", "pid": 0, "args": since}))

    def now(self):
        """Microseconds since the file was begun."""
        return (time.monotonic_ns() - self._begun) // 1000

    def write(self, lane, **event):
        """`lane`: the name of what has a row of its own; None: all."""
        with self._lock:
            if self._file.closed:
                return
            if lane is not None and lane not in self._lanes:
                self._lanes[lane] = len(self._lanes) + 1
                self._put({"name": "process_name", "ph": "M", "pid": self._lanes[lane],
                           "args": {"name": lane}})
            self._put({"pid": self._lanes.get(lane, 0), **event})

    def _put(self, event):
        self._file.write(",\n" + self._text(event))

    def close(self):
        with self._lock:
            self._file.write("\n]\n")
            self._file.close()


class Span:
    """One collective on the timeline: the call, and from then until this rank saw its end."""

    def __init__(self, file, kind, name):
        self._file, self._kind = file, kind
        self._lane = f"{self._kind}.{name}" if name else f"{self._kind}.noname"
        if file.mark_cycles:
            # The library's own cycles are not seen from here: each call counts as one.
            file.write(None, name="CYCLE_START", ph="i", ts=file.now(), s="g")
        self._file.write(self._lane, name=f"NEGOTIATE_{self._kind.upper()}", ph="B", ts=file.now())

    def started(self):
        self._file.write(self._lane, ph="E", ts=self._file.now())
        self._file.write(self._lane, name=self._kind.upper(), ph="B", ts=self._file.now())

    def end(self):
        self._file.write(self._lane, ph="E", ts=self._file.now())


def begin(kind, name):
    """A Span when a timeline is being written."""
    file = active
    return Span(file, kind, name) if file is not None else None


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts writing rank 0's collectives to a file, which chrome://tracing and ui.perfetto.dev show.

    file_path: is overwritten; the file of an earlier call is completed first. Other ranks write
        nothing.
    mark_cycles: also write an event CYCLE_START for each call.

    As in Horovod, HOROVOD_TIMELINE must be DYNAMIC in the environment: otherwise, and before init(),
    this raises ValueError. OSError if the file cannot be opened.
    """
    global active
    _job.check_in_job("start_timeline")
    if os.environ.get("HOROVOD_TIMELINE", "").upper() != "DYNAMIC":
        raise _errors.InvalidArgumentError(
            "start_timeline: set HOROVOD_TIMELINE=DYNAMIC in the environment to use it; "
            "`dtrain launch --timeline FILE` needs no variable"
        )
    _stop()
    if _job.rank() == 0:
        active = _File(file_path, mark_cycles)


def stop_timeline() -> None:
    """Completes the file of start_timeline(), if there is one. ValueError before init()."""
    _job.check_in_job("stop_timeline")
    _stop()


def _stop():
    global active
    file, active = active, None
    if file is not None:
        file.close()


_job.on_shutdown.append(_stop)
