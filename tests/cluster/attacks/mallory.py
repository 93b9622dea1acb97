# SPDX-License-Identifier: Apache-2.0
"""What the attacks share: a node with a resident agent of root's, where alice's job counts lines and
mallory has an account, too. A test takes `place`, and `alices_job` to have it attacked beside her."""
import os
import re
import subprocess
from pathlib import Path

import pytest

import hosts
import residents
from launching import patient

HERE = hosts.HERE / "attacks"
DTRAIN = hosts.bin_dir() / "dtrain"
# Of this run of tests alone: limits of processes count those of a number wherever they are.
ALICE, MALLORY = 100_000 + os.getpid(), 50_000_000 + os.getpid()
IDS = {"alice": ALICE, "mallory": MALLORY}  # of users and of their groups
RANKS = 2
GO = "/run/go"
COUNT = f"i=0; until [ -e {GO} ]; do echo line $i; i=$((i + 1)); sleep 0.02; done; echo last $i"


class Place:
    """One node. `agent` serves all of its users."""

    def __init__(self, cluster, **options):
        """`options`: of the agent, as before_exec."""
        self.cluster = cluster
        self.node = cluster.nodes[0]
        self.ids = IDS
        self.agent = residents.Resident(self.node, **options)

    def add_users(self):
        users = [f"{name}:x:{number}:{number}::/home/{name}:/bin/sh\n" for name, number in IDS.items()]
        groups = [f"{name}:x:{number}:\n" for name, number in IDS.items()]
        for name, lines in (("passwd", users), ("group", groups)):
            (self.node.base / name).write_text(Path(f"/etc/{name}").read_text() + "".join(lines))
            self.node.run(["mount", "--bind", self.node.base / name, f"/etc/{name}"])
        with open(self.node.base / "shadow", "a") as shadow:
            shadow.writelines(f"{name}:*:19000:0:99999:7:::\n" for name in IDS)
        self.node.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/home"])
        for name, number in IDS.items():
            for folder in (f"/home/{name}", f"/home/{name}/run"):
                self.node.path(folder).mkdir(mode=0o700)
                os.chown(self.node.path(folder), number, number)

    def popen(self, argv, user="mallory", **options):
        """A program of that user's on the node, as after a login."""
        def become():
            os.setgroups([self.ids[user]])
            os.setresgid(*[self.ids[user]] * 3)
            os.setresuid(*[self.ids[user]] * 3)

        env = {"HOME": f"/home/{user}", "USER": user, "LOGNAME": user,
               "XDG_RUNTIME_DIR": f"/home/{user}/run", "DTRAIN": str(DTRAIN)}
        return self.node.popen(argv, env=env, cwd="/", before_exec=become, **options)

    def start_attack(self, program, *args):
        return self.popen(["/usr/bin/python3", "-I", HERE / program, *args], text=True,
                          start_new_session=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def attack(self, program, *args, timeout=240):
        """Runs one of the programs in attacks/ as mallory. Returns what it wrote; it must succeed."""
        return self.end_attack(program, self.start_attack(program, *args), timeout)

    def end_attack(self, program, process, timeout):
        timeout = patient(timeout)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{program}: not over in {timeout} s\n{out}\n{err}") from None
        assert process.returncode == 0, f"{program}: {process.returncode}\n{out}\n{err}"
        return out

    def start_launch(self, *args, user="mallory"):
        """From the head, where every user's ssh key is root's. `args` may begin with flags."""
        return self.cluster.start_launch(["--wdir", "/", "--bind", "none", "--grace", "1s",
                                          "-H", f"{user}@node0:{RANKS}", *args])

    def pids_of(self, user):
        """Processes on the node, as the test sees them: {pid: command line}."""
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{entry}/ns/pid").st_ino != self.node.pid_namespace:
                    continue
                status = Path(f"/proc/{entry}/status").read_text()
                if re.search(rf"^Uid:\t{self.ids[user]}\t", status, re.M):
                    line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry)] = line.decode(errors="replace").strip()
            except OSError:
                continue
        return found

    def shepherds_of(self, user):
        return [pid for pid, line in self.pids_of(user).items() if line.endswith(" shepherd")]

    def pid_there(self, pid):
        """The number that the node knows a process by."""
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"^NSpid:.*\t(\d+)$", status, re.M).group(1))


class AlicesJob:
    def __init__(self, place, *flags):
        self._place = place
        self._launch = place.start_launch(*flags, "--", "sh", "-c", COUNT, user="alice")
        self._launch.wait_for("line 3\n", count=RANKS)

    def lines(self):
        return self._launch.out.count("line ")

    def check(self):
        """Ends the job: it has counted all the time, and not a line is missing."""
        self._place.node.path(GO).touch()
        result = self._launch.wait(60)
        self._place.node.path(GO).unlink()
        assert result.code == 0, result
        ranks = {}
        for line in result.lines:
            rank, word, number = re.fullmatch(r"\D*(\d+)\D* (line|last) (\d+)", line).groups()
            ranks.setdefault(rank, []).append((word, int(number)))
        assert len(ranks) == RANKS, result
        for said in ranks.values():
            count = len(said) - 1
            assert said == [*(("line", i) for i in range(count)), ("last", count)], said


@pytest.fixture
def place(make_cluster, request):
    """`agent_options` of the test's module: what its agent is started with, as before_exec. A test that has a
    parameter `kernel` is on that one."""
    kernel = request.getfixturevalue("kernel") if "kernel" in request.fixturenames else None
    made = Place(make_cluster(1, kernel=kernel), **getattr(request.module, "agent_options", {}))
    made.add_users()
    made.agent.start()
    yield made
    made.agent.stop()


@pytest.fixture
def alices_job(place):
    job = AlicesJob(place)
    yield job
    job.check()
