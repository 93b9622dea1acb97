# SPDX-License-Identifier: Apache-2.0
"""Resident agents: jobs that outlive them (group E), and what of it must not go wrong. Killed at random
moments: test_random_kills.py."""
import hashlib
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

import hosts
import leftovers
import residents
from launching import wait_until
from test_faults_d import ESCAPED, python

LIVE = python(ESCAPED + "print('up', flush=True); time.sleep(600)")
# Counts until it is told to go on, so that there is output in every moment.
COUNT = ["sh", "-c", "i=0; until [ -e /run/go ]; do echo line $i; i=$((i + 1)); sleep 0.01; done; "
         "echo last $i; exit $((3 + RANK))"]


@pytest.fixture
def agents(cluster):
    made = [residents.Resident(host).start() for host in cluster.nodes]
    yield made
    for host in cluster.nodes:
        Path(host.path("/run/go")).unlink(missing_ok=True)
    for agent in made:
        agent.stop()


def go(cluster):
    for host in cluster.nodes:
        Path(host.path("/run/go")).touch()


def identity(pid):
    """A process for good: its pid and when it was started."""
    return pid, stat_of(pid)[19]


def workers(host):
    return sorted(identity(pid) for pid, _, line in leftovers.processes(host)
                  if b"DTRAIN_RANK=" in leftovers.environment_of(pid) and "agent" not in line)


def stat_of(pid):
    """Fields of /proc/PID/stat behind the name; it may have ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [""] * 40


def ranks(host):
    """Of the processes of workers, those that the shepherds started themselves. A shepherd forks besides to
    look at files that may hang, always on old kernels: such a child has its parent's command line."""
    parents = [str(pid) for pid in shepherds(host)]
    return sorted(identity(pid) for pid, _, line in leftovers.processes(host)
                  if "agent" not in line and not line.endswith(" shepherd") and stat_of(pid)[1] in parents)


def shepherds(host):
    return [pid for pid, _, line in leftovers.processes(host) if line.endswith(" shepherd")]


def check_lines(result, ranks):
    """Every rank's lines are there, each once and in order."""
    for rank in range(ranks):
        *before, lines = result.said_by(rank)
        assert lines[-1] == f"last {len(lines) - 1}", (rank, lines[-3:], result.err)
        for each in [*before, lines]:
            last = each[-1].startswith("last")  # one that was ended may have had no time for that
            assert each[:len(each) - last] == [f"line {i}" for i in range(len(each) - last)], (rank, each)


def start_counting(cluster, *flags):
    launch = cluster.start_launch([*flags, *cluster.hosts_flag(1), "--", *COUNT])
    for rank in range(cluster.size):
        launch.wait_for(f"[{rank}] line 5\n")
    return launch


def test_a_launch_over_ssh_uses_them(cluster, agents):
    result = cluster.launch([*cluster.hosts_flag(2), "--", "sh", "-c", "echo $DTRAIN_RANK; ps -o "
                             "comm= -p $(ps -o ppid= -p $PPID) 2>/dev/null; exit 0"])
    assert result.code == 0, result
    for agent in agents:
        assert agent.jobs() == []


# E1, E3, E10: killed and started anew; E7: restarted.
@pytest.mark.parametrize("way", ["kill", "restart"])
def test_e1_e7_jobs_outlive_their_agents(cluster, agents, way):
    launch = start_counting(cluster)
    before = [ranks(host) for host in cluster.nodes]
    assert all(before)
    for agent in agents:
        if way == "kill":
            agent.kill()
            agent.start()
        else:
            agent.restart()
    assert [ranks(host) for host in cluster.nodes] == before
    go(cluster)
    result = launch.wait(30)
    assert result.code in range(3, 7) and "exited with code" in result.err, result
    assert not result.tells_of_loss, result


# E3: they end while there is no agent, each with a code of its own.
def test_e3_exit_codes_and_output_of_workers_that_ended_meanwhile(cluster, agents):
    launch = cluster.start_launch(
        [*cluster.hosts_flag(1), "--", "sh", "-c",
         "i=0; until [ -e /run/go ]; do echo line $i; i=$((i + 1)); sleep 0.01; done; echo last $i"])
    for rank in range(cluster.size):
        launch.wait_for(f"[{rank}] line 5\n")
    for agent in agents:
        agent.kill()
    go(cluster)
    for host in cluster.nodes:
        wait_until(lambda host=host: not workers(host), 10, lambda host=host: workers(host))
    for agent in agents:
        agent.start()
    result = launch.wait(30)
    assert result.code == 0, result
    check_lines(result, cluster.size)


def test_e3_a_failure_meanwhile_is_told(cluster, agents):
    launch = cluster.start_launch([*cluster.hosts_flag(1), "--", "sh", "-c",
                                   "echo up; until [ -e /run/go ]; do sleep 0.01; done; exit 41"])
    launch.wait_for("up", count=cluster.size)
    agents[2].kill()
    Path(cluster.nodes[2].path("/run/go")).touch()
    wait_until(lambda: not workers(cluster.nodes[2]), 10, "still there")
    agents[2].start()
    result = launch.wait(30)
    assert result.code == 41 and "rank 2 on node2" in result.err, result


