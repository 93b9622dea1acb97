# SPDX-License-Identifier: Apache-2.0
"""This package and libdtrain, for hosts that have neither: `dtrain launch --stage` takes a copy of them there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time

from ._library import SONAME, candidates, package

# What a rank starts in the copy, which it needs only where no package is installed. argv: the folder to work in.
BEGIN = """\
import os, sys
copy, folder = os.getcwd(), sys.argv.pop()
try:
    os.chdir(folder)
except OSError as error:
    os.chdir(os.path.expanduser("~"))  # what the function writes must not go with the copy
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"dtrain: run: {folder}: {error.strerror}; the function runs in {os.getcwd()}", file=sys.stderr)
try:
    from dtrain._worker import main
except ModuleNotFoundError:
    sys.modules.pop("dtrain", None)  # a folder of that name
    sys.path.append(copy)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), copy)))
    from dtrain._worker import main
main()
"""
# Flags of `dtrain launch` by which the user says what is in the ranks' folder.
_OWN_FOLDER = ("--stage", "--verify-code", "--wdir")
_KEPT_SECONDS = 30 * 24 * 3600


def for_others(launch_args):
    """The folder of the copy, which stays for the next time. None: the user says what is in the ranks' folder, or there
    is no place for it."""
    if any(str(word).split("=")[0] in _OWN_FOLDER for word in launch_args):
        return None
    here = package()
    files = [(path, path.relative_to(here.parent)) for path in sorted(here.rglob("*.py"))]
    library = next((path for path in candidates() if os.path.isabs(path) and os.path.isfile(path)), None)
    if library:
        files.append((library, os.path.join(here.name, SONAME)))
    state = hashlib.sha256()
    for path, name in files:
        info = os.stat(path)
        state.update(f"{name}\0{info.st_size}\0{info.st_mtime_ns}\n".encode())
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    copies = os.path.join(cache, "dtrain", "python")
    copy = os.path.join(copies, state.hexdigest()[:16])
    try:
        if not os.path.isdir(copy):
            _make(copy, files)
        os.utime(copy)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # other programs tidy up, too
        _remove_old(copies)
    return copy


def _make(copy, files):
    beside = f"{copy}.{os.getpid()}"
    for path, name in files:
        target = os.path.join(beside, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(path, target)
    try:
        os.rename(beside, copy)
    except OSError:  # another program was faster
        shutil.rmtree(beside, ignore_errors=True)
        if not os.path.isdir(copy):
            raise


def _remove_old(copies):
    for entry in os.scandir(copies):
        if entry.stat(follow_symlinks=False).st_mtime < time.time() - _KEPT_SECONDS:
            shutil.rmtree(entry.path, ignore_errors=True)
