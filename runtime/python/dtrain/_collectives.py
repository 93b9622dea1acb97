# SPDX-License-Identifier: Apache-2.0
"""The collectives, on numpy arrays and torch tensors.

Dense arrays of libdtrain's own types are handed over where they lie. Others are copied: to be
dense, to a type that holds all their values (see _arrays), or from a GPU where the job runs on
the CPU backend.
"""

from __future__ import annotations

from . import _arrays, _errors
from ._calls import group_of, issue, pointer, shape_text
from ._handles import GroupHandle, claim
from ._operations import Average, Sum, chosen
from ._process_sets import global_process_set, place_in
from .compression import Compression

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence, overload

    import numpy as np

    from ._operations import ReduceOp
    from ._process_sets import ProcessSet
    from .typing import Array, Compressor, Handle, Numbers

# ---- Reductions ----


class Reduction:
    """How the values of an array are reduced, and how the result gets back to where it belongs."""

    def __init__(self, x, kind, op, factors, ranks, private, received=None, like=None):
        """`factors`: before and after. `private`: `x` must not be written to. `received`: the shape
        of what comes back, if it is not that of `x`. `like`: what the result shall be like."""
        self.like, self.kind, self.ranks = x if like is None else like, kind, ranks
        before, self.after = factors
        name = kind.type_name(x)
        work = kind.reachable(x)
        self.native = name in _arrays.NATIVE
        if name in _arrays.REDUCED_AS:
            work = kind.cast(work, _arrays.REDUCED_AS[name])
        elif not self.native:
            raise _errors.UnsupportedError(f"{op.name} of {name} is not supported")
        shared = kind.pointer(work) == kind.pointer(x)
        if before != 1.0:
            if private and shared:
                work, shared = kind.copy(work), False
            kind.scale(work, before)
        self.send = work
        self.recv = work
        if received is not None or (private and shared):
            self.recv = kind.empty(kind.shape(work) if received is None else received, work)
        self.divide = op is Average and kind.type_name(work) not in _arrays.FLOATING
        self.op = Sum if self.divide else op
        self.type = _arrays.NATIVE[kind.type_name(work)]
        self.stream = kind.stream(work)

    def operands(self):
        return pointer(self.kind, self.send), pointer(self.kind, self.recv)

    def result(self):
        """What was received, with the type and place of `like`."""
        kind, work = self.kind, self.recv
        kind.finish_on_stream(work, self.stream)
        if self.divide and self.after == 1.0:
            kind.divide_towards_zero(work, self.ranks)
        elif self.after != 1.0:
            # At once, so that an average of integers is rounded once.
            kind.scale(work, self.after / self.ranks if self.divide else self.after)
        return work if kind.is_like(work, self.like) else kind.cast_like(work, self.like)


def start_allreduce(tensor, name, op, factors, process_set, compression, in_place, wait, note=""):
    """`note`: what else must be the same on all ranks, in words."""
    process_set = process_set or global_process_set
    if in_place:
        x, kind = tensor, _arrays.in_place(tensor)
    else:
        x, kind = _arrays.of(tensor)
    small, context = compression.compress(x)
    private = not in_place and kind.pointer(small) == kind.pointer(x)
    ranks = process_set.size()
    reduction = Reduction(small, kind, op, factors, ranks, private)

    def finish():
        result = compression.decompress(reduction.result(), context)
        if in_place:
            if kind.pointer(result) != kind.pointer(x):
                kind.copy_into(x, result)
            return tensor
        return result if x is tensor else result[()]

    arguments = (*reduction.operands(), kind.count(small), reduction.type, int(reduction.op))
    return issue("dtrain_allreduce", arguments, (x, reduction), finish, reduction.stream, name,
                 process_set, wait, shape=shape_text(kind, small, reduction.native) + note)


