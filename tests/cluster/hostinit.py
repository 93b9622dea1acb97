# SPDX-License-Identifier: Apache-2.0
"""Process 1 of a test host: makes the host's namespaces and mounts, then reaps orphans for ever.

Started in a new pid namespace with one argument, a JSON object (see hosts.Host). Prints "ready"
when the host stands. Ends, and all its processes with it, when the test process goes away.
"""
import ctypes
import json
import os
import signal
import socket
import sys

CLONE_NEWNS, CLONE_NEWCGROUP = 0x20000, 0x2000000
CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNET = 0x4000000, 0x8000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
MNT_DETACH = 2
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None, use_errno=True)


def call(result, what):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(source, target, kind=None, flags=0, data=None):
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    call(libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]),
         f"mount {kind or ''} {source} on {target}")


def enter(image):
    """Another system takes the place of this machine's. What is written there is kept in memory."""
    place, root = image["place"], f"{image['place']}/root"
    os.makedirs(place, exist_ok=True)
    mount("tmpfs", place, "tmpfs", 0, "mode=0755")
    for folder in ("changes", "work", "root"):
        os.mkdir(f"{place}/{folder}")
    mount("overlay", root, "overlay", 0,
          f"lowerdir={image['system']},upperdir={place}/changes,workdir={place}/work")
    for path in ("/proc", "/sys", "/dev"):
        mount(path, root + path, None, MS_BIND | MS_REC)
    for path in image["shared"]:
        os.makedirs(root + path, exist_ok=True)
        mount(path, root + path, None, MS_BIND)
    os.chdir(root)
    call(libc.syscall(SYS_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    call(libc.umount2(b".", MNT_DETACH), "umount of the machine's system")
    os.chdir("/")


def keep_fds(paths, below):
    """The checkout may lie under a folder that is about to be covered."""
    return {path: os.open(path, os.O_PATH) for path in paths
            if os.path.commonpath([path, below]) == below}


def cover(target, source, kept_paths):
    kept = keep_fds(kept_paths, target)
    if source == "tmpfs":
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    else:
        mount(source, target, None, MS_BIND)
    for path, fd in kept.items():
        os.makedirs(path, exist_ok=True)
        mount(f"/proc/self/fd/{fd}", path, None, MS_BIND | MS_REC)
        os.close(fd)


def mount_cgroup(layout):
    """The layout of a plain Debian 12 machine, whatever the machine under test has."""
    if layout == "none":
        return
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if layout == "readonly":
        mount(None, "/sys/fs/cgroup", None, MS_BIND | 32 | MS_RDONLY)


def main():
    config = json.loads(sys.argv[1])
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if config["cgroup_dir"]:
        with open(os.path.join(config["cgroup_dir"], "cgroup.procs"), "w") as procs:
            procs.write("0")
    call(libc.unshare(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET),
         "unshare")
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    socket.sethostname(config["name"])
    if config["image"]:
        enter(config["image"])
    for target, source in config["covers"]:
        cover(target, source, config["keep"])
    for target, source in config["files"]:
        mount(source, target, None, MS_BIND)
    for folder in ("/proc", "/sys"):
        call(libc.umount2(folder.encode(), MNT_DETACH), f"umount {folder}")
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount_cgroup(config["cgroup"])
    os.makedirs("/run/sshd", exist_ok=True)
    os.chdir("/")
    # A process 1 ignores every signal that it has no handler for, so only its end is left to do.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    print("ready", flush=True)
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


main()
