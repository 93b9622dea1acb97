# SPDX-License-Identifier: Apache-2.0
"""dtrain for PyTorch, under Horovod's names: `import dtrain.torch as hvd`.

Everything of `dtrain`, and what there is for PyTorch only. allreduce, allgather, broadcast,
alltoall and reducescatter can be differentiated.
"""

import dtrain
from dtrain import *  # noqa: F403

from ._autograd import allgather, allreduce, alltoall, broadcast, reducescatter
from ._memory import alloc
from ._state import broadcast_optimizer_state
from .optimizer import DistributedOptimizer
from .sampler import DistributedSampler

__all__ = [
    *dtrain.__all__,
    "DistributedOptimizer",
    "broadcast_optimizer_state",
]
