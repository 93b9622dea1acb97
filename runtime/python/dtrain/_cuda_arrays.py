# SPDX-License-Identifier: Apache-2.0
"""Arrays on a GPU of a library with numpy's functions, as CuPy: known by __cuda_array_interface__.

The library is never imported here: the program has, and its module is found by the array's type.
"""

import contextlib
import sys

from . import _errors, _job


class _Stream:
    """A stream in the words that _calls takes it by."""

    def __init__(self, stream):
        self.stream, self.cuda_stream = stream, stream.ptr


def is_cuda_array(x):
    return hasattr(type(x), "__cuda_array_interface__")


def _module(x):
    """With the functions for `x`, which may be a copy on the host as well."""
    return sys.modules[type(x).__module__.partition(".")[0]]


class CudaArrays:
    """As NumpyArrays. In a job on the CPU backend what is sent and received is copied to the host:
    so `x` may be a numpy array everywhere."""

    @staticmethod
    def type_name(x):
        if x.dtype.hasobject or x.dtype.fields is not None:
            raise _errors.InvalidArgumentError(f"an array of {x.dtype} cannot be sent")
        return x.dtype.name

    @staticmethod
    def contiguous(x):
        return x if x.flags.c_contiguous else x.copy(order="C")

    @staticmethod
    def reachable(x):
        """As contiguous(), in memory that the job's backend can use."""
        if is_cuda_array(x) and _job.backend() != "nccl":
            x = x.get()
        return CudaArrays.contiguous(x)

    @staticmethod
    def check_writable(x):
        if x.__cuda_array_interface__["data"][1]:
            raise _errors.InvalidArgumentError("the array is read-only")

    @staticmethod
    def pointer(x):
        return x.__cuda_array_interface__["data"][0] if is_cuda_array(x) else x.ctypes.data

    @staticmethod
    def count(x):
        return x.size

    @staticmethod
    def item_size(x):
        return x.dtype.itemsize

    @staticmethod
    def shape(x):
        return x.shape

    @staticmethod
    def empty(shape, like):
        return _module(like).empty(shape, like.dtype)

    @staticmethod
    def zeros(shape, like):
        return _module(like).zeros(shape, like.dtype)

    @staticmethod
    def cast(x, name):
        return x.astype(name)

    @staticmethod
    def is_like(x, like):
        return x.dtype == like.dtype and is_cuda_array(x) == is_cuda_array(like)

    @staticmethod
    def cast_like(x, like):
        return _module(like).asarray(x.astype(like.dtype))

    @staticmethod
    def copy(x):
        return x.copy()

    @staticmethod
    def copy_into(target, source):
        if is_cuda_array(target) == is_cuda_array(source):
            target[...] = source
        elif is_cuda_array(target):
            target[...] = _module(target).asarray(source)
        else:
            target[...] = source.get()

    @staticmethod
    def scale(x, factor):
        """In place, as NumpyArrays.scale()."""
        wide = "float64" if x.dtype.kind in "iu" else x.dtype
        wide = "float32" if wide == "float16" else wide
        x[...] = (x.astype(wide) * _module(x).asarray(factor, dtype=wide)).astype(x.dtype)

    @staticmethod
    def divide_towards_zero(x, divisor):
        """In place, integers."""
        module = _module(x)
        quotient = module.abs(x) // divisor
        x[...] = module.where(x < 0, -quotient, quotient)

    @staticmethod
    def integers(values):
        import numpy as np

        return np.array(values, np.int32)

    @staticmethod
    def stream(x):
        """The stream that this thread uses now; None for memory of the host."""
        return _Stream(_module(x).cuda.get_current_stream()) if is_cuda_array(x) else None

    @staticmethod
    @contextlib.contextmanager
    def on_stream(x, stream):
        """A context in which this thread uses `stream`, which is stream(x) of another thread."""
        if stream is None:
            yield
            return
        with x.device, stream.stream:
            yield

    @staticmethod
    def finish_on_stream(x, stream):
        """What this thread enqueues from now on comes after what is in `stream`."""
        if stream is not None:
            current = _module(x).cuda.get_current_stream()
            if current.ptr != stream.cuda_stream:
                current.wait_event(stream.stream.record())
