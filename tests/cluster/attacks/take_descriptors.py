# SPDX-License-Identifier: Apache-2.0
"""take_descriptors.py PROCESSES AGENT: as mallory, launches until she was early enough for that many of the
processes that the agent makes for her, and takes every descriptor that the kernel gives out of them, as soon as it
gives any. What leads to somebody else is written to stdout; the last line counts what was taken."""
import ctypes
import fcntl
import os
import socket
import stat
import struct
import subprocess
import sys
import threading

PIDFD_OPEN, PIDFD_GETFD = 434, 438
FDS = 64

libc = ctypes.CDLL(None, use_errno=True)
sockets = {}  # inode: the process that it was first seen in
streams = {}  # process: its streams to the agent, the launcher and the launcher's reader, as inodes
taken = 0
processes = 0


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as text:
        return int(text.read().rpartition(")")[2].split()[1])


def is_mine(pid):
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parent_of(pid)
    return False


def may_open(fd, target):
    """What anybody may, as reading / is."""
    writes = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    return target.startswith("/") and os.access(target, os.W_OK if writes else os.R_OK)


def complaint(pid, fd):
    """What is wrong with having it, if anything."""
    about = os.fstat(fd)
    target = os.readlink(f"/proc/self/fd/{fd}")
    if stat.S_ISSOCK(about.st_mode):
        with socket.socket(fileno=os.dup(fd)) as own:
            kind = own.type
            uid = struct.unpack("3i", own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if sockets.setdefault(about.st_ino, pid) != pid:
            return f"{target}, which process {sockets[about.st_ino]} has, too: a way to others"
        if uid in (os.getuid(), -1):
            return None
        # Her own shepherd speaks with the agent over one stream, through it with the launcher over
        # another, and sends output over a third; those are hers.
        seen = streams.setdefault(pid, set())
        if kind == socket.SOCK_STREAM and len(seen) < 3:
            seen.add(about.st_ino)
        if about.st_ino not in seen:
            return f"{target}, of type {kind}, whose other end is user {uid}'s"
        return None
    if target.startswith("anon_inode:[pidfd]"):
        with open(f"/proc/self/fdinfo/{fd}") as text:
            named = next(line for line in text if line.startswith("Pid:")).split()[1]
        owner = os.stat(f"/proc/{named}").st_uid if int(named) > 0 else os.getuid()
        return None if owner == os.getuid() else f"a pidfd of process {named}, user {owner}'s"
    if target.startswith(("anon_inode:", "pipe:", "/memfd:")):
        return None
    if about.st_uid == os.getuid() or may_open(fd, target):
        return None
    return f"{target}, which is user {about.st_uid}'s"


def look(pid, agent, end):
    """Takes all there is of a process, from its first moment on, until it has nothing new."""
    global taken, processes
    pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
    if pidfd < 0:
        return
    mine = None
    seen = set()
    rounds = 0
    while rounds < 300 and not end.is_set():
        for number in range(FDS):
            fd = libc.syscall(PIDFD_GETFD, pidfd, number, 0)
            if fd < 0:
                code = ctypes.get_errno()
                if code == 3:  # ESRCH: it is gone
                    os.close(pidfd)
                    return
                if code != 9:  # not EBADF: nothing is given out yet
                    break
                continue
            try:
                if mine is None:
                    mine = is_mine(pid)
                    processes += not mine
                if not mine and (number, os.fstat(fd).st_ino) not in seen:
                    seen.add((number, os.fstat(fd).st_ino))
                    taken += 1
                    why = complaint(pid, fd)
                    if why:
                        print(f"process {pid}, descriptor {number}: {why}", flush=True)
            except OSError:
                pass
            finally:
                os.close(fd)
        if mine:
            break
        rounds += bool(seen)
    os.close(pidfd)


def watch(agent, over):
    """Processes are numbered one after the other: the next one's number is known."""
    with open("/proc/sys/kernel/ns_last_pid") as text:
        last = int(text.read())
    while not over.is_set():
        with open("/proc/sys/kernel/ns_last_pid") as text:
            now = int(text.read())
        for pid in range(last + 1, now + 1):
            # Those that are hers already are her own launcher's, or it is too late for them.
            try:
                parent = parent_of(pid)
            except (OSError, ValueError):
                continue
            if parent == agent:
                look(pid, agent, over)
        last = now


def main(wanted, agent):
    over = threading.Event()
    watcher = threading.Thread(target=watch, args=(agent, over))
    watcher.start()
    failed = 0
    for _ in range(20 * wanted):
        if processes >= wanted:
            break
        done = subprocess.run([os.environ["DTRAIN"], "launch", "--bind", "none", "-np", "1", "--",
                               "/bin/true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            failed += 1
            print(f"a launch ended with {done.returncode}: {done.stderr}", file=sys.stderr, flush=True)
    over.set()
    watcher.join()
    print(f"took {taken} descriptors of {processes} processes; {failed} launches failed")


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    main(int(sys.argv[1]), int(sys.argv[2]))
