# SPDX-License-Identifier: Apache-2.0
"""The collectives that return new tensors, as functions that can be differentiated.

Every rank takes the gradient of its own loss; what flows back through a collective is the sum over
the ranks, as in Horovod.
"""

import torch

import dtrain
from dtrain import Average, Compression, Sum
from dtrain._operations import chosen


def _wanted(tensor):
    return isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled()


def _mine(rows, process_set):
    """Where this rank's rows begin, and how many they are, when every rank has `rows`."""
    process_set = process_set or dtrain.global_process_set
    every = [other[0] for other in dtrain._collectives.gather_integers([rows], process_set)]
    return sum(every[: process_set.rank()]), rows


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, op, options):
        if op not in (Average, Sum):
            raise dtrain.UnsupportedError(f"allreduce with {op.name} has no gradient here")
        ctx.op, ctx.options = op, options
        return dtrain.allreduce(tensor, op=op, **options)

    @staticmethod
    def backward(ctx, gradient):
        return dtrain.allreduce(gradient, op=ctx.op, **ctx.options), None, None


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, options):
        ctx.shape, ctx.options = tensor.shape, options
        rows = tensor.shape[0] if tensor.dim() else 1
        ctx.first, ctx.rows = _mine(rows, options["process_set"])
        return dtrain.allgather(tensor, **options)

    @staticmethod
    def backward(ctx, gradient):
        total = dtrain.allreduce(gradient, op=Sum, **ctx.options)
        return total[ctx.first : ctx.first + ctx.rows].reshape(ctx.shape), None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, options):
        ctx.root_rank, ctx.options = root_rank, options
        return dtrain.broadcast(tensor, root_rank, **options)

    @staticmethod
    def backward(ctx, gradient):
        total = dtrain.allreduce(gradient, op=Sum, **ctx.options)
        if dtrain.rank() != ctx.root_rank:
            total = torch.zeros_like(total)
        return total, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, options):
        ctx.options = options
        process_set = options["process_set"] or dtrain.global_process_set
        if splits is None:
            splits = [tensor.shape[0] // process_set.size()] * process_set.size()
        rows, received = dtrain.alltoall(tensor, splits, **options)
        ctx.received = received.tolist()
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx, gradient, _):
        return dtrain.alltoall(gradient, ctx.received, **ctx.options)[0], None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, op, options):
        if op not in (Average, Sum):
            raise dtrain.UnsupportedError(f"reducescatter with {op.name} has no gradient here")
        process_set = options["process_set"] or dtrain.global_process_set
        ctx.divisor = process_set.size() if op is Average else 1
        ctx.gather = {"process_set": options["process_set"], "name": options["name"]}
        ctx.factor = options["prescale_factor"] * options["postscale_factor"] / ctx.divisor
        return dtrain.reducescatter(tensor, op=op, **options)

    @staticmethod
    def backward(ctx, gradient):
        return dtrain.allgather(gradient, **ctx.gather) * ctx.factor, None, None


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None,
              prescale_factor=1.0, postscale_factor=1.0, process_set=None):
    op = chosen(op, average)
    options = {"name": name, "compression": compression, "prescale_factor": prescale_factor,
               "postscale_factor": postscale_factor, "process_set": process_set}
    if _wanted(tensor):
        return _Allreduce.apply(tensor, op, options)
    return dtrain.allreduce(tensor, op=op, **options)


def allgather(tensor, name=None, process_set=None):
    options = {"name": name, "process_set": process_set}
    if _wanted(tensor):
        return _Allgather.apply(tensor, options)
    return dtrain.allgather(tensor, **options)


def broadcast(tensor, root_rank, name=None, process_set=None):
    options = {"name": name, "process_set": process_set}
    if _wanted(tensor):
        return _Broadcast.apply(tensor, root_rank, options)
    return dtrain.broadcast(tensor, root_rank, **options)


def alltoall(tensor, splits=None, name=None, process_set=None):
    options = {"name": name, "process_set": process_set}
    if _wanted(tensor):
        rows, received = _Alltoall.apply(tensor, splits, options)
        return rows if splits is None else (rows, received)
    return dtrain.alltoall(tensor, splits, **options)


def reducescatter(tensor, name=None, op=None, compression=Compression.none, process_set=None,
                  prescale_factor=1.0, postscale_factor=1.0):
    options = {"name": name, "compression": compression, "process_set": process_set,
               "prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    if _wanted(tensor):
        return _Reducescatter.apply(tensor, chosen(op), options)
    return dtrain.reducescatter(tensor, op=op, **options)


for _function in (allreduce, allgather, broadcast, alltoall, reducescatter):
    _function.__doc__ = getattr(dtrain, _function.__name__).__doc__
