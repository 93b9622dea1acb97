# SPDX-License-Identifier: Apache-2.0
"""Jobs that outlive their terminal and their launcher (F1, F3, F6, F10, F11): the same processes, every byte once, the
same end."""
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import launching
import leftovers
import pytest
from detached import STATE, Job, launch, launchers, minders, stop_all
from launching import wait_until
from residents import STATE as AGENT_STATE
from residents import Resident
from test_resident import identity, shepherds

LEASE, GRACE = 3, 1
FLAGS = ["--lease", f"{LEASE}s", "--grace", f"{GRACE}s"]
# Counts until it is told to end, and ends with 40 + rank.
COUNTS = ["sh", "-c", 'echo "begin $RANK $DTRAIN_ATTEMPT"; i=0; while [ ! -e /tmp/end-of-test ]; do i=$((i + 1)); '
                      'echo "$RANK:$i"; echo "e$RANK:$i" >&2; sleep 0.02; done; echo "last $i"; exit $((CODE + RANK))']


def end_all(cluster):
    for host in cluster.nodes:
        (host.base / "tmp/end-of-test").touch()


@pytest.fixture(autouse=True)
def state(cluster):
    """No job of one test is there in the next."""
    yield
    stop_all(cluster.head)
    wait_until(lambda: not launchers(cluster.head) and not minders(cluster.head), 60, "a launcher stays")
    shutil.rmtree(cluster.head.base / "root/.local", ignore_errors=True)


@pytest.fixture
def ended(cluster):
    """Workers of COUNTS end when the test wants them to, and after it at the latest: one that has failed while its job
    had no launcher holds no cores in the next. Nothing of that is left behind."""
    yield lambda: end_all(cluster)
    end_all(cluster)
    try:
        wait_until(lambda: not any(all_workers(cluster)), 60, lambda: all_workers(cluster))
    finally:
        for host in cluster.nodes:
            (host.base / "tmp/end-of-test").unlink(missing_ok=True)


@pytest.fixture
def residents(cluster):
    with contextlib.ExitStack() as agents:
        started = [Resident(host).start() for host in cluster.nodes]
        for agent in started:
            agents.callback(agent.stop)
        yield started


def check_output(job, rank, attempt=0):
    """What COUNTS has written: all numbers up to the last, once."""
    out = job.output(rank, attempt=attempt).decode().splitlines()
    last = int(re.fullmatch(r"last (\d+)", out[-1])[1])
    assert out[0] == f"begin {rank} {attempt}", out[:3]
    assert out[1:-1] == [f"{rank}:{i}" for i in range(1, last + 1)]
    err = job.output(rank, "err", attempt).decode().splitlines()
    assert err == [f"e{rank}:{i}" for i in range(1, last + 1)]


def all_workers(cluster):
    """Pid and start time of each rank's shell, by host."""
    found = []
    for host in cluster.nodes:
        shells = leftovers.without_children(pid for pid, _, line in leftovers.processes(host)
                                            if line.startswith("sh -c"))
        found.append(sorted(map(identity, shells)))
    return found


def test_the_launch_returns_and_the_job_goes_on(cluster, residents, ended):
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=0", "--", *COUNTS])
    assert re.fullmatch(r"dtrain-[0-9a-f]{12}", job.id)
    assert all(len(of) == 1 for of in all_workers(cluster))
    wait_until(lambda: b"0:20\n" in job.output(0), 60, lambda: job.output(0))
    assert job.summary is None
    ended()
    summary = job.wait(60)
    # The first that ends with something else than 0 ends the job.
    assert summary["exit_code"] in (1, 2, 3), summary
    assert not (job.folder / "journal").exists(), "not settled"


def test_a_job_that_cannot_start_is_told_at_once(cluster, residents):
    result = cluster.launch(["-d", *cluster.hosts_flag(1), "--", "/no/such/program"])
    assert result.code == 127 and result.out == "", result
    assert "/no/such/program" in result.err, result
    result = cluster.launch(["-d", "-H", "node77:1", "--", "true"])
    assert result.code == 2 or result.code == 200, result
    assert result.out == "", result


