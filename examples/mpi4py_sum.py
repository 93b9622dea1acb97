#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mpi4py: every rank contributes its number. Knows nothing of dtrain; see README.md beside it."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
mine = np.full(1000, world.rank, np.float64)
total = np.empty_like(mine)
world.Allreduce(mine, total, op=MPI.SUM)
assert (total == world.size * (world.size - 1) / 2).all()
hosts = world.gather(MPI.Get_processor_name())
if world.rank == 0:
    print(f"ranks {world.size} on {len(set(hosts))} hosts, sum {total[0]:g}", flush=True)
