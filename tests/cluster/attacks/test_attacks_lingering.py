# SPDX-License-Identifier: Apache-2.0
"""Mallory gives the agent descriptors whose close takes a minute. Either the kernel keeps them from the agent, or the
agent leaves them where they are."""
import json
import socket
import subprocess

import pytest

from mallory import HERE, alices_job, place  # noqa: F401 - fixtures
from residents import STATE

SO_PASSRIGHTS = 83
SOCKETS = [f"{STATE}/agent.sock", f"{STATE}/http.sock"]


def refuses_descriptors():
    with socket.socket(socket.AF_UNIX) as one:
        try:
            return one.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS) == 1
        except OSError:
            return False


# As before Linux 6.16 on any.
@pytest.mark.parametrize("kernel", [None, "5.4"])
def test_no_descriptor_of_a_strangers_is_the_agents_to_close(place, alices_job, kernel):  # noqa: F811
    attack = place.popen(["/usr/bin/python3", "-I", HERE / "linger.py", *SOCKETS], text=True, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE)
    try:
        sent = [attack.stdout.readline().strip() for _ in SOCKETS]
        before = alices_job.lines()
        asked = place.node.run(["curl", "-sS", "-m", "20", "--unix-socket", f"{STATE}/http.sock",
                                "http://localhost/v1/jobs"], check=False)
        assert asked.returncode == 0, (sent, asked, place.agent.log)
        assert json.loads(asked.stdout)["jobs"][0]["owner"] == "alice"
        assert sent == ["sent" if kernel or not refuses_descriptors() else "refused"] * 2
        assert alices_job.lines() >= before
    finally:
        attack.stdin.close()
        assert attack.wait(20) == 0
        attack.stdout.close()
