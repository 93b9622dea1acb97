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

# What starts jobs, which workers do not need: loaded when it is asked for, as it takes half of the time.
_LATER = {"HorovodRunner": "_runner", "JobError": "_launch", "RemoteError": "_launch",
          "log_to_driver": "_runner", "run": "_launch"}

__version__ = "0.1.0"
__all__ = sorted(
    [name for name, value in list(globals().items())
     if not name.startswith("_") and type(value).__name__ != "module"] + list(_LATER)
)


def __getattr__(name):
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_LATER})
