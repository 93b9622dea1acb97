# SPDX-License-Identifier: Apache-2.0
"""`dtrain migrate`: the launcher of a detached job goes to another machine, and its workers do not notice."""
import contextlib
import json
import os
import random
import re
import shutil
import signal
import time

import leftovers
import pytest
from detached import STATE, Job, launch, launchers, minders, stop_all
from launching import Launch, wait_until
from test_detached import COUNTS, all_workers, cgroups, check_output, ended, private, residents, state  # noqa: F401

FLAGS = ["--lease", "5s", "--grace", "1s"]


@pytest.fixture(autouse=True)
def keys(cluster):
    """Every host can go where the head can."""
    for node in cluster.nodes:
        shutil.copytree(cluster.head.base / "root/.ssh", node.base / "root/.ssh", dirs_exist_ok=True)
    yield
    for node in cluster.nodes:
        stop_all(node)
        wait_until(lambda: not launchers(node) and not minders(node), 60, "a launcher stays")  # noqa: B023
        shutil.rmtree(node.base / "root/.local", ignore_errors=True)
        shutil.rmtree(node.base / "root/.ssh")


def dtrain(cluster, host, *words, **options):
    return host.run([cluster.programs / "dtrain", *words], check=False, **options)


def migrate(cluster, job, to, *flags, program=None):
    """(the job as it is now, what was said)"""
    told = dtrain(cluster, job.host, "migrate", "--program", program or cluster.programs / "dtrain", "--to", to.name,
                  *flags, job.id)
    return Job(cluster, job.id, to if told.returncode == 0 else job.host), told


def writes(job, lines=20):
    """It takes their output."""
    at = {rank: len(job.output(rank)) for rank in range(4)}
    wait_until(lambda: all(len(job.output(rank)) > at[rank] + 5 * lines for rank in range(4)), 60, lambda: job.log)


def ends_well(cluster, job, end):
    """Nothing is missing, and nothing is there twice."""
    end()
    code = job.wait(30)["exit_code"]
    assert 40 <= code < 44, job.log
    assert all_workers(cluster) == [[], [], [], []]
    check_output(job, job.summary["verdict"]["first_failed_rank"])


def stays(cluster, job, before, told, *words):
    assert told.returncode == 1 and told.stdout == "", told
    for word in words:
        assert word in told.stderr, told
    assert not (cluster.nodes[1].base / STATE / "jobs" / job.id).exists()
    incoming = cluster.nodes[1].base / STATE / "incoming"
    assert not incoming.exists() or not list(incoming.iterdir())
    assert all_workers(cluster) == before
    writes(job)


