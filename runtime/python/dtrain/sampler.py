# SPDX-License-Identifier: Apache-2.0
"""Dealing a data set out to the ranks."""

import math

from . import _job


class DistributedSampler:
    """The indices of one rank's share of a data set; all shares are equally long.

    With `shuffle` every epoch has an order of its own, the same on all ranks: call set_epoch()
    before each. When the ranks do not divide the number of samples, some samples are used twice,
    or with `drop_last` a few are left out.

    dataset: anything with a length, or the length itself.
    num_replicas, rank: of the job, when left out.
    """

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0,
                 drop_last=False):
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

    def set_epoch(self, epoch):
        """Chooses the order of the coming epoch."""
        self.epoch = epoch

    def __len__(self):
        """Samples of this rank."""
        return self.num_samples

    def __iter__(self):
        order = list(range(self.length))
        if self.shuffle:
            # Python's own, because every rank has the same one, whatever else is installed.
            import random  # loads much that nobody else needs

            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
        total = self.num_samples * self.num_replicas
        if order and len(order) < total:
            order = (order * math.ceil(total / len(order)))[:total]
        return iter(order[self.rank : total : self.num_replicas])
