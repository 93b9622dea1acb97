# SPDX-License-Identifier: Apache-2.0
"""What a task of Spark's barrier mode asks of its context, for the ranks of a job."""

from __future__ import annotations

import itertools
import os
import threading

from . import _errors, _job
from ._calls import gather_integers
from ._objects import gather_octets
from ._process_sets import global_process_set

_CALLS = "barrier_context", "barrier", "all_gather"
# The longest that libdtrain waits. Spark waits a year: rank 0 may run a whole program meanwhile.
_PATIENCE_SECONDS = 30 * 86400
_making, _meeting = threading.Lock(), threading.Lock()
_numbers = itertools.count()
_context = None


class BarrierTaskInfo:
    """Where a rank runs: `address` is its node's, without a port."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __repr__(self) -> str:
        return f"BarrierTaskInfo({self.address!r})"


class BarrierTaskContext:
    """The ranks of this job as the tasks of a Spark barrier stage; each rank is a partition.

    barrier_context() makes it. Every method also has Spark's name. Threads take turns.
    """

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    @classmethod
    def get(cls) -> BarrierTaskContext:
        """As barrier_context()."""
        return barrier_context()

    def partition_id(self) -> int:
        """This rank's number."""
        return _job.rank()

    def num_partitions(self) -> int:
        """The number of ranks of the job."""
        return _job.size()

    def attempt_number(self) -> int:
        """0, 1, … for each start of the whole job; single ranks are never restarted."""
        return int(os.environ.get("DTRAIN_ATTEMPT", "0"))

    def get_task_infos(self) -> list[BarrierTaskInfo]:
        """A BarrierTaskInfo for each rank, in rank order; rank 0's address is MASTER_ADDR. Not
        collective."""
        return [BarrierTaskInfo(address) for address in self._addresses]

    def barrier(self) -> None:
        """Returns when every rank has called it. Every rank must make the same calls in the same order:
        MismatchError otherwise."""
        _meet("barrier")

    def all_gather(self, message: str = "") -> list[str]:
        """Every rank's text, in rank order; a barrier as well. TypeError if the message is not a str."""
        if not isinstance(message, str):
            raise TypeError(f"all_gather: the message is a str, not a {type(message).__name__}")
        return _meet("all_gather", message)

    partitionId = partition_id
    numPartitions = num_partitions
    attemptNumber = stage_attempt_number = stageAttemptNumber = attempt_number
    getTaskInfos = get_task_infos
    allGather = all_gather


def barrier_context(timeout: float | None = None) -> BarrierTaskContext:
    """Returns the BarrierTaskContext of this process. The first call is collective over all ranks.

    It joins the job as dtrain.init() does, unless the program has done so. A program that was started
    without a launcher is a job of one rank.

    timeout: seconds to wait for other ranks, here and in each barrier. Default:
        DTRAIN_TIMEOUT_SECONDS and DTRAIN_COLLECTIVE_TIMEOUT_SECONDS, else 30 days.

    Raises ValueError for a timeout that is out of range or comes after init(), CollectiveError if the
    ranks do not meet.
    """
    global _context
    with _making:
        if _context is None:
            _join(timeout)
            _context = BarrierTaskContext(_meet("barrier_context", _my_address()))
        elif timeout is not None:
            _refuse(timeout)
        return _context


def _join(timeout):
    if _job.is_initialized():
        if timeout is not None:
            _refuse(timeout)
        return
    waits = {"timeout": "DTRAIN_TIMEOUT_SECONDS",
             "collective_timeout": "DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"}
    if timeout is None:
        waits = {what: _PATIENCE_SECONDS for what, name in waits.items() if name not in os.environ}
    elif 0.001 <= timeout <= _PATIENCE_SECONDS:
        waits = dict.fromkeys(waits, timeout)
    else:
        raise _errors.InvalidArgumentError(
            f"barrier_context: timeout={timeout!r} is not between 0.001 s and 30 days"
        )
    _job.init(**waits)


def _refuse(timeout):
    raise _errors.StateError(
        f"barrier_context(timeout={timeout!r}): this process has joined the job already; give the "
        "timeout to the call that joins: the first barrier_context(), or dtrain.init(timeout=..., "
        "collective_timeout=...)"
    )


def _my_address():
    if _job.size() == 1:
        return os.environ.get("DTRAIN_ADDRESS", "127.0.0.1")
    if "DTRAIN_ADDRESS" not in os.environ:
        import socket

        return socket.gethostname()  # another launcher's job
    return os.environ["DTRAIN_ADDRESS"]


def _meet(call, message=""):
    """Every rank's message. Meetings have numbers: no other collective is taken for one."""
    _job.check_in_job(call)
    data = message.encode("utf-8", "surrogatepass")  # also of file names that are not UTF-8
    with _meeting:
        label = f"barrier_context.{next(_numbers)}"
        calls = [other[0] for other in gather_integers([_CALLS.index(call)], label=f"{label}.calls")]
        for rank, other in enumerate(calls):
            if other != calls[0]:
                raise _errors.MismatchError(
                    f"{call}: rank 0 is in {_CALLS[calls[0]]}(), rank {rank} in "
                    f"{_CALLS[other]}(): every rank must make the same calls in the same order"
                )
        if call == "barrier":
            return None
        parts = gather_octets(data, label, global_process_set)
    return [str(part, "utf-8", "surrogatepass") for part in parts]


def _forget():
    global _context, _numbers
    _context, _numbers = None, itertools.count()


_job.on_shutdown.append(_forget)