def test_files_are_named_from_where_the_job_was_launched(cluster, residents):
    work = cluster.work()
    (work / "dtrain.toml").write_text('timeline = "trace.json"\n')
    for flags, output in [(["--log-dir", "logs"], "logs/rank-00000.out"), (["--output", "named/%r"], "named/0")]:
        job = launch(cluster, ["--config", "dtrain.toml", "--result-json", "result.json", *flags, "--wdir", "/", "-H",
                               "node0:1", "--", "echo", "it"], cwd="/root/work")
        assert job.wait()["exit_code"] == 0
        assert (work / output).read_text() == "it\n", job.log
        for name in ("result.json", "trace.json"):
            assert json.loads((work / name).read_text()), job.log
            (work / name).unlink()


def test_input_that_no_rank_gets_is_told(cluster, residents):
    result = cluster.launch(["-d", *cluster.hosts_flag(1), "--stdin", "all", "--", "cat"])
    assert result.code == 0 and "warning: --stdin all has no effect with -d: no rank has any input\n" in result.err, result
    assert Job(cluster, result.out.strip()).wait()["exit_code"] == 0


# F1: whatever it was doing when it was killed.
@pytest.mark.launcher_killed
def test_a_killed_launcher_costs_no_worker_and_no_byte(cluster, residents, ended):
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(2), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    assert all(len(of) == 2 for of in before), before
    seed = int(os.environ.get("DTRAIN_SEED") or random.randrange(1 << 30))
    pick = random.Random(seed)
    for kill in range(int(os.environ.get("DTRAIN_KILLS") or 5)):
        time.sleep(pick.uniform(0, 0.7))  # that many moments of its life
        job.kill_launcher()
        assert all_workers(cluster) == before, f"DTRAIN_SEED={seed}"
        taken = job.start_launcher()
        wait_until(lambda: job.holder.get("generation") == kill + 2, 30, lambda: f"DTRAIN_SEED={seed} {taken.err}")
    wait_until(lambda: len(job.output(7)) > 1000, 60, lambda: taken.err)
    assert all_workers(cluster) == before, f"DTRAIN_SEED={seed}"
    ended()
    result = taken.wait(60)
    assert 40 <= result.code < 48, f"DTRAIN_SEED={seed} {result}"
    summary = job.wait(60)
    assert summary["exit_code"] == result.code
    first = summary["verdict"]["first_failed_rank"]
    check_output(job, first)


# F6: all ends while nobody is there.
@pytest.mark.launcher_killed
def test_ends_without_a_launcher_are_told_to_the_next(cluster, residents, ended):
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=0", "--", *COUNTS])
    wait_until(lambda: b"3:5\n" in job.output(3), 60, "no output")
    job.kill_launcher()
    ended()
    wait_until(lambda: not any(all_workers(cluster)), 20, "workers live")
    result = job.start_launcher().wait(60)
    summary = job.wait(60)
    assert summary["exit_code"] == result.code and result.code in (1, 2, 3), result
    assert {rank["rank"]: rank.get("exit_code") for rank in summary["ranks"]} == {0: 0, 1: 1, 2: 2, 3: 3}
    for rank in range(4):
        check_output(job, rank)


