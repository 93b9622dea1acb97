# SPDX-License-Identifier: Apache-2.0
"""Process sets: collectives among some of the ranks (groups of libdtrain)."""

import ctypes

from . import _errors, _job
from ._library import library


class ProcessSet:
    """Some of the job's ranks. It can be used once add_process_set() or init() has had it."""

    def __init__(self, ranks):
        self.ranks = sorted(int(rank) for rank in ranks)
        if not self.ranks or len(set(self.ranks)) != len(self.ranks) or self.ranks[0] < 0:
            raise _errors.InvalidArgumentError(f"no process set: {ranks!r}")
        self.process_set_id = None
        self._group = None

    def included(self):
        """Whether this rank is in the set."""
        return _job.rank() in self.ranks

    def rank(self):
        """This rank's number within the set."""
        return self.index_of(_job.rank())

    def size(self):
        return len(self.ranks)

    def index_of(self, rank):
        """The number within the set of a rank of the job."""
        if rank not in self.ranks:
            raise _errors.InvalidArgumentError(f"rank {rank} is not in {self}")
        return self.ranks.index(rank)

    def group(self):
        """The dtrain_group to pass on."""
        if self.process_set_id is None:
            raise _errors.StateError(f"{self} was not added: see add_process_set()")
        if self._group is None:
            raise _errors.InvalidArgumentError(f"rank {_job.rank()} is not in {self}")
        return self._group

    def __repr__(self):
        return f"ProcessSet({self.ranks})"


class _Global(ProcessSet):
    """All ranks."""

    process_set_id = 0

    def __init__(self):
        pass

    @property
    def ranks(self):
        return list(range(_job.size()))

    def included(self):
        return True

    def rank(self):
        return _job.rank()

    def size(self):
        return _job.size()

    def index_of(self, rank):
        return rank

    def group(self):
        return None

    def __repr__(self):
        return "ProcessSet(all)"


global_process_set = _Global()
_added = []


def add_process_set(process_set):
    """Collective over all ranks: makes `process_set`, a ProcessSet or a list of ranks, usable."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise _errors.InvalidArgumentError(f"{process_set} was added before")
    if process_set.ranks[-1] >= _job.size():
        raise _errors.InvalidArgumentError(f"{process_set} in a job of {_job.size()} ranks")
    group = ctypes.c_void_p()
    color = 0 if process_set.included() else -1
    library().call("dtrain_group_create", color, _job.rank(), ctypes.byref(group))
    process_set._group = group.value
    _added.append(process_set)
    process_set.process_set_id = len(_added)
    return process_set


def remove_process_set(process_set):
    """Collective over the set: frees what it has. True when there was such a set."""
    if process_set not in _added or process_set.process_set_id is None:
        return False
    if process_set._group is not None:
        library().call("dtrain_group_free", process_set._group)
    process_set.process_set_id = process_set._group = None
    return True


def split(color):
    """Collective over all ranks: the ProcessSet of those that give the same `color`.

    Within it ranks keep their order. A negative color: in none, and None is returned.
    """
    from . import _collectives

    mine = int(color)
    colors = [other[0] for other in _collectives.gather_integers([mine])]
    members = [rank for rank, other in enumerate(colors) if other == mine]
    group = ctypes.c_void_p()
    library().call("dtrain_group_create", max(mine, -1), _job.rank(), ctypes.byref(group))
    if mine < 0:
        return None
    process_set = ProcessSet(members)
    process_set._group = group.value
    _added.append(process_set)
    process_set.process_set_id = len(_added)
    return process_set


def _forget():
    # dtrain_finalize has freed the groups.
    for process_set in _added:
        process_set.process_set_id = process_set._group = None
    _added.clear()


_job.on_shutdown.append(_forget)
