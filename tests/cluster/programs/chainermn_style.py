# SPDX-License-Identifier: Apache-2.0
"""chainermn_style.py SIZE: trains as a ChainerMN program does, on mpi4py: a communicator of each host and
one across hosts, parameters from rank 0, gradients averaged within hosts, then between them."""
import os
import sys

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
assert world.size == int(sys.argv[1]), world.size
host = world.Split_type(MPI.COMM_TYPE_SHARED, world.rank)
assert (host.rank, host.size) == (int(os.environ["DTRAIN_LOCAL_RANK"]),
                                  int(os.environ["DTRAIN_LOCAL_SIZE"]))
across = world.Split(host.rank, world.rank)
names = world.allgather(MPI.Get_processor_name())
assert len(set(names)) == int(os.environ["DTRAIN_NODE_COUNT"]), names

random = numpy.random.default_rng(world.rank)
weights = world.bcast(random.normal(size=8) if world.rank == 0 else None)
truth = numpy.arange(8.0)
for step in range(200):
    inputs = random.normal(size=(16, 8))
    gradient = inputs.T @ (inputs @ (weights - truth)) / 16
    on_host = numpy.empty_like(gradient)
    host.Reduce(gradient, on_host, root=0)
    if host.rank == 0:
        across.Allreduce(MPI.IN_PLACE, on_host)
    host.Bcast(on_host, root=0)
    weights -= 0.2 * on_host / world.size
loss = world.allreduce(float(numpy.abs(weights - truth).max()), op=MPI.MAX)
assert loss < 1e-3, loss
same = world.allgather(weights.tobytes())
assert len(set(same)) == 1
if world.rank == 0:
    print(f"trained on {world.size} ranks")
