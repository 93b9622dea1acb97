# SPDX-License-Identifier: Apache-2.0
"""F15, F16: detached jobs whose state folder lies on a disk that stalls, as a home on an NFS server does that is away for a
while, that answers with errors, or that is full. The workers and their nodes do not notice; no byte is lost.

The disk fills up at six random syncs; DTRAIN_SYNCS and DTRAIN_SEED extend or repeat this."""
import contextlib
import errno
import json
import os
import random
import re
import shutil
import signal
import time

import pytest

from detached import STATE, Job, launch, launchers, minders, stop_all
from faulty_disk import EVERYTHING, FULL, SLOW_SYNCS, SLOW_WRITES, SYNCS, FaultyDisk
from launching import Launch, only_job, wait_until
from leftovers import processes
from test_detached import COUNTS, all_workers, check_output, ended, residents, state  # noqa: F401

pytest.importorskip("fusepy", reason="there is no python3-fusepy to make a disk that stalls with")
pytestmark = pytest.mark.launcher_killed

SUCCEEDS = [*COUNTS[:2], COUNTS[2].replace("exit $((CODE + RANK))", "exit 0")]
assert SUCCEEDS != COUNTS
LEASE = 1
FLAGS = ["--lease", f"{LEASE}s", "--grace", "1s"]
STALL = 3 * LEASE
RANKS = range(4)
JOBS = "/root/.local/state"


@pytest.fixture
def home(state, cluster, residents):  # noqa: F811
    """The disk with the folder of jobs. It is good again before the test's jobs are ended."""
    cluster.head.path(JOBS).mkdir(parents=True)
    with FaultyDisk(cluster.head, JOBS) as disk:
        yield disk
        disk.heal()
        stop_all(cluster.head)
        wait_until(lambda: not launchers(cluster.head) and not minders(cluster.head), 20, "a launcher stays")


def counting(cluster, *flags, command=SUCCEEDS):
    job = launch(cluster, [*FLAGS, *flags, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *command])
    wait_until(lambda: all(b":5\n" in job.output(rank) for rank in RANKS), 20, lambda: job.log)
    return job


def grows(job, seconds=20):
    at = [len(job.output(rank)) for rank in RANKS]
    wait_until(lambda: all(len(job.output(rank)) > at[rank] + 50 for rank in RANKS), seconds, lambda: job.log)


def command(cluster, *words):
    return Launch(cluster.head, [cluster.programs / "dtrain", *words])


def reading(cluster, job):
    return [command(cluster, "ps"), command(cluster, "ps", "-a"), command(cluster, "status", job.id),
            command(cluster, "logs", job.id), command(cluster, "show", job.id), command(cluster, "history")]


def ends_well(job, end, attempt=0):
    end()
    assert job.wait(30)["exit_code"] == 0, job.log
    for rank in RANKS:
        check_output(job, rank, attempt)


# ---- it stalls ------------------------------------------------------------------------------------


# The launcher says it is there from a thread that waits for no disk, so also a lease (--max-restarts) does not end workers.
@pytest.mark.parametrize("what, flags", [
    pytest.param(None, [], id="everything, no restarts"), pytest.param(None, ["--max-restarts", 2], id="everything"),
    pytest.param(SLOW_WRITES, ["--max-restarts", 2], id="writes")])
def test_a_stall_costs_no_worker_and_no_byte(cluster, home, ended, what, flags):  # noqa: F811
    job = counting(cluster, *flags)
    before, launcher = all_workers(cluster), job.launcher
    if what:
        home.fail(what)
        began = time.monotonic()
        wait_until(lambda: home.hits > 0, 10, "nothing was written")
        # Who only reads is answered.
        for each in reading(cluster, job):
            assert each.wait(10).code == 0, each.err
        time.sleep(max(0, began + STALL - time.monotonic()))
        assert all_workers(cluster) == before, job.log
        home.heal()
    else:
        with home.frozen():
            began = time.monotonic()
            # They wait, as all do who look there, and Ctrl-C ends them.
            leaves = reading(cluster, job)
            time.sleep(1)
            for each in leaves:
                each.signal(signal.SIGINT)
            for each in leaves:
                assert each.wait(5).code in (0, -signal.SIGINT), each.err
            waits = reading(cluster, job)
            time.sleep(max(0, began + STALL - time.monotonic()))
            assert all_workers(cluster) == before
        for at, each in enumerate(waits):
            # `ps` (the first two) does not wait for longer than 3 s, and says that more may be missing.
            assert each.wait(10).code in ([0, 207] if at < 2 else [0]), each.err
    grows(job)
    assert all_workers(cluster) == before and job.launcher == launcher, job.log
    assert job.holder["generation"] == 1 and not (job.folder / "logs/1").exists(), job.log
    ends_well(job, ended)


