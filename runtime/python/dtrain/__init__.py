# SPDX-License-Identifier: Apache-2.0
"""dtrain: collective operations for the workers of a job, on numpy arrays and torch tensors.

    import dtrain

    dtrain.init()
    print(dtrain.rank(), dtrain.allreduce(numpy.arange(3.0), op=dtrain.Sum))

The names are Horovod's: `import dtrain as hvd`, or for PyTorch `import dtrain.torch as hvd`.
dtrain.run() starts a job from within a program or notebook. docs/python.md has more.
"""

from ._barrier import BarrierTaskContext, BarrierTaskInfo, barrier_context
from ._collectives import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from ._errors import (
    BusyError,
    CollectiveError,
    DeviceError,
    Error,
    HostsUpdatedInterrupt,
    InternalError,
    InvalidArgumentError,
    JobEnvironmentError,
    JobTimeoutError,
    LauncherError,
    LibraryError,
    MismatchError,
    NetworkError,
    ResourcesError,
    StateError,
    UnsupportedError,
)
from ._facts import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    library_version,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ._handles import poll, synchronize
from ._job import (
    backend,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mark,
    node_count,
    node_rank,
    rank,
    shutdown,
    size,
)
from ._memory import alloc
from ._moves import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    join,
)
from ._objects import allgather_object, broadcast_object, broadcast_parameters, metric_average
from ._operations import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from ._process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
    split,
)
from ._timeline import start_timeline, stop_timeline
from .compression import Compression
from .sampler import DistributedSampler

HorovodInternalError = CollectiveError

# So that a traceback says dtrain.NetworkError.
for _name in dir():
    if _name.endswith("Error"):
        globals()[_name].__module__ = __name__

# Type checkers take it for typing's, which this package does not load, as that would double its share of
# a worker's start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._launch import JobError, RemoteError, run
    from ._runner import HorovodRunner, log_to_driver
else:
    # What starts jobs, which workers do not need: loaded when it is asked for, as it takes half of the time.
    _LATER = {"HorovodRunner": "_runner", "JobError": "_launch", "RemoteError": "_launch",
              "log_to_driver": "_runner", "run": "_launch"}

    def __getattr__(name):
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *_LATER})

del TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "Adasum",
    "Average",
    "BarrierTaskContext",
    "BarrierTaskInfo",
    "BusyError",
    "CollectiveError",
    "Compression",
    "DeviceError",
    "DistributedSampler",
    "Error",
    "HorovodInternalError",
    "HorovodRunner",
    "HostsUpdatedInterrupt",
    "InternalError",
    "InvalidArgumentError",
    "JobEnvironmentError",
    "JobError",
    "JobTimeoutError",
    "LauncherError",
    "LibraryError",
    "Max",
    "Min",
    "MismatchError",
    "NetworkError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "RemoteError",
    "ResourcesError",
    "StateError",
    "Sum",
    "UnsupportedError",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "alloc",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "backend",
    "barrier",
    "barrier_context",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "library_version",
    "local_rank",
    "local_size",
    "log_to_driver",
    "mark",
    "metric_average",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "node_count",
    "node_rank",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "run",
    "shutdown",
    "size",
    "split",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
