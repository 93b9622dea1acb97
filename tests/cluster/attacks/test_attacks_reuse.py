# SPDX-License-Identifier: Apache-2.0
"""The number of mallory's shepherd comes to mean a process of root's. An agent that takes over what the
one before it has left kills neither that process nor anything else of root's."""
import os
import signal
import subprocess
from pathlib import Path

import pytest

from launching import wait_until
from mallory import HERE, alices_job, place  # noqa: F401 - fixtures

# Takes the number PID on the node.
BECOME = """
import os, sys
for _ in range(1000):
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(int(sys.argv[1]) - 1))
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/sleep", ["sleep", "300"]) if os.getpid() == int(sys.argv[1]) else os._exit(1)
    if pid == int(sys.argv[1]):
        print("taken", flush=True)
        sys.exit(-os.waitpid(pid, 0)[1])
    os.waitpid(pid, 0)
sys.exit(99)
"""


def test_a_process_of_roots_with_the_number_of_a_shepherd_lives(place, alices_job):  # noqa: F811
    launch = place.start_launch("--", "/usr/bin/python3", "-I", HERE / "keep_listening.py")
    launch.wait_for("listening", count=2)
    [shepherd] = place.shepherds_of("mallory")
    number = place.pid_there(shepherd)
    place.agent.kill()
    os.kill(shepherd, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{shepherd}").exists(), 20, "it is reaped")
    root = place.node.popen(["/usr/bin/python3", "-I", "-c", BECOME, number], text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert root.stdout.readline() == "taken\n"
    try:
        place.agent.start()
        wait_until(lambda: not place.shepherds_of("mallory") and "cannot be taken over" in place.agent.log,
                   20, lambda: place.agent.log)
        assert root.poll() is None, place.agent.log
        # What is hers is ended, all of it.
        wait_until(lambda: not place.pids_of("mallory"), 20, lambda: place.pids_of("mallory"))
        assert root.poll() is None, place.agent.log
    finally:
        place.node.run(["kill", "-9", str(number)], check=False)
        root.wait(10)
    # Of its own accord: a sanitizer that is killed while it looks for leaks complains.
    result = launch.wait(30)
    assert result.code == 203 and "could not take the job over" in result.err, result