@pytest.mark.parametrize("what", [None, SLOW_SYNCS], ids=["everything", "syncs"])
def test_a_rank_fails_during_a_stall(cluster, home, ended, what):  # noqa: F811
    job = counting(cluster, command=COUNTS)
    first = cluster.nodes[1].base / "tmp/end-of-test"
    if what:
        home.fail(what)
        wait_until(lambda: home.hits > 0, 10, "nothing was written")
        first.touch()
        wait_until(lambda: not all_workers(cluster)[1], 10, lambda: all_workers(cluster))
        time.sleep(LEASE + 1)
        assert job.summary is None
        home.heal()
    else:
        with home.frozen():
            first.touch()
            wait_until(lambda: not all_workers(cluster)[1], 10, lambda: all_workers(cluster))
            time.sleep(LEASE + 1)
    summary = job.wait(20)
    assert summary["exit_code"] == 41 and summary["verdict"]["first_failed_rank"] == 1, (summary, job.log)
    assert not any(all_workers(cluster))
    check_output(job, 1)


@contextlib.contextmanager
def locked(cluster, home):
    """Meanwhile another process makes a folder beside those of the jobs, and the kernel lets nobody list them."""
    heal = home.fail("STALL mkdir")
    making = Launch(cluster.head, ["mkdir", f"/{STATE}/jobs/.new.other"])
    try:
        wait_until(lambda: home.hits > 0, 10, lambda: making.err)
        yield
    finally:
        heal()
        making.wait(10)


# In one line, soon enough, and Ctrl-C ends them: nothing has begun.
@pytest.mark.parametrize("is_locked", [False, True], ids=["everything", "locked"])
def test_a_command_tells_what_it_waits_for(cluster, home, ended, is_locked):  # noqa: F811
    job = counting(cluster)
    before = all_workers(cluster)
    with locked(cluster, home) if is_locked else home.frozen():
        asked = [command(cluster, *words) for words in
                 (["history"], ["show", job.id], ["wait", job.id], ["attach", job.id], ["stop", job.id],
                  ["resume", job.id], ["rm", job.id], ["prune"])]
        for each in asked:
            each.wait_for(f"cannot read /{STATE}/jobs: its file system has not answered", timeout=15, stream="err")
            each.signal(signal.SIGINT)
        for each in asked:
            result = each.wait(5)
            assert result.code == -signal.SIGINT and result.out == "" and len(result.err.splitlines()) == 1, result
        waits = command(cluster, "show", job.id)
        waits.wait_for("waiting for it", timeout=15, stream="err")
    assert waits.wait(10).code == 0 and job.id in waits.out, waits.err
    assert all_workers(cluster) == before, job.log
    ends_well(job, ended)


