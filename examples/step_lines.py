#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pretended training with numpy and dtrain that tells `dtrain bench scaling` what its steps spend
their time on: each rank prints a line `dtrain-step {...}` per step. See docs/bench.md.
"""

import argparse
import json
import time

import numpy as np

import dtrain


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128, help="samples per step and rank")
    parser.add_argument("--width", type=int, default=512, help="of the one layer, float32")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    dtrain.init()
    random = np.random.default_rng(dtrain.rank())
    weights = np.zeros((arguments.width, arguments.width), np.float32)
    for _ in range(arguments.steps):
        images = random.normal(size=(arguments.batch, arguments.width)).astype(np.float32)
        begin = time.perf_counter()
        gradient = images.T @ (images @ weights - images) / arguments.batch
        computed = time.perf_counter()
        dtrain.allreduce_(gradient)
        reduced = time.perf_counter()
        weights -= 1e-3 * gradient
        end = time.perf_counter()
        print("dtrain-step", json.dumps({
            "seconds": end - begin, "compute": computed - begin, "allreduce": reduced - computed,
            "optimiser": end - reduced, "samples": arguments.batch, "bytes": gradient.nbytes,
        }), flush=True)


if __name__ == "__main__":
    main()
