# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dtrain import Sum, allgather, allreduce, size


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d, 2d or 3d with the mean and variance of all ranks' batches.

    Input: (N, C, ...) with C = num_features, on the CPU or a GPU; N may differ between ranks. Every
    rank must call it equally often, forward and backward. In evaluation it is local. The arguments are
    those of torch.nn.BatchNorm1d.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)  # type: ignore[arg-type]

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: input of {input.dim()} dimensions; give (N, C, ...)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        use_running = not self.training and self.track_running_stats
        if not self.training or size() == 1:
            return torch.nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias,
                not use_running, self._share_of_new(), self.eps)
        mean, variance, count = _everyones(input)
        if self.track_running_stats:
            self._remember(mean, variance, count)
        return _Normalize.apply(input, self.weight, self.bias, mean, variance, count, self.eps)

    def _share_of_new(self):
        """How much of the running values the new ones make; without momentum they are a mean."""
        if self.momentum is not None:
            return self.momentum
        return 1.0 / float(self.num_batches_tracked) if self.track_running_stats else 0.0

    def _remember(self, mean, variance, count):
        share = self._share_of_new()
        with torch.no_grad():
            # As PyTorch does: what is kept estimates the variance beyond the batch.
            unbiased = variance * (count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


def _channels(vector, like):
    """A value for each channel, so that it fits what is (N, C, ...)."""
    return vector.reshape(1, -1, *[1] * (like.dim() - 2))


def _sums(x):
    """Over everything but the channels."""
    return x.sum(dim=[d for d in range(x.dim()) if d != 1])


def _wide(x):
    return x.float() if x.element_size() < 4 else x


@torch.no_grad()
def _everyones(input):
    """Mean and variance per channel, and number of values, of all ranks."""
    x = _wide(input)
    count = x.numel() // x.shape[1]
    mean = _sums(x) / max(count, 1)
    squares = _sums((x - _channels(mean, x)).square())
    mine = torch.cat([mean.new_tensor([count]), mean, squares])
    everyones = allgather(mine.unsqueeze(0))
    counts, means, squares = everyones.split([1, x.shape[1], x.shape[1]], dim=1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    # Each rank's squares are about its own mean.
    squares = squares + counts * (means - mean).square()
    return mean, squares.sum(0) / total, total


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, mean, variance, count, eps):
        scale = torch.rsqrt(variance + eps)
        normal = (_wide(input) - _channels(mean, input)) * _channels(scale, input)
        ctx.save_for_backward(normal, weight, scale, count)
        out = normal
        if weight is not None:
            out = normal * _channels(weight, input) + _channels(bias, input)
        return out.to(input.dtype)

    @staticmethod
    def backward(ctx, gradient):
        normal, weight, scale, count = ctx.saved_tensors
        wide = _wide(gradient)
        # Of the weight and bias only this rank's: they are averaged as all parameters are.
        for_bias, for_weight = _sums(wide), _sums(wide * normal)
        sums = allreduce(torch.stack([for_bias, for_weight]), op=Sum) / count
        own = wide - _channels(sums[0], wide) - normal * _channels(sums[1], wide)
        own = own * _channels(scale if weight is None else scale * weight, wide)
        if weight is None:
            for_weight = for_bias = None
        return own.to(gradient.dtype), for_weight, for_bias, None, None, None, None
