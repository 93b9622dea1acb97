# SPDX-License-Identifier: Apache-2.0
"""F3, F4: the machine that has launched a detached job loses power, at any of its syncs. What was not synced is lost, or a part
of it. After the reboot the job is taken over: the same workers, every byte of output once, the same end.

Ten random cuts; DTRAIN_CUTS and DTRAIN_SEED extend or repeat them."""
import os
import random
import signal
import time

import pytest

from detached import STATE, Job, launchers, minders
from launching import Launch, wait_until
from losing_disk import LosingDisk
from test_detached import COUNTS, all_workers, check_output, end_all, ended, residents, state  # noqa: F401

pytest.importorskip("fusepy", reason="there is no python3-fusepy to make a disk that loses data with")

FLAGS = ["--lease", "1s", "--grace", "1s"]
SUCCEEDS = [*COUNTS[:2], COUNTS[2].replace("exit $((CODE + RANK))", "exit 0")]
assert SUCCEEDS != COUNTS
RANKS = range(4)
JOBS = "/root/.local/state"
# How many syncs there are at most, about.
WHILE_IT_BEGINS, WHILE_IT_RUNS, WHILE_IT_IS_TAKEN_OVER, WHILE_IT_ENDS = 26, 12, 10, 24


class Machine:
    """That launches a job, and loses power."""

    def __init__(self, cluster, disk, pick, removed):
        self.cluster = cluster
        self.disk = disk
        self.pick = pick
        self.removed = removed  # earlier jobs, which may be there again after a cut
        self.told = []  # what has happened to the present job
        self._attached = []

    def run(self, *words):
        return Launch(self.cluster.head, [self.cluster.programs / "dtrain", *words])

    def attach(self, job):
        self._attached.append(self.run("attach", job.id))
        return self._attached[-1]

    def all_left(self):
        """Those that were attached have seen the end, or were killed by a cut."""
        codes = [each.wait(60).code for each in self._attached]
        assert set(codes) <= {0, -signal.SIGKILL}, codes

    def arm(self, most):
        self.disk.cut_at(self.pick.randint(1, most), self.pick.randrange(1 << 30))

    def reboot(self, when):
        """After a cut."""
        self.told.append(f"{when}, {self.disk.what}")
        self.disk.reboot()
        wait_until(lambda: not launchers(self.cluster.head) and not minders(self.cluster.head), 60, "a process lives on")
        for path in self.cluster.head.path("/run/dtrain").glob("*"):  # a tmpfs
            path.unlink()

    def jobs(self):
        folder = self.cluster.head.base / STATE / "jobs"
        there = [path.name for path in folder.iterdir() if path.name[0] != "."] if folder.exists() else []
        return [name for name in there if name not in self.removed]

    def was_cut_before(self, condition, what):
        """Waits for one of both. Then there is no cut any more."""
        wait_until(lambda: self.disk.was_cut or condition(), 30, what)
        return self.disk.forget()

    def launch(self):
        """The job, if there is one, and whether its user knows."""
        if self.pick.random() < 0.5:
            self.arm(WHILE_IT_BEGINS)
        launch = self.cluster.start_launch(["-d", *FLAGS, *self.cluster.hosts_flag(1), "--", *SUCCEEDS])
        cut = self.was_cut_before(lambda: launch.process.poll() is not None, lambda: launch.err)
        if cut:
            self.reboot("while it begins")
        result = launch.wait(60)
        assert cut or result.code == 0, result
        assert len(self.jobs()) == 1 if result.out else len(self.jobs()) <= 1, (self.jobs(), result)
        if not self.jobs():
            return None, False
        job = Job(self.cluster, self.jobs()[0])
        assert result.out in ("", job.id + "\n"), result
        return job, bool(result.out)

    def take_over(self, job):
        """By one that lives; there may be cuts before."""
        while True:
            if self.pick.random() < 0.4:
                self.arm(WHILE_IT_IS_TAKEN_OVER)
            taken = job.start_launcher() if self.pick.random() < 0.3 else self.attach(job)
            ranks = [len(job.output(rank)) for rank in RANKS]
            cut = self.was_cut_before(
                lambda: job.summary or all(len(job.output(rank)) > ranks[rank] + 100 for rank in RANKS),
                lambda: (taken.err, job.log))
            if not cut:
                return
            self.reboot("while it is taken over")

    def end(self, job):
        """Which may be cut."""
        if self.pick.random() < 0.5:
            self.arm(WHILE_IT_ENDS)
        end_all(self.cluster)
        if self.was_cut_before(lambda: job.summary and job.launcher is None, lambda: job.log):
            self.reboot("while it ends")
        waits = self.run("wait", job.id).wait(30)
        assert waits.code == 0, (waits, job.log)
        job.wait(60)


def one_job(machine):
    """From its launch to its end."""
    cluster = machine.cluster
    job, known = machine.launch()
    if job is None:  # nobody was told that there is one
        assert not any(all_workers(cluster)), all_workers(cluster)
        return
    workers = all_workers(cluster)
    if machine.told:
        machine.take_over(job)
    for _ in range(machine.pick.choice([0, 1, 1, 2])):
        if not known:
            wait_until(lambda: all(job.output(rank) for rank in RANKS), 60, lambda: job.log)
            known, workers = True, all_workers(cluster)
        machine.arm(WHILE_IT_RUNS)
        wait_until(lambda: machine.disk.was_cut, 30, lambda: job.log)
        machine.reboot("while it runs")
        assert all_workers(cluster) == workers
        machine.take_over(job)
        assert all_workers(cluster) == workers, job.log
    if known:
        assert all_workers(cluster) == workers, job.log
    wait_until(lambda: all(b":2\n" in job.output(rank) for rank in RANKS), 60, lambda: job.log)
    assert all(len(of) == 1 for of in all_workers(cluster)), all_workers(cluster)
    machine.end(job)
    assert job.summary["exit_code"] == 0, job.summary
    for rank in RANKS:
        check_output(job, rank)
    assert not any(all_workers(cluster))
    machine.all_left()
    removed = machine.run("rm", job.id).wait(60)
    assert removed.code == 0 and not machine.jobs(), removed
    machine.removed.add(job.id)


@pytest.mark.launcher_killed
def test_power_cuts(state, cluster, residents, ended):  # noqa: F811
    cluster.head.path(JOBS).mkdir(parents=True)
    seed = int(os.environ.get("DTRAIN_SEED") or random.randrange(1 << 30))
    wanted = int(os.environ.get("DTRAIN_CUTS") or 10)
    cuts, removed, began = 0, set(), time.monotonic()
    with LosingDisk(cluster.head, JOBS) as disk:
        while cuts < wanted:
            machine = Machine(cluster, disk, random.Random(seed), removed)
            try:
                one_job(machine)
            except BaseException:
                print(f"DTRAIN_SEED={seed}, cuts: {machine.told}")
                raise
            print(f"{time.monotonic() - began:.0f} s: DTRAIN_SEED={seed}, cuts: {machine.told}")
            cuts += len(machine.told)
            seed += 1
            for host in cluster.nodes:
                (host.base / "tmp/end-of-test").unlink(missing_ok=True)
