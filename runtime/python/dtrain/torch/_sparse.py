# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse tensors."""

from __future__ import annotations

import torch

from dtrain import Average, Sum, UnsupportedError, allgather_async, global_process_set
from dtrain._operations import chosen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from dtrain import ProcessSet, ReduceOp


def sparse_allreduce_async(tensor: torch.Tensor, name: str, op: ReduceOp | None,
                           process_set: ProcessSet | None = global_process_set) -> Callable[[], torch.Tensor]:
    """Starts the sum (op=Sum) or average (op=Average) of a sparse COO tensor over all ranks.

    tensor: of the same shape on all ranks, with any number of values each; it is not changed.
    name: matches the call with those of the other ranks.

    Returns a function that waits and returns the result, a sparse tensor. An index that several
    ranks have is there several times: see coalesce(). UnsupportedError for another `op`.
    """
    op = chosen(op)
    if op not in (Average, Sum):
        raise UnsupportedError(f"sparse_allreduce_async with {op.name}: use Average or Sum")
    process_set = process_set or global_process_set
    # Gathered by rows, of which each stands for one value.
    indices = allgather_async(tensor._indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor._values(), f"{name}.values", process_set)

    def result():
        everyones = values.wait()
        if op is Average:
            everyones = everyones / process_set.size()
        return torch.sparse_coo_tensor(indices.wait().t(), everyones, tensor.shape)

    return result
