# SPDX-License-Identifier: Apache-2.0
"""Which ranks reduce other gradients than the others, or at another time."""

import itertools

import dtrain
from dtrain import MismatchError


def description(gradient):
    return gradient.name, tuple(gradient.shape), str(gradient.type[0]).rpartition(".")[2]


def explained(error, mine, process_set):
    """The MismatchError of a round in the words of DistributedOptimizer. `mine`: the optimizer's number, which step
    and which round of it this is here, and descriptions of the gradients. Collective: all ranks have got the error."""
    everyones = dtrain.allgather_object(mine, process_set=process_set)
    number, step, turn, listed = everyones[0]
    ranks = process_set.ranks
    for rank, (other_number, other_step, other_turn, others) in zip(ranks[1:], everyones[1:]):
        if other_number != number:
            return MismatchError(
                f"DistributedOptimizer: rank {ranks[0]} reduces gradients of optimizer {number}, rank {rank} of "
                f"optimizer {other_number} (in order of creation); every rank must call backward() and step() "
                "for the same optimizers in the same order"
            )
        for first, other in itertools.zip_longest(listed, others):
            if first != other:
                return MismatchError(
                    f"DistributedOptimizer: rank {ranks[0]} has {_said(first)} where rank {rank} has "
                    f"{_said(other)}; every rank must give it the same parameters in the same order"
                )
        if (other_step, other_turn) != (step, turn):
            return MismatchError(
                f"DistributedOptimizer: rank {ranks[0]} reduces gradients for time {turn} of step "
                f"{step}, rank {rank} for time {other_turn} of step {other_step}; every rank must call "
                "backward() and step() equally often, or join() when it has no more data"
            )
    return error


def _said(description):
    if description is None:
        return "no more parameters"
    name, shape, dtype = description
    return f"{name} ({dtype} {shape})"
