# SPDX-License-Identifier: Apache-2.0
"""The machine that launched a detached job was away: a laptop that was suspended, a host that crashed."""
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from detached import launch
from launching import Launch, wait_until
from leftovers import processes
from test_detached import COUNTS, all_workers, check_output, ended, private, state  # noqa: F401

LEASE = 1
FLAGS = ["--lease", f"{LEASE}s", "--grace", "1s"]


SUCCEEDS = [*COUNTS[:2], COUNTS[2].replace("exit $((CODE + RANK))", "exit 0")]


def counting(cluster, *flags):
    assert SUCCEEDS != COUNTS
    job = launch(cluster, [*FLAGS, *flags, *cluster.hosts_flag(1), "--", *SUCCEEDS])
    wait_until(lambda: all(job.output(rank) for rank in range(4)), 60, lambda: job.log)
    return job


def suspend(cluster):
    """All of the job on the machine that launched it. What wakes them."""
    stopped = [pid for pid, _, _ in processes(cluster.head)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)

    def wake():
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    return wake


def grows(job, ranks):
    at = {rank: len(job.output(rank)) for rank in ranks}
    wait_until(lambda: all(len(job.output(rank)) > at[rank] + 50 for rank in ranks), 60, lambda: job.log)


# The workers run on, as --away is an hour, and what they write meanwhile is kept on their hosts.
def test_a_suspended_laptop_costs_no_worker_and_no_byte(cluster, private, ended):  # noqa: F811
    job = counting(cluster)
    before, launcher = all_workers(cluster), job.launcher
    wake = suspend(cluster)
    time.sleep(10.5 * LEASE)  # that long it is away
    wake()
    grows(job, range(4))
    assert all_workers(cluster) == before and job.launcher == launcher, job.log
    assert job.holder["generation"] == 1 and not (job.folder / "logs/1").exists(), job.log
    ended()
    assert job.wait(60)["exit_code"] == 0, job.log
    for rank in range(4):
        check_output(job, rank)


# With --max-restarts their hosts end them after the lease, as others may be started in their place; they are.
def test_a_job_that_may_restart_does_so_after_a_suspension(cluster, private, ended):  # noqa: F811
    job = counting(cluster, "--max-restarts", 2)
    wake = suspend(cluster)
    wait_until(lambda: not any(all_workers(cluster)), LEASE + 20, lambda: all_workers(cluster))
    wake()
    wait_until(lambda: all(f"begin {rank} 1\n".encode() in job.output(rank, attempt=1) for rank in range(4)), 40,
               lambda: job.log)
    assert all(len(of) == 1 for of in all_workers(cluster)), all_workers(cluster)
    assert job.stop().returncode == 0
    assert job.wait(60)["exit_code"] == 143 and not any(all_workers(cluster))


def rebooted(host, path):
    """As a file is found there after the reboot: of another boot, in which process 1 was started at the same time."""
    text = json.loads(path.read_text())
    started = Path(f"/proc/{host.pid}/stat").read_text().rpartition(")")[2].split()[19]
    text.update(boot_id="11111111-2222-3333-4444-555555555555", pid=1, start_time=int(started))
    path.write_text(json.dumps(text))


def shut_down(cluster, job):
    """Processes are asked to end first; a launcher that obeys leaves its job alone."""
    for pid in (job.minder, job.launcher):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: job.minder is None and job.launcher is None, 60, lambda: job.log)
    assert re.search(r"this launcher was ended by SIGTERM(, sent by [^;]*)?; the job is left to the next launcher", job.log), job.log


@pytest.mark.launcher_killed
@pytest.mark.parametrize("how", ["crashed", "was shut down"])
def test_a_job_whose_launching_host_is_taken_over(cluster, private, ended, how):  # noqa: F811
    job = counting(cluster)
    before = all_workers(cluster)
    if how == "crashed":
        job.kill_launcher()
    else:
        shut_down(cluster, job)
    for name in ("lock", "minder"):
        rebooted(cluster.head, job.folder / name)
    for path in cluster.head.path("/run/dtrain").glob("*"):  # a tmpfs
        path.unlink()
    dtrain = cluster.programs / "dtrain"
    shown = cluster.head.run([dtrain, "show", job.id]).stdout
    assert f"{job.id}: unattended\n" in shown and f"dtrain attach {job.id}" in shown, shown
    assert "supervised by" not in shown, shown
    assert "unattended" in cluster.head.run([dtrain, "ps"]).stdout and all_workers(cluster) == before
    attached = Launch(cluster.head, [dtrain, "attach", job.id])
    attached.wait_for(f"dtrain: {job.id} had no launcher (since ", stream="err")
    assert re.search(r"\): started a new one$", attached.err, re.M), attached.err
    wait_until(lambda: job.holder.get("generation") == 2 and job.holder["stage"] != "opens", 60, lambda: job.log)
    grows(job, range(4))
    assert all_workers(cluster) == before and job.minder, job.log
    ended()
    result = attached.wait(60)
    assert result.code == 0 == job.wait(60)["exit_code"], result
    for rank in range(4):
        check_output(job, rank)


# Its hosts would have waited for an hour: none of them has ended a worker because of the pause.
def test_a_rank_that_fails_after_a_suspension_fails_by_itself(cluster, private, ended):  # noqa: F811
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    wait_until(lambda: all(job.output(rank) for rank in range(4)), 60, lambda: job.log)
    wake = suspend(cluster)
    time.sleep(3 * LEASE)
    wake()
    grows(job, range(4))
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44, job.log
