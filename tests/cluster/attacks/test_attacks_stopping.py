# SPDX-License-Identifier: Apache-2.0
"""A process of mallory's is hers to stop, also one that the agent has just made. Nobody waits for it."""
import os
import re
import signal
import socket
import time

import pytest

from launching import wait_until
from mallory import alices_job, place  # noqa: F401 - fixtures

STOPPED, EARLY = 25, 2  # of mallory's processes; of these, before they ran anything
LONGEST = 240  # seconds: how many launches that takes is chance
PATIENCE = 30  # seconds: for a loop that turns, on a busy machine
GONE = 60  # the longest deadline is lease + grace + 10 s, that is 13 s
ASK = b"GET /v1/node HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def ask(place):  # noqa: F811
    """The agent's loop answers."""
    with socket.socket(socket.AF_UNIX) as http:
        http.settimeout(PATIENCE)
        http.connect(str(place.node.path("/run/dtrain-agent/http.sock")))
        http.sendall(ASK)
        assert http.recv(1 << 16).startswith(b"HTTP/1.1 200"), place.agent.log


def test_a_stopped_child_holds_nobody_up(place, alices_job):  # noqa: F811
    attack = place.start_attack("stop_children.py", STOPPED, EARLY, place.pid_there(place.agent.pid))
    deadline = time.monotonic() + LONGEST
    try:
        while attack.poll() is None:
            assert time.monotonic() < deadline, place.agent.log
            ask(place)
            result = place.start_launch("--", "true", user="alice").wait(PATIENCE)
            assert result.code == 0, result
    finally:
        if attack.poll() is None:
            attack.kill()
        told = place.end_attack("stop_children.py", attack, PATIENCE)
    assert int(re.search(r"\d+", told)[0]) >= STOPPED, told
    ask(place)
    wait_until(lambda: not place.pids_of("mallory"), GONE,
               lambda: f"{told} {place.pids_of('mallory')}\n{place.agent.log}")


@pytest.mark.launcher_killed
def test_a_stopped_shepherd_does_not_outlive_its_launcher(place, alices_job):  # noqa: F811
    launch = place.start_launch("--lease", "2s", "--", "sh", "-c", "echo up; exec sleep 600")
    launch.wait_for("up", count=2)
    [shepherd] = place.shepherds_of("mallory")
    os.kill(shepherd, signal.SIGSTOP)
    launch.kill()
    wait_until(lambda: not place.pids_of("mallory"), GONE,
               lambda: f"{place.pids_of('mallory')}\n{place.agent.log}")
    assert "cannot be killed" not in place.agent.log
