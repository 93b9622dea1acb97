# SPDX-License-Identifier: Apache-2.0
"""Mallory knows where alice's launches write, in folders that all may write to, and is there first."""
import os
import subprocess

import pytest

import hosts
from launching import wait_until
from mallory import ALICE, DTRAIN, HERE, alices_job, place  # noqa: F401 - fixtures

AGENT = hosts.bin_dir() / "dtrain-agent"
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


# The folder of a private agent, where the home is none.
@pytest.mark.parametrize("takes", ["mkdir -m 777 {}", "ln -s /tmp {}"])
def test_a_name_that_is_taken_keeps_nobody_from_a_private_agent(place, alices_job, takes):  # noqa: F811
    place.node.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/var/tmp"])
    name = f"/var/tmp/dtrain-{ALICE}"
    assert place.popen(["sh", "-c", takes.format(name)]).wait(20) == 0
    (place.node.path("/home/alice")).rename(place.node.path("/home/gone"))
    keeper = place.popen([AGENT, "keep"], user="alice", text=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        told = keeper.stderr.readline()
        assert name in told and f"so {name}." in told, told
        wait_until(lambda: list(place.node.path("/var/tmp").glob(f"dtrain-{ALICE}.*/keep-*/agent.sock")), 20, told)
        (made,) = place.node.path("/var/tmp").glob(f"dtrain-{ALICE}.*")
        assert made.stat().st_uid == ALICE and made.stat().st_mode & 0o777 == 0o700
    finally:
        keeper.terminate()
        keeper.wait(20)
        keeper.stderr.close()
        place.node.path("/home/gone").rename(place.node.path("/home/alice"))