# Those that have looked already; of files that cannot be opened, also one whose first look was answered.
@pytest.mark.parametrize("what", [None, "STALL open"], ids=["everything", "files"])
def test_a_command_that_has_begun_tells_of_a_stall(cluster, home, ended, what):  # noqa: F811
    job = counting(cluster)
    before = all_workers(cluster)
    shows = [command(cluster, *words) for words in (["attach", job.id], ["logs", "-f", job.id], ["top", job.id])]
    for each in shows:
        each.wait_for(":")
    waits = command(cluster, "wait", job.id)
    asked = [*shows, waits]
    # It prints nothing. Once the folder has answered for the first time, a thread watches further looks.
    wait_until(lambda: len(os.listdir(f"/proc/{waits.process.pid}/task")) > 1, 10, lambda: waits.err)
    with contextlib.ExitStack() as stalls:
        if what:
            home.fail(what)
            asked.append(command(cluster, "show", job.id))
        else:
            stalls.enter_context(home.frozen())
        for each in asked:
            each.wait_for(f"still waiting for /{STATE}", timeout=15, stream="err")
            assert each.err.count("has not answered") == 0 and each.err.count("still waiting for") == 1, each.err
        if what:
            for each in asked:
                each.signal(signal.SIGINT)
            for each in asked:
                assert each.wait(5).code == -signal.SIGINT, each.err
            home.heal()
    assert all_workers(cluster) == before, job.log
    if not what:
        # They go on.
        at = [each.out.count("\n") for each in shows]
        for each, lines in zip(shows, at):
            wait_until(lambda: each.out.count("\n") > lines, 20, lambda: each.err)  # noqa: B023
        for each in asked:
            each.signal(signal.SIGINT)
            assert each.wait(5).code in (0, -signal.SIGINT), each.err
    ends_well(job, ended)


# Those that change something, too, once the folder has answered.
def test_a_command_that_changes_the_folder_tells_of_a_stall(cluster, home, ended):  # noqa: F811
    home.fail(SLOW_SYNCS)
    launching = cluster.start_launch(["-d", *FLAGS, *cluster.hosts_flag(1), "--", *SUCCEEDS])
    launching.wait_for(f"still waiting for /{STATE}", timeout=15, stream="err")
    home.heal()
    result = launching.wait(20)
    assert result.code == 0 and result.err.count("still waiting for") == 1, result
    job = Job(cluster, result.out.strip())
    wait_until(lambda: all(job.output(rank) for rank in RANKS), 20, lambda: job.log)
    ends_well(job, ended)
    wait_until(lambda: job.launcher is None and job.minder is None, 20, lambda: job.log)
    home.fail("STALL rename")
    remove = command(cluster, "rm", job.id)
    remove.wait_for(f"still waiting for /{STATE}", timeout=15, stream="err")
    remove.signal(signal.SIGINT)
    assert remove.wait(5).code == -signal.SIGINT and job.folder.exists(), remove.err
    prune = command(cluster, "prune", "--keep-jobs", "0")
    prune.wait_for(f"still waiting for /{STATE}", timeout=15, stream="err")
    home.heal()
    assert prune.wait(20).code == 0 and job.id in prune.out and not job.folder.exists(), prune.err


# What its launcher tells is there at once, and that more is missing.
def test_ps_lists_what_launchers_tell(cluster, home, ended):  # noqa: F811
    job = counting(cluster)
    with home.frozen():
        listed, as_json = command(cluster, "ps"), command(cluster, "ps", "--json")
        for each in (listed, as_json):
            result = each.wait(10)
            assert result.code == 207 and job.id in result.out, result
            assert f"cannot read /{STATE}/jobs: its file system has not answered for 3 s" in result.err, result
            assert "only jobs whose launchers answer" in result.err and len(result.err.splitlines()) == 1, result
        assert job.id in str(json.loads(as_json.out)["jobs"]), as_json.out
    ends_well(job, ended)


# From its start on, whether it has found the job or not.
def test_a_wait_has_its_time_limit_in_a_stall(cluster, home, ended):  # noqa: F811
    job = counting(cluster)
    has_begun = command(cluster, "wait", "--timeout", "10", job.id)
    wait_until(lambda: len(os.listdir(f"/proc/{has_begun.process.pid}/task")) > 1, 10, lambda: has_begun.err)
    # A frozen disk would hold a process that is killed, too, which no file server does.
    home.fail(f"STALL {EVERYTHING}")
    began = time.monotonic()
    result = command(cluster, "wait", "--timeout", "4", job.id).wait(15)
    assert result.code == 210 and result.out == "" and time.monotonic() - began >= 4, result
    told = re.findall(r"its file system has not answered for (\d+) s", result.err)
    assert len(told) == 2 and int(told[0]) >= 3 and int(told[1]) >= 4, result
    result = has_begun.wait(20)
    assert result.code == 210 and f"still waiting for /{STATE}" in result.err, result
    assert "the time limit is reached" in result.err, result
    home.heal()
    ends_well(job, ended)


