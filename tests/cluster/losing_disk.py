# SPDX-License-Identifier: Apache-2.0
"""A disk that loses at a power cut what was not synced: a file system (FUSE) that passes all on to a folder of the host,
and knows of each file and each folder what a machine would find there after a reboot. `LosingDisk` is for tests; run as a
program, this is the server.

After a cut a file has what it had when it was synced last, and of what was written since nothing, a beginning, or sectors here
and there; a folder has the names that it had when it was synced last, and of what was made, renamed and removed since
a beginning. That is less than file systems promise, and all that POSIX does."""
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from faulty_disk import mount, passing_on

SECTOR = 512
NEVER = 1 << 40


class LosingDisk:
    """Mounted over `folder` of the host, with what is in it, until the with-block ends: disk.cut_at(sync, seed), then
    disk.reboot(), as in test_power_cut.py."""

    def __init__(self, host, folder):
        self._host = host
        self._folder = folder
        self._real = f"/root/work/losing{folder.replace('/', '-')}"
        self._server = None

    def __enter__(self):
        for name in ("disk", "control"):
            self._path(name).mkdir(parents=True)
        self._start()
        return self

    def _path(self, name):
        return self._host.path(f"{self._real}/{name}")

    def _start(self):
        import hosts  # not in the server, which runs on a host

        self._host.run(["mount", "--bind", self._folder, f"{self._real}/disk"])
        self._server = self._host.popen(["/usr/bin/python3", "-B", hosts.HERE / "losing_disk.py", self._real, self._folder],
                                        stdout=subprocess.PIPE)
        assert self._server.stdout.readline() == b"serves\n"

    def cut_at(self, sync, seed):
        """At the sync-th sync from now on, before or after it, all processes of the host are killed, but for its first and the
        server."""
        draft = self._path("control/new")
        draft.write_text(f"{sync} {seed}")
        draft.rename(self._path("control/cut"))

    def forget(self):
        """There is no cut, unless there has been one: that is returned."""
        self._path("control/cut").unlink(missing_ok=True)
        return self.was_cut

    @property
    def was_cut(self):
        return self._path("control/was").exists()

    @property
    def what(self):
        return self._path("control/was").read_text()

    def reboot(self):
        """With what was on the disk at the cut."""
        self._stop()
        place = self._host.base / self._folder.lstrip("/")
        for old in place.iterdir():
            shutil.rmtree(old)
        for new in (self._host.base / "root/work/after").iterdir():
            shutil.move(new, place / new.name)
        shutil.rmtree(self._host.base / "root/work/after")
        for path in ("control/cut", "control/was"):
            self._path(path).unlink(missing_ok=True)
        self._start()

    def _stop(self):
        self._server.kill()
        self._server.wait()
        self._server.stdout.close()
        self._host.run(["umount", "-l", self._folder], check=False)
        self._host.run(["umount", "-l", f"{self._real}/disk"])

    def __exit__(self, *_):
        self._stop()
        shutil.rmtree(self._host.base / self._real.lstrip("/"))
        shutil.rmtree(self._host.base / "root/work/after", ignore_errors=True)


class File:
    def __init__(self, content=b""):
        self.synced = content
        self.live = bytearray(content)
        self.since = []  # what was done since: (offset, bytes), or a length

    def write(self, offset, data):
        self.since.append((offset, bytes(data)))
        self._do(self.live, self.since[-1])

    def cut_to(self, length):
        self.since.append(length)
        self._do(self.live, length)

    def sync(self):
        self.synced = bytes(self.live)
        self.since = []

    @staticmethod
    def _do(content, what):
        if isinstance(what, int):
            del content[what:]
            content.extend(bytes(what - len(content)))
            return
        offset, data = what
        content.extend(bytes(max(0, offset - len(content))))
        content[offset:offset + len(data)] = data

    def found(self, pick):
        """After a cut."""
        how = pick.choice(["synced", "a beginning", "sectors", "all"]) if self.since else "synced"
        if how == "synced":
            return self.synced
        if how == "all":
            return bytes(self.live)
        if how == "a beginning":
            content = bytearray(self.synced)
            count = pick.randrange(len(self.since))
            for what in self.since[:count]:
                self._do(content, what)
            torn = self.since[count]
            if not isinstance(torn, int):
                self._do(content, (torn[0], torn[1][:pick.randrange(len(torn[1]) + 1)]))
            return bytes(content)
        content = bytearray()
        size = pick.choice([len(self.synced), len(self.live)])
        for at in range(0, size, SECTOR):
            piece = bytes(pick.choice([self.synced, self.live])[at:at + SECTOR])
            content += piece.ljust(min(SECTOR, size - at), b"\0")
        return bytes(content[:size])


