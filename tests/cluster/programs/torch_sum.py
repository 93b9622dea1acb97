# SPDX-License-Identifier: Apache-2.0
"""torch_sum.py WORLD [LOCAL_RANK]: a sum over all ranks; each checks it, and that the world has WORLD
ranks. What DeepSpeed's launcher adds, --local_rank=N, must be the rank's own."""
import os
import sys

import torch
import torch.distributed as dist

words = [word for word in sys.argv[1:] if not word.startswith("--local_rank=")]
for word in sys.argv[1:]:
    if word.startswith("--local_rank="):
        assert word == f"--local_rank={os.environ['LOCAL_RANK']}", word
dist.init_process_group("gloo")
world = int(words[0])
assert dist.get_world_size() == world, dist.get_world_size()
assert len(words) < 2 or words[1] == os.environ["LOCAL_RANK"], words
total = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(total)
assert total.tolist() == [world * (world + 1) / 2] * 3, total
print(f"rank {dist.get_rank()} of {world} is right as {os.environ['ROLE_NAME']} on"
      f" {os.environ['DTRAIN_HOST']}", flush=True)
dist.destroy_process_group()
