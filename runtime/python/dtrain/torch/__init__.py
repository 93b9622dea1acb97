# SPDX-License-Identifier: Apache-2.0
"""dtrain for PyTorch, under Horovod's names: `import dtrain.torch as hvd`.

Everything of `dtrain`, and what there is for PyTorch only. allreduce, allgather, reducescatter,
their grouped forms, broadcast and alltoall can be differentiated.
"""

import torch

import dtrain
from dtrain import *  # noqa: F403

from . import elastic
from ._autograd import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from ._memory import alloc, deregister, register
from ._sparse import sparse_allreduce_async
from ._state import broadcast_optimizer_state
from ._sync_batch_norm import SyncBatchNorm
from .optimizer import DistributedOptimizer
from .sampler import DistributedSampler

if torch.distributed.is_available():
    from . import _process_group  # registers it

__all__ = [
    *dtrain.__all__,
    "DistributedOptimizer",
    "SyncBatchNorm",
    "broadcast_optimizer_state",
    "deregister",
    "elastic",
    "register",
    "sparse_allreduce_async",
]
