# SPDX-License-Identifier: Apache-2.0
"""Training that goes on when the job has to begin again: state that is committed, restored and made
the same on all ranks. The names are Horovod's; dtrain.torch.elastic has those for PyTorch.

    @dtrain.elastic.run
    def train(state):
        while state.epoch < 10:
            ...
            state.epoch += 1
            state.commit()

    train(dtrain.elastic.ObjectState(epoch=0))
"""

import copy
import enum
import functools
import threading

from . import _errors, _job, _kept
from ._errors import CollectiveError, HostsUpdatedInterrupt
from ._objects import broadcast_object

__all__ = [
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "notify_hosts",
    "run",
]

# Of the functions of run() that are being called; notify_hosts() tells them.
_states = []


class HostUpdateResult(enum.IntFlag):
    """What has become of the hosts of the job."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class State:
    """What a training goes on from. Subclasses say what it is: save(), restore(), sync().

    bcast_object, get_rank: how an object gets from rank 0 to all, and this rank's number.
    """

    _keeper = None  # while run() is at work, if the launcher may start the workers again

    def __init__(self, bcast_object=broadcast_object, get_rank=_job.rank):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._lock = threading.Lock()
        self._news = []  # (time, HostUpdateResult), since they were looked at
        self._last_update = 0
        self._reset_callbacks = []

    def register_reset_callbacks(self, callbacks):
        """Functions without arguments, called when the job has begun again, before sync(): to set
        what depends on the number of ranks."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self):
        """The job has begun again."""
        with self._lock:
            self._news.clear()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp, update_res):
        """The hosts have changed. From any thread; check_host_updates() acts on it."""
        with self._lock:
            self._news.append((timestamp, update_res))

    def commit(self):
        """save(), and check_host_updates(). A failure costs what was done since the last one."""
        self.save()
        if self._keeper is not None:
            self._keeper.committed(self)
        self.check_host_updates()

    def check_host_updates(self):
        """Collective: raises HostsUpdatedInterrupt on all ranks when rank 0 knows of a change."""
        with self._lock:
            news, self._news = self._news, []
        before, latest, what = self._last_update, self._last_update, HostUpdateResult.no_update
        for timestamp, update in news:
            if timestamp > before:
                latest, what = max(latest, timestamp), what | update
        before, self._last_update, what = self._bcast_object((before, latest, what))
        if self._last_update > before:
            raise HostsUpdatedInterrupt(what == HostUpdateResult.removed)

    def save(self):
        """Keeps the present state in memory."""
        raise NotImplementedError

    def restore(self):
        """Goes back to what was kept."""
        raise NotImplementedError

    def sync(self):
        """Collective: makes everyone's state that of rank 0."""
        raise NotImplementedError

    def kept(self):
        """What save() has kept, as an object that can be pickled and that is never changed: another
        thread writes it to a file, for the time after a restart of the workers. None: such a
        restart begins from the start."""
        return None

    def take_kept(self, kept):
        """What kept() returned in an earlier attempt, on any rank: becomes the present state, and
        the saved one. Called before reset() and sync()."""
        raise NotImplementedError

    def reset(self):
        """Called when the job has begun again, before the callbacks."""


class ObjectState(State):
    """Python objects, given as keywords; each is an attribute. They must be picklable."""

    def __init__(self, bcast_object=broadcast_object, get_rank=_job.rank, **kwargs):
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state = copy.deepcopy(kwargs)

    def save(self):
        names = list(self._saved_state)
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in names}

    def restore(self):
        self._show()

    def kept(self):
        return self._saved_state

    def take_kept(self, kept):
        # A program that has changed since may have other names.
        self._saved_state = {**self._saved_state, **kept}
        self._show()

    def sync(self):
        if self._saved_state:
            present = {name: getattr(self, name) for name in self._saved_state}
            self._saved_state = self._bcast_object(present)
            self._show()

    def _show(self):
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)


def notify_hosts(timestamp, result):
    """For who watches the hosts: tells the running functions of run() of a change.

    timestamp: later than that of the change before. result: a HostUpdateResult.
    """
    for state in list(_states):
        state.on_hosts_updated(timestamp, result)


def run(func):
    """A decorator for func(state, ...): calls it again when the job has to begin again.

    Before each call state.sync() makes everyone's state that of rank 0. After a CollectiveError the
    state is restored to the last commit; after a HostsUpdatedInterrupt it is kept. Then this rank
    leaves the job and joins it again. All other exceptions are raised.

    Joining again takes that no connection has broken: after the end of a rank, init() raises
    StateError, and the launcher has to start the workers again. If it may do so (dtrain launch
    --max-restarts, --spare), commits are also kept on the disk of each node, and the call begins
    with the latest one that any node has, whatever the number of ranks.
    """

    @functools.wraps(func)
    def again_and_again(state, *args, **kwargs):
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
                except CollectiveError:
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as change:
                    skip_sync = change.skip_sync
                _begin_again()
                state.on_reset()
        finally:
            _states.remove(state)
            if keeper is not None:
                state._keeper = outer
                keeper.finish()

    return again_and_again


def _begin_again():
    try:
        _job.shutdown()
    except _errors.CollectiveError:
        pass  # the others are not leaving, but in a collective that fails now
    _job.init()
