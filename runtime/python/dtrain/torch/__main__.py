# SPDX-License-Identifier: Apache-2.0
"""python3 -m dtrain.torch SCRIPT [ARGUMENT...]: runs a program for torch.distributed's backend "gloo" on "dtrain".

python3 -m dtrain.torch -m MODULE [ARGUMENT...]: likewise a module.
"""

import functools
import runpy
import sys

import torch.distributed as dist

from . import _process_group


def on_dtrain(start):
    """`start`, init_process_group or new_group, with "dtrain" where the program says "gloo"."""

    @functools.wraps(start)
    def started(*args, **kwargs):
        args = [_process_group.NAME if str(arg).lower() == "gloo" else arg for arg in args]
        if str(kwargs.get("backend")).lower() == "gloo":
            kwargs["backend"] = _process_group.NAME
        return start(*args, **kwargs)

    return started


def monitored_barrier(was):
    """`was`, dist.monitored_barrier, which looks at the backend's name first."""

    @functools.wraps(was)
    def monitored(group=None, timeout=None, wait_all_ranks=False):
        chosen = dist.distributed_c10d._get_default_group() if group is None else group
        if chosen is dist.GroupMember.NON_GROUP_MEMBER:
            return was(group, timeout, wait_all_ranks)
        if dist.get_backend(chosen) != _process_group.NAME or not hasattr(chosen, "monitored_barrier"):
            return was(group, timeout, wait_all_ranks)
        return chosen.monitored_barrier(timeout or dist.distributed_c10d.default_pg_timeout, wait_all_ranks)

    return monitored


def replace(name, function):
    setattr(dist, name, function)
    setattr(dist.distributed_c10d, name, function)


def main(arguments):
    module = arguments[:1] == ["-m"]
    program = arguments[module:]
    if not program:
        sys.exit(__doc__)
    for name in ("init_process_group", "new_group"):
        replace(name, on_dtrain(getattr(dist, name)))
    replace("monitored_barrier", monitored_barrier(dist.monitored_barrier))
    sys.argv = program
    if module:
        sys.path[0] = ""
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        import os

        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
