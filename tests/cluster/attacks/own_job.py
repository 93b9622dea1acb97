# SPDX-License-Identifier: Apache-2.0
"""What attacking programs share: a job of mallory's own and its processes. They run with python3 -I, so each adds
this folder to sys.path."""
import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))
from abuse import field, link_frame  # noqa: E402, F401 - of a protobuf message

PIDFD_OPEN, PIDFD_GETFD = 434, 438

libc = ctypes.CDLL(None, use_errno=True)


def start():
    return subprocess.Popen([os.environ["DTRAIN"], "launch", "--bind", "none", "-np", "1", "--", "sleep", "600"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def end(job):
    job.terminate()
    job.wait()


def is_shepherd(line):
    return line.endswith(b"\0shepherd\0")


def is_worker(line):
    return line == b"sleep\x00600\0"


def find(is_it, seconds=30):
    """The pid of a process of this user's with such a command line; it may still have to start."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}").st_uid == os.getuid():
                    with open(f"/proc/{entry}/cmdline", "rb") as line:
                        if is_it(line.read()):
                            return int(entry)
        time.sleep(0.02)
    raise SystemExit(f"no process that {is_it.__name__}")


def take(pid, number):
    """A descriptor of that process's."""
    fd = libc.syscall(PIDFD_GETFD, libc.syscall(PIDFD_OPEN, pid, 0), number, 0)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd


def take_link(shepherd):
    """The socket on which it speaks to its launcher: the agent, which is root's, has made it."""
    for number in sorted(int(each) for each in os.listdir(f"/proc/{shepherd}/fd")):
        if number > 3 and os.readlink(f"/proc/{shepherd}/fd/{number}").startswith("socket:"):
            with socket.socket(fileno=take(shepherd, number)) as each:
                peer = struct.unpack("3i", each.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if each.family == socket.AF_UNIX and peer[1] == 0:
                    return each.detach()
    raise SystemExit("no socket to the launcher")


def said(event):
    """A frame as the shepherd sends it that has taken the start and what it has in common with others,
    and which it does not keep."""
    return link_frame(event, ack=2)