# E4: what the agent wrote down is gone or damaged. First the workers are killed.
@pytest.mark.parametrize("harm", ["missing", "damaged", "no socket"])
def test_e4_a_job_that_cannot_be_taken_over(cluster, agents, harm):
    launch = cluster.start_launch(["--grace", "1s", *cluster.hosts_flag(1), "--", *LIVE])
    launch.wait_for("up", count=cluster.size)
    agent = agents[1]
    folder = Path(agent.host.path(f"{residents.STATE}/jobs/{agent.jobs()[0]}"))
    agent.kill()
    if harm == "missing":
        (folder / "record").unlink()
    elif harm == "damaged":
        (folder / "record").write_bytes(b"\x0a\x05ab")
    else:
        (folder / "shepherd.sock").unlink()
    agent.start()
    assert not workers(agent.host)
    result = launch.wait(30)
    assert result.code == 203 and "node1" in result.err and "have been killed" in result.err, result
    assert "cannot be taken over" in agent.log


# The workers live no longer than the lease when the agent stays away.
def test_an_agent_that_does_not_come_back(cluster, agents):
    launch = cluster.start_launch(["--grace", "1s", "--lease", "3s", *cluster.hosts_flag(1), "--",
                                   *LIVE])
    launch.wait_for("up", count=cluster.size)
    agents[3].kill()
    result = launch.wait(20)
    assert result.code == 202 and "node3" in result.err, result
    leftovers.wait_for_no_processes(cluster, 10, [agents[3].host])
    agents[3].start()  # and takes away what is left on disk
    assert agents[3].jobs() == []


# E8
def test_e8_a_second_agent_is_refused(cluster, agents):
    second = cluster.nodes[0].popen([str(hosts.bin_dir() / "dtrain-agent"), "serve"],
                                    stdout=-1, stderr=-1)
    _, err = second.communicate(timeout=10)
    assert second.returncode == 207, err
    assert b"another agent serves" in err and b"process " in err, err
    assert cluster.launch([*cluster.hosts_flag(1), "--", "true"]).code == 0


# E11: it is told at once, and not by a lease.
def test_e11_a_shepherd_that_is_killed(cluster, agents):
    launch = cluster.start_launch(["--grace", "1s", "--lease", "300s", *cluster.hosts_flag(2), "--", *LIVE])
    launch.wait_for("up", count=2 * cluster.size)
    for pid in shepherds(cluster.nodes[1]):
        os.kill(pid, signal.SIGKILL)
    result = launch.wait(20)
    assert result.code == 203 and "node1" in result.err, result
    for host in cluster.nodes:
        wait_until(lambda host=host: not workers(host), 5, lambda host=host: workers(host))


def test_a_shepherd_that_is_killed_while_there_is_no_agent(cluster, agents):
    launch = cluster.start_launch(["--grace", "1s", *cluster.hosts_flag(2), "--", *LIVE])
    launch.wait_for("up", count=2 * cluster.size)
    agents[1].kill()
    for pid in shepherds(cluster.nodes[1]):
        os.kill(pid, signal.SIGKILL)
    agents[1].start()
    assert not workers(cluster.nodes[1])
    result = launch.wait(20)
    assert result.code == 203 and "node1" in result.err, result


# Nobody hears of the launcher any more.
@pytest.mark.launcher_killed
def test_a_launcher_that_is_killed(cluster, agents):
    launch = cluster.start_launch(["--grace", "1s", "--lease", "3s", *cluster.hosts_flag(1), "--",
                                   *LIVE])
    launch.wait_for("up", count=cluster.size)
    launch.kill()
    for agent in agents:
        wait_until(lambda agent=agent: not agent.jobs() and not workers(agent.host), 10,
                   lambda agent=agent: agent.log)


def test_two_jobs_at_once_do_not_disturb_each_other(cluster, agents):
    first = start_counting(cluster)
    second = cluster.launch(["--bind", "none", *cluster.hosts_flag(1), "--", "sh", "-c", "echo second; exit 9"])
    assert second.code == 9, second
    assert all(workers(host) for host in cluster.nodes)
    for pid in shepherds(cluster.nodes[1]):
        assert identity(pid)
    go(cluster)
    assert first.wait(30).code in range(3, 7)


def rss_mib(pid):
    """0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines()
                 if line.startswith("VmRSS")), 0)


# No heartbeat finds a gap between chunks of stdin, and both ends keep what is not acknowledged.
def test_a_long_stdin_is_kept_by_nobody(cluster, agents):
    size = 300 << 20
    block = bytes(random.Random(7).randbytes(1 << 20))
    launch = cluster.start_launch(["-H", "node0:1", "--", "sh", "-c", "echo up; sha256sum"],
                                  stdin=subprocess.PIPE)
    launch.wait_for("up")
    ours = {"launcher": launch.pid, "agent": agents[0].pid, "shepherd": shepherds(cluster.nodes[0])[0]}
    before = {name: rss_mib(pid) for name, pid in ours.items()}
    most = dict(before)
    written = hashlib.sha256()
    for _ in range(size // len(block)):
        launch.process.stdin.write(block)
        written.update(block)
        most = {name: max(most[name], rss_mib(pid)) for name, pid in ours.items()}
    launch.process.stdin.close()
    result = launch.wait(120)
    assert result.code == 0 and written.hexdigest() in result.out, result
    grown = {name: most[name] - before[name] for name in ours}
    print(f"grown by MiB: {grown}")
    if not hosts.is_sanitized():  # AddressSanitizer holds on to what was freed
        assert max(grown.values()) < 32, grown
