# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's digits and a small CNN for them, for the examples with PyTorch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def load_data():
    """Training and test sets: 8 by 8 images with values from 0 to 1, and their digits."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).div_(16).unsqueeze_(1)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
