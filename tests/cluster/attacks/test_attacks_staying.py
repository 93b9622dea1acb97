# SPDX-License-Identifier: Apache-2.0
"""Mallory says that SIGKILL does not end her processes, or makes it look so. The node takes jobs as
before."""
import os
import select
import subprocess
import time
from pathlib import Path

import pytest

import launching
from mallory import DTRAIN, HERE, alices_job, place  # noqa: F401 - fixtures


@pytest.mark.parametrize("how", ["say", "respawn"])
def test_only_what_was_killed_and_stays_quarantines_a_node(place, alices_job, how):  # noqa: F811
    attack = place.start_attack("stay.py", how)
    assert attack.stdout.readline().strip() in ("said", "respawns")
    end = time.monotonic() + 6  # longer than the agent waits for anybody
    while time.monotonic() < end:
        result = place.start_launch("--", "echo", "fine", user="alice").wait(30)
        assert result.code == 0, (result, place.agent.log)
        assert "quarantined" not in place.agent.log, place.agent.log
    place.end_attack("stay.py", attack, 60)


@pytest.fixture
def silent(place):  # noqa: F811
    """A folder of mallory's whose file nobody can read, nor be killed meanwhile."""
    folder = place.node.path("/home/mallory/silent")
    folder.mkdir()
    server = place.node.popen(["/usr/bin/python3", "-B", HERE / "silent_files.py", "/home/mallory/silent"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True)
    launching.wait_until(lambda: server.poll() is not None or "silent" in place.node.run(["cat", "/proc/mounts"]).stdout,
                         20, "no mount")

    def end():
        if server.poll() is None:
            server.kill()
            server.wait(20)
            place.node.run(["umount", "-l", "/home/mallory/silent"], check=False)
    yield server.stdout, end
    end()


def is_held(pid):
    try:
        return "State:\tD" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs FUSE")
def test_a_user_whose_own_file_system_holds_a_process_is_alone_with_it(place, alices_job, silent):  # noqa: F811
    launch = place.start_launch("--", "sh", "-c", "echo up; exec cat /home/mallory/silent/file")
    asked, end = silent
    launch.wait_for("up\n", count=2)
    assert select.select([asked], [], [], 30)[0], launch.out
    assert asked.readline() == "asked\n"
    launching.wait_until(lambda: sum(is_held(pid) for pid in place.pids_of("mallory")) == 2, 20,
                         lambda: launch.out)
    launch.signal(15)
    assert launch.wait(120).code == 204
    nodes = [DTRAIN, "nodes", "-H", "node0"]
    launching.wait_until(lambda: "quarantined for mallory" in place.node.run(nodes, check=False).stdout, 100,
                         lambda: place.agent.log)  # after its lease, and the patience of its shepherd
    refused = place.start_launch("--", "echo", "fine").wait(30)
    assert refused.code == 200 and "of that user's" in refused.err, refused
    others = place.start_launch("--", "echo", "fine", user="alice").wait(30)
    assert others.code == 0, (others, place.agent.log)
    end()
    launching.wait_until(lambda: place.start_launch("--", "echo", "fine").wait(30).code == 0, 30,
                         lambda: place.agent.log)
