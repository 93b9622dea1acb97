# SPDX-License-Identifier: Apache-2.0
"""The collectives that move values without looking at them: any type that has bytes will do."""

import ctypes
import operator
import zlib

from . import _arrays, _errors, _job
from ._calls import (
    forget_made_up_names,
    gather_integers,
    group_of,
    issue,
    made_up_name,
    pointer,
    shape_text,
)
from ._collectives import grouped
from ._handles import GroupHandle, StagedHandle, begin_in_time, claim
from ._library import library
from ._process_sets import global_process_set

# Sending the blocks of different lengths one by one takes as long, for each of them, as moving
# about so many bytes with all others.
WORTH_A_CALL = 32 << 10


def sent_as(kind, x):
    """The libdtrain type that an array's values travel as, and its bytes: their own, or single bytes."""
    native = _arrays.NATIVE.get(kind.type_name(x))
    return (_arrays.BYTE, 1) if native is None else (native, kind.item_size(x))


def _shape_and_type(kind, x):
    """What the ranks' arrays must have in common: bytes of a row, and its shape and type."""
    row = 1
    for extent in kind.shape(x)[1:]:
        row *= extent
    what = repr((kind.type_name(x), tuple(map(int, kind.shape(x)[1:]))))
    return row * kind.item_size(x), zlib.crc32(what.encode())


def _check_alike(what, everyones, process_set):
    for rank, facts in enumerate(everyones):
        if facts[:2] != everyones[0][:2]:
            raise _errors.MismatchError(
                f"{what}: ranks {process_set.ranks[0]} and {process_set.ranks[rank]} have arrays "
                "that differ in type, or in more than the number of rows"
            )


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


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """Rank `root_rank`'s values, in a new tensor; shape and type are the same on all ranks."""
    copy, kind = _copy(tensor)
    return start_broadcast(copy, kind, root_rank, name, process_set, True, copy)


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    """As broadcast, into `tensor` itself, which is returned."""
    kind = _arrays.in_place(tensor)
    return start_broadcast(tensor, kind, root_rank, name, process_set, True, tensor)


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """As broadcast, returning a handle at once."""
    copy, kind = _copy(tensor)
    return start_broadcast(copy, kind, root_rank, name, process_set, False, copy)


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    """As broadcast_, returning a handle at once."""
    kind = _arrays.in_place(tensor)
    return start_broadcast(tensor, kind, root_rank, name, process_set, False, tensor)


# ---- Gathering ----


def _in_two_stages(kind, facts, begin_second, name, process_set, wait):
    """The ranks tell each other `facts` first; begin_second(everyone's, name) is the collective
    proper. A StagedHandle, or with `wait` its result."""
    key = claim("dtrain_" + kind, group_of(process_set), name)
    name = name or made_up_name(kind, process_set)
    # Both have names, and of their own: whatever the ranks do meanwhile, they find each other.
    first = gather_integers(facts, process_set, f"{name}.rows", wait=False, part=True)
    handle = StagedHandle(first, lambda everyones: begin_second(everyones, name), key)
    return handle.wait() if wait else begin_in_time(handle)


def allgather_async(tensor, name=None, process_set=global_process_set, *, _wait=False):
    """As allgather, returning a handle at once."""
    x, kind = _arrays.of(tensor)
    process_set = process_set or global_process_set
    x = x.reshape(1) if kind.shape(x) == () else x
    dense = kind.reachable(x)
    facts = [*_shape_and_type(kind, x), kind.shape(x)[0]]
    stream = kind.stream(dense)

    def gather(everyones, name):
        _check_alike("allgather", everyones, process_set)
        return _start_allgather(kind, x, dense, everyones, stream, name, process_set)

    return _in_two_stages("allgather", facts, gather, name, process_set, _wait)


def _start_allgather(kind, x, dense, everyones, stream, name, process_set):
    """`everyones`: bytes of a row, type and number of rows of each rank."""
    row_octets, lengths = everyones[0][0], [facts[0] * facts[2] for facts in everyones]
    output = kind.empty((sum(facts[2] for facts in everyones), *kind.shape(x)[1:]), dense)
    longest = max(lengths)
    if longest * len(lengths) - sum(lengths) > WORTH_A_CALL * len(lengths):
        return _start_unequal(kind, x, dense, lengths, output, stream, name, process_set)
    data_type, width = sent_as(kind, dense)
    send, recv = dense, output
    if min(lengths) != longest:
        send, recv = kind.zero_octets(longest, dense), kind.zero_octets(longest * len(lengths), dense)
        kind.copy_into(send[: row_octets * kind.shape(x)[0]], kind.octets(dense))

    def finish():
        kind.finish_on_stream(recv, stream)
        if recv is not output:
            octets, at = kind.octets(output), 0
            for rank, length in enumerate(lengths):
                kind.copy_into(octets[at : at + length], recv[rank * longest : rank * longest + length])
                at += length
        return output if kind.is_like(output, x) else kind.cast_like(output, x)

    arguments = pointer(kind, send), pointer(kind, recv), longest // width, data_type
    return issue("dtrain_allgather", arguments, (send, recv), finish, stream, name, process_set,
                 part=True)


