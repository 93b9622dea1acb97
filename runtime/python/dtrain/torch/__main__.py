# SPDX-License-Identifier: Apache-2.0
"""python3 -m dtrain.torch SCRIPT [ARGUMENT...]: runs a program for torch.distributed's backend "gloo" on "dtrain".

python3 -m dtrain.torch -m MODULE [ARGUMENT...]: likewise a module.
"""

import runpy
import sys

from . import _c10d, _process_group


def on_dtrain(start):
    """`start`, init_process_group or new_group, with "dtrain" where the program says "gloo"."""

    def started(*args, **kwargs):
        args = [_process_group.NAME if str(arg).lower() == "gloo" else arg for arg in args]
        if str(kwargs.get("backend")).lower() == "gloo":
            kwargs["backend"] = _process_group.NAME
        return start(*args, **kwargs)

    return started


def main(arguments):
    module = arguments[:1] == ["-m"]
    program = arguments[module:]
    if not program:
        sys.exit(__doc__)
    for name in ("init_process_group", "new_group"):
        _c10d.replace(name, on_dtrain)
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
