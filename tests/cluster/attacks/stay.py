# SPDX-License-Identifier: Apache-2.0
"""stay.py HOW: as mallory, wants an agent to believe that SIGKILL does not end her processes.
  say      the socket of her shepherd says so, of a job that runs
  respawn  her shepherd is killed, and what looks like a process of its job makes another one and ends,
           all the time, for some seconds, outside of all cgroups of the job
Prints what it did."""
import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
import time

PIDFD_OPEN, PIDFD_GETFD = 434, 438
SECONDS = 8  # longer than any patience of the agent's
LINES = 24

libc = ctypes.CDLL(None, use_errno=True)


def mine():
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{entry}").st_uid == os.getuid():
                with open(f"/proc/{entry}/cmdline", "rb") as line:
                    yield int(entry), line.read()


def shepherd():
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for pid, line in mine():
            if line.endswith(b"\0shepherd\0"):
                return pid
        time.sleep(0.02)
    raise SystemExit("no shepherd")


def variables_of_worker():
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for pid, line in mine():
            if line == b"sleep\x00600\0":
                with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as text:
                    pairs = dict(each.split(b"=", 1) for each in text.read().split(b"\0") if b"=" in each)
                    if b"DTRAIN_JOB_ID" in pairs:
                        return pairs
        time.sleep(0.02)
    raise SystemExit("no worker")


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def say():
    """A ShepherdEvent with a NodeFailure of KIND_CLEANUP."""
    pid = shepherd()
    variables_of_worker()
    fd = libc.syscall(PIDFD_GETFD, libc.syscall(PIDFD_OPEN, pid, 0), 3, 0)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    words = b"it cannot be killed"
    failure = b"\x08\x05\x12" + varint(len(words)) + words + b"\x18" + varint(204)
    event = b"\x42" + varint(len(failure)) + failure
    os.write(fd, struct.pack("<I", len(event)) + event)
    print("said", flush=True)


def respawn():
    pid = shepherd()
    wanted = variables_of_worker()
    os.kill(pid, signal.SIGKILL)
    code = ("import os, time, sys\n"
            "end = time.monotonic() + float(sys.argv[1])\n"
            "os.setsid()\n"
            "while time.monotonic() < end:\n"
            "    if os.fork() != 0: os._exit(0)\n"
            "    time.sleep(0.0005)\n")
    for _ in range(LINES):
        subprocess.Popen(["/usr/bin/python3", "-I", "-S", "-c", code, str(SECONDS)], env=wanted)
    print("respawns", flush=True)


job = subprocess.Popen([os.environ["DTRAIN"], "launch", "--bind", "none", "-np", "1", "--", "sleep", "600"],
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
{"say": say, "respawn": respawn}[sys.argv[1]]()
time.sleep(SECONDS)
job.terminate()
job.wait()