if TYPE_CHECKING:
    @overload
    def allreduce(tensor: Array, average: bool | None = ..., name: str | None = ..., compression: Compressor = ...,
                  op: ReduceOp | None = ..., prescale_factor: float = ..., postscale_factor: float = ...,
                  process_set: ProcessSet | None = ...) -> Array: ...
    @overload
    def allreduce(tensor: Sequence[Any], average: bool | None = ..., name: str | None = ..., compression: Compressor = ...,
                  op: ReduceOp | None = ..., prescale_factor: float = ..., postscale_factor: float = ...,
                  process_set: ProcessSet | None = ...) -> np.ndarray[Any, Any]: ...
    @overload
    def allreduce(tensor: float | np.generic, average: bool | None = ..., name: str | None = ..., compression: Compressor = ...,
                  op: ReduceOp | None = ..., prescale_factor: float = ..., postscale_factor: float = ...,
                  process_set: ProcessSet | None = ...) -> Any: ...


def allreduce(tensor: Array | Numbers, average: bool | None = None, name: str | None = None,
              compression: Compressor = Compression.none, op: ReduceOp | None = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet | None = global_process_set) -> Any:
    """Returns the average of an array or tensor over all ranks, element by element, or another reduction of it.

    The result is a new array or tensor of the same kind, shape, type and device, with the same bits on
    every rank. A list gives a numpy array, a number a numpy scalar.

    tensor: of the same shape and type on all ranks: numbers or bools, but no complex ones and no uint64.
    average: Horovod's older way to choose between Average and Sum; deprecated.
    name: matches the call with those of the other ranks; without a name, the order of calls does.
    compression: Compression.fp16 sends floating-point numbers with 16 bits.
    op: Average (default), Sum, Min, Max or Product. An average of integers is rounded towards zero.
    prescale_factor, postscale_factor: multiply the values before, and the result after. With integers,
        the products are rounded towards zero.
    process_set: the ranks that take part, all of which must call it.

    Raises ValueError on this rank alone for arguments that cannot be used and before init();
    HorovodInternalError on all ranks: MismatchError if their calls differ, others if a rank is lost.
    """
    factors = prescale_factor, postscale_factor
    return start_allreduce(tensor, name, chosen(op, average), factors, process_set, compression,
                           in_place=False, wait=True)


def allreduce_(tensor: Array, average: bool | None = None, name: str | None = None, op: ReduceOp | None = None,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet | None = global_process_set) -> Array:
    """As allreduce, but writes the result to `tensor`, an array or tensor, and returns that."""
    factors = prescale_factor, postscale_factor
    return start_allreduce(tensor, name, chosen(op, average), factors, process_set,
                           Compression.none, in_place=True, wait=True)


if TYPE_CHECKING:
    @overload
    def allreduce_async(tensor: Array, average: bool | None = ..., name: str | None = ..., op: ReduceOp | None = ...,
                        prescale_factor: float = ..., postscale_factor: float = ...,
                        process_set: ProcessSet | None = ...) -> Handle[Array]: ...
    @overload
    def allreduce_async(tensor: Sequence[Any], average: bool | None = ..., name: str | None = ..., op: ReduceOp | None = ...,
                        prescale_factor: float = ..., postscale_factor: float = ...,
                        process_set: ProcessSet | None = ...) -> Handle[np.ndarray[Any, Any]]: ...
    @overload
    def allreduce_async(tensor: float | np.generic, average: bool | None = ..., name: str | None = ...,
                        op: ReduceOp | None = ..., prescale_factor: float = ..., postscale_factor: float = ...,
                        process_set: ProcessSet | None = ...) -> Handle[Any]: ...


def allreduce_async(tensor: Array | Numbers, average: bool | None = None, name: str | None = None,
                    op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet | None = global_process_set) -> Handle[Any]:
    """As allreduce, but returns a handle at once.

    synchronize(handle) returns the result. Do not change `tensor` before that.
    """
    factors = prescale_factor, postscale_factor
    return start_allreduce(tensor, name, chosen(op, average), factors, process_set,
                           Compression.none, in_place=False, wait=False)


