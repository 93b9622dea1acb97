# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors in memory of dtrain_alloc."""

from __future__ import annotations

import collections
import ctypes
import gc
import os
import weakref

from . import _errors, _job
from ._library import library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

    import numpy as np
    from numpy.typing import DTypeLike

# Addresses in use, and those that nobody looks at any more. An owner may end at any time and in any
# thread, also within a call into the library: so it only leaves its address here, and alloc() gives
# it back.
_used: set[int] = set()
_unused: collections.deque[int] = collections.deque()


def _forget(address, pid):
    # A fork's copy of the owner says nothing about ours.
    if os.getpid() == pid and address in _used:
        _used.remove(address)
        _unused.append(address)


def _sweep():
    while _unused:
        library().call("dtrain_free", _unused.popleft())


def allocate(octets, name="dtrain_alloc"):
    """The address of so much zeroed memory, of one of the library's functions; it stays until the
    owner given to keep() is gone."""
    _job.check_in_job("alloc")
    _sweep()
    address = ctypes.c_void_p()
    library().call(name, octets, ctypes.byref(address))
    return address.value


def keep(address, owner):
    _used.add(address)
    weakref.finalize(owner, _forget, address, os.getpid()).atexit = False
    return owner


def host(octets):
    """Memory of the host, as an object with a buffer. Whoever looks at it keeps it."""
    address = allocate(max(octets, 1))
    return keep(address, (ctypes.c_char * max(octets, 1)).from_address(address))


def alloc(shape: int | Iterable[int], dtype: DTypeLike = "float32") -> np.ndarray[Any, Any]:
    """Returns a numpy array of zeros in memory that the ranks of a node share.

    Collectives read and write it there, without a copy. This pays off for large arrays that are used
    repeatedly. dtrain.torch.alloc makes tensors.

    The memory lives as long as the array or a view of it; shutdown() raises a StateError before that.
    At the end of the program it goes with the job. Raises ValueError for a negative shape, for a type
    that holds Python objects, and before init(); ResourcesError if memory has run out.
    """
    import numpy as np

    kind = np.dtype(dtype)
    if kind.hasobject:
        raise _errors.InvalidArgumentError(f"alloc: an array of {kind} cannot be in shared memory")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    elements = 1
    for extent in shape:
        if extent < 0:
            raise _errors.InvalidArgumentError(f"alloc: the shape {shape} has a negative number")
        elements *= extent
    octets = elements * kind.itemsize
    return np.frombuffer(host(octets), np.uint8)[:octets].view(kind).reshape(shape)


def check_unused():
    """Before the job is left, and its memory with it."""
    if _used:
        gc.collect()
    if _used:
        raise _errors.StateError(
            f"shutdown: {len(_used)} of the arrays of dtrain.alloc are in use; delete them and their "
            "views first, their memory goes with the job"
        )


def _forget_all():
    _used.clear()
    _unused.clear()


_job.before_shutdown.append(check_unused)
_job.on_shutdown.append(_forget_all)
