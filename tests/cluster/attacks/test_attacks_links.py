# SPDX-License-Identifier: Apache-2.0
"""Mallory knows where alice's launches write, in folders that all may write to, and is there first."""
import os
import subprocess

import pytest

from mallory import ALICE, DTRAIN, HERE, alices_job, place  # noqa: F401 - fixtures

VICTIM = "/home/alice/thesis"


def launch(place, *flags):  # noqa: F811
    """On the node, by alice."""
    process = place.popen([DTRAIN, "launch", "--bind", "none", "-np", "1", *flags, "--", "/bin/true"],
                          user="alice", text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out + err


@pytest.mark.parametrize("kind", ["link", "fifo", "file"])
@pytest.mark.parametrize("flag", ["--result-json", "--timeline"])
@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_what_is_planted_gets_nothing(place, alices_job, folder, flag, kind):  # noqa: F811
    path = f"{folder}/out.json"
    place.node.path(folder).chmod(0o1777)
    victim = place.node.path(VICTIM)
    victim.write_text("precious")
    os.chown(victim, ALICE, ALICE)
    planted = place.popen(["/usr/bin/python3", "-I", HERE / "plant.py", kind, path, VICTIM], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert planted.stdout.readline() == "planted\n", planted.stderr.read()
        code, said = launch(place, flag, path)
        # Of a file she is told that it cannot be replaced, by dtrain or by the kernel.
        assert code != 0 or flag == "--timeline", said
        assert path in said, said
    finally:
        out, err = planted.communicate(timeout=20)
    assert out == "0\n" and planted.returncode == 0, (out, err)
    assert victim.read_text() == "precious"
    victim.unlink()
