# SPDX-License-Identifier: Apache-2.0
"""A rank of real PyTorch on Gloo, of which rank 1 has less data: it leaves the loop while the others
are in a collective. "ddp": that of DistributedDataParallel's backward; "tidies": it then takes its
time to end."""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK, HOW = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1)) if HOW == "ddp" else None
for _ in range(3 if RANK == 1 else 6):
    if model:
        model(torch.ones(2, 4)).sum().backward()
    else:
        dist.all_reduce(torch.ones(3))
if HOW == "tidies":
    dist.destroy_process_group()
    time.sleep(600)
if RANK == 1:
    os._exit(0)
