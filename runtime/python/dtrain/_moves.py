# SPDX-License-Identifier: Apache-2.0
"""The collectives that move values without looking at them: any type that has bytes will do."""

from __future__ import annotations

import ctypes
import operator

from . import _arrays, _errors, _job
from ._calls import issue, pointer, shape_text
from ._collectives import grouped
from ._library import library
from ._process_sets import global_process_set, place_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Sequence, SupportsIndex, overload

    import numpy as np
    import torch

    from ._process_sets import ProcessSet
    from .typing import Array, Handle, Numbers


def sent_as(kind, x):
    """The libdtrain type that an array's values travel as, and its bytes: their own, or single bytes."""
    native = _arrays.NATIVE.get(kind.type_name(x))
    return (_arrays.BYTE, 1) if native is None else (native, kind.item_size(x))


# ---- Rows ----

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))


def issue_rows(what, address, rows, length, data_type, allocate, arrays, finish, **options):
    """Starts a collective whose ranks have any number of rows, of `length` elements.

    rows: of this rank, for the all-to-all a list. allocate: called with the list of how many come from
    each rank, in any thread; returns the address for them. finish, called with that list, and the other
    arguments: as those of issue().
    """
    ranks, come = (options.get("process_set") or global_process_set).size(), []

    def called(_, counts):
        come[:] = counts[:ranks]
        return allocate(come)

    callback = _ALLOCATE(called)
    if isinstance(rows, list):
        rows = (ctypes.c_uint64 * len(rows))(*rows)
    arguments = address, rows, length, data_type, callback, None
    return issue(what, arguments, (arrays, callback), lambda: finish(come), **options)


def _start_rows(what, x, kind, rows, finish, name, process_set, wait):
    """issue_rows() of an array, into a new one like it. `finish`: makes the result, of that and how many rows came
    from each rank."""
    dense = kind.reachable(x)
    data_type, width = sent_as(kind, dense)
    shape, length = kind.shape(x)[1:], kind.item_size(dense) // width
    for extent in shape:
        length *= extent
    stream, output = kind.stream(dense), []

    def allocate(come):
        with kind.on_stream(dense, stream):
            output.append(kind.empty((sum(come), *shape), dense))
        return pointer(kind, output[0])

    def landed(come):
        kind.finish_on_stream(output[0], stream)
        result = output[0] if kind.is_like(output[0], x) else kind.cast_like(output[0], x)
        return finish(result, come)

    text = str(tuple(map(int, shape))) if len(shape) > 1 else None  # the library tells the length of a row
    if data_type == _arrays.BYTE:
        text = f"{kind.type_name(x)} {tuple(map(int, shape))}"
    return issue_rows(what, pointer(kind, dense), rows, length, data_type, allocate, (x, dense), landed, stream=stream,
                      label=name, process_set=process_set, wait=wait, shape=text)


# ---- Broadcast ----


def start_broadcast(target, kind, root_rank, name, process_set, wait, result):
    process_set = process_set or global_process_set
    dense = kind.reachable(target)
    data_type, width = sent_as(kind, dense)
    count = kind.count(dense) * kind.item_size(dense) // width
    stream = kind.stream(dense)

    def finish():
        kind.finish_on_stream(dense, stream)
        if kind.pointer(dense) != kind.pointer(target):
            kind.copy_into(target, dense)
        return result

    arguments = pointer(kind, dense), count, data_type, process_set.index_of(root_rank)
    return issue("dtrain_broadcast", arguments, (target, dense), finish, stream, name,
                 process_set, wait, shape=shape_text(kind, dense, data_type != _arrays.BYTE))


def _copy(tensor):
    """A copy to broadcast into, and what handles it."""
    x, kind = _arrays.of(tensor)
    copy = kind.copy(kind.contiguous(x))
    return copy, kind


