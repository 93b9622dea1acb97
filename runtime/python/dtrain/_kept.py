# SPDX-License-Identifier: Apache-2.0
"""The state of dtrain.elastic on the nodes' disks, for the next attempt of the job.

A folder DIR/JOB/HOST for each node, which the launcher names if it may start the workers again. It
has a file state-N for the N-th call of run() in the program. One file is written anew for each
commit and then renamed, by the first rank of each node. Nothing is synced to disk: a process that
is killed loses nothing, and a torn file does not match its hash.
"""

import ctypes
import hashlib
import os
import pickle
import stat
import struct
import sys
import threading
import time

from . import _arrays, _errors, _job
from ._calls import issue
from ._objects import allgather_object
from ._process_sets import global_process_set

_FOLDER = "DTRAIN_STATE_FOLDER"
_SECONDS = "DTRAIN_STATE_SECONDS"
_DEFAULT_SECONDS = 10.0
_MAGIC = b"dtrain state 1\n"
# The number of the commit, the attempt, the length of what follows, its SHA-256.
_HEADER = struct.Struct("<15sQIQ32s")
_PIECE = 64 << 20
_BLOCK = 1 << 20

# Of run() in this program.
_calls = 0
# This rank, for messages: a thread that writes cannot ask the library.
_me = 0


def begin():
    """The keeper for this call of run(); None if the launcher will not start the workers again."""
    global _calls, _me
    path = os.environ.get(_FOLDER)
    if not path or not _job.in_job():
        return None
    _calls += 1
    _me = _job.rank()
    # A node that has no folder still takes part: what others have kept is for all.
    return Keeper(path if os.path.isabs(path) else None, _calls, _seconds())


def _attempt():
    return int(os.environ.get("DTRAIN_ATTEMPT") or 0)


def _seconds():
    text = os.environ.get(_SECONDS) or _DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise _errors.InvalidArgumentError(f"{_SECONDS}={text}: not a number of seconds")
    return seconds


def _say(text):
    print(f"dtrain: rank {_me}: {text}", file=sys.stderr, flush=True)


# ---- Folders and files that only we can have written ----


def _open_folder(path, parent=None):
    """A folder of ours. No link is followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        folder = os.open(path, flags, dir_fd=parent)
    except NotADirectoryError:
        raise NotADirectoryError(f"{path} is a link, or not a folder") from None
    try:
        _check(os.fstat(folder), path)
    except OSError:
        os.close(folder)
        raise
    return folder


def _check(status, name):
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{name} belongs to another user (id {status.st_uid})")
    if status.st_mode & 0o022:
        raise PermissionError(f"{name} can be written by others (mode {status.st_mode & 0o777:o})")


def _make_way(path):
    if not os.path.isdir(path):
        _make_way(os.path.dirname(path))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass  # another rank was faster; if it is not a folder, the next step says so


def _make_folder(path):
    """DIR/JOB/HOST, the last two for us alone, whatever the umask. Returns the last, open."""
    job, host = os.path.split(path)
    _make_way(os.path.dirname(job))
    above = None
    for name in (job, host):
        try:
            os.mkdir(name, 0o700, dir_fd=above)
        except FileExistsError:
            pass
        try:
            folder = _open_folder(name, above)
        finally:
            if above is not None:
                os.close(above)
        above = folder
    return above


class _Hashing:
    """A file that is written and hashed."""

    def __init__(self, file):
        self._file = file
        self._hash = hashlib.sha256()
        self.length = 0

    def write(self, data):
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self._file.write(view)
        self.length += len(view)
        return len(view)

    def digest(self):
        return self._hash.digest()


def _dump(value, file):
    """As _objects.dumps(), without holding all of it in memory."""
    try:
        from cloudpickle import dump
    except ImportError:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
    else:
        dump(value, file)


def _write(path, name, number, value):
    """Replaces the file `name` in the folder `path`, wholly or not at all."""
    folder = _make_folder(path)
    new = f"{name}.new"
    try:
        try:
            os.unlink(new, dir_fd=folder)  # of a process that was killed as it wrote
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.fdopen(os.open(new, flags, 0o600, dir_fd=folder), "wb", buffering=_BLOCK)
        try:
            with file:
                file.write(bytes(_HEADER.size))
                hashing = _Hashing(file)
                _dump(value, hashing)
                file.seek(0)
                file.write(
                    _HEADER.pack(_MAGIC, number, _attempt(), hashing.length, hashing.digest()))
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(new, dir_fd=folder)
            raise
    finally:
        os.close(folder)


class _Found:
    """A file with the state of a commit, open after its header."""

    def __init__(self, path, file):
        self.path, self.file = path, file
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise ValueError("it is not of this version of dtrain, or torn")
        _, self.number, _, self.length, self._digest = _HEADER.unpack(header)

    def check(self):
        """Whether it is what was written."""
        computed, length = hashlib.sha256(), 0
        while data := self.file.read(_BLOCK):
            computed.update(data)
            length += len(data)
        self.file.seek(_HEADER.size)
        if (length, computed.digest()) != (self.length, self._digest):
            raise ValueError("it is torn or damaged: its hash is not that of its contents")


def _look_at(folder, host, name, path):
    """The file `name` in the folder of one host; None if there is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        inner = _open_folder(host, folder)
    except NotADirectoryError:
        return None
    try:
        file = os.fdopen(os.open(name, flags, dir_fd=inner), "rb")
    except FileNotFoundError:
        return None
    finally:
        os.close(inner)
    try:
        status = os.fstat(file.fileno())
        _check(status, "it")
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError("it is not a regular file")
        return _Found(path, file)
    except BaseException:
        file.close()
        raise


