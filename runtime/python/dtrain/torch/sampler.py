# SPDX-License-Identifier: Apache-2.0
"""dtrain.DistributedSampler as a Sampler of PyTorch's."""

from __future__ import annotations

import torch

import dtrain


class DistributedSampler(dtrain.DistributedSampler, torch.utils.data.Sampler):
    __doc__ = dtrain.DistributedSampler.__doc__
