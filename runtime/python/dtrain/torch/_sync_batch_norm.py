# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

import warnings

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase
from torch.nn.modules.lazy import LazyModuleMixin

from dtrain import InvalidArgumentError, ProcessSet, Sum, allgather, allreduce, global_process_set
from dtrain._process_sets import place_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Module = TypeVar("Module", bound=torch.nn.Module)


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d, 2d or 3d with the mean and variance of all ranks' batches.

    Input: (N, C, ...) with C = num_features, on the CPU or a GPU; N may differ between ranks. Every
    rank must call it equally often, forward and backward. In evaluation it is local.

    process_set: the ranks whose batches count. The other arguments are those of torch.nn.BatchNorm1d.
    """

    process_set: ProcessSet | None = global_process_set

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, process_set: ProcessSet | None = global_process_set,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        _check_set(process_set)
        super().__init__(num_features, eps, momentum, affine, track_running_stats,  # type: ignore[arg-type]
                         device=device, dtype=dtype)
        self.process_set = process_set

    @staticmethod
    def convert_sync_batchnorm(module: Module, process_set: ProcessSet | None = global_process_set) -> Module:
        """Turns all BatchNorm layers of a module into SyncBatchNorm layers, and returns the module.

        The layers stay the same objects, with their parameters, buffers, flags and hooks, so it may be called
        before or after DistributedOptimizer(). Lazy layers still get their size from their first input. A layer
        whose class has a forward() of its own stays as it is, with a warning.

        process_set: the ranks whose batches count.
        """
        _check_set(process_set)
        for layer in module.modules():
            if type(layer).forward in _KNOWN:
                _turn(layer, process_set)
            elif isinstance(layer, _BatchNorm):
                warnings.warn(f"convert_sync_batchnorm: {type(layer).__name__} has its own forward() and stays as it "
                              "is: each rank normalizes by its own batches", stacklevel=2)
        return module

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: input of {input.dim()} dimensions; give (N, C, ...)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        share = self._share_of_new()
        running_mean, running_var = self._running()
        process_set = self.process_set or global_process_set
        if not self.training or place_in(process_set)[0] == 1:
            of_batch = self.training or running_mean is None and running_var is None
            return torch.nn.functional.batch_norm(input, running_mean, running_var, self.weight, self.bias,
                                                  of_batch, share, self.eps)
        mean, variance, count = _everyones(input, process_set)
        _remember(running_mean, mean, share)
        # As PyTorch does: what is kept estimates the variance beyond the batch.
        _remember(running_var, variance * (count / (count - 1).clamp(min=1)), share)
        return _Normalize.apply(input, self.weight, self.bias, mean, variance, count, self.eps, process_set)

    def _share_of_new(self):
        """Counts the batch. Returns its share of the running values, which without momentum are a mean."""
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return 0.0 if self.momentum is None else self.momentum

    def _running(self):
        """The running mean and variance to use. As in PyTorch, a program may change the flag, or set them to None."""
        if self.training and not self.track_running_stats:
            return None, None
        return self.running_mean, self.running_var


class _LazySyncBatchNorm(_LazyNormBase, SyncBatchNorm):
    """A LazyBatchNorm that has been converted, until its first input. PyTorch looks up forward() before it changes
    the class, so this class must have it already."""

    cls_to_become = SyncBatchNorm  # type: ignore[assignment]


_KNOWN = (_BatchNorm.forward, torch.nn.SyncBatchNorm.forward, SyncBatchNorm.forward)


def _turn(layer, process_set):
    # As PyTorch does when a lazy layer has got its size: optimizers, hooks and other names of the layer stay right.
    layer.__class__ = _LazySyncBatchNorm if isinstance(layer, LazyModuleMixin) else SyncBatchNorm
    layer.process_set = process_set


def _check_set(process_set):
    if not (process_set is None or isinstance(process_set, ProcessSet)):
        raise InvalidArgumentError(f"SyncBatchNorm: process_set={process_set!r}: give a ProcessSet")


@torch.no_grad()
def _remember(running, new, share):
    if running is not None:
        wide = _wide(running)
        running.copy_(wide.lerp(new.to(wide.dtype), share))


def _channels(vector, like):
    """A value for each channel, so that it fits what is (N, C, ...)."""
    return vector.reshape(1, -1, *[1] * (like.dim() - 2))


def _sums(x):
    """Over everything but the channels."""
    return x.sum(dim=[d for d in range(x.dim()) if d != 1])


def _wide(x):
    return x.float() if x.element_size() < 4 else x


@torch.no_grad()
def _everyones(input, process_set):
    """Mean and variance per channel, and number of values, of all ranks."""
    x = _wide(input)
    count = x.numel() // x.shape[1]
    mean = _sums(x) / max(count, 1)
    squares = _sums((x - _channels(mean, x)).square())
    mine = torch.cat([mean.new_tensor([count]), mean, squares])
    everyones = allgather(mine.unsqueeze(0), process_set=process_set)
    counts, means, squares = everyones.split([1, x.shape[1], x.shape[1]], dim=1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    # Each rank's squares are about its own mean.
    squares = squares + counts * (means - mean).square()
    return mean, squares.sum(0) / total, total


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, mean, variance, count, eps, process_set):
        ctx.process_set = process_set
        scale = torch.rsqrt(variance + eps)
        normal = (_wide(input) - _channels(mean, input)) * _channels(scale, input)
        ctx.save_for_backward(normal, weight, scale, count)
        out = normal
        if weight is not None:
            out = normal * _channels(weight, input) + _channels(bias, input)
        return out.to(input.dtype)

    @staticmethod
    @once_differentiable  # no second derivative: an error is better than a wrong one
    def backward(ctx, gradient):
        normal, weight, scale, count = ctx.saved_tensors
        wide = _wide(gradient)
        # Of the weight and bias only this rank's: they are averaged as all parameters are.
        for_bias, for_weight = _sums(wide), _sums(wide * normal)
        sums = allreduce(torch.stack([for_bias, for_weight]), op=Sum, process_set=ctx.process_set) / count
        own = wide - _channels(sums[0], wide) - normal * _channels(sums[1], wide)
        own = own * _channels(scale if weight is None else scale * weight, wide)
        if weight is None:
            for_weight = for_bias = None
        return own.to(gradient.dtype), for_weight, for_bias, None, None, None, None, None
