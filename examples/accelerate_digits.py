#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate on scikit-learn's digits. Knows nothing of dtrain; see README.md beside it."""

import torch
from accelerate import Accelerator
from digits import load_data, make_model
from torch import nn
from torch.utils.data import DataLoader


def main():
    accelerator = Accelerator()
    torch.manual_seed(0)
    training, _ = load_data()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, batches = accelerator.prepare(
        model, optimizer, DataLoader(training, batch_size=32, shuffle=True))
    for epoch in range(4):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
        loss = accelerator.gather(loss.detach().reshape(1)).mean().item()
        accelerator.print(f"ranks {accelerator.num_processes} epoch {epoch} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
