# SPDX-License-Identifier: Apache-2.0
"""Where tests and their hosts find the checkout and its programs: at the same place, wherever the checkout lies.

Hosts have their own /root, /tmp and /run, tests mount over these and over /home, a home may be closed to other
users, a /tmp may forbid devices, and a path may contain spaces or the separators of overlayfs. So root's tests see
the checkout below /mnt, in a mount namespace of this process, which the machine does not see and which ends with
the process. Takes effect when imported; import it before anything that remembers paths.
"""
import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 0x20, 0x1000, 0x4000, 1 << 19

# Their paths outside, which the build's own files contain.
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
        pass  # locked by the container that this runs in


def _settle():
    """(the checkout, the folder of the programs, why no host can be made here or None)."""
    if os.geteuid() != 0:
        return CHECKOUT, PROGRAMS, "needs root: hosts are made of network, mount and pid namespaces"
    # The programs may have been built elsewhere; those of target `portable` need the build around them.
    build = PROGRAMS.parents[1] if PROGRAMS.parent.name == "portable" else PROGRAMS.parent
    # Preferably an empty folder: it hides what is there.
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
