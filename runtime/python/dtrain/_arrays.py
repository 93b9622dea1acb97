# SPDX-License-Identifier: Apache-2.0
"""What the collectives need to know of numpy arrays, torch tensors and arrays like CuPy's, in the
same words for all.

No such package is imported before the program has handed over something of it.
"""

import contextlib
import sys

from . import _errors, _job
from ._cuda_arrays import CudaArrays, is_cuda_array

# Types of libdtrain by the name that numpy and torch have for them.
NATIVE = {"int32": 0, "int64": 1, "float16": 2, "bfloat16": 3, "float32": 4, "float64": 5}
BYTE = 6  # moved only
FLOATING = ("float16", "bfloat16", "float32", "float64")
# The others are reduced as a native type that holds all of their values.
REDUCED_AS = {
    "bool": "int32",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
}


class NumpyArrays:
    """numpy.ndarray. All functions are static; `x` is an array."""

    @staticmethod
    def type_name(x):
        if x.dtype.hasobject or x.dtype.fields is not None:
            raise _errors.InvalidArgumentError(f"an array of {x.dtype} cannot be sent")
        return x.dtype.name

    @staticmethod
    def contiguous(x):
        """`x` itself where it is dense, aligned and in this machine's byte order, else a copy."""
        import numpy as np

        if x.flags.c_contiguous and x.flags.aligned and x.dtype.isnative:
            return x
        # Not ascontiguousarray, which makes arrays of one dimension of those without any.
        return np.array(x, dtype=x.dtype.newbyteorder("="), order="C", copy=True)

    reachable = contiguous

    @staticmethod
    def check_writable(x):
        if not x.flags.writeable:
            raise _errors.InvalidArgumentError("the array is read-only")

    @staticmethod
    def pointer(x):
        return x.ctypes.data

    @staticmethod
    def count(x):
        return x.size

    @staticmethod
    def item_size(x):
        return x.itemsize

    @staticmethod
    def shape(x):
        return x.shape

    @staticmethod
    def empty(shape, like):
        import numpy as np

        return np.empty(shape, like.dtype.newbyteorder("="))

    @staticmethod
    def zeros(shape, like):
        import numpy as np

        return np.zeros(shape, like.dtype.newbyteorder("="))

    @staticmethod
    def cast(x, name):
        return x.astype(name)

    @staticmethod
    def is_like(x, like):
        return x.dtype == like.dtype

    @staticmethod
    def cast_like(x, like):
        return x.astype(like.dtype)

    @staticmethod
    def copy(x):
        return x.copy()

    @staticmethod
    def copy_into(target, source):
        target[...] = source

    @staticmethod
    def scale(x, factor):
        """In place, as Horovod computes: float16 in float32; integers in float64, and then what is
        behind the point is cut off."""
        import numpy as np

        if x.dtype == np.float16:
            x[...] = x.astype(np.float32) * np.float32(factor)
        else:
            np.multiply(x, factor, out=x, casting="unsafe")

    @staticmethod
    def divide_towards_zero(x, divisor):
        """In place, integers."""
        import numpy as np

        quotient = np.abs(x) // divisor
        np.copyto(x, np.where(x < 0, -quotient, quotient))

    @staticmethod
    def integers(values):
        import numpy as np

        return np.array(values, np.int32)

    @staticmethod
    def stream(x):
        return None

    @staticmethod
    def on_stream(x, stream):
        return contextlib.nullcontext()

    @staticmethod
    def finish_on_stream(x, stream):
        pass


class TorchTensors:
    """torch.Tensor, on the CPU or a GPU. All functions are static; `x` is a tensor."""

    @staticmethod
    def type_name(x):
        return str(x.dtype).rpartition(".")[2]

    @staticmethod
    def contiguous(x):
        if x.layout is not _torch().strided:
            raise _errors.UnsupportedError(f"a tensor with layout {x.layout}: make it dense first")
        x = x.detach()
        return x.contiguous() if not x.is_conj() else x.resolve_conj().contiguous()

    @staticmethod
    def reachable(x):
        """As contiguous(), in memory that the job's backend can use."""
        x = TorchTensors.contiguous(x)
        if x.device.type == "cpu" or (x.is_cuda and _job.backend() == "nccl"):
            return x
        return x.cpu()

    @staticmethod
    def check_writable(x):
        pass

    @staticmethod
    def pointer(x):
        return x.data_ptr()

    @staticmethod
    def count(x):
        return x.numel()

    @staticmethod
    def item_size(x):
        return x.element_size()

    @staticmethod
    def shape(x):
        return tuple(x.shape)

    @staticmethod
    def empty(shape, like):
        return _torch().empty(shape, dtype=like.dtype, device=like.device)

    @staticmethod
    def zeros(shape, like):
        return _torch().zeros(shape, dtype=like.dtype, device=like.device)

    @staticmethod
    def cast(x, name):
        return x.to(getattr(_torch(), name))

    @staticmethod
    def is_like(x, like):
        return x.dtype == like.dtype and x.device == like.device

    @staticmethod
    def cast_like(x, like):
        return x.to(dtype=like.dtype, device=like.device)

    @staticmethod
    def copy(x):
        return x.clone()

    @staticmethod
    def copy_into(target, source):
        target.detach().copy_(source)

    @staticmethod
    def scale(x, factor):
        if not x.is_floating_point():
            x.copy_(x.double() * factor)
        elif x.element_size() == 2:
            x.copy_(x.float() * factor)
        else:
            x.mul_(factor)

    @staticmethod
    def divide_towards_zero(x, divisor):
        x.copy_(_torch().div(x, divisor, rounding_mode="trunc"))

    @staticmethod
    def integers(values):
        return _torch().tensor(values, dtype=_torch().int32)

    @staticmethod
    def stream(x):
        """What CUDA calls the stream that this thread uses now; None for host memory."""
        if not x.is_cuda:
            return None
        return _torch().cuda.current_stream(x.device)

    @staticmethod
    def on_stream(x, stream):
        """A context in which this thread uses `stream`, which is stream(x) of another thread."""
        return contextlib.nullcontext() if stream is None else _torch().cuda.stream(stream)

    @staticmethod
    def finish_on_stream(x, stream):
        """What this thread enqueues from now on comes after what is in `stream`."""
        if stream is not None:
            current = _torch().cuda.current_stream(x.device)
            if current != stream:
                current.wait_stream(stream)


def _torch():
    return sys.modules["torch"]


def is_tensor(x):
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(x, tensor)


def is_array(x):
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    return array is not None and isinstance(x, array)


def of(x):
    """`x` as an array or tensor, and what handles it. Numbers and lists become arrays."""
    if is_tensor(x):
        return x, TorchTensors
    if is_array(x):
        return x, NumpyArrays
    if is_cuda_array(x):
        return x, CudaArrays
    try:
        import numpy as np
    except ImportError:
        raise _errors.InvalidArgumentError(
            f"a {type(x).__name__} is neither a numpy array nor a torch tensor"
        ) from None
    return np.asarray(x), NumpyArrays


def in_place(x):
    """What handles `x`, which is to be written to."""
    if is_tensor(x):
        return TorchTensors
    if is_array(x):
        NumpyArrays.check_writable(x)
        return NumpyArrays
    if is_cuda_array(x):
        CudaArrays.check_writable(x)
        return CudaArrays
    raise _errors.InvalidArgumentError(
        f"a {type(x).__name__} cannot be changed in place: give a numpy array or a torch tensor"
    )