if TYPE_CHECKING:
    @overload
    def broadcast(tensor: Array, root_rank: int, name: str | None = ...,
                  process_set: ProcessSet | None = ...) -> Array: ...
    @overload
    def broadcast(tensor: Numbers, root_rank: int, name: str | None = ...,
                  process_set: ProcessSet | None = ...) -> np.ndarray[Any, Any]: ...


def broadcast(tensor: Array | Numbers, root_rank: int, name: str | None = None,
              process_set: ProcessSet | None = global_process_set) -> Any:
    """Returns rank `root_rank`'s values on every rank.

    The result is a new array or tensor of the same kind, shape, type and device. Lists and numbers give
    numpy arrays.

    tensor: of the same shape on all ranks, and of the same type, which may be any that has bytes.
    root_rank: a rank of the job, also with a process_set.
    name: matches the call with those of the other ranks; without a name, the order of calls does.
    process_set: the ranks that take part, all of which must call it.

    Raises ValueError on this rank alone for arguments that cannot be used and before init();
    HorovodInternalError on all ranks: MismatchError if their calls differ, others if a rank is lost.
    """
    copy, kind = _copy(tensor)
    return start_broadcast(copy, kind, root_rank, name, process_set, True, copy)


def broadcast_(tensor: Array, root_rank: int, name: str | None = None,
               process_set: ProcessSet | None = global_process_set) -> Array:
    """As broadcast, but writes the result to `tensor`, an array or tensor, and returns that."""
    kind = _arrays.in_place(tensor)
    return start_broadcast(tensor, kind, root_rank, name, process_set, True, tensor)


if TYPE_CHECKING:
    @overload
    def broadcast_async(tensor: Array, root_rank: int, name: str | None = ...,
                        process_set: ProcessSet | None = ...) -> Handle[Array]: ...
    @overload
    def broadcast_async(tensor: Numbers, root_rank: int, name: str | None = ...,
                        process_set: ProcessSet | None = ...) -> Handle[np.ndarray[Any, Any]]: ...


def broadcast_async(tensor: Array | Numbers, root_rank: int, name: str | None = None,
                    process_set: ProcessSet | None = global_process_set) -> Handle[Any]:
    """As broadcast, but returns a handle at once.

    synchronize(handle) returns the result.
    """
    copy, kind = _copy(tensor)
    return start_broadcast(copy, kind, root_rank, name, process_set, False, copy)


def broadcast_async_(tensor: Array, root_rank: int, name: str | None = None,
                     process_set: ProcessSet | None = global_process_set) -> Handle[Array]:
    """As broadcast_, but returns a handle at once.

    synchronize(handle) returns `tensor`. Do not use `tensor` before that.
    """
    kind = _arrays.in_place(tensor)
    return start_broadcast(tensor, kind, root_rank, name, process_set, False, tensor)


# ---- Gathering ----


if TYPE_CHECKING:
    @overload
    def allgather_async(tensor: Array, name: str | None = ...,
                        process_set: ProcessSet | None = ...) -> Handle[Array]: ...
    @overload
    def allgather_async(tensor: Numbers, name: str | None = ...,
                        process_set: ProcessSet | None = ...) -> Handle[np.ndarray[Any, Any]]: ...


def allgather_async(tensor: Array | Numbers, name: str | None = None,
                    process_set: ProcessSet | None = global_process_set) -> Handle[Any]:
    """As allgather, but returns a handle at once.

    synchronize(handle) returns the result. Do not change `tensor` before that.
    """
    return _gather(tensor, name, process_set, False)


def _gather(tensor, name, process_set, wait):
    x, kind = _arrays.of(tensor)
    process_set = process_set or global_process_set
    x = x.reshape(1) if kind.shape(x) == () else x
    return _start_rows("dtrain_allgatherv", x, kind, int(kind.shape(x)[0]), lambda result, _: result, name, process_set, wait)


if TYPE_CHECKING:
    @overload
    def allgather(tensor: Array, name: str | None = ...,
                  process_set: ProcessSet | None = ...) -> Array: ...
    @overload
    def allgather(tensor: Numbers, name: str | None = ...,
                  process_set: ProcessSet | None = ...) -> np.ndarray[Any, Any]: ...


