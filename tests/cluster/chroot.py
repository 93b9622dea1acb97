# SPDX-License-Identifier: Apache-2.0
"""A clean Debian or Ubuntu of this machine's release, to install packages into. Needs root and, the
first time, the archive; then it is kept in build/roots."""
import os
import shutil
import subprocess
from pathlib import Path

import hosts

# What the tests run, beside what the packages themselves depend on.
TOOLS = "gcc,libc6-dev,man-db,pkg-config"
NOT_FOUND = "debootstrap is not installed"


def missing():
    return None if shutil.which("debootstrap") else NOT_FOUND


def release():
    pairs = [line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines()
             if "=" in line]
    return dict(pairs)["VERSION_CODENAME"]


def archive():
    """The mirror that this machine uses, and its components."""
    lines = subprocess.run(["apt-get", "indextargets", "--format",
                            "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"],
                           capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line.split() for line in lines]
    mirrors = [uri for uri, codename, part in found if (codename, part) == (release(), "main")]
    parts = {part for uri, codename, part in found if codename == release() and uri in mirrors[:1]}
    return mirrors[0], sorted(parts)


def base():
    """The folder with the clean system; made when there is none."""
    path = hosts.SOURCE_DIR / "build/roots" / release()
    if path.exists():
        return path
    mirror, parts = archive()
    made = path.with_name(f"{path.name}.{os.getpid()}")
    made.parent.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--components={','.join(parts)}",
             f"--include={TOOLS}", release(), made, mirror],
            check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        made.rename(path)
    except subprocess.CalledProcessError as error:
        raise AssertionError(f"debootstrap failed:\n{error.stdout[-3000:]}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return path


class Chroot:
    """A clean system that may be changed, with its own processes. What is written is kept in
    memory, and all of it ends with this object, or with the process that has it."""

    # Its first process waits on our pipe, and takes in orphans. Mounts are seen in here alone.
    START = """
      set -e
      exec 3<&0
      mount -t tmpfs -o mode=0755 tmpfs "$1"
      mkdir "$1/changes" "$1/work" "$1/root"
      mount -t overlay -o "lowerdir=$2,upperdir=$1/changes,workdir=$1/work" overlay "$1/root"
      cd "$1/root"
      mount -t proc proc proc
      mount -t sysfs -o ro sysfs sys
      mount --rbind /dev dev
      for folder in run tmp dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
      chmod 755 run
      cp /etc/resolv.conf etc/resolv.conf
      echo ready
      cat <&3 >/dev/null &
      wait
    """

    def __init__(self, place):
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
             "sh", "-c", self.START, "sh", place, base()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._holder.stdout.readline() != "ready\n":
            self.close()
            raise AssertionError("the mounts of the clean system failed")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self._first = children.read_text().split()[0]
        self._root = f"{place}/root"

    def path(self, inside):
        return Path(f"/proc/{self._first}/root{self._root}{inside}")

    def try_run(self, command, user="root", timeout=300, **env):
        enter = ["nsenter", "-t", self._first, "-m", "-p", "--", "chroot", f"--userspec={user}",
                 self._root, "/bin/sh", "-c", f"cd /tmp\n{command}"]
        return subprocess.run(
            enter, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8",
                 "DEBIAN_FRONTEND": "noninteractive", **env})

    def run(self, command, **options):
        """What a shell command prints, which must go well."""
        done = self.try_run(command, **options)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def files(self):
        """All files and folders but those of the kernel and in memory."""
        return set(self.run("find / -xdev").splitlines())

    def programs(self):
        """The names of all processes."""
        return self.run("cat /proc/[0-9]*/comm").split()

    def close(self):
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait(60)
