# SPDX-License-Identifier: Apache-2.0
"""A job of mallory's takes all processes and all memory that it can get. The limits of root's spawner are its own
job's: alice's job beside it counts lines. Needs the controllers in cgroups of version 2."""
import contextlib
import signal
from pathlib import Path

import pytest

import hosts
import leftovers
from guarded import Guarded, alices_job  # noqa: F401 - a fixture
from launching import wait_until

UNIT = "unit"
MIB = 1 << 20
MEMORY = 256 * MIB  # job-memory
MOST = 100  # processes: a bomb of as many as a job may have takes all of a small machine's time, which is not limited
BOMB = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.5)
"""
EAT = f"""
eaten = b"x" * {MEMORY * 11 // 10}
print("survived", flush=True)
"""
HUNGRY = """
until [ -e /tmp/go ]; do sleep 0.05; done
if [ "$RANK" = 1 ]; then exec /usr/bin/python3 -I -c "$0"; fi
exec sleep 600
"""


def controllers():
    mounted = hosts.cgroup2_mount()
    return (mounted / "cgroup.controllers").read_text().split() if mounted else []


@contextlib.contextmanager
def controllers_for(cluster, node):
    """What runs on the node is in `system`, as children of a cgroup have controllers only if it has no process; the
    spawner's unit is beside it."""
    for folder in (cluster.cgroup_root.parent, cluster.cgroup_root):
        (folder / "cgroup.subtree_control").write_text("+memory +pids")
    top = node.cgroup_dir
    for folder in ("system", UNIT, f"{UNIT}/spawner"):
        (top / folder).mkdir()
    node.start_in = top / "system"

    def move(source, target):
        for pid in (source / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (target / "cgroup.procs").write_text(pid)

    move(top, node.start_in)
    (top / "cgroup.subtree_control").write_text("+memory +pids")
    try:
        yield
    finally:
        for folder in (top / UNIT, top):
            (folder / "cgroup.subtree_control").write_text("-memory -pids")
        move(node.start_in, top)
        node.start_in = top
        hosts.remove_cgroup_tree(top / UNIT)
        (top / "system").rmdir()


@pytest.fixture
def guarded(make_cluster, tmp_path):
    if not {"memory", "pids"} <= set(controllers()):
        pytest.skip("cgroups of version 2 have no controllers here for memory and pids")
    cluster = make_cluster(1)
    with controllers_for(cluster, cluster.nodes[0]):
        made = Guarded(cluster, tmp_path, unit=UNIT)
        made.spawner.flags.append("--limit")
        made.etc("dtrain/spawner.conf").write_text(f"job-memory = {MEMORY // MIB}M\nrequire-limits = yes\n")
        made.start()
        yield made
        made.close()


def job_of(guarded, user):
    """The cgroup of a user's only job, once its workers have theirs in it."""
    jobs = guarded.spawner.cgroup / f"jobs/u{guarded.ids[user]}"
    [found] = wait_until(lambda: {path.parents[1] for path in jobs.glob("dtrain-*/workers/*/")}, 60,
                         lambda: guarded.spawner.log)
    return found


def count(cgroup, file, word):
    return int(dict(line.split() for line in (cgroup / file).read_text().splitlines())[word])


def test_a_fork_bomb_has_its_own_jobs_processes(guarded, alices_job):  # noqa: F811
    bomb = guarded.start_by_tls("mallory", "/usr/bin/python3", "-I", "-c", BOMB, slots=2)
    job, hers = job_of(guarded, "mallory"), job_of(guarded, "alice")
    half = int(Path("/proc/sys/kernel/pid_max").read_text()) // 2 - 1
    assert int((job / "pids.max").read_text()) == min(32768, half)
    assert int((job.parent / "pids.max").read_text()) == min(65536, half)
    (job / "pids.max").write_text(str(MOST))
    guarded.node.path("/tmp/go").touch()
    wait_until(lambda: count(job, "pids.events", "max") > 0, 60, (job / "pids.current").read_text)
    lines = alices_job.lines()
    wait_until(lambda: alices_job.lines() > lines + 20, 60, "alice's job says nothing")
    assert int((job / "pids.current").read_text()) <= MOST
    assert count(hers, "pids.events", "max") == 0
    bomb.signal(signal.SIGTERM)
    assert bomb.wait(30).code == 143
    guarded.node.path("/tmp/go").unlink()
    wait_until(lambda: not job.exists(), 30, lambda: leftovers.processes(guarded.node))


def test_what_a_job_has_no_memory_for_is_killed_in_it(guarded, alices_job):  # noqa: F811
    eats = guarded.start_by_tls("mallory", "sh", "-c", HUNGRY, EAT, slots=2)
    job, hers = job_of(guarded, "mallory"), job_of(guarded, "alice")
    assert (job / "memory.max").read_text() == f"{MEMORY}\n"
    with contextlib.suppress(OSError):  # without swap there is none to forbid
        (job / "memory.swap.max").write_text("0")
    guarded.node.path("/tmp/go").touch()
    result = eats.wait(90)
    guarded.node.path("/tmp/go").unlink()
    assert result.code == 137 and "out of memory" in result.err and "survived" not in result.out, result
    assert count(hers, "memory.events", "oom_kill") == 0
    assert count(guarded.spawner.cgroup / "jobs", "memory.events.local", "oom_kill") == 0
    assert not guarded.agent.ended() and guarded.spawner.process.poll() is None