def allgather(tensor: Array | Numbers, name: str | None = None,
              process_set: ProcessSet | None = global_process_set) -> Any:
    """Returns the rows of all ranks, in rank order, joined along the first dimension.

    The result is a new array or tensor of the same kind, type and device. A number counts as one row;
    lists and numbers give numpy arrays.

    tensor: each rank may have its own number of rows, or none; the other dimensions, and the type,
        are the same on all ranks. The type may be any that has bytes.
    name: matches the call with those of the other ranks; without a name, the order of calls does.
    process_set: the ranks that take part, all of which must call it.

    Raises ValueError on this rank alone for arguments that cannot be used and before init();
    HorovodInternalError on all ranks: MismatchError if their calls differ, others if a rank is lost.
    """
    return _gather(tensor, name, process_set, True)


def grouped_allgather_async(tensors: Sequence[Array], name: str | None = None,
                            process_set: ProcessSet | None = global_process_set) -> Handle[list[Array]]:
    """As grouped_allgather, but returns a handle at once.

    synchronize(handle) returns the list.
    """
    return grouped("allgather", allgather_async, tensors, name, process_set)


def grouped_allgather(tensors: Sequence[Array], name: str | None = None,
                      process_set: ProcessSet | None = global_process_set) -> list[Array]:
    """Returns the allgather of each of a list, as a list.

    With `name`, they have the names NAME.0, NAME.1 and so on.
    """
    return grouped_allgather_async(tensors, name, process_set).wait()


if TYPE_CHECKING:
    @overload
    def alltoall_async(tensor: Array, splits: None = ..., name: str | None = ...,
                       process_set: ProcessSet | None = ...) -> Handle[Array]: ...
    @overload
    def alltoall_async(tensor: np.ndarray[Any, Any], splits: Iterable[SupportsIndex], name: str | None = ...,
                       process_set: ProcessSet | None = ...) -> Handle[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]: ...
    @overload
    def alltoall_async(tensor: torch.Tensor, splits: Iterable[SupportsIndex], name: str | None = ...,
                       process_set: ProcessSet | None = ...) -> Handle[tuple[torch.Tensor, torch.Tensor]]: ...
    @overload
    def alltoall_async(tensor: Array, splits: Iterable[SupportsIndex], name: str | None = ...,
                       process_set: ProcessSet | None = ...) -> Handle[tuple[Array, Any]]: ...
    @overload
    def alltoall_async(tensor: Sequence[Any], splits: Iterable[SupportsIndex], name: str | None = ...,
                       process_set: ProcessSet | None = ...) -> Handle[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]: ...
    @overload
    def alltoall_async(tensor: Sequence[Any], splits: None = ..., name: str | None = ...,
                       process_set: ProcessSet | None = ...) -> Handle[np.ndarray[Any, Any]]: ...


def alltoall_async(tensor: Array | Sequence[Any], splits: Iterable[SupportsIndex] | None = None,
                   name: str | None = None, process_set: ProcessSet | None = global_process_set) -> Handle[Any]:
    """As alltoall, but returns a handle at once.

    synchronize(handle) returns the result. Do not change `tensor` before that.
    """
    return _deal(tensor, splits, name, process_set, False)


def _deal(tensor, splits, name, process_set, wait):
    x, kind = _arrays.of(tensor)
    process_set = process_set or global_process_set
    mine = _splits(kind.shape(x), splits, place_in(process_set)[0])

    def finish(result, come):
        return (result, kind.integers(come)) if splits is not None else result

    return _start_rows("dtrain_alltoallv", x, kind, mine, finish, name, process_set, wait)