# F11: nobody knows which workers there are.
@pytest.mark.launcher_killed
def test_a_launcher_that_is_killed_while_it_starts_begins_again(cluster, residents, ended):
    for moment in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
        result = cluster.launch(["-d", "--no-wait", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=0", "--", *COUNTS])
        job = Job(cluster, result.out.strip())
        wait_until(lambda: job.launcher, 60, "no launcher")
        time.sleep(moment)
        job.kill_launcher()
        taken = job.start_launcher()
        wait_until(lambda: all(f"begin {rank} 0".encode() in job.output(rank) for rank in range(4)), 30,
                   lambda: taken.err)
        now = all_workers(cluster)
        assert all(len(of) == 1 for of in now), now
        assert job.stop().returncode == 0
        assert job.wait(60)["exit_code"] == 143
        assert not any(all_workers(cluster))


@pytest.mark.parametrize("paused", [False, True])
def test_it_is_stopped(cluster, residents, ended, paused):
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=0", "--", *COUNTS])
    if paused:
        os.kill(job.launcher, signal.SIGSTOP)
    assert job.stop().returncode == 0
    assert job.wait(60)["exit_code"] == 143
    assert not any(all_workers(cluster))


def test_a_second_stop_kills(cluster, residents):
    job = launch(cluster, ["--grace", "300s", *cluster.hosts_flag(1), "--", "sh", "-c",
                           "trap 'echo term' TERM; echo up; while :; do sleep 0.1; done"])
    wait_until(lambda: all(b"up\n" in job.output(rank) for rank in range(4)), 60, lambda: job.log)
    stops = []

    def stop():
        stops.append(launching.Launch(job.host, [cluster.programs / "dtrain", "stop", job.id]))

    stop()
    wait_until(lambda: all(b"term\n" in job.output(rank) for rank in range(4)), 60, lambda: job.log)
    assert stops[0].process.poll() is None and all(all_workers(cluster)), job.log

    def has_ended():
        # Those within three seconds of the first are the same stop.
        if not job.summary and time.monotonic() - stops[-1].started > 1:
            stop()
        return job.summary

    wait_until(has_ended, 30, lambda: job.log)  # with AddressSanitizer eight times that, still less than the grace
    assert stops[0].wait(30).code == 0, job.log
    for result in (each.wait(30) for each in stops[1:]):
        assert result.code == 0 or "has ended already" in result.err, result
    assert job.wait(60)["exit_code"] == 143 and not any(all_workers(cluster))


# The one that was stopped has lost the job when it runs again (F8, F9).
@pytest.mark.launcher_killed
def test_two_launchers_of_one_job(cluster, residents, ended):
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=0", "--", *COUNTS])
    refused = job.start_launcher().wait(60)
    assert refused.code == 207 and re.search(r"process id \d+ on head", refused.err), refused
    assert not job.is_free
    ended()
    job.wait(60)


def test_a_key_is_one_job(cluster, residents, ended):
    args = ["--key", "nightly", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=0", "--", *COUNTS]
    job = launch(cluster, args)
    again = cluster.launch(["-d", *args])
    assert again.code == 0 and again.out == job.id + "\n", again
    other = cluster.launch(["-d", "--key", "nightly", *FLAGS, *cluster.hosts_flag(1), "--", "true"])
    assert other.code == 2 and other.out == "", other
    ended()
    job.wait(60)


# Neither by a variable: what is launched again is another job.
def test_a_key_is_not_that_of_the_job_launched_again(cluster, residents):
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "--", "true"], env={"DTRAIN_KEY": "nightly"})
    assert job.wait()["exit_code"] == 0
    again = cluster.head.run([cluster.programs / "dtrain", "rerun", job.id])
    assert re.fullmatch(r"dtrain-[0-9a-f]{12}\n", again.stdout) and again.stdout != job.id + "\n", again
    assert Job(cluster, again.stdout.strip()).wait()["exit_code"] == 0


@pytest.mark.parametrize("flags", [["-H", "nosuchhost:1"], ["--no-wait", "-H", "nosuchhost:1"],
                                   ["-H", "node0:1", "--wdir", "/nonexistent"]])
def test_a_key_of_a_job_that_never_ran_is_no_success(cluster, residents, flags):
    """The end is told again. Once the job is removed, its key is that of a new one."""
    args = ["-d", "--key", "k1", *FLAGS, *flags, "--", "true"]
    first = cluster.launch(args)
    code = 0 if "--no-wait" in flags else first.code
    assert first.code == code, first
    job = wait_until(lambda: next(iter((cluster.head.base / STATE / "jobs").glob("dtrain-*")), None), 10, "no job").name
    code = Job(cluster, job).wait()["exit_code"]
    assert code != 0
    for _ in range(2):
        again = cluster.launch(args)
        assert again.code == code and again.out == "" and f"{job}, which was launched with this key" in again.err, again
    cluster.head.run([cluster.programs / "dtrain", "rm", job])
    assert cluster.launch(args).code == first.code


def test_a_key_of_a_job_that_has_run_is_that_job(cluster, residents):
    args = ["--key", "k2", *FLAGS, *cluster.hosts_flag(1), "--", "sh", "-c", "sleep 0.2; exit 9"]
    job = launch(cluster, args)
    assert job.wait()["exit_code"] == 9
    again = cluster.launch(["-d", *args])
    assert again.code == 0 and again.out == job.id + "\n" and "ended with exit code 9" in again.err, again


# The agent is back later than its launcher looks for it, as with RestartSec=1 and without a socket of systemd's.
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_that_is_away_for_a_moment_costs_nothing(cluster, residents, ended, how):
    job = launch(cluster, ["--lease", "10s", *cluster.hosts_flag(1), "-x", "CODE=0", "--", *COUNTS])
    before = all_workers(cluster)
    agent = residents[1]
    agent.process.send_signal(how)
    agent.process.wait(10)
    # Its launcher looks for it twice at least, and finds none.
    time.sleep(1.2)
    agent.start()
    status = cluster.head.run([cluster.programs / "dtrain", "status", job.id])
    assert "running" in status.stdout, status
    wait_until(lambda: b"1:" in job.output(1), 10, job.log)
    assert all_workers(cluster) == before
    ended()
    assert job.wait()["exit_code"] in range(1, cluster.size)  # a rank's own, with which it ends the others
    for rank in range(cluster.size):
        counted = [line for line in job.output(rank).decode().splitlines() if ":" in line]
        assert counted == [f"{rank}:{i + 1}" for i in range(len(counted))]


@pytest.mark.launcher_killed
def test_the_next_launcher_has_the_log_files_of_the_first(cluster, residents, ended):
    args = ["--log-dir", "/root/work/logs", *FLAGS, "-H", "node0:1", "-x", "CODE=0", "--", *COUNTS]
    work = cluster.work()
    job = launch(cluster, args)
    refused = cluster.launch(["-d", *args])
    assert refused.code == 200 and f"{job.id} (process " in refused.err, refused
    job.kill_launcher()
    job.start_launcher()
    wait_until(lambda: job.holder.get("generation") == 2 and job.holder["stage"] == "runs", 60, lambda: job.holder)
    refused = cluster.launch(args)
    assert refused.code == 200 and f"{job.id} (process " in refused.err, refused
    ended()
    job.wait()
    # What the first had written and not yet noted comes twice.
    assert {*(work / "logs/rank-00000.out").read_bytes().splitlines()} == {*job.output(0).splitlines()}
    assert not (work / "logs/.dtrain.lock").exists()


def test_a_stop_reaches_the_workers_of_a_host_that_was_lost(cluster, residents):
    job = launch(cluster, ["--lease", "2s", "--grace", "1s", "--away", "300s", "-H", "node0:1,node1:1", "--", "sleep", "298"])
    agent = residents[1]
    agent.kill()
    assert job.wait()["exit_code"] == 202
    assert sleepers(agent.host)
    silent = job.stop()
    assert silent.returncode == 1 and "has lost node1, where its workers may live on" in silent.stderr, silent
    agent.start()
    stopped = job.stop()
    assert stopped.returncode == 0, stopped
    assert not sleepers(agent.host)
    again = job.stop()
    assert again.returncode == 1 and "has ended already" in again.stderr, again
    # For a day it keeps how they ended.
    agent.kill()
    for pid in shepherds(agent.host):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(agent.host.path(f"{AGENT_STATE}/jobs"))
    agent.start()


def sleepers(host):
    return [line for _, state, line in leftovers.processes(host) if line == "sleep 298" and state != "Z"]


@pytest.mark.launcher_killed
def test_restarts_go_on_with_the_next_launcher(cluster, residents, ended):
    # The second attempt fails when the next launcher has it, however late that is.
    fails = ["sh", "-c", 'echo "up $DTRAIN_ATTEMPT"; '
                         'while [ "$DTRAIN_ATTEMPT" = 1 ] && [ ! -e /tmp/end-of-test ]; do sleep 0.05; done; '
                         '[ "$DTRAIN_ATTEMPT" -ge 2 ] || { [ "$RANK" = 1 ] && exit 7; }; '
                         '[ "$DTRAIN_ATTEMPT" -lt 2 ] || exit 0; exec sleep 600']
    job = launch(cluster, [*FLAGS, "--max-restarts", 3, "--backoff", "3s:3s", *cluster.hosts_flag(1), "--", *fails])
    wait_until(lambda: "restart 1 of 3" in job.log, 60, lambda: job.log)
    job.kill_launcher()
    taken = job.start_launcher()
    wait_until(lambda: b"up 1" in job.output(0, attempt=1), 60, lambda: taken.err)
    ended()
    result = taken.wait(30)
    assert result.code == 0, result
    attempts = job.wait(60)["attempts"]
    assert [(each["attempt"], each["exit_code"]) for each in attempts] == [(0, 7), (1, 7), (2, 0)], (attempts, taken.err)


# What cannot be prepared never runs: the job is over, and not left to other launchers.
def test_a_job_that_cannot_be_prepared_is_over(cluster, residents, ended):
    flags = [*cluster.hosts_flag(1), "--status-listen", "45871", "--"]
    first = launch(cluster, [*flags, *COUNTS])
    result = cluster.launch(["-d", *flags, "true"])
    assert result.code == 200 and result.err.count("45871") == 1 and result.out == "", result
    jobs = [each.name for each in (cluster.head.base / STATE / "jobs").iterdir() if each.name != first.id]
    assert len(jobs) == 1
    assert Job(cluster, jobs[0]).summary["exit_code"] == 200
    ended()
    first.wait(60)


def test_the_end_is_told_to_a_command(cluster, residents):
    told = 'echo "$DTRAIN_JOB_ID $DTRAIN_EXIT_CODE $(grep -c exit_code "$DTRAIN_SUMMARY")" > /root/work/told'
    results = cluster.work()
    job = launch(cluster, [*cluster.hosts_flag(1), "--on-end", told, "--", "sh", "-c", "sleep 0.2; exit 5"])
    assert job.wait(60)["exit_code"] == 5
    words = (results / "told").read_text().split()
    assert words[:2] == [job.id, "5"] and int(words[2]) > 0, words


# Flags of the hostfile and the files themselves may change: the job is what was asked for.
@pytest.mark.launcher_killed
def test_the_next_launcher_reads_what_the_first_has_read(cluster, residents, ended):
    hostfile = cluster.hostfile(1)
    job = launch(cluster, [*FLAGS, "--hostfile", hostfile, "--max-restarts", 1, "-x", "CODE=0", "--", *COUNTS])
    cluster.hostfile("node77\n")
    job.kill_launcher()
    taken = job.start_launcher()
    wait_until(lambda: job.holder.get("generation") == 2, 60, lambda: taken.err)
    ended()
    wait_until(lambda: "restart 1 of 1" in taken.err, 60, lambda: taken.err)
    job.wait(40)
    # The first rank ends at once, and may take others with it before they have written anything.
    assert any(f"begin {rank} 1".encode() in job.output(rank, attempt=1) for rank in range(4)), taken.err


# L9: nothing begins after it.
def test_a_stop_in_the_pause_before_a_restart(cluster, residents):
    job = launch(cluster, [*FLAGS, "--max-restarts", 3, "--backoff", "5s:5s", *cluster.hosts_flag(1), "--", "sh", "-c",
                           "sleep 0.3; exit 7"])
    wait_until(lambda: "restart 1 of 3" in job.log, 60, lambda: job.log)
    assert job.stop().returncode == 0
    assert job.wait(60)["exit_code"] == 143, job.log
    assert not (job.folder / "logs/1").exists(), job.log


def test_fifty_readers_of_whom_one_never_reads(cluster, residents, ended):
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=0", "--", "sh", "-c",
                           'i=0; while [ ! -e /tmp/end-of-test ]; do i=$((i + 1)); '
                           'printf "%s:%s %01000d\\n" $RANK $i 0; sleep 0.02; done; echo "last $RANK"; exit 0'])
    attach = [cluster.programs / "dtrain", "attach", job.id]
    full, empty = os.pipe()
    with os.fdopen(full, "rb"), os.fdopen(empty, "wb"):
        stuck = launching.Launch(job.host, attach, stdout=empty)
        others = [launching.Launch(job.host, attach) for _ in range(49)]
        try:
            for reader in others:
                for rank in range(4):
                    reader.wait_for(f"[{rank}] {rank}:", timeout=300)
            ended()
            for reader in others:
                result = reader.wait(180)
                assert result.code == 0, result
                assert sorted(re.findall(r"^\[\d\] last (\d)$", result.out, re.M)) == list("0123"), result.out[-2000:]
                for rank in range(4):  # from where it began, each line once
                    seen = [int(n) for n in re.findall(rf"^\[{rank}\] {rank}:(\d+) 0+$", result.out, re.M)]
                    assert seen == list(range(seen[0], seen[-1] + 1)), seen
            assert stuck.process.poll() is None, "it has read all"
            assert job.wait(60)["exit_code"] == 0
        finally:
            stuck.process.kill()
            stuck.process.wait(10)


