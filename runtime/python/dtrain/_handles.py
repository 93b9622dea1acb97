# SPDX-License-Identifier: Apache-2.0
"""Collectives in flight."""

import ctypes

from . import _errors, _job
from ._library import library

# Keeps the arrays of every collective in flight alive, also when the program drops its handle.
_in_flight = {}


class Handle:
    """A collective that was started. Give it to synchronize() or poll()."""

    def __init__(self, number, arrays, finish, stream=None):
        """`finish` makes the result, in the thread that waits for it."""
        self._number = number
        self._arrays = arrays
        self._finish = finish
        self._stream = stream
        self._failure = None
        self._result = None
        if number is not None:
            _in_flight[number] = self

    def wait(self):
        """The result, when it is there. May be called again."""
        if self._number is not None:
            # Forgotten by the library in any case, unless it did not let us in.
            try:
                library().call("dtrain_wait", self._number)
            except _errors.BusyError:
                raise
            except _errors.Error as error:
                self._failure = error
            self._landed()
        if self._failure is not None:
            raise self._failure
        if self._finish is not None:
            finish, self._finish = self._finish, None
            self._result = finish()
            self._arrays = None
        return self._result

    def done(self):
        """Whether wait() would return at once. A failure is raised by wait()."""
        if self._number is not None:
            done = ctypes.c_int()
            try:
                library().call("dtrain_test", self._number, ctypes.byref(done))
            except _errors.Error as error:
                self._failure = error
            if self._failure is not None or done.value:
                self._landed()
        return self._number is None

    def _landed(self):
        _in_flight.pop(self._number, None)
        self._number = None


class GroupHandle:
    """Several handles as one; its result is the list of theirs."""

    def __init__(self, handles):
        self._handles = handles

    def wait(self):
        return [handle.wait() for handle in self._handles]

    def done(self):
        return all([handle.done() for handle in self._handles])


def synchronize(handle):
    """Waits for a collective that was started, and returns its result."""
    return handle.wait()


def poll(handle):
    """Whether synchronize(handle) would return at once."""
    return handle.done()


def _forget():
    # dtrain_finalize has forgotten them.
    failure = _errors.StateError("the job was left before this collective was waited for")
    for handle in list(_in_flight.values()):
        handle._failure = failure
        handle._landed()


_job.on_shutdown.append(_forget)
