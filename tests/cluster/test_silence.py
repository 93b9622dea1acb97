# SPDX-License-Identifier: Apache-2.0
"""Row 18: shepherd, agent or both are stopped (SIGSTOP) while a job runs, and stay so. Who is silent is named,
and no worker is left, within the times of docs/rendezvous.md."""
import contextlib
import os
import signal
import time

import leftovers
import residents
from launching import wait_until
from test_resident import shepherds, workers

LIVE = ["sh", "-c", "echo up; exec sleep 600"]
LEASE, GRACE = 3, 1
FLAGS = ["--lease", f"{LEASE}s", "--grace", f"{GRACE}s"]
# For an agent, which has asked its shepherd to end the job, before it kills it.
KILLED = 10
SLACK = 6  # on a loaded machine


def agents(host):
    return [pid for pid, _, line in leftovers.processes(host)
            if "dtrain-agent" in line and ("bridge" in line or "serve" in line)]


@contextlib.contextmanager
def stopped(pids):
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def start(cluster, *flags):
    job = cluster.start_launch([*FLAGS, *flags, "--", *LIVE])
    job.wait_for("up", count=4)  # of all hosts: before that one that is lost never came
    return job


def wait_for_no_workers(host, seconds):
    wait_until(lambda: not workers(host), seconds, lambda: leftovers.processes(host))


def check_silent_shepherd(cluster, job):
    host = cluster.nodes[-1]
    with stopped(shepherds(host)) as begin:
        result = job.wait(LEASE + KILLED + GRACE + SLACK)
        assert time.monotonic() - begin >= LEASE
        assert result.code == 203, result
        assert f"{host.name}: the shepherd, dtrain's process that owns the workers of this node, has said nothing" \
            in result.err, result
        wait_until(lambda: not workers(host) and not shepherds(host), SLACK, lambda: leftovers.processes(host))


def test_a_shepherd_behind_an_agent_of_its_users(cluster):
    check_silent_shepherd(cluster, start(cluster, *cluster.hosts_flag(1)))


def test_a_shepherd_behind_a_resident_agent(cluster):
    running = [residents.Resident(host).start() for host in cluster.nodes]
    check_silent_shepherd(cluster, start(cluster, *cluster.hosts_flag(1)))
    # The agent goes on.
    result = cluster.launch([*cluster.hosts_flag(1), "--", "true"])
    assert result.code == 0, result
    for agent in running:
        agent.stop()


# The one that was stopped goes on: as if nothing had been.
def test_a_shepherd_that_stands_still_for_less_than_the_lease(cluster):
    job = start(cluster, *cluster.hosts_flag(1))
    with stopped(shepherds(cluster.nodes[1])):
        time.sleep(LEASE / 2)
    job.signal(signal.SIGINT)
    result = job.wait(20)
    assert result.code == 130 and "has said nothing" not in result.err, result


# Its shepherd hears of no launcher any more, and does not wait for it.
def check_silent_agent(cluster, job):
    host = cluster.nodes[-1]
    with stopped(agents(host)):
        wait_for_no_workers(host, LEASE + GRACE + SLACK)
        result = job.wait(SLACK)
        assert result.code == 202, result
        assert f"{host.name}: the connection to its agent is lost" in result.err, result


def test_an_agent_of_its_users(cluster):
    check_silent_agent(cluster, start(cluster, *cluster.hosts_flag(1)))
    wait_until(lambda: not agents(cluster.nodes[1]), SLACK, lambda: leftovers.processes(cluster.nodes[1]))


def test_a_resident_agent(cluster):
    running = [residents.Resident(host).start() for host in cluster.nodes]
    check_silent_agent(cluster, start(cluster, *cluster.hosts_flag(1)))
    result = cluster.launch([*cluster.hosts_flag(1), "--", "true"])
    assert result.code == 0, result
    for agent in running:
        agent.stop()


# Nobody on the node acts before one of them runs again.
def test_both(cluster):
    job = start(cluster, *cluster.hosts_flag(1))
    host = cluster.nodes[1]
    with stopped(agents(host) + shepherds(host)):
        result = job.wait(LEASE + GRACE + SLACK)
        assert result.code == 202, result
    wait_until(lambda: not workers(host) and not shepherds(host) and not agents(host), KILLED + GRACE + SLACK,
               lambda: leftovers.processes(host))