if TYPE_CHECKING:
    @overload
    def alltoall(tensor: Array, splits: None = ..., name: str | None = ...,
                 process_set: ProcessSet | None = ...) -> Array: ...
    @overload
    def alltoall(tensor: np.ndarray[Any, Any], splits: Iterable[SupportsIndex], name: str | None = ...,
                 process_set: ProcessSet | None = ...) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]: ...
    @overload
    def alltoall(tensor: torch.Tensor, splits: Iterable[SupportsIndex], name: str | None = ...,
                 process_set: ProcessSet | None = ...) -> tuple[torch.Tensor, torch.Tensor]: ...
    @overload
    def alltoall(tensor: Array, splits: Iterable[SupportsIndex], name: str | None = ...,
                 process_set: ProcessSet | None = ...) -> tuple[Array, Any]: ...
    @overload
    def alltoall(tensor: Sequence[Any], splits: Iterable[SupportsIndex], name: str | None = ...,
                 process_set: ProcessSet | None = ...) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]: ...
    @overload
    def alltoall(tensor: Sequence[Any], splits: None = ..., name: str | None = ...,
                 process_set: ProcessSet | None = ...) -> np.ndarray[Any, Any]: ...


def alltoall(tensor: Array | Sequence[Any], splits: Iterable[SupportsIndex] | None = None,
             name: str | None = None,
             process_set: ProcessSet | None = global_process_set) -> Any:
    """Sends each rank its part of the rows of `tensor`, and returns the rows that the ranks have sent to this one.

    tensor: the rows, along the first dimension, for rank 0, then those for rank 1, and so on; the other
        dimensions, and the type, are the same on all ranks. The type may be any that has bytes.
    splits: the number of rows for each rank; without it, all ranks get the same number.
    name: matches the call with those of the other ranks; without a name, the order of calls does.
    process_set: the ranks that take part, all of which must call it.

    The result is a new array or tensor of the same kind, type and device, with rank 0's rows first; a
    list gives a numpy array. With `splits` it is a pair: that, and the number of rows from each rank,
    as int32.

    Raises ValueError on this rank alone for arguments that cannot be used and before init();
    HorovodInternalError on all ranks: MismatchError if their calls differ, others if a rank is lost.
    """
    return _deal(tensor, splits, name, process_set, True)


def _splits(shape, splits, ranks):
    """How many rows each rank gets."""
    if not shape:
        raise _errors.InvalidArgumentError("alltoall of a number: it has no rows to deal out")
    if splits is None:
        if shape[0] % ranks:
            raise _errors.InvalidArgumentError(
                f"alltoall: {shape[0]} rows cannot be split evenly among {ranks} ranks; give splits"
            )
        return [shape[0] // ranks] * ranks
    try:
        mine = [operator.index(count) for count in splits]
    except TypeError:
        raise _errors.InvalidArgumentError(
            f"alltoall: splits is a list of whole numbers, not {splits!r}"
        ) from None
    if len(mine) != ranks or min(mine) < 0 or sum(mine) != shape[0]:
        raise _errors.InvalidArgumentError(
            f"alltoall: splits {mine} do not deal out {shape[0]} rows to {ranks} ranks"
        )
    return mine


# ---- Meeting ----


def barrier(process_set: ProcessSet | None = global_process_set) -> None:
    """Returns when every rank has called it. HorovodInternalError if a rank is lost before that."""
    issue("dtrain_barrier", (), None, lambda: None, process_set=process_set, wait=True)


def join(device: Any = -1) -> int:
    """Waits until every rank has called it, and returns the rank that came last.

    It is for a rank that has run out of data while others have not. Meanwhile this rank contributes
    zeros to the others' all-reduces of all ranks with Sum and Average, such as those of allreduce,
    grouped_allreduce and DistributedOptimizer. An average is over all ranks, including those in join().
    If another rank calls any other collective, both fail with a MismatchError. Collectives of a process
    set wait for this rank instead.

    device: Horovod's; ignored. Raises UnsupportedError with DTRAIN_FUSION_THRESHOLD=0.
    """
    _job.check_in_job("join")
    last = ctypes.c_int(-1)
    library().call("dtrain_join", ctypes.byref(last))
    _job.begin_generation()
    return last.value