def _best_here(path, name):
    """The readable file of the latest commit that this node has, of any host; None: there is
    none."""
    job = os.path.dirname(path)
    found = []
    folder = None
    try:
        folder = _open_folder(job)
        for host in sorted(os.listdir(folder)):
            where = os.path.join(job, host, name)
            try:
                one = _look_at(folder, host, name, where)
            except (OSError, ValueError) as error:
                _say(f"{where} is ignored: {error}")
                continue
            if one is not None:
                found.append(one)
    except FileNotFoundError:
        pass  # nobody has kept anything
    except OSError as error:
        _say(f"kept state is ignored: {error}")
    finally:
        if folder is not None:
            os.close(folder)
    found.sort(key=lambda one: one.number)
    best = None
    while found and best is None:
        best = found.pop()
        try:
            best.check()
        except (OSError, ValueError) as error:
            _say(f"{best.path} is ignored: {error}")
            best.file.close()
            best = None
    for one in found:
        one.file.close()
    return best


# ---- The way back ----


def _broadcast(file, length, root):
    """The bytes of rank `root`'s file, on every rank."""
    data = bytearray(length)
    view = memoryview(data)
    for begin in range(0, length, _PIECE):
        end = min(begin + _PIECE, length)
        if file is not None and file.readinto(view[begin:end]) != end - begin:
            raise OSError(f"{file.name}: it has become shorter")
        buffer = (ctypes.c_char * (end - begin)).from_buffer(data, begin)
        arguments = ctypes.addressof(buffer), end - begin, _arrays.BYTE, root
        issue("dtrain_broadcast", arguments, buffer, lambda: None, label=None,
              process_set=global_process_set, wait=True)
    return view


class Keeper:
    """Keeps what one call of run() commits.

    path: the folder of this node; None: it can have none. call: which call of run() in the program. seconds: between two
    writes; of the commits in between only the last one is written.
    """

    def __init__(self, path, call, seconds):
        self._path = path
        self._name = f"state-{call}"
        self._seconds = seconds
        self._number = 0  # of commits, over all attempts
        self._warned = False
        self._failed = False
        self._waiting = None  # (number, what State.kept() returned)
        self._hurry = False
        self._changed = threading.Condition()
        self._thread = None

    def restore(self, state):
        """Collective. Gives the state what the attempts before have kept: the latest commit that
        any node has."""
        if _attempt() == 0:
            return
        looks = self._path is not None and _job.local_rank() == 0
        best = _best_here(self._path, self._name) if looks else None
        try:
            mine = (best.number, best.length, best.path) if best else None
            everyones = allgather_object(mine)
            number, root = max((one[0], -rank) for rank, one in enumerate(everyones + [(0, 0, "")])
                               if one is not None)
            root = -root
            if number == 0:
                self._say_nothing_found()
                return
            _, length, path = everyones[root]
            data = _broadcast(best.file if root == _job.rank() else None, length, root)
        finally:
            if best:
                best.file.close()
        try:
            state.take_kept(pickle.loads(data))
        except Exception as error:
            raise _errors.StateError(
                f"the state that rank {root} found in {path} cannot be restored: "
                f"{type(error).__name__}: {error}; remove the file to train from the beginning"
            ) from error
        self._number = number
        if _job.rank() == 0:
            _say(f"the training continues from commit {number}, found by rank {root} in {path}")
        state.on_reset()

    def _say_nothing_found(self):
        if self._name == "state-1" and _job.rank() == 0:
            where = f"in {os.path.dirname(self._path)}" if self._path else "no folder"
            _say(f"attempt {_attempt()} begins from the start: no node has kept a state (here: "
                 f"{where})")

    def committed(self, state):
        """The state has been committed."""
        self._number += 1
        if self._path is None or not _job.in_job() or _job.local_rank() != 0:
            return
        value = state.kept()
        if value is None:
            if not self._warned:
                self._warned = True
                _say(f"a restart will begin from the start: {type(state).__name__} does not "
                     "implement kept() and take_kept()")
            return
        with self._changed:
            self._waiting = (self._number, value)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dtrain state", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self):
        """Waits until the last commit is written."""
        if self._thread is None:
            return
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
        self._thread.join()
        self._thread, self._hurry = None, False

    def _run(self):
        next_at = 0.0
        while True:
            with self._changed:
                while not self._hurry:
                    left = next_at - time.monotonic()
                    if self._waiting and left <= 0:
                        break
                    self._changed.wait(min(left, threading.TIMEOUT_MAX) if self._waiting else None)
                if not self._waiting:
                    return  # hurried, with nothing left to do
                (number, value), self._waiting = self._waiting, None
            next_at = time.monotonic() + self._seconds
            try:
                _write(self._path, self._name, number, value)
                self._failed = False
            except Exception as error:  # also of what cannot be pickled
                if not self._failed:
                    _say(f"the state of commit {number} cannot be kept for a restart: "
                         f"{type(error).__name__}: {error}")
                self._failed = True
            value = None  # its memory
