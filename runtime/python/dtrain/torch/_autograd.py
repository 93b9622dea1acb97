# SPDX-License-Identifier: Apache-2.0
"""The collectives that return new tensors, as functions that can be differentiated.

The gradients are Horovod's: an allreduce's is the same allreduce of the gradients; an allgather's
and a broadcast's is their average over the ranks.
"""

from __future__ import annotations

import torch

import dtrain
from dtrain import Average, Compression, Sum, global_process_set
from dtrain._calls import gather_integers
from dtrain._operations import chosen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])


def _wanted(tensor):
    return isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled()


def _own_rows(gathered, shapes, process_set):
    """Of each of several gathered tensors the part that this rank gave, which had these shapes."""
    process_set = process_set or global_process_set
    rows = [shape[0] if shape else 1 for shape in shapes]
    before = gather_integers(rows, process_set)[: process_set.rank()]
    for i, (tensor, shape) in enumerate(zip(gathered, shapes)):
        first = sum(other[i] for other in before)
        yield tensor[first : first + rows[i]].reshape(shape)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, op, options):
        if op not in (Average, Sum):
            raise dtrain.UnsupportedError(f"allreduce with {op.name} has no gradient here")
        ctx.op, ctx.options = op, {**options, "name": None}
        return dtrain.allreduce(tensor, op=op, **options)

    @staticmethod
    def backward(ctx, gradient):
        return dtrain.allreduce(gradient, op=ctx.op, **ctx.options), None, None


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, options):
        ctx.shape, ctx.process_set = tensor.shape, options["process_set"]
        return dtrain.allgather(tensor, **options)

    @staticmethod
    def backward(ctx, gradient):
        mean = dtrain.allreduce(gradient, op=Average, process_set=ctx.process_set)
        return next(_own_rows([mean], [ctx.shape], ctx.process_set)), None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, options):
        ctx.root_rank, ctx.process_set = root_rank, options["process_set"]
        return dtrain.broadcast(tensor, root_rank, **options)

    @staticmethod
    def backward(ctx, gradient):
        mean = dtrain.allreduce(gradient, op=Average, process_set=ctx.process_set)
        if dtrain.rank() != ctx.root_rank:
            mean = torch.zeros_like(mean)
        return mean, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, options):
        ctx.process_set = options["process_set"]
        process_set = ctx.process_set or global_process_set
        if splits is None:
            splits = [tensor.shape[0] // process_set.size()] * process_set.size()
        rows, received = dtrain.alltoall(tensor, splits, **options)
        ctx.received = received.tolist()
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx, gradient, _):
        rows, _ = dtrain.alltoall(gradient, ctx.received, process_set=ctx.process_set)
        return rows, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, op, options):
        _scatters(ctx, op, options)
        return dtrain.reducescatter(tensor, op=op, **options)

    @staticmethod
    def backward(ctx, gradient):
        return dtrain.allgather(gradient * ctx.factor, process_set=ctx.process_set), None, None


def _scatters(ctx, op, options):
    """Keeps what the gradient of a reducescatter needs."""
    if op not in (Average, Sum):
        raise dtrain.UnsupportedError(f"reducescatter with {op.name} has no gradient here")
    ctx.process_set = options["process_set"]
    size = (ctx.process_set or global_process_set).size()
    ctx.factor = options["prescale_factor"] * options["postscale_factor"]
    ctx.factor *= size if op is Sum else 1


# ---- Of several tensors ----


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, op, options, *tensors):
        if op not in (Average, Sum):
            raise dtrain.UnsupportedError(f"grouped_allreduce with {op.name} has no gradient here")
        ctx.op, ctx.options = op, {**options, "name": None}
        return tuple(dtrain.grouped_allreduce(list(tensors), op=op, **options))

    @staticmethod
    def backward(ctx, *gradients):
        return None, None, *dtrain.grouped_allreduce(list(gradients), op=ctx.op, **ctx.options)


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, options, *tensors):
        ctx.process_set = options["process_set"]
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(dtrain.grouped_allgather(list(tensors), **options))

    @staticmethod
    def backward(ctx, *gradients):
        means = dtrain.grouped_allreduce(list(gradients), op=Average, process_set=ctx.process_set)
        return None, *_own_rows(means, ctx.shapes, ctx.process_set)


