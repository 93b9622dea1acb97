# SPDX-License-Identifier: Apache-2.0
"""look_around.py NAME: as a worker, looks for what is root's or another job's: a terminal, keys of the
session. Leaves a key of that name, then prints what it has found, a line each."""
import ctypes
import errno
import fcntl
import os
import signal
import sys
import termios

ADD_KEY, KEYCTL, SEARCH, SESSION = 248, 250, 10, -3

libc = ctypes.CDLL(None, use_errno=True)


def call(*args):
    words = [arg if isinstance(arg, bytes) else ctypes.c_long(arg) for arg in args]
    result = libc.syscall(*words)
    return "found" if result >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")


def terminal():
    try:
        return os.open("/dev/tty", os.O_RDWR)
    except OSError as error:
        return errno.errorcode[error.errno]


def typed():
    count = 0
    for fd in range(64):
        try:
            fcntl.ioctl(fd, termios.TIOCSTI, b"x")
            count += 1
        except OSError:
            pass
    return count


tty = terminal()
print("terminal", tty if isinstance(tty, str) else "opened")
print("typed", typed())
print("left", call(ADD_KEY, b"user", sys.argv[1].encode(), b"secret", 6, SESSION))
for name in ("root", "alice", "mallory"):
    print(name, call(KEYCTL, SEARCH, SESSION, b"user", name.encode(), 0))
print("umask", oct(os.umask(0)))
print("up", flush=True)
signal.pause()
