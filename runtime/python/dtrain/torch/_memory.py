# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory of dtrain_alloc."""

import ctypes

import torch

from dtrain import InvalidArgumentError, _memory, global_process_set
from dtrain._library import library


class _OnGpu:
    """Memory of a GPU, in the words that torch takes it by."""

    def __init__(self, address, octets):
        self.__cuda_array_interface__ = {
            "shape": (octets,), "typestr": "|u1", "data": (address, False), "version": 3,
        }


def alloc(shape, dtype=torch.float32, device="cpu", registered=False):
    """A tensor of zeros in memory that collectives handle fastest: that the ranks of a node share,
    or of the rank's GPU (device="cuda", in a job that runs on NCCL).

    registered=True: registers it (see register()), which all ranks must do together. A process set
    instead of True: the ranks of that.

    The memory lives as long as the tensor or a view of it. shutdown() refuses to go while there are
    any; at the end of the program it goes with the job.
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


def register(tensor, process_set=global_process_set):
    """Collective over the process set: lets NCCL's collectives work in the memory of `tensor`, made
    by alloc(..., device="cuda", registered=...), without copies. All ranks give memory of one length.

    Whether they do from now on, on all ranks: False where nothing can be gained, as on CPUs and
    with an NCCL before 2.19.1. Calls in which the ranks do not use the same registered tensors in
    the same way give the same results, but take longer.
    """
    registered = ctypes.c_int()
    group = process_set.group()
    library().call("dtrain_register", _beginning(tensor), group, ctypes.byref(registered))
    return registered.value == 1


def deregister(tensor, process_set=global_process_set):
    """Ends what register() began; not collective. Memory that goes is deregistered by itself."""
    library().call("dtrain_deregister", _beginning(tensor), process_set.group())
