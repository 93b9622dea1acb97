# SPDX-License-Identifier: Apache-2.0
"""Joining and leaving the job, and where this worker stands in it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import time

from . import _errors
from ._library import Config, library, load_nccl_of_pip, loaded
from ._mpi import holder_of_pmi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Literal, Sequence

    from ._process_sets import ProcessSet

# Set while this process is in a job. In a fork of it, too, which takes no part in the job.
_member_pid = None
# For its forks: what the library says only to the process that called init().
_PLACE = ("rank", "size", "local_rank", "local_size", "node_rank", "node_count")
_place = {}
# (node rank, local rank) of every rank.
_places: list[tuple[int, int]] = []
# Called when a job has begun, with the process_sets of init(); the others with no arguments: what
# may object to shutdown(), what has to be done before the job is left, and when it has ended. The
# modules above this one put themselves there.
on_init: list[Callable[[list], object]] = []
before_shutdown: list[Callable[[], object]] = []
on_shutdown: list[Callable[[], object]] = []
# Grows with each init().
number = 0
# Grows with each init() and join(): from then on the ranks know as much of each other as at first.
generation = 0
_config = None  # that of init(), for when the job is joined again
_abandoned = False
_hooked = False
_INT64 = 1  # DTRAIN_INT64
# How long the end of the program waits for threads that are in a collective.
_LAST_WAIT_SECONDS = 10


def init(comm: Sequence[int] | None = None,
         process_sets: str | Iterable[ProcessSet | Iterable[int]] | None = None, *,
         timeout: float | None = None, collective_timeout: float | None = None,
         address: str | None = None) -> None:
    """Joins the job and waits for all other ranks to do so. Collective.

    Does nothing if this process is in the job already. A program that was started without a
    launcher is a job of one rank. After shutdown(), init() may be called again.

    comm: Horovod's; must be None or empty, which means all ranks.
    process_sets: ProcessSet objects to add, the same on all ranks; or "dynamic", which adds none.
        Sets can be added later in any case.
    timeout: seconds that init() and shutdown() wait for the other ranks.
    collective_timeout: seconds that a collective waits for the other ranks.
    address: numeric address to listen on.

    Raises ValueError for bad arguments, CollectiveError if the ranks do not meet, LibraryError if
    libdtrain cannot be loaded.
    """
    global _config
    if is_initialized():
        return
    if comm is not None and comm != []:
        raise _errors.UnsupportedError(
            "init(comm=...): a job has all its ranks; use process sets for some of them"
        )
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise _errors.InvalidArgumentError(f"init(process_sets={process_sets!r}): unknown word")
        process_sets = None
    holder = holder_of_pmi()
    if holder is not None:
        raise _errors.StateError(
            f"init: this process has called MPI_Init ({holder}), which takes its only PMI "
            "connection to the launcher: use MPI's own collectives, or Open MPI, which connects by "
            "PMIx"
        )
    _config = Config(
        ctypes.sizeof(Config),
        0,
        int((timeout or 0) * 1000),
        int((collective_timeout or 0) * 1000),
        address.encode() if address else None,
    )
    load_nccl_of_pip()
    library().call("dtrain_init", ctypes.byref(_config))
    _has_joined(list(process_sets or ()))


def _has_joined(process_sets):
    global _member_pid, _abandoned, number
    _member_pid = os.getpid()
    _place.update({name: library().get("dtrain_" + name) for name in _PLACE})
    _place["backend"] = library().get("dtrain_backend").decode()
    _abandoned = False
    _watch_for_the_end()
    _places[:] = _gather_places()
    number += 1
    begin_generation()
    for begun in on_init:
        begun(process_sets)


def begin_generation():
    global generation
    generation += 1


def _gather_places():
    """(node rank, local rank) of every rank."""
    place = library().get("dtrain_node_rank"), library().get("dtrain_local_rank")
    mine = (ctypes.c_int64 * 2)(*place)
    everyones = (ctypes.c_int64 * (2 * library().get("dtrain_size")))()
    addresses = ctypes.addressof(mine), ctypes.addressof(everyones)
    library().call("dtrain_allgather", *addresses, len(mine), _INT64)
    return list(zip(everyones[::2], everyones[1::2]))


def shutdown() -> None:
    """Leaves the job once all ranks have called it. Collective.

    A program that ends normally leaves automatically, and then waits for the others without a
    timeout. Does nothing if this process is not in a job. Raises StateError while arrays of alloc()
    are in use, CollectiveError if another rank is lost or in a collective that waits for this one.
    """
    if in_job():
        for check in before_shutdown:
            check()
        leave()


def rejoin():
    """As shutdown() and init() when all ranks do so, also after a failed collective. Ranks that are in a
    collective get an error, and come here, too."""
    for check in before_shutdown:
        check()
    leave("dtrain_rejoin", ctypes.byref(_config))
    _has_joined([])


def leave_at_exit():
    """As shutdown(), of a process that ends: waits without a timeout, as other ranks may still have much to do."""
    leave("dtrain_finalize_at_exit")


def leave(how="dtrain_finalize", *arguments):
    """`how`: the library's function."""
    global _member_pid
    try:
        library().call(how, *arguments)
    finally:
        _member_pid = None
        _places.clear()
        for ended in on_shutdown:
            ended()


