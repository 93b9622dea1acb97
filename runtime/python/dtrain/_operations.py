# SPDX-License-Identifier: Apache-2.0
"""The reductions, under Horovod's names."""

from __future__ import annotations

import enum
import warnings

from . import _errors


class ReduceOp(enum.IntEnum):
    """How an all-reduce or reduce-scatter combines the ranks' values, element by element.

    Sum, Average, Min, Max and Product. Adasum exists only as a name: using it is an UnsupportedError.
    """

    # The numbers are libdtrain's.
    Sum = 0
    Average = 1
    Min = 2
    Max = 3
    Product = 4
    # So that scripts that offer it as a choice run.
    Adasum = -1

    def __repr__(self) -> str:
        return self.name  # as it is written, in help() and error texts


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
Adasum = ReduceOp.Adasum


def chosen(op: ReduceOp | None, average: bool | None = None, default: ReduceOp = Average) -> ReduceOp:
    """The operation meant by Horovod's two arguments. `average`, the older one, brings a
    DeprecationWarning, and a ValueError when both are given."""
    if average is not None:
        if op is not None:
            raise _errors.InvalidArgumentError("give either `op` or `average`, not both")
        warnings.warn("`average` is deprecated: use op=Average or op=Sum", DeprecationWarning,
                      stacklevel=3)
        return Average if average else Sum
    op = default if op is None else op
    if op == Adasum:
        raise _errors.UnsupportedError("dtrain has no Adasum; use op=Average or op=Sum")
    try:
        return ReduceOp(op)
    except ValueError:
        raise _errors.InvalidArgumentError(f"{op!r} is not a reduction") from None
