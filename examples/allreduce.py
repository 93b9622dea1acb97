#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The smallest program on libdtrain in Python: every rank contributes its number, all print the sum."""

import numpy as np

import dtrain

dtrain.init()
total = dtrain.allreduce(np.array([dtrain.rank()]), op=dtrain.Sum)
print(f"rank {dtrain.rank()} of {dtrain.size()} on node {dtrain.node_rank()}: sum of all ranks {total[0]}",
      flush=True)