# ---- over ssh, without resident agents ------------------------------------------------------


def private_agents(cluster):
    return [pid for host in [cluster.head, *cluster.nodes] for pid, state, line in leftovers.processes(host)
            if "dtrain-agent keep" in line and state != "Z"]


def cgroups(host):
    return [path.name for path in host.cgroup_dir.iterdir() if path.is_dir() and path.name.startswith("dtrain-")]


@pytest.fixture
def private(cluster):
    """Private agents go by themselves a minute after their last job: here the test ends them."""
    yield lambda: private_agents(cluster)
    # An agent removes what shepherds leave when it has seen their end.
    try:
        wait_until(lambda: not any(cgroups(host) for host in cluster.nodes), 20,
                   lambda: [cgroups(host) for host in cluster.nodes])
    finally:
        for pid in private_agents(cluster):
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not private_agents(cluster), 20, "a private agent stays")
        for host in [cluster.head, *cluster.nodes]:
            for folder in (host.base / "root/.cache/dtrain").glob("run-*"):
                shutil.rmtree(folder)


# The launchers of both jobs then find two agents there, and ask the one that has theirs.
@pytest.mark.launcher_killed
def test_a_private_agent_that_came_meanwhile_is_not_taken_for_the_resident_one(cluster, residents, private, ended):
    job = launch(cluster, ["--lease", "10s", "-H", "node1:1", "--", "sleep", "298"])
    agent = residents[1]
    agent.kill()
    other = launch(cluster, ["--lease", "10s", "--bind", "none", "-H", "node1:1", "-x", "CODE=0", "--", *COUNTS])
    assert len(private()) == 1
    agent.start()
    wait_until(lambda: agent.log.count(f'job="{job.id}"') > 1, 20, lambda: f"{agent.log}\n{job.log}")
    for each in (job, other):
        each.kill_launcher()
        each.start_launcher()
        wait_until(lambda each=each: each.holder.get("generation") == 2 and each.holder["stage"] == "runs", 20,
                   lambda each=each: each.log)
    assert job.stop().returncode == 0 and not sleepers(agent.host)
    job.wait()
    ended()
    assert other.wait()["exit_code"] == 0


