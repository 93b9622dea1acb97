#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch DDP that continues from its checkpoint when its launcher starts all ranks again.

Works with `dtrain launch --max-restarts N`, and with torchrun's restarts. Knows nothing of dtrain;
see README.md beside it.
"""

import argparse
import os

import torch
import torch.distributed as dist
from digits import load_data, make_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))  # 0, and one more per restart


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True, help="where rank 0 finds it again")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--fail-at", type=int, metavar="EPOCH", help="the last rank fails, once")
    return parser.parse_args()


def save(path, epoch, model, optimizer):
    """Whole or not at all: a rank that is killed meanwhile leaves the last checkpoint as it was."""
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)


def resume(path, model, optimizer):
    """The epoch to begin with. Only rank 0 reads the file, so that all ranks have the same one."""
    saved = [None]
    if dist.get_rank() == 0 and os.path.exists(path):
        saved = [torch.load(path, map_location="cpu")]
    dist.broadcast_object_list(saved)
    if saved[0] is None:
        return 0
    model.load_state_dict(saved[0]["model"])
    optimizer.load_state_dict(saved[0]["optimizer"])
    return saved[0]["epoch"] + 1


def train_epoch(epoch, model, optimizer, batches, device):
    batches.sampler.set_epoch(epoch)
    for images, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracy(model, data, device):
    images, labels = data.tensors
    return (model(images.to(device)).argmax(dim=1).cpu() == labels).float().mean().item()


def main():
    arguments = parse_arguments()
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    training, testing = load_data()
    batches = DataLoader(training, batch_size=32, sampler=DistributedSampler(training))
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = resume(arguments.checkpoint, model, optimizer)
    replica = DistributedDataParallel(model)
    if rank == 0:
        print(f"attempt {ATTEMPT} begins with epoch {first}", flush=True)
    for epoch in range(first, arguments.epochs):
        if epoch == arguments.fail_at and ATTEMPT == 0 and rank == world - 1:
            raise RuntimeError(f"--fail-at {epoch}")
        loss = train_epoch(epoch, replica, optimizer, batches, device)
        if rank == 0:
            save(arguments.checkpoint, epoch, model, optimizer)
            print(f"epoch {epoch} loss {loss:.4f}", flush=True)
        dist.barrier()  # no rank is ahead of the checkpoint by more than an epoch
    if rank == 0:
        print(f"ranks {world} accuracy {accuracy(model, testing, device):.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
