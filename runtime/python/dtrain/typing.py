# SPDX-License-Identifier: Apache-2.0
"""The types that dtrain's annotations name, for programs that are checked by mypy and the like.

    from dtrain.typing import Handle

    def start(gradient: torch.Tensor) -> Handle[torch.Tensor]:
        return dtrain.allreduce_async(gradient)

import dtrain does not load this module.
"""

from typing import TYPE_CHECKING, Any, Protocol, Sequence, Tuple, TypeVar, Union

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = ["Array", "Compressor", "CudaArray", "Handle", "Numbers"]


class CudaArray(Protocol):
    """An array on a GPU of a library with numpy's functions, such as CuPy."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


# A collective returns the kind of array that it was given.
Array = TypeVar("Array", "np.ndarray[Any, Any]", "torch.Tensor", CudaArray)
# What becomes a numpy array.
Numbers = Union[complex, "np.generic", Sequence[Any]]
_Result = TypeVar("_Result", covariant=True)


class Handle(Protocol[_Result]):
    """A collective that was started: pass it to synchronize() or poll()."""

    def wait(self) -> _Result:
        """As synchronize()."""

    def done(self) -> bool:
        """As poll()."""


class Compressor(Protocol):
    """How values travel: Compression.none, Compression.fp16 or a class of your own."""

    def compress(self, tensor: Any) -> Tuple[Any, Any]:
        """Returns what to send, and what decompress() needs."""

    def decompress(self, tensor: Any, context: Any) -> Any:
        """Returns the result of the collective as the program shall get it."""
