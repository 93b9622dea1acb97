# SPDX-License-Identifier: Apache-2.0
"""Jobs that were launched with -d, as a test sees them: their folder, their launcher, their output."""
import fcntl
import json
import os
import re
import signal
import struct

import launching
import leftovers
from launching import wait_until
from test_resident import stat_of

STATE = "root/.local/state/dtrain"
F_OFD_GETLK, FLOCK = 36, "@hhqqi4x"  # fcntl(2)


class Job:
    def __init__(self, cluster, job_id, host=None):
        self.cluster = cluster
        self.host = host or cluster.head  # where its launcher is
        self.id = job_id
        self.folder = self.host.base / STATE / "jobs" / job_id
        self._started = []  # by us, to be reaped

    @property
    def holder(self):
        """What is written about its launcher; it may be gone."""
        return json.loads((self.folder / "lock").read_text() or "{}")

    @property
    def launcher(self):
        """Its process id, if it lives."""
        pids = [pid for pid in launchers(self.host) if self.id in pid[1]]
        assert len(pids) <= 1, pids
        return pids[0][0] if pids else None

    @property
    def is_free(self):
        """Nobody has the lock: not a launcher that is dead and not yet all gone, nor a child of it that is about to
        become another program."""
        with (self.folder / "lock").open() as file:
            asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            return struct.unpack(FLOCK, fcntl.fcntl(file, F_OFD_GETLK, asked))[0] == fcntl.F_UNLCK

    @property
    def minder(self):
        """The process id of what starts its launcher again, if it lives."""
        pids = [pid for pid, line in minders(self.host) if self.id in line]
        assert len(pids) <= 1, pids
        return pids[0] if pids else None

    def kill_minder(self):
        if pid := self.minder:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self.minder is None, 60, "it lives")

    def kill_launcher(self):
        """For good: nobody starts it again."""
        self.kill_minder()
        pid = wait_until(lambda: self.launcher, 60, "no launcher")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.launcher is None and self.is_free, 60, "it lives")
        for each in self._started:
            each.process.poll()

    def start_launcher(self):
        self._started.append(
            launching.Launch(self.host, [self.cluster.programs / "dtrain", "resume", self.id]))
        return self._started[-1]

    def output(self, rank, stream="out", attempt=0):
        """All bytes that are in its folder, with the place of each checked."""
        text, at = b"", 0
        folder = self.folder / "logs" / str(attempt)
        segments = sorted((int(path.name.rpartition(".")[2]), path)
                          for path in folder.glob(f"rank-{rank:05}.{stream}.*"))
        for begin, path in segments:
            assert begin == at, segments
            piece = path.read_bytes()
            text, at = text + piece, at + len(piece)
        return text

    @property
    def summary(self):
        path = self.folder / "summary.json"
        return json.loads(path.read_text()) if path.exists() else None

    def wait(self, timeout=60):
        """For its end: the summary."""
        wait_until(lambda: self.summary, timeout, lambda: f"{self.log}")
        wait_until(lambda: self.launcher is None, 60, "its launcher stays")
        wait_until(lambda: self.minder is None, 60, "its minder stays")
        for each in self._started:
            each.process.wait(60)
        return self.summary

    @property
    def log(self):
        path = self.folder / "launcher.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self):
        return self.host.run([self.cluster.programs / "dtrain", "stop", self.id], check=False)


def launchers(host):
    """(pid, command line) of those that live."""
    return _running(host, r"(dtrain|/exe) resume ")


def minders(host):
    """Likewise, of those that start them again."""
    return _running(host, r"dtrain mind |/exe mind ")


def stop_all(host):
    """Jobs of a test that has failed; as `dtrain stop` does it."""
    for pid, _ in minders(host):
        os.kill(pid, signal.SIGTERM)
    for pid, _ in launchers(host):
        os.kill(pid, signal.SIGRTMIN)


def _running(host, words):
    """A child of theirs, before it becomes another program, looks like one, and may outlive one that is killed. So who
    is dead is asked last: a parent that had died when its child was looked at is not counted beside it."""
    found = {pid: line for pid, state, line in leftovers.processes(host) if re.search(words, line) and state != "Z"}
    parents = {pid: stat_of(pid)[1] for pid in found}
    alive = {pid for pid in found if stat_of(pid)[0] not in ("", "Z", "X")}
    return [(pid, line) for pid, line in found.items() if pid in alive and parents[pid] not in map(str, found)]


def launch(cluster, args, timeout=60, **options):
    """`dtrain launch -d`, which has returned."""
    result = cluster.launch(["-d", *args], timeout, **options)
    assert result.code == 0, result
    return Job(cluster, result.out.strip())