# After su, XDG_STATE_HOME may name another user's folder. The one in the home is used and named.
def test_the_folder_that_stalls_is_named(cluster, home, ended):  # noqa: F811
    other = cluster.head.path("/tmp/other-state")
    other.mkdir()
    os.chown(other, 12345, 12345)
    try:
        with home.frozen():
            asks = Launch(cluster.head, [cluster.programs / "dtrain", "history"],
                          env={"XDG_STATE_HOME": "/tmp/other-state"})
            asks.wait_for(f"cannot read /{STATE}/jobs: its file system has not answered", timeout=10, stream="err")
        assert asks.wait(10).code == 0, asks.err
    finally:
        other.rmdir()


# It says so to the other end, which keeps the job, and leaves.
def test_a_job_does_not_move_into_a_stall(cluster, state, residents, ended):  # noqa: F811
    node = cluster.nodes[1]
    try:
        node.path(JOBS).mkdir(parents=True, exist_ok=True)
        job = counting(cluster)
        before, launcher = all_workers(cluster), job.launcher
        with FaultyDisk(node, JOBS) as disk, disk.frozen():
            result = command(cluster, "migrate", "--program", cluster.programs / "dtrain", "--to", node.name,
                             job.id).wait(30)
        assert result.code == 1 and f"cannot read /{STATE}/jobs: its file system has not answered" in result.err, result
        assert all_workers(cluster) == before and job.launcher == launcher, job.log
        ends_well(job, ended)
    finally:
        stop_all(cluster.head)
        shutil.rmtree(node.base / "root/.local", ignore_errors=True)


# Its launcher has all that these need, and its socket is not in the home.
def test_a_job_with_a_terminal_needs_no_records(cluster, home, ended):  # noqa: F811
    launched = cluster.start_launch([*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *SUCCEEDS])
    launched.wait_for("[3] 3:20\n")
    job = only_job(cluster.head)
    with home.frozen():
        status, logs, detach = asked = [command(cluster, verb, job) for verb in ("status", "logs", "detach")]
        for each in asked:
            each.wait_for("continuing with what the job's launcher knows", timeout=5, stream="err")
        assert status.wait(10).code == 0 and job in status.out, status.err
        assert logs.wait(10).code == 0 and "3:20\n" in logs.out, logs.err
        assert detach.wait(20).code == 1 and "does not answer: try again when it does" in detach.err, detach.err
        stop = command(cluster, "stop", job).wait(30)
        assert stop.code == 0, stop
        assert launched.wait(20).code == 143, launched.err
    assert not any(all_workers(cluster))


# The command waits for the disk to take the request; then the job ends.
def test_a_stop_during_a_stall(cluster, home, ended):  # noqa: F811
    job = counting(cluster)
    home.fail(SLOW_WRITES)
    wait_until(lambda: home.hits > 0, 10, "nothing was written")
    left = command(cluster, "stop", job.id)
    stop = command(cluster, "stop", job.id)
    time.sleep(1)
    left.signal(signal.SIGINT)
    assert left.wait(5).code in (-signal.SIGINT, 130), left.err
    time.sleep(LEASE)
    home.heal()
    assert stop.wait(20).code == 0, stop.err
    assert job.wait(10)["exit_code"] == 143, job.log
    assert not any(all_workers(cluster))


