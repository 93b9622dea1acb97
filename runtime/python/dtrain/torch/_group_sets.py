# SPDX-License-Identifier: Apache-2.0
"""The process sets behind the groups of torch.distributed.

All ranks of the job make a set together, and use it again once the group that had it is gone on each of its ranks, which
happens at different times: Python collects garbage.
"""

import contextlib
import itertools
import threading

from torch.distributed.constants import default_pg_timeout

from dtrain import _errors, _job, _process_sets
from dtrain._library import library
from dtrain._objects import allgather_object

# Set 0, of all ranks, is the job's own. Numbers are the same on all ranks, which know the members of every set.
_members: dict[int, list[int]] = {}
_sets = {0: _process_sets.global_process_set}  # those that this rank is in
_idle = {0}  # those of them whose group is gone on this rank
_numbers = itertools.count(1)
_turn = threading.Lock()
_world_timeout = default_pg_timeout


def meet(call, ranks, rank_of_torch):
    """Collective over all ranks of the job: the number of a set of these `ranks`, in order, that no group uses.

    call: torch's function that the program has called. rank_of_torch: this rank's number in torch's default group,
    which has as many ranks. On ranks that are not in the set, the number is of no use.
    """
    wanted = _process_sets.ProcessSet(ranks)
    with _turn:
        idle = {number: _works(number) for number in sorted(_idle)}
        reports = allgather_object((rank_of_torch, wanted.ranks, idle), name=f"torch.distributed.{call}")
        _check_alike(reports)
        _members[0] = list(range(_job.size()))
        free = {number: all(reports[rank][2][number] for rank in members) for number, members in _members.items()
                if all(number in reports[rank][2] for rank in members)}
        number = next((number for number, works in free.items() if works and _members[number] == wanted.ranks), None)
        for other in sorted(free.keys() - {0, number}):
            _free(other)
        if number is None:
            number = next(_numbers)
            _process_sets._add(wanted if wanted.included() else None, 0 if wanted.included() else -1)
            _members[number] = wanted.ranks
            if wanted.included():
                _sets[number] = wanted
        _idle.discard(number)
        return number


def _check_alike(reports):
    for rank, (rank_of_torch, wanted, _) in enumerate(reports):
        if rank_of_torch != rank:
            raise _errors.InvalidArgumentError(
                f"new_group: rank {rank} of the job is rank {rank_of_torch} of the default group: init_process_group() must "
                "number them as dtrain launch does, by RANK"
            )
        if wanted != reports[0][1]:
            raise _errors.MismatchError(
                f"new_group: rank 0 makes a group of ranks {reports[0][1]}, rank {rank} one of ranks {wanted}: every rank must "
                "make all groups, in the same order, also those that it is not in"
            )


def _free(number):
    del _members[number]
    _idle.discard(number)
    if number in _sets:
        with contextlib.suppress(_errors.CollectiveError):  # broken by a timeout
            _process_sets.remove_process_set(_sets.pop(number))


def taken(number):
    """The set."""
    return _sets[number]


def release(number, job):
    """Its group is gone, which was made in this job, or used the job's own set."""
    if number == 0 or job == _job.number:
        _idle.add(number)


def set_timeout(number, timeout):
    """Torch's own default is what a program gets that gives none: then the job's counts."""
    global _world_timeout
    milliseconds = 0 if timeout == default_pg_timeout else max(1, round(timeout.total_seconds() * 1000))
    library().call("dtrain_group_set_timeout", _sets[number].group(), milliseconds)
    if number == 0:
        _world_timeout = timeout


def _works(number):
    """False after a timeout in that set."""
    try:
        library().call("dtrain_group_set_timeout", _sets[number].group(), 0)
    except _errors.CollectiveError:
        return False
    return True


def _forget():
    # A group that uses the job's own set can still be used after the job is joined again.
    global _numbers
    _members.clear()
    for number in _sets.keys() - {0}:
        del _sets[number]
    _idle.intersection_update({0})
    _numbers = itertools.count(1)


def _keep_timeout(_):
    if _world_timeout != default_pg_timeout:
        set_timeout(0, _world_timeout)


_job.on_shutdown.append(_forget)
_job.on_init.append(_keep_timeout)
