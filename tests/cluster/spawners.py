# SPDX-License-Identifier: Apache-2.0
"""A host with users, dtrain-spawner as root and a resident agent of the user dtrain, which has it start jobs."""
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import hosts
import launching
import residents

RUN = "/run/dtrain-spawner"
SHEPHERD = "/run/dtrain-shepherd"
# Of this run of tests alone: limits of processes count those of a number wherever they are.
USERS = {"alice": 100_000 + os.getpid(), "bob": 50_000_000 + os.getpid(), "dtrain": 70_000_000 + os.getpid()}


def add_users(node):
    """Each in a group of the same number, with a home and the head's key."""
    for name in ("passwd", "group"):
        lines = [f"{user}:x:{uid}:{uid}::/home/{user}:/bin/sh\n" if name == "passwd" else f"{user}:x:{uid}:\n"
                 for user, uid in USERS.items()]
        (node.base / name).write_text(Path(f"/etc/{name}").read_text() + "".join(lines))
        node.run(["mount", "--bind", node.base / name, f"/etc/{name}"])
    with open(node.base / "shadow", "a") as shadow:
        shadow.writelines(f"{user}:*:19000:0:99999:7:::\n" for user in USERS)
    node.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/home"])
    for user, uid in USERS.items():
        node.path(f"/home/{user}").mkdir()
        os.chown(node.path(f"/home/{user}"), uid, uid)


def become(user):
    uid = USERS[user]

    def change():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    return change


class Spawner:
    """`dtrain-spawner` on one host. It can be killed and started again."""

    def __init__(self, host, flags=(), unit="."):
        """`unit`: the cgroup, below the host's, in which it makes those of jobs."""
        self.host = host
        self.flags = list(flags)
        self._unit = unit
        self.process = None
        self._log = tempfile.TemporaryFile()
        program = host.path(SHEPHERD)
        shutil.copyfile(hosts.bin_dir() / "dtrain-shepherd", program)
        program.chmod(0o711)  # as it is to be installed: nobody can read it

    def start(self):
        lines = self.log.count("serves uid")
        self.process = self.host.popen(
            [hosts.bin_dir() / "dtrain-spawner", "--run-dir", RUN, "--shepherd", SHEPHERD, *self.flags],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True,
            before_exec=self._enter_unit)
        launching.wait_until(lambda: self.log.count("serves uid") > lines or self.process.poll() is not None, 20,
                             lambda: self.log)
        assert self.process.poll() is None, self.log
        return self

    def _enter_unit(self):
        """As systemd would start it. A unit that has controllers for its children takes no process itself."""
        if self._unit != ".":
            Path(f"/sys/fs/cgroup/{self._unit}/spawner/cgroup.procs").write_text("0")

    @property
    def cgroup(self):
        return self.host.cgroup_dir / self._unit

    @property
    def log(self):
        return launching.read_all(self._log).decode(errors="replace")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def jobs(self):
        """What it has of jobs: folders and cgroups."""
        left = list(self.host.path(f"{RUN}/jobs").glob("*"))
        return left + list((self.cgroup / "jobs").glob("*/*/"))

    def stop(self):
        launching.wait_until(lambda: not self.jobs(), 10, lambda: f"{self.jobs()}\n{self.log}")
        self.kill()
        with contextlib.suppress(FileNotFoundError):
            # A child that closes what an agent gave ends with it.
            launching.wait_until(lambda: not (self.cgroup / "spawner/cgroup.procs").read_text(), 10, "it has a child")
            hosts.remove_cgroup_tree(self.cgroup / "jobs")
            hosts.remove_cgroup_tree(self.cgroup / "spawner")
        shutil.rmtree(self.host.path(RUN))
        self.host.path(SHEPHERD).unlink()


def make_agent(host, flags=(), user="dtrain"):
    state = host.path(residents.STATE)
    state.mkdir(exist_ok=True)
    os.chown(state, USERS[user], USERS[user])
    return residents.Resident(host, ["--spawner", f"{RUN}/agent.sock", *flags], cwd="/", before_exec=become(user),
                              env={"HOME": f"/home/{user}", "USER": user})
