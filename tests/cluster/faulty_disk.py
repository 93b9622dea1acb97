# SPDX-License-Identifier: Apache-2.0
"""A disk that fails or stalls when it is told to: a file system (FUSE) that passes all on to a folder of the host,
but for the calls that its switch file names, which get an error instead, or wait. `FaultyDisk` is for tests;
run as a program, with the folder, the mount point and the switch, this is the server.

    with FaultyDisk(host, folder) as disk:
        disk.fail(OVER_QUOTA)       # or another of the faults below, such as SLOW_SYNCS
        disk.heal()
        with disk.frozen(): ...     # nothing is answered
"""
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time

# Where each is met on a real disk. A quota is checked where something is made or grows; what has its
# room may be written again. On a network file system one is often told only when the file is closed.
OVER_QUOTA = "EDQUOT create mkdir mknod symlink rename write truncate"
DAMAGED = "EIO write fsync read"
UNREADABLE = "EIO read"
UNWRITABLE = "EIO write fsync"
TOLD_AT_CLOSE = "EDQUOT flush"
SYNCS = "fsync fsyncdir"
# A full disk takes nothing new, and what is written elsewhere (NFS, delayed allocation) fails when it is synced.
FULL = f"ENOSPC create mkdir mknod symlink rename write truncate {SYNCS}"
# These wait until the disk is healed. As on NFS, a process that waits can be killed, and not otherwise interrupted.
SLOW_WRITES = f"STALL write truncate create mkdir mknod rename unlink {SYNCS}"
SLOW_SYNCS = f"STALL {SYNCS}"
# Of a file server that has lost its export for a while.
EVERYTHING = f"access readdir rename mkdir rmdir mknod unlink create open getattr read write truncate {SYNCS}"


class FaultyDisk:
    """Mounted over `folder` of the host, with what is in it, until the with-block ends."""

    def __init__(self, host, folder):
        self._host = host
        self._folder = folder
        self._real = f"/root/work/faulty{folder.replace('/', '-')}"
        self._switch = f"{self._real}.switch"
        self._hits = f"{self._real}.hits"

    def __enter__(self):
        import hosts  # not in the server, which runs on a host

        self._host.path(self._real).mkdir(parents=True)
        self._host.run(["mount", "--bind", self._folder, self._real])
        self._server = self._host.popen(
            ["/usr/bin/python3", "-B", hosts.HERE / "faulty_disk.py", self._real, self._folder, self._switch, self._hits],
            stdout=subprocess.PIPE)
        assert self._server.stdout.readline() == b"serves\n"
        return self

    def fail(self, how, after=0):
        """`how`: an error and the calls that get it, as above, but for the first `after` of them. Returns what makes
        them good again."""
        switch = self._host.path(self._switch)
        self._host.path(self._hits).unlink(missing_ok=True)
        draft = switch.with_suffix(".new")
        draft.write_text(f"{time.monotonic_ns()} {after} {how}")
        draft.rename(switch)
        return self.heal

    def heal(self):
        self._host.path(self._switch).unlink(missing_ok=True)

    @property
    def hits(self):
        """How many calls the last fault has met."""
        return self._counts().count("!")

    @property
    def passed(self):
        """How many of those that it names have passed first."""
        return self._counts().count(".")

    def _counts(self):
        hits = self._host.path(self._hits)
        return hits.read_text() if hits.exists() else ""

    @contextlib.contextmanager
    def frozen(self):
        """Meanwhile nothing at all is answered."""
        self._server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._server.send_signal(signal.SIGCONT)

    def __exit__(self, *_):
        self.heal()
        self._server.kill()  # also of a server that hangs: who waits for it gets an error
        self._server.wait()
        self._server.stdout.close()
        # So libfuse calls what is removed and still open; it may be closed a moment later than this.
        for left in self._host.path(self._real).rglob(".fuse_hidden*"):
            left.unlink()
        # Whoever removed the folder from outside of the host took the mount with it.
        self._host.run(["umount", "-l", self._folder], check=False)
        self._host.run(["umount", "-l", self._real])
        self._host.path(self._real).rmdir()
        self._host.path(self._hits).unlink(missing_ok=True)