# Nothing has been promised, so nothing runs.
def test_a_launch_during_a_stall_can_be_left(cluster, home, ended):  # noqa: F811
    args = ["-d", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=0", "--", *SUCCEEDS]
    with home.frozen():
        left = cluster.start_launch(args)
        left.wait_for("its file system has not answered", timeout=10, stream="err")
        assert left.process.poll() is None and left.out == "" and not any(all_workers(cluster))
        left.signal(signal.SIGINT)
        assert left.wait(5).code in (-signal.SIGINT, 130), left.err
        # Not beside the first: who looks for the same name waits in the kernel, and no signal ends that.
        stays = cluster.start_launch(args)
        stays.wait_for("waiting for it", timeout=10, stream="err")
        assert stays.process.poll() is None and stays.out == "" and not any(all_workers(cluster))
    result = stays.wait(20)
    assert result.code == 0, result
    jobs = [path.name for path in (cluster.head.base / STATE / "jobs").iterdir() if not path.name.startswith(".")]
    assert jobs == [result.out.strip()], jobs
    job = Job(cluster, jobs[0])
    wait_until(lambda: all(job.output(rank) for rank in RANKS), 20, lambda: job.log)
    ends_well(job, ended)


# Wherever it waits: for the job's folder, or later, when another process has the job.
@pytest.mark.parametrize("after", [0, 4, 8, 12])
def test_a_stall_while_a_job_begins(cluster, home, ended, after):  # noqa: F811
    home.fail(SLOW_SYNCS, after)
    launching = cluster.start_launch(["-d", *FLAGS, *cluster.hosts_flag(1), "--", *SUCCEEDS])
    wait_until(lambda: home.hits > 0, 20, lambda: launching.err)
    time.sleep(LEASE)
    assert launching.process.poll() is None or launching.out
    home.heal()
    result = launching.wait(20)
    assert result.code == 0, result
    job = Job(cluster, result.out.strip())
    wait_until(lambda: all(job.output(rank) for rank in RANKS), 20, lambda: job.log)
    assert job.holder["generation"] == 1 and all(len(of) == 1 for of in all_workers(cluster)), job.log
    ends_well(job, ended)


# ---- it answers with errors -----------------------------------------------------------------------


@pytest.mark.parametrize("error", ["ESTALE", "EIO"])
def test_errors_for_a_while(cluster, home, ended, error):  # noqa: F811
    job = counting(cluster)
    before, launcher = all_workers(cluster), job.launcher
    follows = [command(cluster, "logs", "-f", job.id), command(cluster, "attach", job.id)]
    for each in follows:
        each.wait_for(":5\n")
    home.fail(f"{error} {EVERYTHING}")
    wait_until(lambda: home.hits > 0, 10, "nothing was written")
    words = os.strerror(getattr(errno, error))
    # Not that the job is gone.
    for each in follows:
        result = each.wait(10)
        assert result.code != 0 and words in result.err, result
    for each in reading(cluster, job):
        result = each.wait(10)
        assert result.code in (0, 1, 207), result
        assert result.code == 0 or words in result.err, result
    refused = cluster.launch(["-d", *cluster.hosts_flag(1), "--", "true"])
    assert refused.code == 207 and words in refused.err and refused.out == "", refused
    time.sleep(LEASE)
    assert all_workers(cluster) == before and job.launcher == launcher, job.log
    home.heal()
    grows(job)
    assert all_workers(cluster) == before and job.launcher == launcher, job.log
    assert not (cluster.head.base / STATE / "lost+found").exists()
    ends_well(job, ended)


# The new launcher cannot read the job, says so where it can, and leaves it alone.
def test_a_launcher_that_is_killed_while_there_are_errors(cluster, home, ended):  # noqa: F811
    job = counting(cluster)
    before = all_workers(cluster)
    home.fail(f"EIO {EVERYTHING}")
    os.kill(job.launcher, signal.SIGKILL)
    wait_until(lambda: job.minder is None and job.launcher is None, 20, lambda: processes(cluster.head))
    stop = job.stop()
    assert stop.returncode in (1, 207) and "Input/output error" in stop.stderr, stop
    assert all_workers(cluster) == before
    home.heal()
    attached = command(cluster, "attach", job.id)
    attached.wait_for(f"dtrain: {job.id} had no launcher", stream="err")
    grows(job)
    assert all_workers(cluster) == before and job.minder, job.log
    assert not (cluster.head.base / STATE / "lost+found").exists()
    ends_well(job, ended)
    assert attached.wait(20).code == 0


# ---- it is full -----------------------------------------------------------------------------------


def test_a_disk_that_is_full_for_a_while(cluster, home, ended):  # noqa: F811
    job = counting(cluster)
    before, launcher = all_workers(cluster), job.launcher
    home.fail(FULL)
    wait_until(lambda: home.hits > 0, 10, "nothing was written")
    refused = cluster.launch(["-d", *cluster.hosts_flag(1), "--", "true"])
    assert refused.code == 207 and "No space left on device" in refused.err and refused.out == "", refused
    assert JOBS in refused.err, refused
    warning = rf"^warning: the (output|journal) of {job.id} cannot be written since [:\d]+: .*No space left on device; make room"
    wait_until(lambda: re.search(warning, command(cluster, "status", job.id).wait(10).out, re.M),
               10, lambda: command(cluster, "status", job.id).wait(10))
    for each in reading(cluster, job):
        assert each.wait(10).code == 0, each.err
    time.sleep(LEASE)
    assert all_workers(cluster) == before and job.launcher == launcher
    home.heal()
    grows(job)
    assert all_workers(cluster) == before and job.launcher == launcher, job.log
    # Once it has been synced, too.
    wait_until(lambda: "cannot be written" not in command(cluster, "status", job.id).wait(10).out, 10,
               lambda: command(cluster, "status", job.id).wait(10))
    assert [path.name for path in job.folder.parent.iterdir()] == [job.id]
    ends_well(job, ended)


# The workers are stopped though nobody can write down that they shall be; nor, where no file can be made, ask by one.
@pytest.mark.parametrize("full", ["ENOSPC write", FULL], ids=["bytes", "all"])
def test_a_job_on_a_full_disk_can_be_stopped(cluster, home, ended, full):  # noqa: F811
    job = counting(cluster)
    home.fail(full)
    wait_until(lambda: home.hits > 0, 10, "nothing was written")
    stop = command(cluster, "stop", job.id)
    wait_until(lambda: not any(all_workers(cluster)) or stop.process.poll() is not None, 20, lambda: stop.err)
    home.heal()
    assert stop.wait(20).code == 0, stop.err
    assert job.wait(10)["exit_code"] == 143, job.log


# What is said while the log cannot be written is lost; what comes later is not.
def test_the_log_goes_on_when_there_is_room(cluster, home, ended):  # noqa: F811
    job = counting(cluster, command=COUNTS)
    home.fail(FULL)
    wait_until(lambda: home.hits > 2, 10, "nothing was written")
    home.heal()
    wait_until(lambda: "can be written again" in job.log, 10, lambda: job.log)
    ended()
    assert 40 <= job.wait(20)["exit_code"] < 44
    assert "exited with code" in job.log or "exit code 4" in job.log, job.log


# The journal has room in a block of its own, and for a folder there is none.
def test_a_restart_on_a_full_disk_waits_for_room(cluster, home, ended):  # noqa: F811
    fails = ["sh", "-c", 'echo "up $DTRAIN_ATTEMPT"; while [ ! -e /tmp/end-of-test ]; do sleep 0.05; done; '
                         '[ "$DTRAIN_ATTEMPT" = 1 ]']
    job = launch(cluster, [*FLAGS, "--max-restarts", 1, *cluster.hosts_flag(1), "--", *fails])
    wait_until(lambda: all(job.output(rank) for rank in RANKS), 20, lambda: job.log)
    home.fail("ENOSPC mkdir")
    ended()
    wait_until(lambda: home.hits > 0, 20, lambda: job.log)
    wait_until(lambda: "waits: the workers' output cannot be kept" in job.log or job.summary, 10, lambda: job.log)
    home.heal()
    assert job.wait(20)["exit_code"] == 0, job.log
    assert job.output(0, attempt=1) == b"up 1\n"


def syncs_of_a_job(cluster, home, end):
    """How many there are from its launch to its end."""
    home.fail(f"ENOSPC {SYNCS}", after=1 << 30)
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "--", *SUCCEEDS])
    end()
    job.wait(20)
    return home.passed


