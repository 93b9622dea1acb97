# SPDX-License-Identifier: Apache-2.0
"""Processes of ours that do not run for a while: stopped (K11), or without the CPU, which others have
at better priority. That is nobody's death."""
import contextlib
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

import hosts
import leftovers
import residents
from launching import wait_until
from test_resident import check_lines

LINES = ["sh", "-c", "i=0; until [ -e /run/go ]; do echo line $i; i=$((i + 1)); sleep 0.05; done; "
         "echo last $i"]
SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.setsid()
if os.path.exists("/proc/self/autogroup"):
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    open("/proc/self/autogroup", "w").write("-20")
else:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
print("spins", flush=True)
while True:
    pass
"""


def ours(host, word):
    return [pid for pid, _, line in leftovers.processes(host) if "dtrain" in line and word in line]


def workers(host):
    return leftovers.without_children(pid for pid, _, line in leftovers.processes(host)
                                      if "echo line" in line and "dtrain" not in line)


@contextlib.contextmanager
def stopped(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def spinning(core, count=2):
    """Others have this core. What is left to `weak` processes is a turn every four seconds or so,
    or 50 ms a second where the kernel does not weigh sessions (autogroup, sched(7))."""
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE)
                for _ in range(count)]
    try:
        assert spinners[0].stdout.readline() == b"spins\n"
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
            spinner.stdout.close()


def waited(pid):
    """For how many seconds a thread of the process has been ready to run, and did not."""
    most = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as times:
                most = max(most, int(times.read().split()[1]))
    return most / 1e9


def confine(pids, core):
    """These have only that core, and nothing to say there."""
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            with open(f"/proc/{pid}/autogroup", "w", encoding="ascii") as group:
                group.write("19")
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {core})


def finish(cluster, job):
    cluster.head.path("/run/go").touch()
    result = job.wait(90)
    cluster.head.path("/run/go").unlink()
    return result


# K11: nodes end the job of a launcher that is silent for longer than the lease.
def test_k11_a_launcher_that_stood_still_beyond_the_lease_says_so(cluster):
    job = cluster.start_launch(["--lease", "3s", "--grace", "1s", *cluster.hosts_flag(1), "--", *LINES])
    job.wait_for("line 3", count=4)
    with stopped(job.pid):
        wait_until(lambda: not any(workers(host) for host in cluster.nodes), 60, "the end of all workers")
    result = job.wait(30)
    assert result.code == 202, result
    (told, code) = [line for line in result.err.splitlines() if line.startswith("dtrain: ")]
    assert told.startswith("dtrain: this launcher did not run for "), result
    assert "--lease" in told and code == "dtrain: exit code 202", result
    assert "several nodes failed" not in result.err and "is lost" not in result.err, result


# Leads a terminal's session, as a shell does: runs the job in the foreground, tells when it was stopped,
# has it go on when a line comes, and tells how it ended.
SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
_, status = os.waitpid(pid, os.WUNTRACED)
print("stopped", os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTSTP, file=sys.stderr)
os.tcsetpgrp(0, os.getpgrp())
sys.stdin.readline()
os.tcsetpgrp(0, pid)
os.killpg(pid, signal.SIGCONT)
_, status = os.waitpid(pid, 0)
print("ended with", os.waitstatus_to_exitcode(status), file=sys.stderr)
"""