class Folder:
    def __init__(self, names=()):
        self.synced = dict(names)
        self.live = dict(names)
        self.since = []  # changes that happen as a whole: {name: File, Folder or None}

    def change(self, names):
        self.since.append(names)
        self._do(self.live, names)

    def sync(self):
        self.synced = dict(self.live)
        self.since = []

    @staticmethod
    def _do(names, change):
        for name, what in change.items():
            if what is None:
                names.pop(name, None)
            else:
                names[name] = what

    def found(self, pick):
        names = dict(self.synced)
        for change in self.since[:pick.choice([0, len(self.since), pick.randrange(len(self.since) + 1)])]:
            self._do(names, change)
        return names


def read_in(path):
    """What is there at the start is on the disk."""
    if path.is_dir():
        return Folder({each.name: read_in(each) for each in path.iterdir()})
    return File(path.read_bytes())


def write_out(what, path, pick):
    if isinstance(what, Folder):
        path.mkdir(mode=0o700)
        for name, each in what.found(pick).items():
            if not name.startswith(".fuse_hidden"):  # so libfuse calls what is removed and still open
                write_out(each, path / name, pick)
    else:
        path.write_bytes(what.found(pick))
        path.chmod(0o600)


def serve(place, folder):
    real = f"{place}/disk"
    control = Path(place) / "control"
    top = read_in(Path(real))

    def at(path):
        here = top
        for name in filter(None, path.split("/")):
            here = here.live[name]
        return here

    def parent(path):
        above, _, name = path.rpartition("/")
        return at(above), name

    class Disk(passing_on(real)):
        def __init__(self):
            super().__init__()
            self.files = {}  # that are open
            self.told, self.left = None, NEVER

        def _sync(self, path, sync):
            try:
                told = (control / "cut").read_text()
            except FileNotFoundError:
                told, self.left = None, NEVER
            if told != self.told:
                self.told = told
                if told:
                    self.left = int(told.split()[0])
            self.left -= 1
            if self.left == 0:
                pick = random.Random(told.split()[1])
                is_done = pick.random() < 0.5
                if is_done:
                    sync()
                self._cut(pick, f"{'after' if is_done else 'before'} the sync of {path}")
            sync()

        def _cut(self, pick, what):
            write_out(top, Path(place).parent / "after", pick)
            draft = control / "what"
            draft.write_text(what)
            for pid in 2 * sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
                if int(pid) not in (1, os.getpid()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            draft.rename(control / "was")
            # What those who have asked for something since wait for does not come; they are dead.
            signal.pause()

        def create(self, path, mode):
            fd = super().create(path, mode)
            folder, name = parent(path)
            self.files[fd] = File()
            folder.change({name: self.files[fd]})
            return fd

        def open(self, path, flags):
            fd = super().open(path, flags)
            self.files[fd] = at(path)
            return fd

        def release(self, path, fd):
            self.files.pop(fd, None)
            super().release(path, fd)

        def write(self, path, data, offset, fd):
            self.files[fd].write(offset, data)
            return super().write(path, data, offset, fd)

        def truncate(self, path, length, fh=None):
            super().truncate(path, length, fh)
            (at(path) if fh is None else self.files[fh]).cut_to(length)

        def mkdir(self, path, mode):
            super().mkdir(path, mode)
            folder, name = parent(path)
            folder.change({name: Folder()})

        def _remove(self, path):
            folder, name = parent(path)
            folder.change({name: None})

        def rmdir(self, path):
            super().rmdir(path)
            self._remove(path)

        def unlink(self, path):
            super().unlink(path)
            self._remove(path)

        def rename(self, old, new):
            super().rename(old, new)
            (source, was), (target, now) = parent(old), parent(new)
            what = source.live[was]
            if source is target:
                source.change({was: None, now: what})
            else:
                source.change({was: None})
                target.change({now: what})

        def fsync(self, path, datasync, fd):
            self._sync(path, self.files[fd].sync)

        def fsyncdir(self, path, datasync, fd):
            self._sync(path, at(path).sync)

    # One call after the other.
    mount(Disk(), folder, nothreads=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
