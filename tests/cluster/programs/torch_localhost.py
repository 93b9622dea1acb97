# SPDX-License-Identifier: Apache-2.0
"""A rank of the tutorials that start all ranks on one machine: it sets the meeting place itself. "url": in
another way, without variables."""
import os
import sys

import torch.distributed as dist

PLACE = {}
if sys.argv[1] == "url":
    PLACE = {"init_method": "tcp://localhost:12355"}
else:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
print("up", flush=True)
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]), **PLACE)
print("met", flush=True)
dist.destroy_process_group()
