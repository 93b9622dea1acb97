# SPDX-License-Identifier: Apache-2.0
"""Process sets: collectives among some of the ranks (groups of libdtrain)."""

from __future__ import annotations

import ctypes
import itertools
import operator

from . import _errors, _job
from ._calls import gather_integers
from ._library import library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable


class ProcessSet:
    """Some of the job's ranks, for the `process_set` of collectives.

    It can be used once it has been passed to add_process_set() or init(), until it is removed or the
    job is left. `ranks` lists them in order; `process_set_id` is None while the set cannot be used.
    """

    # Whether all ranks of the job know it, as they do not know the sets of split().
    _known_to_all = False
    _left = False  # with the job that it was added to

    ranks: list[int]
    process_set_id: int | None
    _group: Any

    def __init__(self, ranks: Iterable[int]) -> None:
        """ranks: numbers within the job, in any order. ValueError if one is negative or there twice."""
        try:
            self.ranks = sorted(operator.index(rank) for rank in ranks)
        except TypeError:
            raise _errors.InvalidArgumentError(
                f"a process set is made of a list of ranks, not of {ranks!r}"
            ) from None
        if not self.ranks or len(set(self.ranks)) != len(self.ranks) or self.ranks[0] < 0:
            raise _errors.InvalidArgumentError(f"{ranks!r} cannot be a process set")
        self.process_set_id = None
        self._group = None

    def included(self) -> bool:
        """Whether this rank is in the set."""
        return _job.rank() in self.ranks

    def rank(self) -> int | None:
        """This rank's number within the set; None if the set has not been added.

        Raises InvalidArgumentError on a rank that is not in the set.
        """
        return None if self.process_set_id is None else self.index_of(_job.rank())

    def size(self) -> int | None:
        """The number of ranks in the set; None if the set has not been added."""
        return None if self.process_set_id is None else len(self.ranks)

    def index_of(self, rank: int) -> int:
        """The number within the set of a rank of the job. InvalidArgumentError if it is not in the set."""
        if rank not in self.ranks:
            raise _errors.InvalidArgumentError(f"rank {rank} is not in {self}")
        return self.ranks.index(rank)

    def group(self) -> Any:
        """The library's own handle of the set. InvalidArgumentError if this rank cannot use the set."""
        if self.process_set_id is None:
            raise _errors.InvalidArgumentError(
                f"{self} was left with the job: make it again after init(), or after elastic.run has begun again" if self._left
                else f"{self} was not added: see add_process_set()")
        if self._group is None:
            raise _errors.InvalidArgumentError(f"rank {_job.rank()} is not in {self}")
        return self._group

    # A copy of a model uses the same set; one that is loaded in another job has to be added there.

    def __copy__(self) -> ProcessSet:
        return self

    def __deepcopy__(self, memo: Any) -> ProcessSet:
        return self

    def __reduce__(self) -> Any:
        return ProcessSet, (self.ranks,)

    def __repr__(self) -> str:
        return f"ProcessSet({self.ranks})"


class _Global(ProcessSet):
    """All ranks of the job: the default `process_set` of collectives."""

    process_set_id = 0

    def __init__(self) -> None:
        pass

    @property
    def ranks(self) -> list[int]:  # type: ignore[override]
        return list(range(_job.size()))

    def included(self) -> bool:
        return True

    def rank(self) -> int:
        return _job.rank()

    def size(self) -> int:
        return _job.size()

    def index_of(self, rank: int) -> int:
        if not 0 <= rank < _job.size():
            raise _errors.InvalidArgumentError(f"root: there is no rank {rank} in this job")
        return rank

    def group(self) -> None:
        return None

    def __reduce__(self) -> str:
        return "global_process_set"

    def __repr__(self) -> str:
        return "global_process_set"


global_process_set = _Global()
# By their numbers, which are never used again within a job.
_added = {}
_numbers = itertools.count(1)
# Numbers for the names of split()'s collectives, from 1 in each job: the same on all ranks.
_splits = itertools.count(1)


def place_in(process_set: ProcessSet) -> tuple[int, int]:
    """The number of ranks of the set, and this rank's number in it."""
    size, rank = process_set.size(), process_set.rank()
    if size is None or rank is None:
        raise _errors.InvalidArgumentError(f"{process_set} was not added: see add_process_set()")
    return size, rank


def _add(process_set, color):
    """Collective over all ranks. Those that give a `color` of 0 or more are in the set."""
    group, number = ctypes.c_void_p(), next(_numbers)
    library().call("dtrain_group_create", color, _job.rank(), ctypes.byref(group))
    if process_set is None:
        return
    process_set._group = group.value
    process_set.process_set_id, process_set._left = number, False
    _added[process_set.process_set_id] = process_set


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Makes a ProcessSet, or a set of these ranks, usable and returns it. Collective over all ranks.

    It may be called at any time in a job. Raises ValueError if there is a set of the same ranks
    already, or if the job does not have all of the ranks.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.ranks[-1] >= _job.size():
        raise _errors.InvalidArgumentError(f"{process_set} in a job of {_job.size()} ranks")
    known = [other.ranks for other in _added.values() if other._known_to_all]
    if process_set.ranks in (global_process_set.ranks, *known):
        raise _errors.InvalidArgumentError(f"{process_set}: there is one of these ranks already")
    _add(process_set, 0 if process_set.included() else -1)
    process_set._known_to_all = True
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Makes a ProcessSet unusable and frees what it has. Collective over the set.

    Returns whether it was usable.
    """
    if _added.pop(process_set.process_set_id, None) is not process_set:
        return False
    if process_set._group is not None:
        library().call("dtrain_group_free", process_set._group)
    process_set.process_set_id = process_set._group = None
    return True


def split(color: int) -> ProcessSet | None:
    """Returns the ProcessSet of the ranks that pass the same `color`. Collective over all ranks.

    Ranks keep their order within it. A rank that passes a negative color is in no set and gets None.
    """
    mine = int(color)
    # Named: unnamed ones match by their order, and other threads may start some meanwhile.
    colors = [other[0] for other in gather_integers([mine], label=f"dtrain.split.{next(_splits)}")]
    process_set = None
    if mine >= 0:
        process_set = ProcessSet([rank for rank, other in enumerate(colors) if other == mine])
    _add(process_set, max(mine, -1))
    return process_set


def _begin(process_sets):
    global _splits
    _splits = itertools.count(1)
    for process_set in process_sets:
        add_process_set(process_set)


def _forget():
    # dtrain_finalize has freed the groups.
    for process_set in _added.values():
        process_set.process_set_id = process_set._group = None
        process_set._left = True
    _added.clear()


_job.on_init.append(_begin)
_job.on_shutdown.append(_forget)
