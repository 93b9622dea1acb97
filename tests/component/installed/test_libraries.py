# SPDX-License-Identifier: Apache-2.0
"""Which shared libraries our files need: what a node or a user's program must bring."""
import os
import re
import subprocess
from pathlib import Path

import pytest

BIN = Path(os.environ["DTRAIN_BIN_DIR"])
GLIBC = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
GCC = {"libstdc++.so.6", "libgcc_s.so.1"}


@pytest.mark.parametrize("file, allowed", [
    (BIN / "dtrain", GLIBC),
    (BIN / "dtrain-agent", GLIBC),
    (BIN.parent / "lib/libdtrain.so", GLIBC | GCC),
    (BIN / "dtrain-allreduce", GLIBC | GCC | {"libdtrain.so.0"}),
], ids=lambda value: getattr(value, "name", None))
def test_nothing_else_is_needed(file, allowed):
    text = subprocess.run(["readelf", "-dW", file], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\)\s+Shared library: \[(.*?)\]", text))
    assert needed and needed <= allowed, needed - allowed