# K11: a real one, which also reaches the ssh processes in the launcher's group; for less than the lease.
def test_k11_control_z_and_fg(cluster):
    ours_of_it, terminal = pty.openpty()
    shell = cluster.head.popen(
        ["setsid", "--ctty", "/usr/bin/python3", "-I", "-c", SHELL, hosts.bin_dir() / "dtrain", "launch",
         "--lease", "60s", "--tag-output", "rank", *cluster.hosts_flag(1), "--", *LINES],
        stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    os.set_blocking(ours_of_it, False)
    seen = bytearray()

    def shows(*texts):
        with contextlib.suppress(OSError):
            seen.extend(os.read(ours_of_it, 1 << 16))
        return all(text in seen for text in texts)

    def lines(text):
        return [b"[%d] %s" % (rank, text) for rank in range(cluster.size)]

    try:
        wait_until(lambda: shows(*lines(b"line 5\r\n")), 30, lambda: bytes(seen))
        os.write(ours_of_it, b"\x1a")
        wait_until(lambda: shows(b"stopped True"), 10, lambda: bytes(seen))
        time.sleep(2)  # the fault is that long; meanwhile the workers go on
        assert all(len(workers(host)) == 1 for host in cluster.nodes)
        os.write(ours_of_it, b"\n")
        for host in cluster.nodes:
            host.path("/run/go").touch()
        wait_until(lambda: shows(b"ended with"), 30, lambda: bytes(seen))
        assert shows(b"ended with 0\r\n", *lines(b"last ")), bytes(seen)
        assert b"lost" not in seen and b"suspect" not in seen, bytes(seen)
        assert shell.wait(10) == 0
    finally:
        os.close(ours_of_it)
        for host in cluster.nodes:
            host.path("/run/go").unlink(missing_ok=True)


@contextlib.contextmanager
def serving(cluster, *flags):
    agents = [residents.Resident(host, flags=flags).start() for host in cluster.nodes]
    try:
        yield
    finally:
        for agent in agents:
            agent.host.path("/run/go").unlink(missing_ok=True)
            agent.stop()


# K11, ADR 14: resident agents may be told to wait longer.
def test_k11_a_launcher_that_stood_still_beyond_the_lease_resumes_where_agents_wait(make_cluster):
    cluster = make_cluster(2)
    with serving(cluster, "--launcher-wait", "2m"):
        job = cluster.start_launch(["--lease", "3s", *cluster.hosts_flag(2), "--", *LINES])
        job.wait_for("line 3", count=4)
        with stopped(job.pid):
            time.sleep(9)  # three leases
            assert all(len(workers(host)) == 2 for host in cluster.nodes)
        for host in cluster.nodes:
            host.path("/run/go").touch()
        result = job.wait(60)
        assert result.code == 0 and not result.tells_of_loss, result
        check_lines(result, 4)


def test_k11_resident_agents_end_such_a_job_unless_told_to_wait(make_cluster):
    cluster = make_cluster(2)
    with serving(cluster):
        job = cluster.start_launch(["--lease", "3s", "--grace", "1s", *cluster.hosts_flag(1), "--", *LINES])
        job.wait_for("line 3", count=2)
        with stopped(job.pid):
            wait_until(lambda: not any(workers(host) for host in cluster.nodes), 60, "the end of all workers")
        result = job.wait(30)
        assert result.code == 202 and "this launcher did not run for " in result.err, result


# K11: on its own machine the agent sees that the launcher is there, and waits.
def test_k11_a_stopped_local_launch_goes_on(cluster):
    job = cluster.start_launch(["--lease", "1s", "-np", "2", "--", *LINES])
    job.wait_for("line 3", count=2)
    with stopped(job.pid):
        time.sleep(4)  # the fault is that long
        assert len(workers(cluster.head)) == 2
    result = finish(cluster, job)
    assert result.code == 0 and result.out.count("last") == 2, result
    assert not result.tells_of_loss, result


# 30: the other way round.
def test_a_stopped_agent_of_our_own_machine_is_not_lost(cluster):
    job = cluster.start_launch(["--lease", "1s", "-np", "2", "--", *LINES])
    job.wait_for("line 3", count=2)
    (agent,) = ours(cluster.head, "bridge")
    with stopped(agent):
        job.wait_for("no message from it for ", stream="err", timeout=60)
        time.sleep(3)  # three leases
    job.wait_for("heard from again", stream="err", timeout=60)
    result = finish(cluster, job)
    assert result.code == 0 and result.out.count("last") == 2, result


# Its end, however, is seen at once, whatever the lease is.
def test_a_killed_agent_of_our_own_machine_is_lost_at_once(cluster):
    job = cluster.start_launch(["--lease", "10m", "--grace", "1s", "-np", "2", "--", *LINES])
    job.wait_for("line 3", count=2)
    (agent,) = ours(cluster.head, "bridge")
    os.kill(agent, signal.SIGKILL)
    result = job.wait(30)
    assert result.code == 202, result


# 30, with real load.
@pytest.mark.parametrize("who", ["agent", "all"])
def test_a_starved_local_launch_goes_on(cluster, who):
    core = max(os.sched_getaffinity(0))
    job = cluster.start_launch(["--lease", "1s", "-np", "2", "--", *LINES])
    job.wait_for("line 3", count=2)
    starved = ours(cluster.head, "bridge")
    assert len(starved) == 1
    if who == "all":
        starved += [*ours(cluster.head, "shepherd"), job.pid]
    confine(starved, core)
    with spinning(core):
        if who == "agent":
            job.wait_for("no message from it for ", stream="err", timeout=60)
        before = {pid: waited(pid) for pid in starved}
        time.sleep(10)  # ten leases
        for pid in starved:
            # It is counted when it gets its next turn.
            wait_until(lambda pid=pid: waited(pid) - before[pid] > 2, 30,
                       f"process {pid} of {starved} was not starved")
    result = finish(cluster, job)
    assert result.code == 0 and result.out.count("last") == 2, result
    assert not result.tells_of_loss and "did not run" not in result.err, result


if hosts.is_sanitized():
    del test_a_starved_local_launch_goes_on  # it needs more than what is left of the core
