#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small CNN on scikit-learn's digits with PyTorch and dtrain, in the pattern of Horovod.

With `import horovod.torch as hvd` instead of its import line it is a Horovod script. Runs alone,
and on many ranks under `dtrain launch`; see README.md beside it.
"""

import argparse
import os

import torch
from digits import load_data, make_model
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import dtrain.torch as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="samples per step and rank")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--warmup", type=int, default=1, help="epochs until the full rate")
    parser.add_argument("--fp16", action="store_true", help="send gradients as float16")
    parser.add_argument("--checkpoint", help="rank 0 writes it after every epoch, and resumes it")
    return parser.parse_args()


def rate_at(progress, arguments):
    """The rate grows with the number of ranks, and to that over the first epochs."""
    warm = min(1.0, progress / arguments.warmup) if arguments.warmup else 1.0
    return arguments.rate * (1 + warm * (hvd.size() - 1))


def train_epoch(epoch, model, optimizer, batches, device, arguments):
    total = 0.0
    for step, (images, labels) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(epoch + step / len(batches), arguments)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    return hvd.allreduce(torch.tensor(total / len(batches)), name="loss").item()


@torch.no_grad()
def accuracy(model, data, device):
    """Every rank looks at a part of the test set."""
    images, labels = (part[hvd.rank() :: hvd.size()] for part in data.tensors)
    right = (model(images.to(device)).argmax(dim=1).cpu() == labels).sum()
    counts = hvd.allreduce(torch.tensor([right, len(labels)]), op=hvd.Sum)
    return (counts[0] / counts[1]).item()


def resume(model, optimizer, path):
    """The epoch to begin with. Only rank 0 needs to have the file."""
    epoch = 0
    if path and hvd.rank() == 0 and os.path.exists(path):
        saved = torch.load(path, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epoch = saved["epoch"] + 1
    epoch = hvd.broadcast_object(epoch, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return epoch


def main():
    arguments = parse_arguments()
    hvd.init()
    # Different on purpose: all start from rank 0's parameters.
    torch.manual_seed(hvd.rank())
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
        device = torch.device("cpu")
    training, testing = load_data()
    sampler = DistributedSampler(training, num_replicas=hvd.size(), rank=hvd.rank())
    batches = DataLoader(training, batch_size=arguments.batch, sampler=sampler)
    model = make_model().to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=arguments.rate, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16 else hvd.Compression.none,
    )
    for epoch in range(resume(model, optimizer, arguments.checkpoint), arguments.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(epoch, model, optimizer, batches, device, arguments)
        if hvd.rank() == 0:
            print(f"epoch {epoch} loss {loss:.4f}", flush=True)
            if arguments.checkpoint:
                state = {"epoch": epoch, "model": model.state_dict(),
                         "optimizer": optimizer.state_dict()}
                torch.save(state, arguments.checkpoint + ".part")
                os.replace(arguments.checkpoint + ".part", arguments.checkpoint)
    share = accuracy(model, testing, device)
    if hvd.rank() == 0:
        print(f"ranks {hvd.size()} accuracy {share:.4f}", flush=True)


if __name__ == "__main__":
    main()
