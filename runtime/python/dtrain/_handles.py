# SPDX-License-Identifier: Apache-2.0
"""Collectives in flight."""

from __future__ import annotations

import collections
import ctypes
import threading

from . import _errors, _job
from ._library import library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    import dtrain.typing

    Result = TypeVar("Result")

# Keeps the arrays of every collective in flight alive, also when the program drops its handle.
_in_flight: dict[int, _Flight] = {}
# The named ones, by kind, group and name.
_named: dict[tuple, Any] = {}
# Those whose handles are gone, until they are over: what no program waits for must not stay. Then, for
# claim(), those of them that have names, until the program waits for any.
_dropped: collections.deque[_Flight] = collections.deque()
_over: collections.deque[_Flight] = collections.deque()
# Grows with each collective that the program has waited for.
_waits = 0


class _Flight:
    """A collective that the library has not forgotten yet."""

    __slots__ = ("number", "arrays", "key", "span", "failure", "turn", "waits_before", "dropped")

    def __init__(self, number, arrays, key, span):
        self.number, self.arrays, self.key, self.span = number, arrays, key, span
        self.failure = None
        self.turn = threading.RLock()  # several threads may wait, which the library does not let them
        self.waits_before = _waits
        self.dropped = False

    def wait(self):
        """With self.turn."""
        if self.number is None:
            return
        # Forgotten by the library in any case, unless it did not let us in.
        try:
            library().call("dtrain_wait", self.number)
        except _errors.BusyError:
            raise
        except _errors.Error as error:
            self.failure = error
        self.landed()

    def done(self):
        """Whether it is over, with or without a failure."""
        if self.number is None:
            return True
        if not self.turn.acquire(blocking=False):
            return False  # another thread waits for it
        try:
            if self.number is not None:
                done = ctypes.c_int()
                try:
                    library().call("dtrain_test", self.number, ctypes.byref(done))
                except _errors.Error as error:
                    self.failure = error
                if self.failure is not None or done.value:
                    self.landed()
            return self.number is None
        finally:
            self.turn.release()

    def landed(self):
        _in_flight.pop(self.number, None)
        self.number = self.arrays = None
        if not self.dropped:
            _release(self.key, self)
        if self.span is not None:
            self.span.end()
            self.span = None


class Handle:
    """A collective that was started. Give it to synchronize() or poll()."""

    def __init__(self, number, arrays, finish, key=None, span=None):
        """`finish` makes the result, in the thread that waits for it. `key`: what _named has it by.
        `span`: its place on the timeline."""
        self._flight = _Flight(number, arrays, key, span)
        self._finish = finish
        self._result = None
        _in_flight[number] = self._flight
        if key is not None:
            _named[key] = self._flight

    def wait(self):
        """The result, when it is there. May be called again, and by several threads."""
        count_wait()
        return self.result()

    def result(self):
        """As wait(), on behalf of no program."""
        flight = self._flight
        with flight.turn:
            flight.wait()
            if flight.failure is not None:
                raise flight.failure
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None
            return self._result

    def done(self):
        """Whether wait() would return at once. A failure is raised by wait()."""
        return self._flight.done()

    def __del__(self):
        # This may run within a call into the library, so sweep() asks later whether it is over.
        if self._flight.number is not None:
            self._flight.dropped = True
            _dropped.append(self._flight)


def sweep():
    """Frees what belongs to collectives that are over and whose handles the program has dropped."""
    try:
        while _dropped:
            flight = _dropped.popleft()
            if not flight.done():
                _dropped.appendleft(flight)
                break
            if flight.key is not None:
                _over.append(flight)
        while _over and _over[0].waits_before != _waits:
            flight = _over.popleft()
            _release(flight.key, flight)
    except IndexError:
        pass  # another thread does it, too


class GroupHandle:
    """Several handles as one; its result is the list of theirs, or what `finish` makes of it."""

    def __init__(self, handles, finish=None):
        self._handles, self._finish = handles, finish
        self._result = None
        self._turn = threading.Lock()

    def wait(self):
        with self._turn:
            if self._result is None:
                self._result = self._wait()
            return self._result

    def _wait(self):
        results, failure = [], None
        for handle in self._handles:
            try:
                results.append(handle.wait())
            except _errors.Error as error:
                # The others are waited for, too: their names and arrays are free then.
                failure = failure or error
        if failure is not None:
            raise failure
        return results if self._finish is None else self._finish(results)

    def done(self):
        return all([handle.done() for handle in self._handles])


def synchronize(handle: dtrain.typing.Handle[Result]) -> Result:
    """Waits until a collective that was started is complete, and returns its result.

    handle: what the collective's asynchronous form has returned. For anything else the result is
    None. It may be called again, and by several threads. Raises what the collective would raise.
    """
    return handle.wait() if hasattr(handle, "wait") else None  # type: ignore[return-value]


def poll(handle: dtrain.typing.Handle[Any]) -> bool:
    """Whether synchronize(handle) would return at once, or raise."""
    return handle.done()


def count_wait():
    """The program waits for a collective, whichever."""
    global _waits
    _waits += 1


def claim(kind, group, name):
    """The key of a named collective that is about to start; None without a name.

    Raises InvalidArgumentError when this rank has one under the same name in flight. One that the
    program has not waited for counts as such until it waits for any: whether a mistake is noticed
    must not depend on how fast the ranks are.
    """
    if not name:
        return None
    key = kind, group, name
    before = _named.get(key)
    if before is not None and (before.waits_before == _waits or not before.done()):
        raise _errors.InvalidArgumentError(
            f'{kind}: "{name}" is in flight already; give another name, or wait for that first'
        )
    return key


class _Blocking:
    """What has the name of a call that some thread waits in."""

    waits_before = -1

    @staticmethod
    def done():
        return False


def hold(key, held=True):
    """Takes a claimed name for a call that is waited for, or gives it back."""
    if key is None:
        return
    if held:
        _named[key] = _Blocking
    else:
        _named.pop(key, None)


def _release(key, handle):
    if key is not None and _named.get(key) is handle:
        del _named[key]


def _forget():
    # dtrain_finalize has forgotten them.
    failure = _errors.StateError("the job was left before this collective was waited for")
    for flight in list(_in_flight.values()):
        flight.failure = failure
        flight.landed()
    _dropped.clear()
    _over.clear()
    _named.clear()


_job.on_shutdown.append(_forget)
