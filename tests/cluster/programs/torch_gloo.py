# SPDX-License-Identifier: Apache-2.0
"""A rank of real PyTorch on Gloo: sums over all ranks and over groups of them, and says so. With a
file as its argument it waits for that file and meets again in a new group, for which it needs the
store; with "rpc" it calls the rank after it."""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed import rpc

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def total(group=None):
    one = torch.tensor([RANK + 1.0, 1.0])
    dist.all_reduce(one, group=group)
    return one.tolist()


def wanted(ranks):
    return [float(sum(rank + 1 for rank in ranks)), float(len(ranks))]


def meet():
    even = list(range(0, SIZE, 2))
    group = dist.new_group(even)
    if RANK in even:
        assert total(group) == wanted(even), (total(group), even)
    assert total() == wanted(range(SIZE)), total()
    dist.barrier()


def call():
    rpc.init_rpc(f"rank{RANK}", rank=RANK, world_size=SIZE)
    answer = rpc.rpc_sync(f"rank{(RANK + 1) % SIZE}", torch.add, (torch.ones(2), RANK))
    assert answer.tolist() == [RANK + 1.0] * 2, answer
    rpc.shutdown()
    print("called", flush=True)


def main(late):
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    if late == "rpc":
        return call()
    dist.init_process_group("gloo")
    meet()
    print(f"met {SIZE}", flush=True)
    if late:
        while not os.path.exists(late):
            time.sleep(0.01)
        meet()
        print("met again", flush=True)
    dist.destroy_process_group()


main(sys.argv[1] if len(sys.argv) > 1 else "")
