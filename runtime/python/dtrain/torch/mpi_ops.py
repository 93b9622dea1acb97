# SPDX-License-Identifier: Apache-2.0
"""The collectives of dtrain.torch, under the name that horovod.torch.mpi_ops gives them."""

from dtrain.torch import *  # noqa: F403
from dtrain.torch import __all__  # noqa: F401