def allreduce_async_(tensor: Array, average: bool | None = None, name: str | None = None,
                     op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet | None = global_process_set) -> Handle[Array]:
    """As allreduce_, but returns a handle at once.

    synchronize(handle) returns `tensor`. Do not use `tensor` before that.
    """
    factors = prescale_factor, postscale_factor
    return start_allreduce(tensor, name, chosen(op, average), factors, process_set,
                           Compression.none, in_place=True, wait=False)


def grouped_allreduce_async(tensors: Sequence[Array], average: bool | None = None, name: str | None = None,
                            op: ReduceOp | None = None, prescale_factor: float = 1.0,
                            postscale_factor: float = 1.0,
                            process_set: ProcessSet | None = global_process_set) -> Handle[list[Array]]:
    """As grouped_allreduce, but returns a handle at once.

    synchronize(handle) returns the list.
    """
    return grouped("allreduce", allreduce_async, tensors, name, process_set,
                   op=chosen(op, average), prescale_factor=prescale_factor,
                   postscale_factor=postscale_factor)


def grouped_allreduce_async_(tensors: Sequence[Array], average: bool | None = None, name: str | None = None,
                             op: ReduceOp | None = None, prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0,
                             process_set: ProcessSet | None = global_process_set) -> Handle[list[Array]]:
    """As grouped_allreduce_, but returns a handle at once.

    synchronize(handle) returns the list.
    """
    return grouped("allreduce", allreduce_async_, tensors, name, process_set,
                   op=chosen(op, average), prescale_factor=prescale_factor,
                   postscale_factor=postscale_factor)


def grouped_allreduce(tensors: Sequence[Array], average: bool | None = None, name: str | None = None,
                      compression: Compressor = Compression.none, op: ReduceOp | None = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: ProcessSet | None = global_process_set) -> list[Array]:
    """Returns the allreduce of each of a list, as a list; libdtrain sends them together.

    With `name`, they have the names NAME.0, NAME.1 and so on. Either all of them start or none does.
    """
    packed = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_allreduce_async([small for small, _ in packed], None, name,
                                     chosen(op, average), prescale_factor, postscale_factor,
                                     process_set)
    return [compression.decompress(small, context)
            for small, (_, context) in zip(handle.wait(), packed)]


def grouped_allreduce_(tensors: Sequence[Array], average: bool | None = None, name: str | None = None,
                       op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet | None = global_process_set) -> list[Array]:
    """As grouped_allreduce, but writes the results to the arrays or tensors themselves."""
    return grouped_allreduce_async_(tensors, None, name, chosen(op, average), prescale_factor,
                                    postscale_factor, process_set).wait()


def grouped(kind, start, tensors, name, process_set, **options):
    """One handle for `start` of each of a list, which get the names `name`.0 and so on."""
    tensors = list(tensors)
    names = [f"{name}.{i}" if name else None for i in range(len(tensors))]
    for each in names:
        claim(kind, group_of(process_set), each)  # all can start, or none does
    return GroupHandle([start(tensor, name=each, process_set=process_set, **options)
                        for tensor, each in zip(tensors, names)])


def _check_rows(tensor):
    """The shape of what is to be dealt out."""
    x, kind = _arrays.of(tensor)
    if not kind.shape(x):
        raise _errors.InvalidArgumentError("reducescatter of a number: it has no rows to deal out")
    return kind.shape(x)


if TYPE_CHECKING:
    @overload
    def reducescatter_async(tensor: Array, name: str | None = ..., op: ReduceOp | None = ...,
                            process_set: ProcessSet | None = ..., prescale_factor: float = ...,
                            postscale_factor: float = ...) -> Handle[Array]: ...
    @overload
    def reducescatter_async(tensor: Sequence[Any], name: str | None = ..., op: ReduceOp | None = ...,
                            process_set: ProcessSet | None = ..., prescale_factor: float = ...,
                            postscale_factor: float = ...) -> Handle[np.ndarray[Any, Any]]: ...