@pytest.mark.launcher_killed
def test_over_ssh_a_job_outlives_its_launcher_too(cluster, private, ended):
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    assert all(len(of) == 1 for of in before) and len(private()) == len(cluster.nodes), (before, private())
    for _ in range(2):
        job.kill_launcher()
        assert all_workers(cluster) == before
        taken = job.start_launcher()
        at = len(job.output(3))
        wait_until(lambda: len(job.output(3)) > at + 100, 60, lambda: taken.err)
    assert all_workers(cluster) == before
    ended()
    result = taken.wait(60)
    assert 40 <= result.code < 44, result
    check_output(job, job.wait(60)["verdict"]["first_failed_rank"])


@pytest.mark.launcher_killed
def test_over_ssh_an_agent_that_is_killed_is_replaced(cluster, private, ended):
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    victim = private()[0]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(private()) == len(cluster.nodes) and victim not in private(), 60, lambda: job.log)
    at = [len(job.output(rank)) for rank in range(4)]
    wait_until(lambda: all(len(job.output(rank)) > at[rank] + 50 for rank in range(4)), 60, lambda: job.log)
    assert all_workers(cluster) == before
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44


# Nobody comes: workers end by themselves.
@pytest.mark.launcher_killed
def test_without_a_launcher_workers_end_after_away(cluster, private, ended):
    job = launch(cluster, ["--away", "3s", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=0", "--", *COUNTS])
    job.kill_launcher()
    wait_until(lambda: not any(all_workers(cluster)), 3 + GRACE + 10, lambda: all_workers(cluster))
    # How they ended is kept for the next.
    result = job.start_launcher().wait(30)
    assert result.code == job.wait(60)["exit_code"] and result.code != 0, result


GAP = re.compile(rb"\[dtrain: (\d+) bytes are no longer available\]\n")
# Lines of 10 bytes; the first and the last can be told from others.
FLOODS = ["sh", "-c", "seq -f %09.0f 1 400000; while [ ! -e /tmp/end-of-test ]; do sleep 0.1; done; "
                      "seq -f %09.0f 400001 500000"]


def test_old_output_is_removed_and_counted(cluster, residents, ended):
    limit, whole = 1 << 20, 500_000 * 10
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(2), "--log-limit", "1M", "--away", "30s", "--", *FLOODS])

    def size():
        total = 0
        for path in (job.folder / "logs/0").iterdir():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                total += path.stat().st_size
        return total

    wait_until(lambda: size() > limit // 2, 60, "no output")
    job.kill_launcher()
    assert size() <= limit
    job.start_launcher()
    wait_until(lambda: job.holder.get("stage") == "runs", 60, lambda: job.log)
    ended()
    assert job.wait()["exit_code"] == 0
    assert size() <= limit
    expected = b"".join(b"%09d\n" % i for i in range(1, 500_001))
    for rank in range(2):
        told = cluster.head.run([cluster.programs / "dtrain", "logs", "--rank", str(rank), job.id])
        out = told.stdout.encode()
        at, read = 0, 0
        for gap in GAP.finditer(out):
            piece = out[read:gap.start()]
            assert piece == expected[at:at + len(piece)]
            at, read = at + len(piece) + int(gap[1]), gap.end()
        assert at > 0, "nothing was removed"
        assert out[read:] == expected[at:]
        assert out.startswith(b"000000001\n") and at + len(out) - read == whole


def test_old_jobs_go_when_one_ends(cluster, residents):
    config = cluster.head.base / "root/.config/dtrain/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    try:
        config.write_text("[history]\njobs = 1\n")
        kept = launch(cluster, [*FLAGS, "--keep", *cluster.hosts_flag(1), "--", "true"])
        kept.wait()
        jobs = []
        for _ in range(3):
            jobs.append(launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "--", "true"]))
            jobs[-1].wait()
        # Each removes all but one of those before it, and never itself.
        assert [job.folder.exists() for job in [kept, *jobs]] == [True, False, False, True]
        assert f"removed 1 ended job that [history] does not keep: {jobs[1].id}\n" in jobs[2].log
        # A mistake that comes later is a line in the log, and the job is over as ever.
        config.write_text("[history]\njobs = 1\n")
        last = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "--", "sh", "-c",
                                "while [ ! -e /tmp/end-of-test ]; do sleep 0.05; done"])
        config.write_text('[history]\njobs = "few"\n')
        end_all(cluster)
        assert last.wait()["exit_code"] == 0
        assert "old jobs were not removed: jobs in" in last.log and '"few" is not a whole number' in last.log
        assert jobs[-1].folder.exists()
        refused = cluster.launch(["-d", *cluster.hosts_flag(1), "--", "true"])
        assert refused.code == 2 and "config.toml:2" in refused.err, refused
    finally:
        shutil.rmtree(cluster.head.base / "root/.config")
        for host in cluster.nodes:
            (host.base / "tmp/end-of-test").unlink(missing_ok=True)


