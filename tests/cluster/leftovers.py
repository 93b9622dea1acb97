# SPDX-License-Identifier: Apache-2.0
"""What a test left behind on the hosts of a cluster: processes (zombies included), files, cgroups, listening ports, named
sockets and sanitizer reports. Nothing may remain 5 s after the test (@pytest.mark.bound(30) allows 30 s), except what
KEPT and IGNORED name. test_harness.py shows that each kind is found, and has the canary that must fail."""
import contextlib
import os
import re
import signal
import time
from pathlib import Path

import checkout
import hosts

# The pushed agent is kept for the next launch, a half-written one is not; the name of the home; the folder for
# status sockets, but none of these; and the one for the state of elastic jobs, likewise.
KEPT = re.compile(r"/root/\.cache(/dtrain(/home|/state|/agent-[0-9a-f]+(/(dtrain-agent|used))?)?)?|/run/dtrain")
SSH_PORTS = (22, 2222)
# Mounted into every host, also when it lies below a watched folder (a bind mount of the same file
# system is none to is_mount).
CHECKOUT = {str(checkout.CHECKOUT), str(checkout.PROGRAMS.parent)}
WATCHED = ("/tmp", "/root", "/run", "/dev/shm")
# The test's own files, what ssh, mount and Python keep, and what sanitizers write (looked at apart).
IGNORED = re.compile(r"/root/(work|\.ssh|\.python_history|\.cache/(matplotlib|mesa_shader_cache))(/|$)"
                     r"|/root/\.local(/share|/state(/dtrain(/|$)|$)|$)"  # ended jobs are kept (detached.py)
                     r"|/root/\.cache/dtrain/stage(/(objects|hashes)(/|$)|/trees(/[^/]+)?$|$)"  # what --stage keeps
                     r"|/root/\.cache/dtrain/python(/[0-9a-f]{16}(/|$)|$)"  # what dtrain.run() sends
                     r"|/run/mount(/|$)|/tmp/sanitizer(/|$)"
                     r"|/tmp/crun\.\w{6}$|/run/libpod/exits/\w+$"  # crun's and podman's own, of those that were killed
                     r"|/run/(containers(/networks)?|crun)$"  # and what podman makes once, for ever
                     r"|/run/libpod(/(alive|alive\.lck|events(/events\.log(\.lock)?)?|exits))?$")


def without_children(pids):
    """Those whose parent is none of them: a shell's own child looks like it before it becomes `sleep`."""
    parents = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return [pid for pid in parents if parents[pid] not in parents]


def processes(host):
    """(pid, state, command line) of all processes of the host but its process 1 and sshd."""
    namespace = host.pid_namespace
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        try:
            if os.stat(f"/proc/{entry}/ns/pid").st_ino != namespace or pid == host.pid:
                continue
            state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            name = Path(f"/proc/{entry}/comm").read_text().strip()
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if host.sshd and pid == host.sshd.pid:
            continue
        line = b" ".join(words).decode(errors="replace").strip()
        unreaped = f" of {parent}, process 1 is {host.pid}" if state == "Z" else ""
        found.append((pid, state, line or f"[{name}]{unreaped}"))
    return found


def environment_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def is_mount(folder, name):
    """Not os.path.ismount, which resolves /proc/PID/root to this machine's own root."""
    try:
        return os.lstat(f"{folder}/{name}").st_dev != os.lstat(folder).st_dev
    except FileNotFoundError:
        return False


def files(host):
    """Paths below the watched folders, as the host sees them."""
    found = set()
    for top in WATCHED:
        root = host.path(top)
        for folder, names, leaves in os.walk(root):
            here = top + folder[len(str(root)):]
            names[:] = [name for name in names if not is_mount(folder, name)
                        and f"{here}/{name}" not in CHECKOUT
                        and not IGNORED.match(f"{here}/{name}")]
            for name in names + leaves:
                path = f"{here}/{name}"
                if not IGNORED.match(path) and not KEPT.fullmatch(path):
                    found.add(path)
    return found


def listening(host):
    """Sockets that wait for a peer, but for sshd's."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{host.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == "0A" and port not in SSH_PORTS:
                found.append(f"{table} port {port}")
    for line in Path(f"/proc/{host.pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7:
            found.append(f"unix socket {fields[7]}")
    return found


def cgroups(host):
    top = host.cgroup_dir
    if not top:
        return []
    return [folder[len(str(top)):] for folder, _, _ in os.walk(top) if folder != str(top)]


def sanitizer_reports(host):
    folder = host.base / "tmp" / "sanitizer"
    return [f"sanitizer report {path.name}:\n{path.read_text(errors='replace')[:4000]}"
            for path in folder.iterdir()]


class Leftovers:
    """Remembers what was there before a test, and tells what more is there after it."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._files = {host: files(host) for host in cluster.hosts}
        # A resource manager's daemons, for example.
        self._pids = {host: {pid for pid, _, _ in processes(host)} for host in cluster.hosts}
        self._sockets = {host: set(listening(host)) for host in cluster.hosts}

    def remove_dead_sockets(self):
        """The jobs that are still there."""
        listed = {host.name: host.run([self._cluster.programs / "dtrain", "ps"]).stdout for host in self._cluster.hosts}
        return [f"{name}: jobs\n{jobs}" for name, jobs in listed.items() if jobs != "no jobs\n"]

    def find(self):
        found = []
        for host in self._cluster.hosts:
            here = [f"process {pid} ({state}) {line[:200]}"
                    for pid, state, line in processes(host) if pid not in self._pids[host]]
            here += [f"file {path}" for path in sorted(files(host) - self._files[host])]
            here += [what for what in listening(host) if what not in self._sockets[host]]
            here += [f"cgroup {path}" for path in cgroups(host)]
            here += sanitizer_reports(host)
            found += [f"{host.name}: {what}" for what in here]
        return found

    def wait_for_none(self, seconds):
        """What is still there after `seconds`; returns at once when nothing is."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.find()
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    def remove(self):
        """So that one test's leftovers do not fail the next one."""
        for host in self._cluster.hosts:
            for pid, _, _ in processes(host):
                if pid in self._pids[host]:
                    continue
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            host.reap()
            host.remove_cgroups()
            for path in (host.base / "tmp" / "sanitizer").iterdir():
                path.unlink()
        self._files = {host: files(host) for host in self._cluster.hosts}


def wait_until_seen(before, seconds=10):
    """Something is found, and it stays: not the last of an ssh session."""
    deadline = time.monotonic() + seconds
    while not before.wait_for_none(1):
        assert time.monotonic() < deadline, "nothing was found"


def wait_for_no_processes(cluster, seconds, hosts=None):
    """For bounds that a fault row states: all processes gone within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        left = [(host.name, *row) for host in hosts or cluster.hosts for row in processes(host)]
        if not left:
            return
        assert time.monotonic() < deadline, f"still there after {seconds} s: {left}"
        time.sleep(0.02)


def secret_places(cluster, secret):
    """Where the bytes `secret` can be seen by others: command lines and our own environments."""
    needle = secret.encode()
    places = []
    for host in cluster.hosts:
        for pid, _, line in processes(host):
            if secret in line:
                places.append(f"{host.name}: command line of {pid}: {line[:300]}")
            if needle in environment_of(pid):
                places.append(f"{host.name}: environment of {pid}: {line[:300]}")
    return places
