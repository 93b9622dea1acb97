#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Horovod script with PyTorch. Knows nothing of dtrain; see README.md beside it."""

import horovod.torch as hvd
import torch


def main():
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 1)
    truth = torch.tensor([[1.0], [-2.0], [0.5]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for _ in range(200):
        inputs = torch.randn(16, 3)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ truth)
        loss.backward()
        optimizer.step()
    loss = hvd.allreduce(loss.detach(), name="loss").item()
    assert loss < 0.01, loss
    if hvd.rank() == 0:
        print(f"ranks {hvd.size()} loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
