# SPDX-License-Identifier: Apache-2.0
"""dtrain for PyTorch, under Horovod's names: `import dtrain.torch as hvd`.

Everything of `dtrain`, and what there is for PyTorch only. allreduce, allgather, reducescatter,
their grouped forms, broadcast and alltoall can be differentiated.
"""

import torch

import dtrain
from dtrain import (
    Adasum,
    Average,
    BarrierTaskContext,
    BarrierTaskInfo,
    BusyError,
    CollectiveError,
    Compression,
    DeviceError,
    Error,
    HorovodInternalError,
    HorovodRunner,
    HostsUpdatedInterrupt,
    InternalError,
    InvalidArgumentError,
    JobEnvironmentError,
    JobError,
    JobTimeoutError,
    LauncherError,
    LibraryError,
    Max,
    Min,
    MismatchError,
    NetworkError,
    ProcessSet,
    Product,
    ReduceOp,
    RemoteError,
    ResourcesError,
    StateError,
    Sum,
    UnsupportedError,
    add_process_set,
    allgather_async,
    allgather_object,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    backend,
    barrier,
    barrier_context,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    broadcast_object,
    broadcast_parameters,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    init,
    is_homogeneous,
    is_initialized,
    join,
    library_version,
    local_rank,
    local_size,
    log_to_driver,
    mark,
    metric_average,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    node_count,
    node_rank,
    poll,
    rank,
    reducescatter_async,
    remove_process_set,
    rocm_built,
    run,
    shutdown,
    size,
    split,
    start_timeline,
    stop_timeline,
    synchronize,
)

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
    "DistributedOptimizer",
    "SyncBatchNorm",
    "broadcast_optimizer_state",
    "deregister",
    "elastic",
    "register",
    "sparse_allreduce_async",
]
__all__ += dtrain.__all__
