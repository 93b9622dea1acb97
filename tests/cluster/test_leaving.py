# SPDX-License-Identifier: Apache-2.0
"""A host that is to go away says so: every rank hears it while that host still lives, and saves; nothing of it counts as
a failure."""
import os
import re
import signal

import pytest

import leftovers
from launching import wait_until
from residents import Resident
from test_resident import shepherds

# Each rank saves for a second when it is told, and says so.
SAVES = ["sh", "-c", 'trap \'sleep 1; echo "saved $DTRAIN_ATTEMPT"; exit 0\' TERM; '
         'echo "attempt $DTRAIN_ATTEMPT of $WORLD_SIZE"; while :; do sleep 0.1; done']


def bridges(host):
    return [pid for pid, _, line in leftovers.processes(host) if "dtrain-agent" in line and "bridge" in line]


@pytest.fixture
def notice(cluster, request):
    """Tells a host that it is to go away, in one of the ways."""
    way = request.param
    if way != "resident":
        yield lambda host: os.kill(*(bridges if way == "ssh" else shepherds)(host), signal.SIGTERM)
        return
    agents = {host: Resident(host).start() for host in cluster.nodes}
    try:
        yield lambda host: agents[host].signal(signal.SIGUSR1)
    finally:
        for agent in agents.values():
            agent.stop()


@pytest.mark.parametrize("notice", ["ssh", "shepherd", "resident"], indirect=True)
def test_all_ranks_save_and_the_job_goes_on_without_the_host(cluster, notice):
    job = cluster.start_launch(["--max-restarts", 1, "-N", "2:4", *cluster.hosts_flag(1), "--", *SAVES])
    job.wait_for("attempt 0 of 4", count=4)
    notice(cluster.nodes[3])
    job.wait_for("attempt 1 of 3", count=3, timeout=60)
    assert sorted(re.findall(r"^\[(\d)\] saved 0$", job.out, re.M)) == ["0", "1", "2", "3"], (job.out, job.err)
    assert re.search(r"^dtrain: node3: this host leaves the job: dtrain there got SIG\w+; the job restarts without it in 1 s$",
                     job.err, re.M), job.err
    job.signal(signal.SIGINT)
    result = job.wait(20)
    assert result.code == 130 and "ended by its fault" not in result.err, result


@pytest.mark.parametrize("notice", ["ssh", "shepherd", "resident"], indirect=True)
def test_without_restarts_all_ranks_save_and_the_job_ends(cluster, notice):
    job = cluster.start_launch([*cluster.hosts_flag(1), "--", *SAVES])
    job.wait_for("attempt 0 of 4", count=4)
    notice(cluster.nodes[2])
    result = job.wait(30)
    assert result.code == 202, result
    assert len(re.findall(r"^\[\d\] saved 0$", result.out, re.M)) == 4, result
    assert re.search(r"^dtrain: node2: this host leaves the job: dtrain there got SIG\w+$", result.err, re.M), result
    assert "lost" not in result.err and "may still be running" not in result.err, result


# A rankfile names the hosts of a restart, too: nothing else says that these are not all.
@pytest.mark.parametrize("notice", ["ssh"], indirect=True)
def test_with_a_rankfile_two_hosts_of_four_that_leave_are_awaited(cluster, notice):
    ranks = cluster.hostfile("".join(f"rank {i}=node{3 - i}\n" for i in range(4)), "ranks")
    job = cluster.start_launch(["--max-restarts", 1, "--rankfile", ranks, *cluster.hosts_flag(1), "--", "sh", "-c",
                                f'echo "$RANK is on $DTRAIN_HOST"; {SAVES[-1]}'])
    job.wait_for("attempt 0 of 4", count=4)
    for node in cluster.nodes[2:]:
        notice(node)
    job.wait_for("attempt 1 of 4", count=4, timeout=60)
    assert "the job restarts with" in job.err, job.err
    for rank in range(4):
        assert job.out.count(f"[{rank}] {rank} is on node{3 - rank}\n") == 2, job.out
    job.signal(signal.SIGINT)
    assert job.wait(20).code == 130


# Slurm's --signal gives it to the first process of a step, which is the agent: no host leaves.
@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_an_agent_passes_a_warning_on_to_the_ranks_of_its_host(cluster, name):
    job = cluster.start_launch([*cluster.hosts_flag(2), "--", "sh", "-c",
                                f"trap 'echo warned' {name}; trap 'echo ends; exit 0' TERM; "
                                "echo up; while :; do sleep 0.1; done"])
    job.wait_for("up", count=8)
    [agent] = bridges(cluster.nodes[1])
    os.kill(agent, getattr(signal, f"SIG{name}"))
    job.wait_for("warned", count=2)
    job.signal(signal.SIGINT)
    result = job.wait(30)
    assert result.code == 130, result
    assert sorted(re.findall(r"^\[(\d)\] warned$", result.out, re.M)) == ["2", "3"], result
    assert len(re.findall(r"^\[\d\] ends$", result.out, re.M)) == 8, result
    assert "leaves the job" not in result.err, result


# Until it goes, or is started again. A stop after that waits for what still runs.
def test_a_resident_agent_that_was_told_takes_no_jobs(cluster):
    agent = Resident(cluster.nodes[1]).start()
    try:
        job = cluster.start_launch([*cluster.hosts_flag(1, cluster.nodes[:2]), "--", *SAVES])
        job.wait_for("attempt 0 of 2", count=2)
        agent.signal(signal.SIGUSR1)
        wait_until(lambda: "this host leaves" in agent.log, 10, lambda: agent.log)
        refused = cluster.launch([*cluster.hosts_flag(1, cluster.nodes[:2]), "--", "true"])
        assert refused.code == 200 and "takes no jobs" in refused.err, refused
        agent.signal(signal.SIGTERM)
        result = job.wait(30)
        assert result.code == 202 and result.out.count("saved 0") == 2, result
        assert agent.process.wait(20) == 0, agent.log
        agent.start()
        assert cluster.launch([*cluster.hosts_flag(1, cluster.nodes[:2]), "--", "true"]).code == 0
    finally:
        agent.stop()
