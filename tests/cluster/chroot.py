# SPDX-License-Identifier: Apache-2.0
"""A clean Debian or Ubuntu of this machine's release, to install packages into. Needs root and, the
first time, the archive; then it is kept in build/roots."""
import os
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path

import hosts
import launching
import locks

# What the tests run, beside what the packages themselves depend on.
TOOLS = "dbus,gcc,libc6-dev,man-db,pkg-config,systemd"
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


def base(name=None, tools=TOOLS):
    """The folder with a clean system, of this machine's release unless `name` is another; made when
    there is none."""
    name = name or release()

    def make(folder, lock):
        mirror, parts = archive()
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--components={','.join(parts)}",
             f"--include={tools}", name, folder, mirror],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            pass_fds=[lock])  # it may outlive a test that is killed
        assert done.returncode == 0, f"debootstrap failed:\n{done.stdout[-3000:]}"

    path = hosts.SOURCE_DIR / "build/roots" / f"{name}-{zlib.crc32(tools.encode()):08x}"
    made_once(path, make)
    return path


def made_once(path, make):
    """The folder `path` as make(folder, lock) makes it: once, whoever else wants it at the same time. It has
    its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(path.with_name(f"{path.name}.lock")) as lock:
        if path.exists():
            return
        for left in path.parent.glob(f"{path.name}.*"):  # of makers that were killed
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        made = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            make(made, lock)
            made.rename(path)
        finally:
            shutil.rmtree(made, ignore_errors=True)


class Chroot:
    """A clean system that may be changed, with its own processes. What is written is kept in
    memory, and all of it ends with this object, or with the process that has it."""

    # Mounts are seen in here alone. What is the machine's, devices and kernel settings, is kept
    # from the programs of the system.
    MOUNT = """
      set -e
      mount -t tmpfs -o mode=0755 tmpfs "$1"
      mkdir "$1/changes" "$1/work" "$1/root"
      mount -t overlay -o "lowerdir=$2,upperdir=$1/changes,workdir=$1/work" overlay "$1/root"
      cd "$1/root"
      mount -t proc proc proc
      mount --bind proc/sys proc/sys
      mount -o remount,bind,ro proc/sys
      mount -t sysfs -o ro sysfs sys
      mount -t tmpfs -o mode=755 tmpfs dev
      for device in null zero full random urandom tty; do
        : >"dev/$device"
        mount --bind "/dev/$device" "dev/$device"
      done
      mkdir dev/shm
      ln -s /proc/self/fd dev/fd
      for folder in run tmp dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
      chmod 755 run
      cp /etc/resolv.conf etc/resolv.conf
    """
    # Takes in orphans, and waits for nothing.
    FIRST = "echo ready; while :; do sleep 1000 & wait; done"
    NAMESPACES = ("--mount", "--pid", "--uts", "--ipc")

    def __init__(self, place, system=None):
        """`system`: the folder with it; this machine's release unless given."""
        self._root = f"{place}/root"
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *self._entry(), "unshare", *self.NAMESPACES,
             "--fork", "--kill-child", "--propagation", "private", "sh", "-c",
             self.MOUNT + self.FIRST, "sh", place, system or base()],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if self._holder.stdout.readline() != "ready\n":
            self.close()
            raise AssertionError("the mounts of the clean system failed")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self._first = children.read_text().split()[0]

    def _entry(self):
        """How the first process comes to where it shall be."""
        return ()

    def path(self, inside):
        return Path(f"/proc/{self._first}/cwd{inside}")

    def command(self, command, user="root", **env):
        """The arguments of Popen for a shell command in here."""
        enter = ["nsenter", "-t", self._first, "-m", "-p", "-u", "-i", "--", "chroot",
                 f"--userspec={user}", self._root, "/bin/sh", "-c", f"cd /tmp\n{command}"]
        return {"args": enter,
                "env": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp",
                        "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **env}}

    def try_run(self, command, timeout=300, **options):
        return subprocess.run(**self.command(command, **options), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout)

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
        return self.run("cat /proc/[0-9]*/comm 2>/dev/null || true").split()  # some end meanwhile

    def close(self):
        self._holder.kill()  # and with it, at once, all that is in here
        self._holder.wait()
        self._holder.stdout.close()


class Booted(Chroot):
    """A clean system that systemd runs, in a cgroup of its own."""

    # systemd takes over; `container` keeps it from what is the machine's.
    FIRST = """
      mount -t cgroup2 cgroup2 sys/fs/cgroup
      for unit in systemd-logind getty@ console-getty systemd-sysctl; do
        ln -s /dev/null "etc/systemd/system/$unit.service"
      done
      echo ready
      exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd \
        --system --unit=multi-user.target --log-target=null
    """
    NAMESPACES = (*Chroot.NAMESPACES, "--cgroup")

    def __init__(self, place):
        hosts.remove_stale()
        self._cgroup = Path(tempfile.mkdtemp(prefix=f"{hosts.PREFIX}{os.getpid()}-", dir=hosts.cgroup2_mount()))
        self._cgroup.chmod(0o755)  # users look into the root of a machine's cgroups
        super().__init__(place)
        launching.wait_until(
            lambda: self.try_run("systemctl is-system-running").stdout == "running\n", 60,
            lambda: self.try_run("systemctl --failed; systemctl list-jobs").stdout)

    def _entry(self):
        return ("sh", "-c", f'echo $$ >{self._cgroup}/cgroup.procs && exec "$@"', "sh")

    def path(self, inside):
        return Path(f"/proc/{self._first}/root{inside}")

    def go_down(self):
        """As a machine does that is switched off."""
        self.run("systemctl poweroff")

    def is_down(self):
        return self._holder.poll() is not None

    def close(self):
        super().close()
        events = self._cgroup / "cgroup.events"
        launching.wait_until(lambda: "populated 0" in events.read_text(), 60, "processes are left")
        hosts.remove_cgroup_tree(self._cgroup)
        assert not self._cgroup.exists()