def is_initialized() -> bool:
    """Whether this process is in a job: True from init() until shutdown().

    Also True in a process forked from such a one, as a worker of a DataLoader is: rank(), size()
    and the like work there, but collectives do not.
    """
    return _member_pid is not None


def in_job():
    """Whether it takes part in the job's collectives."""
    return _member_pid is not None and _member_pid == os.getpid()


def check_in_job(what):
    """Raises StateError, which begins with `what`, if this process takes part in no collectives."""
    if in_job():
        return
    if is_initialized():
        raise _errors.StateError(
            f"{what}: this process was forked from rank {rank()}, as a worker of a DataLoader is; "
            "only the process that called dtrain.init() takes part in collectives"
        )
    raise _errors.StateError(f"{what}: this process is in no job; call dtrain.init() first")


def abandon():
    """The program has failed: at its end do not wait for the other ranks."""
    global _abandoned
    _abandoned = True


def _number(name):
    if is_initialized() and not in_job():
        return _place[name]
    check_in_job(name)
    return library().get("dtrain_" + name)


def rank() -> int:
    """This worker's number within the job, 0 .. size() - 1. StateError before init()."""
    return _number("rank")


def size() -> int:
    """The number of workers of the job. StateError before init()."""
    return _number("size")


def local_rank() -> int:
    """This worker's number on its node, 0 .. local_size() - 1: usually its GPU. StateError before init()."""
    return _number("local_rank")


def local_size() -> int:
    """The number of workers on this node. StateError before init()."""
    return _number("local_size")


def node_rank() -> int:
    """This node's number, 0 .. node_count() - 1, in the order of the nodes' first ranks. StateError before init()."""
    return _number("node_rank")


def node_count() -> int:
    """The number of nodes of the job. StateError before init()."""
    return _number("node_count")


def cross_rank() -> int:
    """This node's number among those that have a worker with this local rank, 0 .. cross_size() - 1.

    StateError before init().
    """
    mine = node_rank(), local_rank()
    return sum(1 for node, local in _places if local == mine[1] and node < mine[0])


def cross_size() -> int:
    """The number of nodes that have a worker with this local rank. StateError before init()."""
    mine = local_rank()
    return sum(1 for _, local in _places if local == mine)


def is_homogeneous() -> bool:
    """Whether all nodes have the same number of workers. StateError before init()."""
    return size() == node_count() * local_size() and all(
        local < local_size() for _, local in _places
    )


def backend() -> str:
    """What carries the collectives: "cpu" or "nccl"; "none" outside a job."""
    return _place["backend"] if is_initialized() else "none"


class mark(contextlib.ContextDecorator):
    """A span of the program's own on the job's timeline (dtrain launch --timeline).

        with dtrain.mark("forward"):
            ...

    Also a decorator. The name is cut off after 39 bytes. Without a timeline, nothing happens.
    """

    def __init__(self, name: str) -> None:
        self._name = str(name).encode(errors="replace")

    def __enter__(self) -> mark:
        if in_job():
            library().get("dtrain_mark_begin", self._name)
        return self

    def __exit__(self, *_: Any) -> Literal[False]:
        if in_job():
            library().get("dtrain_mark_end")
        return False


# ---- The end of the program ----


def _watch_for_the_end():
    """A Horovod script never calls shutdown(): it just ends.

    When it ends well, that is the time to leave the job, which waits for the other ranks. When it
    fails, waiting would hang all: they wait in a collective for this rank. Python does not tell
    functions of atexit which of the two it is, so the ways to fail are watched.
    """
    global _hooked
    if _hooked:
        return
    _hooked = True
    atexit.register(_at_exit)
    was_excepthook, was_exit = sys.excepthook, sys.exit

    def excepthook(*details):
        abandon()
        was_excepthook(*details)

    def exit(status=None, /):
        # Somebody may catch the exception and go on, but then hardly end with success.
        if status not in (None, 0):
            abandon()
        was_exit(status)

    exit.__doc__ = was_exit.__doc__
    sys.excepthook, sys.exit = excepthook, exit


def _at_exit():
    if not in_job():
        return
    if not _abandoned:
        _leave_at_the_end()
    # Its threads must not run Python, which ends now.
    library().get("dtrain_abandon")


def _leave_at_the_end():
    # A daemon thread may sit in a collective for ever; the process ends without leaving then.
    deadline = time.monotonic() + _LAST_WAIT_SECONDS
    while loaded().others_inside():
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
    try:
        leave_at_exit()
    except _errors.Error as error:
        # Too late to be raised; the launcher sees a worker that ended without leaving.
        print(f"dtrain: leaving the job failed: {error}", file=sys.stderr)