# J1 to J6, wherever something is synced: the k-th of all syncs fails, and those after it, until somebody has said so.
def test_a_full_disk_at_each_sync(cluster, home, ended):  # noqa: F811
    count = syncs_of_a_job(cluster, home, ended)
    assert count > 20, count
    seed = int(os.environ.get("DTRAIN_SEED") or random.randrange(1 << 30))
    tries = int(os.environ.get("DTRAIN_SYNCS") or 6)
    for k in sorted(random.Random(seed).sample(range(1, count + 1), min(tries, count))):
        about = f"sync {k} of {count}, DTRAIN_SEED={seed}"
        print(about, full_at(cluster, home, ended, k, about))


def full_at(cluster, home, end, k, about):
    """What was seen of it."""
    for host in cluster.nodes:
        (host.base / "tmp/end-of-test").unlink(missing_ok=True)
    jobs = cluster.head.base / STATE / "jobs"
    before = set(jobs.iterdir())
    home.fail(f"ENOSPC {SYNCS}", after=k - 1)
    launching = cluster.start_launch(["-d", *FLAGS, *cluster.hosts_flag(1), "--", *SUCCEEDS])

    def new():
        return next((Job(cluster, path.name) for path in set(jobs.iterdir()) - before
                     if not path.name.startswith(".")), None)

    def log():
        return new().log if new() else ""

    wait_until(lambda: home.hits > 0 or launching.process.poll() is not None, 20, lambda: (about, launching.err))
    if not home.hits:
        assert launching.wait(5).code == 0, about
        end()
        wait_until(lambda: home.hits > 0 or new().launcher is None, 20, lambda: (about, log()))
    # It says so, or ends.
    words = "No space left on device"
    wait_until(lambda: words in launching.err + log() or
               launching.process.poll() is not None and not launchers(cluster.head), 10,
               lambda: (about, launching.err, log()))
    if new() is None:  # never accepted
        result = launching.wait(10)
        assert result.code == 207 and words in result.err and result.out == "", (about, result)
        home.heal()
        assert set(jobs.iterdir()) == before and not any(all_workers(cluster)), about
        return "refused"
    told = words in launching.err + log()
    job = new()
    home.heal()
    seen = f"{'told' if told else 'not told'}, the launcher {'goes on' if job.launcher else 'has ended'}"
    result = launching.wait(20)
    if result.code == 207:  # the attempt could not begin: that is the end of the job
        assert words in result.err and result.out == "", (about, result)
        assert job.wait(10)["exit_code"] == 207 and not any(all_workers(cluster)), (about, job.log)
        return "could not begin"
    assert result.code == 0 or "dtrain attach" in result.err, (about, result)
    end()
    # Whoever waits for the job starts a launcher where there is none.
    waits = command(cluster, "wait", job.id).wait(30)
    assert waits.code == 0, (about, seen, waits, job.log)
    assert job.wait(20)["exit_code"] == 0, (about, job.log)
    for rank in RANKS:
        check_output(job, rank)
    return seen


