# SPDX-License-Identifier: Apache-2.0
"""flood.py MIB HOW: as mallory, takes the socket of her shepherd and says on it so many warnings of a
megabyte, without numbers. HOW: "read", or "unread" when her launcher is stopped meanwhile. Prints how
many were taken."""
import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
import time

PIDFD_OPEN, PIDFD_GETFD = 434, 438
MIB = 1 << 20
PATIENCE = 60

libc = ctypes.CDLL(None, use_errno=True)


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def find(end_of_line):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}").st_uid == os.getuid():
                    with open(f"/proc/{entry}/cmdline", "rb") as line:
                        if line.read().endswith(end_of_line):
                            return int(entry)
        time.sleep(0.02)
    raise SystemExit(f"no {end_of_line}")


count, how = int(sys.argv[1]), sys.argv[2]
job = subprocess.Popen([os.environ["DTRAIN"], "launch", "--bind", "none", "-np", "1", "--", "sleep", "600"],
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
shepherd = find(b"\0shepherd\0")
find(b"sleep\x00600\0")
fd = libc.syscall(PIDFD_GETFD, libc.syscall(PIDFD_OPEN, shepherd, 0), 3, 0)
assert fd >= 0, os.strerror(ctypes.get_errno())
if how == "unread":
    job.send_signal(signal.SIGSTOP)
text = b"x" * MIB
warning = b"\x0a" + varint(len(text)) + text
event = b"\x4a" + varint(len(warning)) + warning
frame = struct.pack("<I", len(event)) + event
taken = 0
end = time.monotonic() + PATIENCE
try:
    while taken < count and time.monotonic() < end:
        left = memoryview(frame)
        while left and time.monotonic() < end:
            try:
                left = left[os.write(fd, left):]
            except BlockingIOError:
                time.sleep(0.001)
        taken += 1
except OSError:
    pass  # the agent has had enough
print(taken, flush=True)
job.send_signal(signal.SIGCONT)
job.terminate()
job.wait()