def passing_on(real):
    """A class of file systems (fusepy) that pass all on to the folder `real`."""
    import fusepy

    class Disk(fusepy.Operations):
        use_ns = True
        # What is None is unknown to the kernel, too.
        getxattr = listxattr = setxattr = removexattr = None

        def __init__(self):
            self.written = set()

        def init(self, _):
            print("serves", flush=True)

        def getattr(self, path, fh=None):
            status = os.lstat(real + path) if fh is None else os.fstat(fh)
            return {name: getattr(status, name) for name in
                    ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")} | {
                        name: getattr(status, f"{name}_ns") for name in
                        ("st_atime", "st_mtime", "st_ctime")}

        def access(self, path, mode):
            if not os.access(real + path, mode):
                raise OSError(errno.EACCES, path)

        def readdir(self, path, _):
            return [".", "..", *os.listdir(real + path)]

        def statfs(self, path):
            status = os.statvfs(real + path)
            return {name: getattr(status, name) for name in dir(status) if name.startswith("f_")}

        def readlink(self, path):
            return os.readlink(real + path)

        def symlink(self, path, target):
            os.symlink(target, real + path)

        def rename(self, old, new):
            os.rename(real + old, real + new)

        def mkdir(self, path, mode):
            os.mkdir(real + path, mode)

        def rmdir(self, path):
            os.rmdir(real + path)

        def mknod(self, path, mode, device):
            os.mknod(real + path, mode, device)

        def unlink(self, path):
            os.unlink(real + path)

        def chmod(self, path, mode):
            os.chmod(real + path, mode)

        def chown(self, path, uid, gid):
            os.lchown(real + path, uid, gid)

        def utimens(self, path, times=None):
            os.utime(real + path, ns=times, follow_symlinks=False)

        def create(self, path, mode):
            return os.open(real + path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

        def open(self, path, flags):
            # The kernel has done the appending: it says where each byte goes.
            return os.open(real + path, flags & ~os.O_APPEND)

        def read(self, _, size, offset, fh):
            return os.pread(fh, size, offset)

        def write(self, _, data, offset, fh):
            self.written.add(fh)
            return os.pwrite(fh, data, offset)

        def truncate(self, path, length, fh=None):
            os.truncate(real + path if fh is None else fh, length)

        def flush(self, _, fh):
            os.close(os.dup(fh))

        def fsync(self, _, datasync, fh):
            (os.fdatasync if datasync else os.fsync)(fh)

        def fsyncdir(self, path, datasync, _):
            fd = os.open(real + path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(fd)
            os.close(fd)

        def release(self, _, fh):
            self.written.discard(fh)
            os.close(fh)

    return Disk


def mount(disk, folder, **options):
    """Serves it until it is unmounted."""
    import fusepy

    os.umask(0)  # the kernel has applied the caller's
    # direct_io: each read and write comes here, none is answered by the page cache.
    fusepy.FUSE(disk, folder, foreground=True, direct_io=True, big_writes=True, nonempty=True,
                allow_other=True, fsname="faulty-disk", **options)


def serve(real, folder, switch, hits):
    import fusepy

    class Disk(passing_on(real)):
        def __init__(self):
            super().__init__()
            self.counting = threading.Lock()
            self.told = None
            self.left = 0  # calls that pass

        def __call__(self, call, *args):
            while (error := self._told(call, args)) == "STALL":
                note(b"!")
                while self._told(call, args, again=True) == "STALL":
                    if is_killed(fusepy.fuse_get_context()[2]):
                        raise OSError(errno.EINTR, "killed")
                    time.sleep(0.005)
            if error:
                note(b"!")
                raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)))
            return getattr(self, call)(*args)

        def _told(self, call, args, again=False):
            try:
                with open(switch, encoding="ascii") as file:
                    told = file.read()
            except FileNotFoundError:
                return None
            _, after, error, *calls = told.split()
            if call not in calls or call == "flush" and args[1] not in self.written:
                return None
            if error in ("EDQUOT", "ENOSPC") and call in ("write", "truncate") and not grows(call, args):
                return None
            with self.counting:
                if told != self.told:
                    self.told, self.left = told, int(after)
                if not again and self.left > 0:
                    self.left -= 1
                    note(b".")
                    return None
            return error

    def note(what):
        with open(hits, "ab") as file:
            file.write(what)

    def is_killed(thread):
        try:
            with open(f"/proc/{thread}/status", encoding="ascii", errors="replace") as status:
                pending = next(line for line in status if line.startswith("SigPnd:"))
        except OSError:
            return True
        return bool(int(pending.split()[1], 16) >> (signal.SIGKILL - 1) & 1)

    def grows(call, args):
        if call == "write":
            _, data, offset, fh = args
            return offset + len(data) > os.fstat(fh).st_size
        path, length, fh = (*args, None)[:3]
        return length > (os.lstat(real + path) if fh is None else os.fstat(fh)).st_size

    # Each call has a thread: while one waits, others are answered.
    mount(Disk(), folder)


if __name__ == "__main__":
    serve(*sys.argv[1:])