# ---- detaching --------------------------------------------------------------------------------------


# It holds the asker, and not the job.
def test_a_job_is_not_detached_into_a_stall(cluster, home, ended):  # noqa: F811
    # Long enough for the next launcher to start, and shorter than the folder is waited for.
    launched = cluster.start_launch([*FLAGS, "--lease", "5s", *cluster.hosts_flag(1), "-x", "CODE=40", "--", *SUCCEEDS])
    launched.wait_for("[3] 3:20\n")
    before = all_workers(cluster)
    heal = home.fail(SLOW_WRITES)
    told = command(cluster, "detach").wait(30)
    assert told.code == 1 and "does not answer: try again when it does" in told.err, told
    # More than a lease later.
    assert all_workers(cluster) == before and launched.process.poll() is None
    at = launched.out.count("\n")
    wait_until(lambda: launched.out.count("\n") > at + 100, 20, lambda: launched.err)
    heal()
    wait_until(lambda: command(cluster, "detach").wait(30).code == 0, 20, lambda: launched.err)
    assert launched.wait(20).code == 210
    folders = list((cluster.head.base / STATE / "jobs").glob("dtrain-*"))
    assert len(folders) == 1, folders
    job = Job(cluster, folders[0].name)
    assert all_workers(cluster) == before
    ends_well(job, ended)
