# SPDX-License-Identifier: Apache-2.0
"""Resident agents on the hosts of a cluster, as systemd would run them."""
import os
import shutil
import signal
import subprocess
import tempfile

import hosts
import launching

STATE = "/run/dtrain-agent"


class Resident:
    """`dtrain-agent serve` on one host. It can be killed and started again."""

    def __init__(self, host, flags=(), env=None, **options):
        """`options`: of Host.popen, as before_exec and cwd."""
        self.host = host
        self._options = options
        self._env = env
        self.process = None
        self.flags = [str(flag) for flag in flags]
        self.program = hosts.bin_dir() / "dtrain-agent"  # from the next start on
        self._log = tempfile.TemporaryFile()

    def start(self):
        lines = self.log.count("serving on")
        self.process = self.host.popen(
            [str(self.program), "serve", *self.flags], env=self._env,
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True,
            **self._options)
        launching.wait_until(lambda: self.log.count("serving on") > lines or self.ended(), 20,
                             lambda: self.log)
        assert not self.ended(), self.log
        return self

    def ended(self):
        return self.process.poll() is not None

    @property
    def log(self):
        return launching.read_all(self._log).decode(errors="replace")

    @property
    def pid(self):
        return self.process.pid

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self.process = None

    def restart(self):
        """As `systemctl restart` does it with KillMode=process."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(10) == 0, self.log
        self.start()

    def jobs(self):
        """Folders of jobs that it has on disk."""
        folder = self.host.path(f"{STATE}/jobs")
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def cgroups(self):
        if self.host.cgroup_dir is None:
            return []
        return [path.name for path in self.host.cgroup_dir.iterdir()
                if path.is_dir() and path.name.startswith("dtrain-")]

    def stop(self):
        """Ends it and fails when it leaves more than its own folder. It is gone in any case: what has failed in one
        test is not in the way of the next."""
        try:
            if self.process is not None:
                assert not self.ended(), f"ended with {self.process.returncode}\n{self.log}"
                launching.wait_until(lambda: not self.jobs() and not self.cgroups(), 10,
                                     lambda: f"{self.jobs()} {self.cgroups()}\n{self.log}")
                self.process.send_signal(signal.SIGTERM)
                assert self.process.wait(10) == 0, self.log
        finally:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
                self.process = None
            shutil.rmtree(self.host.path(STATE), ignore_errors=True)
