# SPDX-License-Identifier: Apache-2.0
"""Times steps of a ResNet-18: python train_torch.py dtrain|ddp-dtrain|ddp-gloo|alone STEPS BATCH SIDE. Rank 0 prints
a line of JSON: the median over the steps of the slowest rank's time, and the loss, which must not
depend on who reduces the gradients. Alone, nobody does."""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

WARM = 3


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.short = nn.Sequential()
        if stride != 1 or before != width:
            self.short = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False),
                                       nn.BatchNorm2d(width))

    def forward(self, x):
        return torch.relu(self.way(x) + self.short(x))


def resnet18():
    widths = [64, 64, 128, 128, 256, 256, 512, 512]
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]
    before = 64
    for index, width in enumerate(widths):
        layers.append(Block(before, width, 2 if index in (2, 4, 6) else 1))
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def with_ddp(model, wrap=nn.parallel.DistributedDataParallel, backend="gloo"):
    dist.init_process_group(backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def slowest(seconds):
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds
    return wrap(model), optimizer, dist.get_rank(), dist.barrier, slowest


def with_backend(model):
    import dtrain.torch  # noqa: F401: it registers the backend
    return with_ddp(model, backend="dtrain")


def with_nobody(model):
    return with_ddp(model, wrap=lambda model: model)


def with_dtrain(model):
    import dtrain.torch as hvd
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01),
                                         named_parameters=model.named_parameters())
    return (model, optimizer, hvd.rank(), hvd.barrier,
            lambda seconds: hvd.allreduce(seconds, op=hvd.Max))


def main():
    way, steps, batch, side = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    make = {"dtrain": with_dtrain, "ddp-dtrain": with_backend, "ddp-gloo": with_ddp, "alone": with_nobody}[way]
    model, optimizer, rank, barrier, slowest = make(resnet18())
    torch.manual_seed(rank)
    images, labels = torch.randn(batch, 3, side, side), torch.randint(1000, (batch,))
    times = torch.zeros(steps, dtype=torch.float64)
    for step in range(-WARM, steps):
        barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step >= 0:
            times[step] = time.perf_counter() - start
    times = slowest(times)
    if rank == 0:
        print(json.dumps({"seconds": statistics.median(times.tolist()), "loss": loss.item()}),
              flush=True)
    barrier()
    sys.stdout.flush()
    os._exit(0)


main()
