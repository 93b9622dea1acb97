#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JAX on several processes: a sum over all devices. Knows nothing of dtrain; see README.md beside it."""

import jax
import jax.numpy as jnp


def main():
    jax.distributed.initialize()  # finds coordinator, rank and size in the environment
    mine = jnp.ones(jax.local_device_count()) * jax.process_index()
    total = jax.pmap(lambda x: jax.lax.psum(x, "devices"), axis_name="devices")(mine)
    print(f"process {jax.process_index()} of {jax.process_count()}, {jax.local_device_count()} of "
          f"{jax.device_count()} devices: sum {total[0]:g}", flush=True)


if __name__ == "__main__":
    main()
