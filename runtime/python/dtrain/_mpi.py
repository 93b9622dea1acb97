# SPDX-License-Identifier: Apache-2.0
"""Whether an MPI library holds the PMI connection that libdtrain would need."""

import ctypes
import os


def holder_of_pmi():
    """The file of an MPI library that has taken the launcher's PMI connection, or has closed it in
    MPI_Finalize; None without one. Open MPI has PMIx, which is another connection."""
    if "PMI_FD" not in os.environ:
        return None
    for path in _mapped_libraries():
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue  # its file was replaced
        if not hasattr(library, "MPI_Initialized") or hasattr(library, "ompi_mpi_comm_world"):
            continue
        begun = ctypes.c_int()
        library.MPI_Initialized(ctypes.byref(begun))
        if begun.value:
            return path
    return None


def _mapped_libraries():
    import re

    with open("/proc/self/maps") as file:
        paths = {line.rstrip("\n").split(None, 5)[-1] for line in file}
    return sorted(path for path in paths if re.search(r"libmpi[^/]*\.so[^/]*$", path))