def test_there_and_back(cluster, residents, ended):  # noqa: F811
    job = launch(cluster, ["--name", "night", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    writes(job)
    there, told = migrate(cluster, job, cluster.nodes[1])
    assert told.returncode == 0, told
    assert re.fullmatch(rf"{job.id} now runs from node1, supervised by minder, process \d+\n", told.stdout), told
    assert told.stderr == "", told
    assert all_workers(cluster) == before and there.launcher and there.minder
    assert there.holder["generation"] == 2 and there.holder["host"] == "node1"
    # Nothing of it is here any more but where it went.
    assert job.launcher is None and job.minder is None and not job.folder.exists()
    assert dtrain(cluster, cluster.head, "ps", "--json").stdout.count(job.id) == 0
    for words in (["attach", "night"], ["status", job.id], ["stop", job.id[:11]], ["logs", job.id], ["wait", job.id]):
        refused = dtrain(cluster, cluster.head, *words)
        assert refused.returncode == 1 and "moved to node1 on " in refused.stderr, (words, refused)
    writes(there)
    listed = dtrain(cluster, cluster.nodes[1], "ps", "-a").stdout
    assert job.id in listed and "minder" in listed, listed
    attached = Launch(cluster.nodes[1], [cluster.programs / "dtrain", "attach", "night"])
    attached.wait_for("[2] 2:", stream="out")
    attached.process.send_signal(signal.SIGINT)
    assert attached.wait(60).code == 0
    back, told = migrate(cluster, there, cluster.head, "--json")  # by a name that ssh does not know
    assert told.returncode == 1 and "was not changed" in told.stderr, told
    again, told = migrate(cluster, there, cluster.nodes[3], "--json")
    assert told.returncode == 0 and json.loads(told.stdout)["host"] == "node3", told
    third, told = migrate(cluster, again, cluster.nodes[1])
    assert told.returncode == 0, told
    assert third.holder["generation"] == 4 and all_workers(cluster) == before
    writes(third)
    ends_well(cluster, third, ended)
    assert job.id in dtrain(cluster, cluster.nodes[1], "history").stdout


def test_over_ssh_without_resident_agents(cluster, private, ended):  # noqa: F811
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    there, told = migrate(cluster, job, cluster.nodes[1])
    assert told.returncode == 0, told
    writes(there)
    assert all_workers(cluster) == before
    ends_well(cluster, there, ended)


@pytest.mark.launcher_killed
def test_a_job_that_nobody_has_moves_too(cluster, residents, ended):  # noqa: F811
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    job.kill_launcher()
    there, told = migrate(cluster, job, cluster.nodes[2])
    assert told.returncode == 0, told
    writes(there)
    assert all_workers(cluster) == before
    ends_well(cluster, there, ended)


# What was kept of it goes along.
def test_restarts_and_staged_code_go_along(cluster, residents, ended):  # noqa: F811
    code = cluster.work() / "code"
    code.mkdir()
    (code / "fails.sh").write_text('echo "up $RANK $DTRAIN_ATTEMPT"\n'
                                   '[ "$DTRAIN_ATTEMPT" = 2 ] && exit 0\n'
                                   'while [ ! -e /tmp/end-of-test ] && [ "$DTRAIN_ATTEMPT" = 1 ]; do sleep 0.05; done\n'
                                   '[ "$RANK" = 1 ] && exit 7\nexec sleep 600\n')
    job = launch(cluster, [*FLAGS, "--max-restarts", 2, "--backoff", "0s:1s", "--stage", "/root/work/code",
                           *cluster.hosts_flag(1), "--", "sh", "fails.sh"], cwd="/root/work/code")
    wait_until(lambda: job.output(3, attempt=1) == b"up 3 1\n", 60, lambda: job.log)
    there, told = migrate(cluster, job, cluster.nodes[1])
    assert told.returncode == 0, told
    shutil.rmtree(code)
    ended()
    assert there.wait(40)["exit_code"] == 0, there.log
    assert [(each["attempt"], each["exit_code"]) for each in there.summary["attempts"]] == [(0, 7), (1, 7), (2, 0)]
    for attempt in range(3):
        assert there.output(1, attempt=attempt) == f"up 1 {attempt}\n".encode(), there.log


# Machines that share a home: the folder is there already.
def test_a_shared_folder(cluster, residents, ended):  # noqa: F811
    shared = cluster.base / "shared-state"
    shared.mkdir(mode=0o700)
    env = {"XDG_STATE_HOME": str(shared)}
    node = cluster.nodes[1]
    node.restart_sshd(setenv=env)
    try:
        launched = cluster.launch(["-d", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS], env=env)
        assert launched.code == 0, launched
        job = Job(cluster, launched.out.strip())
        job.folder = shared / "dtrain/jobs" / job.id
        before = all_workers(cluster)
        told = dtrain(cluster, cluster.head, "migrate", "--program", cluster.programs / "dtrain", "--to", "node1", job.id,
                      env=env)
        assert told.returncode == 0 and "now runs from node1" in told.stdout, told
        job.host = node
        assert job.holder["host"] == "node1" and job.holder["generation"] == 2 and job.launcher
        writes(job)
        assert all_workers(cluster) == before
        ended()
        job.wait(30)
        check_output(job, job.summary["verdict"]["first_failed_rank"])
    finally:
        node.restart_sshd()
        shutil.rmtree(shared)


@pytest.fixture
def local_agent(cluster):
    """The head's private agent goes by itself a minute after its job: here the test ends it."""
    yield
    # An agent removes what shepherds leave when it has seen their end.
    wait_until(lambda: not cgroups(cluster.head), 20, lambda: cgroups(cluster.head))
    for pid, _, line in leftovers.processes(cluster.head):
        if "dtrain-agent keep" in line:
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not any("dtrain-agent keep" in line for _, _, line in leftovers.processes(cluster.head)), 20, "it stays")
    for folder in (cluster.head.base / "root/.cache/dtrain").glob("run-*"):
        shutil.rmtree(folder)


# ---- what cannot be ----------------------------------------------------------------------------


def test_what_is_refused_changes_nothing(cluster, residents, ended):  # noqa: F811
    node = cluster.nodes[1]
    job = launch(cluster, ["--name", "night", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before, launcher = all_workers(cluster), job.launcher
    at = job.holder

    def refused(told, *words):
        stays(cluster, job, before, told, *words, "was not changed")
        assert job.launcher == launcher and job.holder == at

    refused(migrate(cluster, job, node, program="/no/such/dtrain")[1], "--program /path/to/dtrain")
    refused(migrate(cluster, job, node, program="/bin/echo")[1], "ended before it answered (exit status 0)")
    told = dtrain(cluster, cluster.head, "migrate", "--to", "node77", job.id)
    refused(told, "node77")
    # It does not reach the job's hosts.
    shutil.move(node.base / "root/.ssh/id_ed25519", node.base / "root/.ssh/away")
    refused(migrate(cluster, job, node)[1], "cannot be reached from there: ", "node0: ", "node3: ")
    shutil.move(node.base / "root/.ssh/away", node.base / "root/.ssh/id_ed25519")
    # A job of that name runs there.
    other = Launch(node, [cluster.programs / "dtrain", "launch", "-d", "--name", "night", "--bind", "none", "-H",
                          "node2:1", "--", "sleep", "600"]).wait(60)
    assert other.code == 0, other
    refused(migrate(cluster, job, node)[1], "runs by the name night")
    assert dtrain(cluster, node, "stop", "night").returncode == 0
    # Others can change the folder there.
    (node.base / STATE).chmod(0o777)
    refused(migrate(cluster, job, node)[1], "/root/.local/state/dtrain")
    (node.base / STATE).chmod(0o700)
    assert dtrain(cluster, cluster.head, "migrate", job.id).returncode == 2
    assert dtrain(cluster, cluster.head, "migrate", "--to", "node1", "no-such-job").returncode == 1
    assert dtrain(cluster, cluster.head, "migrate", "--to", "node1:4", job.id).returncode == 2
    ends_well(cluster, job, ended)
    told = migrate(cluster, job, node)[1]
    assert told.returncode == 1 and "has ended already" in told.stderr, told


def test_a_job_on_this_machine_stays(cluster, local_agent):
    launched = cluster.launch(["-d", *FLAGS, "-np", "2", "--", "sleep", "600"])
    assert launched.code == 0, launched
    job = Job(cluster, launched.out.strip())
    told = migrate(cluster, job, cluster.nodes[1])[1]
    assert told.returncode == 1 and "localhost" in told.stderr, told
    assert job.stop().returncode == 0


# Only the new launcher finds out. With restarts the workers live no longer than a lease without one.
@pytest.mark.parametrize("flags", [[], ["--max-restarts", 2]], ids=["", "with restarts"])
def test_a_launcher_that_cannot_take_it_gives_it_back(cluster, residents, ended, flags):  # noqa: F811
    cluster.work()
    job = launch(cluster, [*FLAGS, *flags, *cluster.hosts_flag(1), "--result-json", "/root/work/result.json", "-x",
                           "CODE=0", "--", *COUNTS[:2], COUNTS[2].replace("CODE + RANK", "CODE")])
    before = all_workers(cluster)
    _, told = migrate(cluster, job, cluster.nodes[1])
    stays(cluster, job, before, told, "has not taken the job over", "/root/work/result.json",
          "stays here, with a new launcher")
    assert not launchers(cluster.nodes[1]) and not minders(cluster.nodes[1])
    # Whatever is left there cannot come back.
    assert job.holder["generation"] > 1000
    assert json.loads(dtrain(cluster, cluster.head, "show", "--json", job.id).stdout)["launcher_restarts"] < 10
    ended()
    assert job.wait(30)["exit_code"] == 0, job.log
    for rank in range(4):
        check_output(job, rank)


# ---- ends of those that do it --------------------------------------------------------------------


# One of the two has the job, or `attach` gives it to one.
@pytest.mark.launcher_killed
@pytest.mark.parametrize("victim", ["this end", "the other end", "the connection"])
def test_one_is_killed_at_any_moment(cluster, residents, ended, victim):  # noqa: F811
    job = launch(cluster, ["--away", "60s", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    seed = int(os.environ.get("DTRAIN_SEED") or random.randrange(1 << 30))
    pick = random.Random(seed)
    places = [cluster.nodes[1], cluster.nodes[2]]
    for _ in range(int(os.environ.get("DTRAIN_KILLS") or 6)):
        to = next(place for place in places if place is not job.host)
        moving = Launch(job.host, [cluster.programs / "dtrain", "migrate", "--program", cluster.programs / "dtrain", "--to",
                                   to.name, job.id])
        time.sleep(pick.uniform(0, 1.2))  # that many moments of its life
        if victim == "this end":
            moving.process.kill()
        for pid in receivers(to) if victim == "the other end" else connections(job.host) if "conn" in victim else []:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)
        result = moving.wait(60)
        # The other end finishes, or goes.
        wait_until(lambda: not receivers(to), 30, lambda: f"DTRAIN_SEED={seed}")  # noqa: B023
        there = Job(cluster, job.id, to)
        if victim != "this end":
            where = there if result.code == 0 else job
            assert where.launcher and where.folder.exists(), f"DTRAIN_SEED={seed} {result}"
            # What is left there has lost it.
            wait_until(lambda: not (where is job and there.launcher), 60, lambda: f"DTRAIN_SEED={seed}")  # noqa: B023
        has = [each for each in (job, there) if each.folder.exists()]
        assert has, f"DTRAIN_SEED={seed}"
        job = there if there in has and there.launcher else job
        told = dtrain(cluster, job.host, "wait", "--timeout", "1ms", job.id)  # as attach, it starts one
        assert told.returncode == 210, f"DTRAIN_SEED={seed} {told}"
        assert all_workers(cluster) == before, f"DTRAIN_SEED={seed}"
        writes(job)
        for other in (each for each in has if each.folder != job.folder):
            assert other.launcher is None and other.minder is None, f"DTRAIN_SEED={seed}"
            shutil.rmtree(other.folder)
    ends_well(cluster, job, ended)


def receivers(host):
    return [pid for pid, state, line in leftovers.processes(host)
            if line.endswith("migrate --receive") and not line.startswith("ssh ") and state != "Z"]


def connections(host):
    return [pid for pid, _, line in leftovers.processes(host) if line.startswith("ssh ") and "--receive" in line]


def test_ctrl_c(cluster, residents, ended):  # noqa: F811
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    # Its other end says nothing.
    silent = cluster.work(cluster.nodes[1]) / "silent"
    silent.write_text("#!/bin/sh\ncat >/dev/null\n")
    silent.chmod(0o755)
    moving = Launch(cluster.head, [cluster.programs / "dtrain", "migrate", "--program", "/root/work/silent", "--to", "node1",
                                   job.id])
    wait_until(lambda: receivers(cluster.nodes[1]), 60, "no other end")
    moving.process.send_signal(signal.SIGINT)
    result = moving.wait(60)
    assert result.code == 1 and "interrupted" in result.err and "was not changed" in result.err, result
    assert all_workers(cluster) == before
    ends_well(cluster, job, ended)



# ---- launch -d --launcher-on ---------------------------------------------------------------------


@pytest.fixture
def elsewhere(cluster):
    """dtrain is installed on node1."""
    node = cluster.nodes[1]
    node.restart_sshd(setenv={"PATH": f"{cluster.programs}:/usr/sbin:/usr/bin:/sbin:/bin"})
    yield node
    node.restart_sshd()


def jobs_of(host):
    folder = host.base / STATE / "jobs"
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".") if folder.exists() else []


def test_a_launcher_elsewhere_from_the_beginning(cluster, residents, elsewhere, ended):  # noqa: F811
    # The code is here only.
    code = cluster.work() / "code"
    code.mkdir()
    (code / "count.sh").write_text(COUNTS[2])
    args = ["-d", "--launcher-on", "node1", "--key", "nightly", *FLAGS, "--stage", "/root/work/code",
            *cluster.hosts_flag(1), "-x", "CODE=40", "--", "sh", "-c", ". ./count.sh"]
    launched = cluster.launch(args, cwd="/root/work/code")
    assert launched.code == 0 and re.fullmatch(r"dtrain-[0-9a-f]{12}\n", launched.out), launched
    assert re.search(r"^dtrain: its launcher is on node1, supervised by minder, process \d+$", launched.err, re.M), launched
    assert "4 hosts" in launched.err or "code " in launched.err, launched
    job = Job(cluster, launched.out.strip(), elsewhere)
    assert job.launcher and job.minder and jobs_of(cluster.head) == []
    writes(job)
    again = cluster.launch(args, cwd="/root/work/code")
    assert again.code == 0 and again.out == launched.out and "it is on node1" in again.err, again
    other = cluster.launch(["-d", "--key", "nightly", *cluster.hosts_flag(1), "--", "true"])
    assert other.code == 2 and "moved to node1" in other.err, other
    shutil.rmtree(code)
    ends_well(cluster, job, ended)


def test_what_goes_wrong_elsewhere_is_told_here(cluster, residents, elsewhere):  # noqa: F811
    result = cluster.launch(["-d", "--launcher-on", "node1", *cluster.hosts_flag(1), "--", "/no/such/program"])
    assert result.code == 127 and result.out == "" and "/no/such/program" in result.err, result
    assert jobs_of(cluster.head) == [] and len(jobs_of(elsewhere)) == 1
    for where, word in (("node2", "--program"), ("node77", "node77")):
        result = cluster.launch(["-d", "--launcher-on", where, *cluster.hosts_flag(1), "--", "true"])
        assert result.code == 200 and result.out == "" and word in result.err, result
        assert "nothing was started" in result.err and jobs_of(cluster.head) == [], result
    for flags in (["--launcher-on", "node1"], ["-d", "--launcher-on", "node1:4"], ["-d", "--launcher-on", "-x"]):
        result = cluster.launch([*flags, *cluster.hosts_flag(1), "--", "true"])
        assert result.code == 2, result
    # The workers would be on another machine than is meant.
    for flags in (["-np", "2"], ["-H", "node2:1,localhost:1"]):
        result = cluster.launch(["-d", "--launcher-on", "node1", *flags, "--", "true"])
        assert result.code == 2 and "means another machine there" in result.err, result
    assert jobs_of(cluster.head) == [] and len(jobs_of(elsewhere)) == 1


def test_nobody_waits_for_it(cluster, residents, elsewhere, ended):  # noqa: F811
    # One node does not answer, so that it does not run for a while.
    cluster.cut(cluster.nodes[3])
    try:
        launched = cluster.start_launch(["-d", "--launcher-on", "node1", "--connect-timeout", "20s", *FLAGS,
                                         *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
        wait_until(lambda: jobs_of(elsewhere), 60, lambda: launched.err)
        job = Job(cluster, jobs_of(elsewhere)[0], elsewhere)
        wait_until(lambda: job.launcher, 60, lambda: launched.err)
        launched.process.send_signal(signal.SIGINT)
        result = launched.wait(60)
        assert result.code == 130 and f"left; {job.id} goes on; `dtrain stop {job.id}` on node1 ends it" in result.err, result
    finally:
        cluster.heal(cluster.nodes[3])
    wait_until(lambda: job.holder.get("stage") == "runs", 40, lambda: job.log)
    assert job.launcher and jobs_of(cluster.head) == []
    writes(job)
    ends_well(cluster, job, ended)


# It is never on both machines, and where it is it can be ended.
@pytest.mark.launcher_killed
def test_a_launch_is_killed_at_any_moment(cluster, residents, elsewhere, ended):  # noqa: F811
    seed = int(os.environ.get("DTRAIN_SEED") or random.randrange(1 << 30))
    pick = random.Random(seed)
    for _ in range(int(os.environ.get("DTRAIN_KILLS") or 6)):
        launched = cluster.start_launch(["-d", "--launcher-on", "node1", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--",
                                         *COUNTS])
        time.sleep(pick.uniform(0, 1.2))  # that many moments of its life
        launched.process.kill()
        launched.wait(60)
        wait_until(lambda: not receivers(elsewhere), 30, lambda: f"DTRAIN_SEED={seed}")
        found = [(host, job) for host in (cluster.head, elsewhere) for job in jobs_of(host)]
        assert len(found) <= 1, f"DTRAIN_SEED={seed} {found}"
        for host, job in found:
            told = dtrain(cluster, host, "stop", job)
            assert told.returncode == 0, f"DTRAIN_SEED={seed} {told}"
            assert Job(cluster, job, host).wait(60)["exit_code"] == 143, f"DTRAIN_SEED={seed}"
            assert dtrain(cluster, host, "rm", job).returncode == 0, f"DTRAIN_SEED={seed}"
        assert not any(all_workers(cluster)), f"DTRAIN_SEED={seed}"
