# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse tensors."""

import torch

from dtrain import Average, Sum, UnsupportedError, allgather_async, global_process_set
from dtrain._operations import chosen


def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Starts the sum (op=Sum) or average (op=Average) over all ranks of a sparse COO tensor.

    tensor: of the same shape on all ranks, with any number of values each; it is not changed.
    name: of the two gathers that it takes. Returns a function: called, it waits and returns the
    result, in which an index of several ranks is there several times (see coalesce()).
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
