#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on scikit-learn's digits with PyTorch's DistributedDataParallel.

An ordinary DDP script: nothing in it knows about dtrain. It runs unchanged as one process, under
torchrun and under dtrain; see README.md beside it.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from digits import load_data, make_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128, help="samples per step, over all ranks")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    return parser.parse_args()


def join_job():
    """Joins the job that the launcher describes, or makes one of this process alone."""
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0" if os.environ["WORLD_SIZE"] == "1" else "29500")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", init_method="env://")
    else:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        dist.init_process_group("gloo", init_method="env://")
    return device


def train(model, data, device, arguments):
    world = dist.get_world_size()
    sampler = DistributedSampler(data, shuffle=True, seed=0)
    batches = DataLoader(data, batch_size=max(1, arguments.batch // world), sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.rate, momentum=0.9)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model, data, device):
    images, labels = data.tensors
    guesses = model(images.to(device)).argmax(dim=1).cpu()
    return (guesses == labels).float().mean().item()


@torch.no_grad()
def check_equal_parameters(model):
    """Data-parallel training keeps the replicas equal, to the bit.

    Returns what was sent and received. Keep it until the process group is destroyed: PyTorch 1.13
    may hang there when a thread of its own is the last to free a tensor.
    """
    mine = torch.cat([p.flatten() for p in model.parameters()])
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    for rank, theirs in enumerate(everyones):
        assert torch.equal(mine, theirs), f"parameters of ranks {dist.get_rank()} and {rank} differ"
    return mine, everyones


def main():
    arguments = parse_arguments()
    device = join_job()
    # Different on purpose: DDP starts every rank from rank 0's parameters.
    torch.manual_seed(dist.get_rank())
    training, testing = load_data()
    replica = DistributedDataParallel(make_model().to(device))
    start = time.monotonic()
    train(replica, training, device, arguments)
    seconds = time.monotonic() - start
    kept = check_equal_parameters(replica.module)
    if dist.get_rank() == 0:
        share = accuracy(replica.module, testing, device)
        print(
            f"ranks {dist.get_world_size()} epochs {arguments.epochs} "
            f"seconds {seconds:.2f} accuracy {share:.4f}",
            flush=True,
        )
    dist.barrier()
    dist.destroy_process_group()
    del replica, kept  # in this order


if __name__ == "__main__":
    main()