class _GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, op, options, *tensors):
        _scatters(ctx, op, options)
        return tuple(dtrain.grouped_reducescatter(list(tensors), op=op, **options))

    @staticmethod
    def backward(ctx, *gradients):
        scaled = [gradient * ctx.factor for gradient in gradients]
        return None, None, *dtrain.grouped_allgather(scaled, process_set=ctx.process_set)


def _as(function: Function) -> Callable[[Any], Function]:
    """For a function that is called as `function` is: it gets the same types, and its documentation."""
    def described(own: Any) -> Function:
        own.__annotations__ = function.__annotations__
        own.__doc__ = f"""{(function.__doc__ or "").rstrip()}

    PyTorch can differentiate the result; of reductions, that of Average and Sum.
    """
        return own  # type: ignore[no-any-return]

    return described


@_as(dtrain.allreduce)
def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None,
              prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    op = chosen(op, average)
    options = {"name": name, "compression": compression, "prescale_factor": prescale_factor,
               "postscale_factor": postscale_factor, "process_set": process_set}
    if _wanted(tensor):
        return _Allreduce.apply(tensor, op, options)
    return dtrain.allreduce(tensor, op=op, **options)


@_as(dtrain.allgather)
def allgather(tensor, name=None, process_set=global_process_set):
    options = {"name": name, "process_set": process_set}
    if _wanted(tensor):
        return _Allgather.apply(tensor, options)
    return dtrain.allgather(tensor, **options)


@_as(dtrain.broadcast)
def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    options = {"name": name, "process_set": process_set}
    if _wanted(tensor):
        return _Broadcast.apply(tensor, root_rank, options)
    return dtrain.broadcast(tensor, root_rank, **options)


@_as(dtrain.alltoall)
def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    options = {"name": name, "process_set": process_set}
    if _wanted(tensor):
        rows, received = _Alltoall.apply(tensor, splits, options)
        return rows if splits is None else (rows, received)
    return dtrain.alltoall(tensor, splits, **options)


@_as(dtrain.reducescatter)
def reducescatter(tensor, name=None, compression=Compression.none, op=Average,
                  process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    options = {"name": name, "compression": compression, "process_set": process_set,
               "prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    if _wanted(tensor):
        return _Reducescatter.apply(tensor, chosen(op), options)
    return dtrain.reducescatter(tensor, op=op, **options)


@_as(dtrain.grouped_allreduce)
def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None,
                      prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    op = chosen(op, average)
    options = {"name": name, "compression": compression, "prescale_factor": prescale_factor,
               "postscale_factor": postscale_factor, "process_set": process_set}
    if any(map(_wanted, tensors)):
        return list(_GroupedAllreduce.apply(op, options, *tensors))
    return dtrain.grouped_allreduce(tensors, op=op, **options)


@_as(dtrain.grouped_allgather)
def grouped_allgather(tensors, name=None, process_set=global_process_set):
    options = {"name": name, "process_set": process_set}
    if any(map(_wanted, tensors)):
        return list(_GroupedAllgather.apply(options, *tensors))
    return dtrain.grouped_allgather(tensors, **options)


@_as(dtrain.grouped_reducescatter)
def grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average,
                          process_set=global_process_set, prescale_factor=1.0,
                          postscale_factor=1.0):
    options = {"name": name, "compression": compression, "process_set": process_set,
               "prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    if any(map(_wanted, tensors)):
        return list(_GroupedReducescatter.apply(chosen(op), options, *tensors))
    return dtrain.grouped_reducescatter(tensors, op=op, **options)