def reducescatter_async(tensor: Array | Sequence[Any], name: str | None = None, op: ReduceOp | None = Average,
                        process_set: ProcessSet | None = global_process_set,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Handle[Any]:
    """As reducescatter, but returns a handle at once.

    synchronize(handle) returns the result. Do not change `tensor` before that.
    """
    return _start_reducescatter(tensor, name, op, process_set, (prescale_factor, postscale_factor), False)


def _start_reducescatter(tensor, name, op, process_set, factors, wait):
    x, kind = _arrays.of(tensor)
    process_set = process_set or global_process_set
    shape = _check_rows(x)
    ranks, me = place_in(process_set)
    least, more = divmod(shape[0], ranks)
    # The first ranks get the rows that are over; the library knows equal blocks only.
    rows = [least + (r < more) for r in range(ranks)]
    block = (rows[0], *shape[1:])
    spread = kind.reachable(x)
    if more:
        spread, source = kind.zeros((rows[0] * ranks, *shape[1:]), spread), spread
        for r in range(ranks):
            first = sum(rows[:r])
            part = spread[r * rows[0] : r * rows[0] + rows[r]]
            kind.copy_into(part, source[first : first + rows[r]])
    reduction = Reduction(spread, kind, chosen(op), factors, ranks, private=not more, received=block,
                           like=x)

    def finish():
        return reduction.result()[: rows[me]]

    arguments = (*reduction.operands(), kind.count(reduction.recv), reduction.type,
                 int(reduction.op))
    return issue("dtrain_reduce_scatter", arguments, reduction, finish, reduction.stream, name,
                 process_set, wait, shape=shape_text(kind, x, reduction.native))


if TYPE_CHECKING:
    @overload
    def reducescatter(tensor: Array, name: str | None = ..., compression: Compressor = ..., op: ReduceOp | None = ...,
                      process_set: ProcessSet | None = ..., prescale_factor: float = ...,
                      postscale_factor: float = ...) -> Array: ...
    @overload
    def reducescatter(tensor: Sequence[Any], name: str | None = ..., compression: Compressor = ..., op: ReduceOp | None = ...,
                      process_set: ProcessSet | None = ..., prescale_factor: float = ...,
                      postscale_factor: float = ...) -> np.ndarray[Any, Any]: ...


def reducescatter(tensor: Array | Sequence[Any], name: str | None = None,
                  compression: Compressor = Compression.none, op: ReduceOp | None = Average,
                  process_set: ProcessSet | None = global_process_set,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Any:
    """Returns this rank's rows of the average of an array or tensor over all ranks, or of another reduction.

    The rows, along the first dimension, are dealt out evenly in rank order; the first ranks get those
    that are over. The result is a new array or tensor of the same kind, type and device.

    tensor: of the same shape and type on all ranks, with at least one dimension.
    name, compression, op, prescale_factor, postscale_factor, process_set: as for allreduce(), which
        has the same errors.
    """
    small, context = compression.compress(tensor)
    mine = _start_reducescatter(small, name, op, process_set, (prescale_factor, postscale_factor), True)
    return compression.decompress(mine, context)


def grouped_reducescatter_async(tensors: Sequence[Array], name: str | None = None, op: ReduceOp | None = Average,
                                process_set: ProcessSet | None = global_process_set,
                                prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Handle[list[Array]]:
    """As grouped_reducescatter, but returns a handle at once.

    synchronize(handle) returns the list.
    """
    for tensor in tensors:
        _check_rows(tensor)
    return grouped("reduce_scatter", reducescatter_async, tensors, name, process_set, op=op,
                   prescale_factor=prescale_factor, postscale_factor=postscale_factor)


def grouped_reducescatter(tensors: Sequence[Array], name: str | None = None,
                          compression: Compressor = Compression.none, op: ReduceOp | None = Average,
                          process_set: ProcessSet | None = global_process_set,
                          prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> list[Array]:
    """Returns the reducescatter of each of a list, as a list; libdtrain sends them together."""
    packed = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_reducescatter_async([small for small, _ in packed], name, op, process_set,
                                         prescale_factor, postscale_factor)
    return [compression.decompress(small, context)
            for small, (_, context) in zip(handle.wait(), packed)]
