# SPDX-License-Identifier: Apache-2.0
"""Training that continues when the job has to begin again, from the state that was committed last.

The names are Horovod's; dtrain.torch.elastic has those for PyTorch.

    @dtrain.elastic.run
    def train(state):
        while state.epoch < 10:
            ...
            state.epoch += 1
            state.commit()

    train(dtrain.elastic.ObjectState(epoch=0))
"""

from __future__ import annotations

import copy
import enum
import functools
import threading

from . import _errors, _job, _kept
from ._errors import CollectiveError, HostsUpdatedInterrupt
from ._objects import broadcast_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "notify_hosts",
    "run",
]

# Of the functions of run() that are being called; notify_hosts() tells them.
_states: list[State] = []


class HostUpdateResult(enum.IntFlag):
    """How the hosts of the job have changed: no_update, removed, added or mixed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class State:
    """What a training continues from. Subclasses say what it is: save(), restore() and sync().

    bcast_object: returns rank 0's object on every rank.
    get_rank: returns this rank's number.
    """

    _keeper: Any = None  # while run() is at work, if the launcher may start the workers again

    def __init__(self, bcast_object: Callable[[Any], Any] = broadcast_object,
                 get_rank: Callable[[], int] = _job.rank) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._lock = threading.Lock()
        self._news: list[tuple[float, HostUpdateResult]] = []  # (time, HostUpdateResult), since they were looked at
        self._last_update: float = 0
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Adds functions without arguments that are called when the job has begun again, before sync():
        to set what depends on the number of ranks."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the job has begun again: calls reset() and the reset callbacks."""
        with self._lock:
            self._news.clear()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Called from any thread when the hosts have changed; check_host_updates() acts on it."""
        with self._lock:
            self._news.append((timestamp, update_res))

    def commit(self) -> None:
        """Calls save() and check_host_updates(). A failure costs what was done since the last commit."""
        self.save()
        if self._keeper is not None:
            self._keeper.committed(self)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if rank 0 knows of a change. Collective."""
        with self._lock:
            news, self._news = self._news, []
        before, latest, what = self._last_update, self._last_update, HostUpdateResult.no_update
        for timestamp, update in news:
            if timestamp > before:
                latest, what = max(latest, timestamp), what | update
        before, self._last_update, what = self._bcast_object((before, latest, what))
        if self._last_update > before:
            raise HostsUpdatedInterrupt(what == HostUpdateResult.removed)

    def save(self) -> None:
        """Keeps the present state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what save() has kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives every rank rank 0's state. Collective."""
        raise NotImplementedError

    def kept(self) -> Any:
        """What save() has kept, as an object that can be pickled and is never changed: another thread
        writes it to a file, for a restart of the workers. None: such a restart begins from the start."""
        return None

    def take_kept(self, kept: Any) -> None:
        """Makes what kept() returned in an earlier attempt, on any rank, the present and the saved
        state. Called before reset() and sync()."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the job has begun again, before the callbacks."""


class ObjectState(State):
    """A state of Python objects: each keyword becomes an attribute. They must be picklable."""

    if TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, bcast_object: Callable[[Any], Any] = broadcast_object,
                 get_rank: Callable[[], int] = _job.rank, **kwargs: Any) -> None:
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state = copy.deepcopy(kwargs)

    def save(self) -> None:
        names = list(self._saved_state)
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in names}

    def restore(self) -> None:
        self._show()

    def kept(self) -> Any:
        return self._saved_state

    def take_kept(self, kept: Any) -> None:
        # A program that has changed since may have other names.
        self._saved_state = {**self._saved_state, **kept}
        self._show()

    def sync(self) -> None:
        if self._saved_state:
            present = {name: getattr(self, name) for name in self._saved_state}
            self._saved_state = self._bcast_object(present)
            self._show()

    def _show(self):
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)


def notify_hosts(timestamp: float, result: HostUpdateResult) -> None:
    """Announces a change of the job's hosts to the functions that run() is calling. On rank 0.

    timestamp: later than that of the previous change.
    """
    for state in list(_states):
        state.on_hosts_updated(timestamp, result)


def _is_collective(error):
    """Whether it is a CollectiveError, or the RuntimeError that a future of torch's makes of one. Callbacks of
    callbacks have each added to its text."""
    if isinstance(error, CollectiveError):
        return True
    import re

    added = "Got the following error when running the callback: "
    found = re.match(rf"(?:{added}RuntimeError: )*{added}(\w+): ", str(error))
    return type(error) is RuntimeError and found is not None and issubclass(
        getattr(_errors, found[1], Exception), CollectiveError)


def run(func: Function) -> Function:
    """A decorator for func(state, ...): calls it again when the job has to begin again.

    Before each call, state.sync() gives every rank rank 0's state. After a CollectiveError the state
    is restored to the last commit; after a HostsUpdatedInterrupt it is kept. Then this rank leaves the
    job and joins it again, and so do the others: it is enough that one rank raises CollectiveError.
    All other exceptions are raised, and end the job.

    Joining again needs all ranks. After the end of one, the launcher has to start the workers again. If
    it may do so (dtrain launch --max-restarts, --spare), commits are also kept on the disk of each node,
    and the call begins with the latest one that any node has, with any number of ranks.
    """

    @functools.wraps(func)
    def again_and_again(state: State, *args: Any, **kwargs: Any) -> Any:
        keeper, outer = _kept.begin(), getattr(state, "_keeper", None)
        _states.append(state)
        skip_sync = False
        try:
            if keeper is not None:
                keeper.restore(state)
                state._keeper = keeper
            while True:
                try:
                    if not skip_sync:
                        state.sync()
                    return func(state, *args, **kwargs)
                except HostsUpdatedInterrupt as change:
                    skip_sync = change.skip_sync
                except RuntimeError as error:
                    if not _is_collective(error):
                        raise
                    state.restore()
                    skip_sync = False
                _job.rejoin()
                state.on_reset()
        finally:
            _states.remove(state)
            if keeper is not None:
                state._keeper = outer
                keeper.finish()

    return again_and_again  # type: ignore[return-value]
