# SPDX-License-Identifier: Apache-2.0
"""Dealing a data set out to the ranks."""

from __future__ import annotations

import math

from . import _job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Sized


class DistributedSampler:
    """The indices of one rank's share of a data set; all shares are equally long.

    With `shuffle`, every epoch has its own order, the same on all ranks: call set_epoch() before
    each. If the number of samples is not a multiple of the number of ranks, some samples are used
    twice; with `drop_last`, a few are left out instead.

    dataset: anything with a length, or the length itself.
    num_replicas, rank: default to size() and rank(). Raises ValueError if there is no such rank.
    """

    def __init__(self, dataset: Sized | int, num_replicas: int | None = None, rank: int | None = None,
                 shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        if num_replicas is None or rank is None:
            num_replicas = _job.size() if num_replicas is None else num_replicas
            rank = _job.rank() if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(f"there is no rank {rank} among {num_replicas}")
        self.length = dataset if isinstance(dataset, int) else len(dataset)
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        if drop_last:
            self.num_samples = self.length // num_replicas
        else:
            self.num_samples = math.ceil(self.length / num_replicas)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the coming epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of samples of this rank."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        if self.shuffle:
            # Python's own, because every rank has the same one, whatever else is installed.
            import random  # loads much that nobody else needs

            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
        total = self.num_samples * self.num_replicas
        if order and len(order) < total:
            order = (order * math.ceil(total / len(order)))[:total]
        return iter(order[self.rank : total : self.num_replicas])
