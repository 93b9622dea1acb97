#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training with torch.distributed alone, without DistributedDataParallel: every step
averages the gradients over the ranks. Knows nothing of dtrain; see README.md beside it.
"""

import os

import torch
import torch.distributed as dist

STEPS, RATE = 200, 0.1


def main():
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(0)  # the same first weights on all ranks
    weights = torch.zeros(3, device=device, requires_grad=True)
    truth = torch.tensor([1.0, -2.0, 0.5], device=device)
    data = torch.Generator().manual_seed(dist.get_rank())  # other data on each
    for _ in range(STEPS):
        inputs = torch.randn(16, 3, generator=data).to(device)
        loss = (inputs @ weights - inputs @ truth).square().mean()
        loss.backward()
        dist.all_reduce(weights.grad)
        with torch.no_grad():
            weights -= RATE * weights.grad / dist.get_world_size()
            weights.grad.zero_()
    error = (weights - truth).abs().max().item()
    assert error < 0.01, weights
    if dist.get_rank() == 0:
        print(f"ranks {dist.get_world_size()} error {error:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
