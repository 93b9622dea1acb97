# SPDX-License-Identifier: Apache-2.0
"""An optimizer's state, from one rank to all."""

from __future__ import annotations

import torch

import dtrain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Place:
    """Stands for a tensor within a state: the one with this number."""

    def __init__(self, number, tensor):
        self.number, self.shape, self.dtype = number, tuple(tensor.shape), tensor.dtype
        self.sparse_dim = tensor.sparse_dim() if tensor.is_sparse else 0


def _take_out(value, tensors, places):
    """`value` with places instead of tensors, which are appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        places.append(_Place(len(places), value))
        value = value.detach().to_dense() if value.is_sparse else value.detach()
        # On the CPU everywhere: load_state_dict() puts it where its parameter is.
        tensors.append(value.cpu().contiguous())
        return places[-1]
    if isinstance(value, dict):
        return {key: _take_out(item, tensors, places) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_out(item, tensors, places) for item in value)
    return value


def _fill_in(value, tensors):
    """The reverse."""
    if isinstance(value, _Place):
        tensor = tensors[value.number]
        return tensor.to_sparse(value.sparse_dim) if value.sparse_dim else tensor
    if isinstance(value, dict):
        return {key: _fill_in(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_fill_in(item, tensors) for item in value)
    return value


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0,
                              model: torch.nn.Module | None = None,
                              process_set: dtrain.ProcessSet | None = dtrain.global_process_set) -> None:
    """Gives every rank's optimizer rank `root_rank`'s state, including learning rates and the like.

    No rank needs to have taken a step, and no rank takes one here.

    root_rank: a rank of the job, also with a process_set.
    model: Horovod's; ignored.
    """
    process_set = process_set or dtrain.global_process_set
    tensors: list[Any] = []
    places: list[Any] = []
    skeleton = None
    is_root = process_set.rank() == process_set.index_of(root_rank)
    if is_root:
        skeleton = _take_out(optimizer.state_dict(), tensors, places)
    skeleton, places = dtrain.broadcast_object((skeleton, places), root_rank,
                                               process_set=process_set)
    if not is_root:
        tensors = [torch.empty(place.shape, dtype=place.dtype) for place in places]
    named = [(f"optimizer.{i}", tensor) for i, tensor in enumerate(tensors)]
    dtrain.broadcast_parameters(named, root_rank, process_set)
    if not is_root:
        optimizer.load_state_dict(_fill_in(skeleton, tensors))
