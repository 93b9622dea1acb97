# SPDX-License-Identifier: Apache-2.0
"""write_log.py: as mallory, launches a job, takes the stderr of her shepherd and writes there what looks
like a line of the agent's, ten thousand times; then she tries to close it and to cut it. Prints how
many shepherds she found."""
import contextlib
import ctypes
import os
import socket
import subprocess
import time

PIDFD_OPEN, PIDFD_GETFD = 434, 438
FORGED = b'2026-11-24T00:00:00.000 dtrain-agent[1] info: allowed who="user:root" forged\n'

libc = ctypes.CDLL(None, use_errno=True)


def shepherds():
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{entry}").st_uid == os.getuid():
                with open(f"/proc/{entry}/cmdline", "rb") as line:
                    if line.read().endswith(b"\0shepherd\0"):
                        yield int(entry)


def main():
    job = subprocess.Popen([os.environ["DTRAIN"], "launch", "--bind", "none", "-np", "1", "--", "sleep",
                            "600"], stdin=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while not (found := list(shepherds())) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in found:
        fd = libc.syscall(PIDFD_GETFD, libc.syscall(PIDFD_OPEN, pid, 0), 2, 0)
        assert fd >= 0, os.strerror(ctypes.get_errno())
        for _ in range(10_000):
            try:
                os.write(fd, FORGED)
            except BlockingIOError:
                time.sleep(0.0005)
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as end:
            end.shutdown(socket.SHUT_RDWR)
    job.terminate()
    job.wait()
    print(len(found))


main()