# As in a container that runs as a user of its own choice.
def test_a_user_whom_the_machine_does_not_know(cluster):
    uid, home = 54321, cluster.head.path("/tmp/unknown-user")
    home.mkdir()
    os.chown(home, uid, uid)

    def become():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

    def run(*words):
        process = cluster.head.popen(["env", "-i", "HOME=/tmp/unknown-user", "PATH=/usr/bin:/bin", cluster.programs / "dtrain", *words],
                                     cwd="/", before_exec=become, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (words, out, err)
        return out
    try:
        job = run("launch", "-d", "-np", "2", "--", "sh", "-c", "echo $RANK of $(id -u)").split()[-1]
        run("wait", job)
        assert sorted(run("logs", job, "--rank", "0").splitlines() + run("logs", job, "--rank", "1").splitlines()) == [
            f"0 of {uid}", f"1 of {uid}"]
    finally:
        # The agent of its own stays for a minute.
        def left():
            found = []
            for pid, _, _ in leftovers.processes(cluster.head):
                with contextlib.suppress(FileNotFoundError):
                    found += [pid] if os.stat(f"/proc/{pid}").st_uid == uid else []
            return found
        for pid in left():
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not left(), 20, lambda: leftovers.processes(cluster.head))
        shutil.rmtree(home)
