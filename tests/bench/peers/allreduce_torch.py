# SPDX-License-Identifier: Apache-2.0
"""Times torch.distributed.all_reduce on Gloo, as allreduce_peer.h does for the others."""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist


ENOUGH = 0.3  # seconds


def median(data, most):
    every = []
    while len(every) < most and sum(every) < ENOUGH:
        times = torch.empty(min(most - len(every), 100), dtype=torch.float64)
        for call in range(len(times)):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(data)
            times[call] = time.perf_counter() - start
        dist.all_reduce(times, dist.ReduceOp.MAX)
        every += times.tolist()
    return statistics.median_high(every)


def wrong(data, rank, size):
    pattern = torch.arange(data.numel(), dtype=torch.float32).remainder(31)
    data.copy_(pattern + rank)
    dist.all_reduce(data)
    bad = (data != pattern * size + size * (size - 1) // 2).sum().to(torch.float64)
    dist.all_reduce(bad, dist.ReduceOp.MAX)
    return bad.item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    for nbytes in map(int, sys.argv[1:]):
        data = torch.ones(nbytes // 4)
        median(data, 1)
        calls = int(min(max(ENOUGH / median(data, 3), 5), 20000))
        row = {"bytes": nbytes, "seconds": median(data, calls), "calls": calls, "memory": "torch",
               "way": "in place", "wrong": wrong(data, rank, size)}
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


main()
