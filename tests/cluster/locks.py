# SPDX-License-Identifier: Apache-2.0
"""What the suites, which run at the same time, have one of."""
import contextlib
import fcntl
import os


@contextlib.contextmanager
def held(path):
    """Waits until no other process has the lock file `path`; yields its descriptor. A child that inherits it
    (`pass_fds`) has the lock too, until it ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)
