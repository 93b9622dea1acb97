# SPDX-License-Identifier: Apache-2.0
"""What a session shares, its terminal and its keyring: root started the agent in one of its own."""
import fcntl
import os
import termios

import pytest

import hosts
from mallory import HERE, alices_job, place  # noqa: F401 - fixtures

ADD_KEY, KEYCTL, JOIN_SESSION_KEYRING, SESSION = 248, 250, 1, -3
MASTER, SLAVE = os.openpty()
os.set_blocking(MASTER, False)


def begin():
    """As from root's login: on a terminal, with a key, and a umask of root's."""
    fcntl.ioctl(SLAVE, termios.TIOCSCTTY, 0)
    hosts.libc.syscall(KEYCTL, JOIN_SESSION_KEYRING, None)
    if hosts.libc.syscall(ADD_KEY, b"user", b"root", b"secret", 6, SESSION) < 0:
        os._exit(99)
    os.umask(0)


agent_options = {"before_exec": begin}


def look_around(place, user):  # noqa: F811
    launch = place.start_launch("--stdin", "0", "--tag-output", "none", "--", "/usr/bin/python3", "-I",
                                HERE / "look_around.py", user, user=user)
    launch.wait_for("up", count=2)
    lines = launch.out.splitlines()
    assert f'allowed who="user:{user}"' in place.agent.log, "it is the agent's job"
    launch.signal(15)
    assert launch.wait(30).code == 143
    return lines


def test_no_job_has_anything_of_the_agents_session(place, alices_job):  # noqa: F811
    for user, other in (("alice", "mallory"), ("mallory", "alice")):
        lines = look_around(place, user)
        for line in ("terminal ENXIO", "typed 0", "left found", f"{user} found", "root ENOKEY",
                     f"{other} ENOKEY", "umask 0o22"):
            assert lines.count(line) == 2, (line, lines)
    with pytest.raises(BlockingIOError):  # nothing was typed on root's terminal
        os.read(MASTER, 100)
