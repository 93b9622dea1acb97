# SPDX-License-Identifier: Apache-2.0
"""Target `portable` of this build, which several suites need, and the packages that are made of it."""
import subprocess

import checkout
import locks

# By the name that it was configured with.
BUILD = checkout.PROGRAMS.parent


def build(*targets):
    """Builds the programs, and `targets`. Two builds in one folder at once would spoil each other's files."""
    with locks.held(BUILD / "portable.lock") as lock:
        done = subprocess.run(["cmake", "--build", BUILD, "-j2", "--target", "portable", *targets], text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, pass_fds=[lock])
    assert done.returncode == 0, done.stdout + done.stderr


def package(out, *flags):
    """The folder `out` with what tools/package makes of it."""
    done = subprocess.run([checkout.CHECKOUT / "tools/package", "--no-build", "--build", BUILD, "--out", out, *flags],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return out
