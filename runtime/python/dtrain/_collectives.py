# SPDX-License-Identifier: Apache-2.0
"""The collectives, on numpy arrays and torch tensors.

Dense arrays of libdtrain's own types are handed over where they lie. Others are copied: to be
dense, to a type that holds all their values (see _arrays), or from a GPU where the job runs on
the CPU backend.
"""

from . import _arrays, _errors
from ._calls import group_of, issue, pointer, shape_text
from ._handles import GroupHandle, claim
from ._operations import Average, Sum, chosen
from ._process_sets import global_process_set
from .compression import Compression

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


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None,
              prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """op over all ranks of `tensor`, element by element, in a new tensor; the average by default.

    The shape and type are the same on all ranks. Every rank gets the same bits. An average of
    integers is rounded towards zero. `prescale_factor` multiplies before, `postscale_factor` after;
    products with integers are rounded towards zero, too.
    """
    factors = prescale_factor, postscale_factor
    return start_allreduce(tensor, name, chosen(op, average), factors, process_set, compression,
                           in_place=False, wait=True)


def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
               process_set=global_process_set):
    """As allreduce, into `tensor` itself, which is returned."""
    factors = prescale_factor, postscale_factor
    return start_allreduce(tensor, name, chosen(op, average), factors, process_set,
                           Compression.none, in_place=True, wait=True)


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0,
                    postscale_factor=1.0, process_set=global_process_set):
    """As allreduce, returning a handle at once. Leave `tensor` alone until it is synchronized."""
    factors = prescale_factor, postscale_factor
    return start_allreduce(tensor, name, chosen(op, average), factors, process_set,
                           Compression.none, in_place=False, wait=False)


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0,
                     postscale_factor=1.0, process_set=global_process_set):
    """As allreduce_, returning a handle at once."""
    factors = prescale_factor, postscale_factor
    return start_allreduce(tensor, name, chosen(op, average), factors, process_set,
                           Compression.none, in_place=True, wait=False)


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                            postscale_factor=1.0, process_set=global_process_set):
    """allreduce_async of each of a list; the result is a list. libdtrain sends them together."""
    return grouped("dtrain_allreduce", allreduce_async, tensors, name, process_set,
                   op=chosen(op, average), prescale_factor=prescale_factor,
                   postscale_factor=postscale_factor)


def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                             postscale_factor=1.0, process_set=global_process_set):
    """As grouped_allreduce_async, in place."""
    return grouped("dtrain_allreduce", allreduce_async_, tensors, name, process_set,
                   op=chosen(op, average), prescale_factor=prescale_factor,
                   postscale_factor=postscale_factor)


def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None,
                      prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """allreduce of each of a list; returns the list. libdtrain sends them together."""
    packed = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_allreduce_async([small for small, _ in packed], None, name,
                                     chosen(op, average), prescale_factor, postscale_factor,
                                     process_set)
    return [compression.decompress(small, context)
            for small, (_, context) in zip(handle.wait(), packed)]


def grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                       postscale_factor=1.0, process_set=global_process_set):
    """As grouped_allreduce, in place."""
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


def reducescatter_async(tensor, name=None, op=Average, process_set=global_process_set,
                        prescale_factor=1.0, postscale_factor=1.0, *, _wait=False):
    """As reducescatter, returning a handle at once."""
    x, kind = _arrays.of(tensor)
    process_set = process_set or global_process_set
    shape = _check_rows(x)
    ranks, me = process_set.size(), process_set.rank()
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
    reduction = Reduction(spread, kind, chosen(op), (prescale_factor, postscale_factor), ranks,
                           private=not more, received=block, like=x)

    def finish():
        return reduction.result()[: rows[me]]

    arguments = (*reduction.operands(), kind.count(reduction.recv), reduction.type,
                 int(reduction.op))
    return issue("dtrain_reduce_scatter", arguments, reduction, finish, reduction.stream, name,
                 process_set, _wait, shape=shape_text(kind, x, reduction.native))


def reducescatter(tensor, name=None, compression=Compression.none, op=Average,
                  process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    """This rank's rows of the reduction of `tensor` over all ranks; the average by default.

    The rows are dealt out evenly, in rank order; the first ranks get those that are over.
    """
    small, context = compression.compress(tensor)
    mine = reducescatter_async(small, name, op, process_set, prescale_factor, postscale_factor,
                               _wait=True)
    return compression.decompress(mine, context)


def grouped_reducescatter_async(tensors, name=None, op=Average, process_set=global_process_set,
                                prescale_factor=1.0, postscale_factor=1.0):
    """reducescatter_async of each of a list; the result is a list."""
    for tensor in tensors:
        _check_rows(tensor)
    return grouped("dtrain_reduce_scatter", reducescatter_async, tensors, name, process_set, op=op,
                   prescale_factor=prescale_factor, postscale_factor=postscale_factor)


def grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average,
                          process_set=global_process_set, prescale_factor=1.0,
                          postscale_factor=1.0):
    """reducescatter of each of a list; returns the list."""
    packed = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_reducescatter_async([small for small, _ in packed], name, op, process_set,
                                         prescale_factor, postscale_factor)
    return [compression.decompress(small, context)
            for small, (_, context) in zip(handle.wait(), packed)]
