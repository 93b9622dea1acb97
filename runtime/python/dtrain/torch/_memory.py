# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory of dtrain_alloc."""

import torch

from dtrain import InvalidArgumentError, _memory


class _OnGpu:
    """Memory of a GPU, in the words that torch takes it by."""

    def __init__(self, address, octets):
        self.__cuda_array_interface__ = {
            "shape": (octets,), "typestr": "|u1", "data": (address, False), "version": 3,
        }


def alloc(shape, dtype=torch.float32, device="cpu"):
    """A tensor of zeros in memory that collectives handle fastest: that the ranks of a node share,
    or of the rank's GPU (device="cuda", in a job that runs on NCCL).

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
        address = _memory.allocate(max(octets, 1), device=True)
        owner = _memory.keep(address, _OnGpu(address, max(octets, 1)))
        whole = torch.as_tensor(owner, device=device)
    else:
        whole = torch.frombuffer(_memory.host(octets), dtype=torch.uint8)
    return whole[:octets].view(dtype).reshape(shape)
