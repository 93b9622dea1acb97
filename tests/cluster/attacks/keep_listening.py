# SPDX-License-Identifier: Apache-2.0
"""As a worker, takes from its shepherd the socket on which that one waits for agents, and keeps it when
the shepherd is gone."""
import ctypes
import os
import socket
import time

PIDFD_OPEN, PIDFD_GETFD = 434, 438

libc = ctypes.CDLL(None)
pidfd = libc.syscall(PIDFD_OPEN, os.getppid(), 0)
if os.fork() != 0:
    time.sleep(600)
os.setsid()
for number in range(64):
    fd = libc.syscall(PIDFD_GETFD, pidfd, number, 0)
    try:
        taken = socket.socket(fileno=fd)
        if taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            print("listening", flush=True)
            time.sleep(600)
    except (OSError, ValueError):
        continue
print("none", flush=True)