def _start_unequal(kind, x, dense, lengths, output, stream, name, process_set):
    """An allgather in which nothing is padded to the longest: a broadcast from each rank that has
    rows, to where they belong. `lengths`: bytes of each rank."""
    data_type, width = sent_as(kind, dense)
    octets, handles, at = kind.octets(output), [], 0
    for rank, length in enumerate(lengths):
        part, at = octets[at : at + length], at + length
        if length == 0:
            continue
        if rank == process_set.rank():
            kind.copy_into(part, kind.octets(dense))
        arguments = pointer(kind, part), length // width, data_type, rank
        handles.append(issue("dtrain_broadcast", arguments, output, lambda: None, stream,
                             f"{name}.{rank}", process_set, part=True))

    def finish(_):
        kind.finish_on_stream(output, stream)
        return output if kind.is_like(output, x) else kind.cast_like(output, x)

    return GroupHandle(handles, finish)


def allgather(tensor, name=None, process_set=global_process_set):
    """All ranks' rows, in rank order. The number of rows may differ; all else is the same."""
    return allgather_async(tensor, name, process_set, _wait=True)


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    """allgather_async of each of a list; the result is a list."""
    return grouped("dtrain_allgather", allgather_async, tensors, name, process_set)


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """allgather of each of a list; returns the list."""
    return grouped_allgather_async(tensors, name, process_set).wait()


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set, *, _wait=False):
    """As alltoall, returning a handle at once."""
    x, kind = _arrays.of(tensor)
    process_set = process_set or global_process_set
    mine = _splits(kind.shape(x), splits, process_set.size())
    dense = kind.reachable(x)
    facts = [*_shape_and_type(kind, x), *mine]
    stream = kind.stream(dense)

    def deal(everyones, name):
        _check_alike("alltoall", everyones, process_set)
        return _start_alltoall(kind, x, dense, everyones, stream, name, process_set,
                               splits is not None)

    return _in_two_stages("alltoall", facts, deal, name, process_set, _wait)


def _start_alltoall(kind, x, dense, everyones, stream, name, process_set, with_counts):
    """`everyones`: bytes of a row, type, and rows for each rank, of each rank. `with_counts`: the
    result is a pair, the second how many rows came from each rank."""
    row_octets = everyones[0][0]
    received = [facts[2 + process_set.rank()] for facts in everyones]
    output = kind.empty((sum(received), *kind.shape(x)[1:]), dense)
    data_type, width = sent_as(kind, dense)
    counts = [count * row_octets // width for facts in everyones for count in facts[2:]]

    def finish():
        kind.finish_on_stream(output, stream)
        result = output if kind.is_like(output, x) else kind.cast_like(output, x)
        return (result, kind.integers(received)) if with_counts else result

    what, how_much = "dtrain_alltoall", counts[0]
    if min(counts) != max(counts):
        matrix = (ctypes.c_uint64 * len(counts))(*counts)
        what, how_much = "dtrain_alltoallv", ctypes.addressof(matrix)  # copied by the call
    arguments = pointer(kind, dense), pointer(kind, output), how_much, data_type
    return issue(what, arguments, (dense, output), finish, stream, name, process_set, part=True)


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Rows for every rank, those for rank 0 first; returns what the ranks have for this one.

    splits: how many rows each rank gets; evenly when left out. When given, the result is a pair:
    the rows, and how many came from each rank.
    """
    return alltoall_async(tensor, splits, name, process_set, _wait=True)


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


def barrier(process_set=global_process_set):
    """Returns when every rank has called it."""
    issue("dtrain_barrier", (), None, lambda: None, process_set=process_set, wait=True)


def join(device=-1):
    """Of a rank that has no more data, while others may have some: waits until every rank has called
    it; returns the rank that came last.

    Meanwhile this rank contributes zeros to the others' all-reduces of all ranks that sum or average
    (over all ranks, also those that are here): those of DistributedOptimizer, allreduce_async and
    the like, and of allreduce too. Anything else that another rank calls makes both fail with
    MismatchError, but for collectives of a process set, which wait for this rank.
    """
    _job.check_in_job("join")
    last = ctypes.c_int(-1)
    library().call("dtrain_join", ctypes.byref(last))
    forget_made_up_names()
    _job.begin_generation()
    return last.value
