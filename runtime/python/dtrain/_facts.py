# SPDX-License-Identifier: Apache-2.0
"""What Horovod's scripts ask of the library they run on."""

from __future__ import annotations

from ._job import backend
from ._library import library


def library_version() -> str:
    """Returns the version of the loaded libdtrain, such as "0.1.0". Raises LibraryError if it cannot be loaded."""
    return library().get("dtrain_version").decode()


def nccl_built() -> int:
    """0 if this job runs on the CPU backend, else 1: NCCL is looked for at run time."""
    return int(backend() != "cpu")


def cuda_built() -> bool:
    """False if this job runs on the CPU backend, else True."""
    return backend() != "cpu"


def gloo_built() -> bool:
    """True, because there is a CPU backend, though it is not Gloo."""
    return True


def gloo_enabled() -> bool:
    """Whether this job's collectives run on the CPU backend."""
    return backend() == "cpu"


def mpi_threads_supported() -> bool:
    """False, because dtrain does not use MPI. Calls of several threads take turns."""
    return False


def mpi_built() -> bool:
    """False, because dtrain does not use MPI."""
    return False


def mpi_enabled() -> bool:
    """False, because dtrain does not use MPI."""
    return False


def rocm_built() -> bool:
    """False, because dtrain does not run on AMD's GPUs."""
    return False


def ccl_built() -> bool:
    """False, because dtrain does not use oneCCL."""
    return False


def ddl_built() -> bool:
    """False, because dtrain does not use IBM's DDL."""
    return False
