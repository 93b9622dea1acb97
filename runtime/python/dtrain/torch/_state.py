# SPDX-License-Identifier: Apache-2.0
"""An optimizer's state, from one rank to all."""

import torch

import dtrain


class _Place:
    """Stands for a tensor within a state."""

    def __init__(self, tensor):
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def _take_out(value, tensors):
    """`value` with places instead of tensors, which are appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        # On the CPU everywhere: load_state_dict() puts it where its parameter is.
        tensors.append(value.detach().cpu().contiguous())
        return _Place(value)
    if isinstance(value, dict):
        return {key: _take_out(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_out(item, tensors) for item in value)
    return value


def _fill_in(value, tensors, make):
    """The reverse: make(place) is each tensor, also appended to `tensors`."""
    if isinstance(value, _Place):
        tensors.append(make(value))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _fill_in(item, tensors, make) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_fill_in(item, tensors, make) for item in value)
    return value


def broadcast_optimizer_state(optimizer, root_rank=0, process_set=None):
    """Rank `root_rank`'s optimizer state (learning rates and the like, too) into everyone's."""
    process_set = process_set or dtrain.global_process_set
    tensors, skeleton = [], None
    is_root = process_set.rank() == process_set.index_of(root_rank)
    if is_root:
        skeleton = _take_out(optimizer.state_dict(), tensors)
    skeleton = dtrain.broadcast_object(skeleton, root_rank, process_set=process_set)
    if not is_root:
        state = _fill_in(skeleton, tensors, lambda p: torch.empty(p.shape, dtype=p.dtype))
    named = [(f"optimizer.{i}", tensor) for i, tensor in enumerate(tensors)]
    dtrain.broadcast_parameters(named, root_rank, process_set)
    if not is_root:
        optimizer.load_state_dict(state)
