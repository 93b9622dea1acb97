# SPDX-License-Identifier: Apache-2.0
"""What Horovod's scripts ask of the library they run on."""

from ._job import backend
from ._library import library


def library_version():
    """Of the libdtrain that is used, for example "0.1.0"."""
    return library().get("dtrain_version").decode()


def nccl_built():
    """1, unless this job runs on the CPU backend: NCCL is looked for at run time."""
    return int(backend() != "cpu")


def cuda_built():
    """As nccl_built()."""
    return backend() != "cpu"


def gloo_built():
    """True: there is a backend for CPUs, which is what programs ask with it. It is not Gloo."""
    return True


def gloo_enabled():
    """Whether this job's collectives run on the CPU backend."""
    return backend() == "cpu"


def mpi_threads_supported():
    """False: there is no MPI in it. Calls of several threads take turns."""
    return False


def mpi_built():
    return False


def mpi_enabled():
    return False


def rocm_built():
    return False


def ccl_built():
    return False


def ddl_built():
    return False
