# SPDX-License-Identifier: Apache-2.0
"""What the calls of a process group return: torch's works and futures, of dtrain's handles."""

import collections
import contextlib
import queue
import threading
import weakref

import torch
from torch.autograd import _profiler_enabled
from torch.autograd.profiler import record_function

from dtrain import _errors


class Pending(torch._C._distributed_c10d.Work):
    """A collective that was started. `name`: as profilers show it; none for several, which have theirs.

    A span from the start to the end would end in another thread, and torch's profiler frees what that end writes to once
    the profile is over: so there is one where it starts, and one where it is waited for.
    """

    def __init__(self, name, handle, outputs, waiter):
        super().__init__()
        self._name = name
        self._handle, self._outputs, self._waiter = handle, outputs, waiter
        self._reached = self._future = None
        self._waiting = None  # a thread, once a wait() has a timeout
        self._turn = threading.Lock()
        self._event = None  # behind what the waiter's thread has enqueued on a GPU
        self.octets = sum(tensor.numel() * tensor.element_size() for tensor in outputs)
        waiter.keep(self)

    def wait(self, timeout=None):
        """timeout: a timedelta; none, or one of 0, is no limit but that of collectives."""
        if self._name is None or not _profiler_enabled():
            return self._wait(timeout)
        with record_function(f"{self._name} wait"):
            return self._wait(timeout)

    def _wait(self, timeout):
        if timeout and not self._handle.done():
            with self._turn:
                if self._waiting is None:
                    self._waiting = threading.Thread(target=self._until_over, name="dtrain wait", daemon=True)
                    self._waiting.start()
            self._waiting.join(timeout.total_seconds())
            if self._waiting.is_alive():
                raise RuntimeError(f"wait timeout after {timeout.total_seconds() * 1000:.0f}ms")
        try:
            self._handle.wait()
        finally:
            self._waiter.let_go(self)
        if self._event is not None:
            self._event.wait()
        return True

    def _until_over(self):
        with contextlib.suppress(_errors.Error):  # wait() raises it
            self._handle.wait()

    def synchronize(self):
        self.wait()

    def is_completed(self):
        if not self._handle.done():
            return False
        with contextlib.suppress(Exception):  # wait() raises it again
            self._handle.wait()  # which fills the outputs
        return True

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        if self.is_completed():
            try:
                self.wait()
            except _errors.Error as error:
                return error
        return None

    def result(self):
        self.wait()
        return self._outputs

    def get_future(self):
        with self._turn:
            if self._future is None:
                devices = sorted({tensor.device for tensor in self._outputs if tensor.is_cuda}, key=str)
                self._reached = torch.futures.Future(devices=devices)
                # Python's set_exception() is a value for C++. What then() raises is an exception there, too.
                self._future = self._reached.then(_value)
                if self._handle.done():
                    self.complete()  # a caller that has waited reads the value at once
                else:
                    self._waiter.add(self)
            return self._future

    getFuture = get_future  # the name that torch's C++ looks for

    def complete(self):
        """Waits, and completes the future."""
        try:
            self.wait()
        except Exception as error:
            self._reached.set_result(error)
            return
        cuda = [tensor for tensor in self._outputs if tensor.is_cuda]
        with torch.cuda.device(cuda[0].device) if cuda else contextlib.nullcontext():
            if cuda:
                self._event = torch.cuda.Event()
                self._event.record()
            self._reached.set_result(self._outputs)


def _value(reached):
    value = reached.value()
    if isinstance(value, Exception):
        raise value
    return value


class Waiter:
    """Completes what nobody else waits for, in a thread that begins with the first and ends with the group.

    Torch's C++, older than 2.1, finds the methods of a Pending only while Python has it, too. So all are kept until they
    have been waited for, and of those that nobody waits for the last ones. DDP's join() asks for the future after that:
    the last small ones are kept a little longer.
    """

    # Torch itself has few at a time that it has not waited for.
    _AT_LEAST, _AT_MOST, _BYTES = 8, 256, 64 << 20
    _SMALL = 64 << 10

    def __init__(self):
        self._pending = queue.SimpleQueue()
        self._started = False
        self._kept = {}
        self._waited = collections.deque(maxlen=self._AT_LEAST)

    def keep(self, work):
        self._kept[id(work)] = work
        if len(self._kept) <= self._AT_LEAST:
            return
        works = list(self._kept.values())
        octets = sum(work.octets for work in works)
        while len(works) > self._AT_LEAST and (octets > self._BYTES or len(works) > self._AT_MOST):
            oldest = works.pop(0)
            if not oldest._handle.done():
                return
            octets -= oldest.octets
            self.let_go(oldest)

    def let_go(self, work):
        if self._kept.pop(id(work), None) is not None and work.octets <= self._SMALL:
            self._waited.append(work)

    def add(self, work):
        if getattr(_this_thread, "completes", False):
            # A callback of a future may wait for this one, while that thread runs it.
            threading.Thread(target=_complete, args=(work,), name="dtrain futures", daemon=True).start()
            return
        if not self._started:
            self._started = True
            weakref.finalize(self, self._pending.put, None)
            threading.Thread(target=_complete_all, args=(self._pending,), name="dtrain futures", daemon=True).start()
        self._pending.put(work)


_this_thread = threading.local()


def _complete(work):
    _this_thread.completes = True
    work.complete()


def _complete_all(pending):
    while (work := pending.get()) is not None:
        _complete(work)
        del work


class Sent(torch._C._distributed_c10d.Work):
    """Gloo's work for a message. Gloo forgets a message whose work is dropped; here it is waited for then."""

    def __init__(self, work, waiter):
        super().__init__()
        self._work, self._waiter = work, waiter

    def wait(self, *timeout):
        work, self._work = self._work, None
        return True if work is None else work.wait(*timeout)

    def is_completed(self):
        return self._work is None or self._work.is_completed()

    def is_success(self):
        return self.is_completed()

    def synchronize(self):
        self.wait()

    def exception(self):
        return None

    def complete(self):
        with contextlib.suppress(RuntimeError):  # the receiver has gone: nobody asked
            self.wait()

    def __del__(self):
        if self._work is not None:
            with contextlib.suppress(RuntimeError):  # at Python's end no thread can begin
                self._waiter.add(Sent(self._work, self._waiter))


class All:
    """The handle of several."""

    def __init__(self, works):
        self._works = works

    def wait(self):
        failure = None
        for work in self._works:
            try:
                work.wait()
            except _errors.Error as error:
                failure = failure or error  # the others are waited for, too
        if failure is not None:
            raise failure

    def done(self):
        return all([work._handle.done() for work in self._works])


class Then:
    """A handle, and what is done with its result, once."""

    def __init__(self, handle, finish):
        self._handle, self._finish = handle, finish
        self._turn = threading.Lock()

    def wait(self):
        result = self._handle.wait()
        with self._turn:
            if self._finish is not None:
                self._finish(result)
                self._finish = None

    def done(self):
        return self._handle.done()
