# SPDX-License-Identifier: Apache-2.0
"""Where the checkout and its programs are, for the tests and on their hosts: at a fixed place, wherever the
checkout lies.

Hosts have a /root, a /tmp and a /run of their own, tests mount over these and over /home, a home may be closed
to other users, a mount for temporary files may forbid devices, and the path may have spaces or what overlayfs
separates folders with. So the tests of root see the checkout below /mnt or the like, in a mount namespace of this process,
which the machine does not see and which ends with it. Import this first: it takes effect at once.
"""
import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 0x20, 0x1000, 0x4000, 1 << 19

# As the user and the build know them.
CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("DTRAIN_BIN_DIR") or CHECKOUT / "build/release/bin").resolve()

libc = ctypes.CDLL(None, use_errno=True)


def _mount(source, target, kind, flags, data=None):
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    if libc.mount(*words[:3], ctypes.c_ulong(flags), words[3]) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mount on {target}: {os.strerror(error)}")


def _bind(source, target):
    target.mkdir()
    _mount(source, target, None, MS_BIND | MS_REC)
    try:
        # Without nodev, nosuid and noexec, which a /tmp may have.
        _mount(None, target, None, MS_REMOUNT | MS_BIND)
    except OSError:
        pass  # set by who made this container, and not to be changed in it


def _settle():
    """(the checkout, the folder of the programs, why no host can be made here)."""
    if os.geteuid() != 0:
        return CHECKOUT, PROGRAMS, "needs root: hosts are made of network, mount and pid namespaces"
    # The programs may have been built elsewhere; those of target `portable` need the build around them.
    build = PROGRAMS.parents[1] if PROGRAMS.parent.name == "portable" else PROGRAMS.parent
    # Empty, if possible: what is there is not seen any more.
    place = min((place for place in map(Path, ("/mnt", "/srv", "/media", "/opt"))
                 if place.is_dir() and not any(path.is_relative_to(place) for path in (CHECKOUT, build))),
                key=lambda place: any(place.iterdir()))
    if libc.unshare(CLONE_NEWNS) != 0:
        why = os.strerror(ctypes.get_errno())
        return CHECKOUT, PROGRAMS, f"needs CAP_SYS_ADMIN: unshare of a mount namespace: {why}"
    _mount(None, "/", None, MS_REC | MS_SLAVE)
    _mount("tmpfs", place, "tmpfs", 0, "mode=0755")
    _bind(CHECKOUT, place / "dtrain")
    if PROGRAMS.is_relative_to(CHECKOUT):
        return place / "dtrain", place / "dtrain" / PROGRAMS.relative_to(CHECKOUT), None
    if not build.exists() or build == Path("/"):
        return place / "dtrain", PROGRAMS, None
    _bind(build, place / "build")
    return place / "dtrain", place / "build" / PROGRAMS.relative_to(build), None


SOURCE_DIR, BIN_DIR, NO_HOSTS = _settle()
