# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory of dtrain_alloc."""

from __future__ import annotations

import ctypes

import torch

from dtrain import InvalidArgumentError, _memory, global_process_set
from dtrain._library import library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

    from dtrain import ProcessSet


class _OnGpu:
    """Memory of a GPU, in the words that torch takes it by."""

    def __init__(self, address, octets):
        self.__cuda_array_interface__ = {
            "shape": (octets,), "typestr": "|u1", "data": (address, False), "version": 3,
        }


def alloc(shape: int | Iterable[int], dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu",
          registered: bool | ProcessSet = False) -> torch.Tensor:
    """Returns a tensor of zeros in memory that collectives handle fastest.

    device: "cpu": memory that the ranks of the node share; "cuda", in a job on NCCL: memory of the
        rank's GPU.
    registered: whether to register() it, which all ranks must do together; or a process set, for
        the ranks of that.

    The memory lives as long as the tensor or a view of it; shutdown() raises a StateError before that.
    At the end of the program it goes with the job. Raises ValueError for a negative shape and before
    init(); ResourcesError if memory has run out.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    elements = 1
    for extent in shape:
        if extent < 0:
            raise InvalidArgumentError(f"alloc: the shape {shape} has a negative number")
        elements *= extent
    octets = elements * torch.empty((), dtype=dtype).element_size()
    if torch.device(device).type == "cuda":
        kind = "dtrain_alloc_registrable" if registered else "dtrain_alloc_device"
        address = _memory.allocate(max(octets, 1), kind)
        owner = _memory.keep(address, _OnGpu(address, max(octets, 1)))
        whole = torch.as_tensor(owner, device=device)
    else:
        whole = torch.frombuffer(_memory.host(octets), dtype=torch.uint8)
    made = whole[:octets].view(dtype).reshape(shape)
    if registered:
        register(made, global_process_set if registered is True else registered)
    return made


def _beginning(tensor):
    # Of its memory; untyped_storage() came with PyTorch 2.
    return tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()


def register(tensor: torch.Tensor, process_set: ProcessSet = global_process_set) -> bool:
    """Lets NCCL's collectives work in the memory of a tensor, without copies. Collective over the process set.

    tensor: made by alloc(..., device="cuda", registered=...), of the same length on all ranks.

    Returns whether that has any effect, on all ranks: it has none on CPUs and with an NCCL before
    2.19.1. Calls in which the ranks do not use the same registered tensors in the same way give the
    same results, but take longer. Raises ValueError for other memory.
    """
    registered = ctypes.c_int()
    group = process_set.group()
    library().call("dtrain_register", _beginning(tensor), group, ctypes.byref(registered))
    return registered.value == 1


def deregister(tensor: torch.Tensor, process_set: ProcessSet = global_process_set) -> None:
    """Undoes register(); not collective. Memory that is freed is deregistered automatically."""
    library().call("dtrain_deregister", _beginning(tensor), process_set.group())
