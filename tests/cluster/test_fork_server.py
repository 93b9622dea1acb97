# SPDX-License-Identifier: Apache-2.0
"""Shepherds of a resident agent are forked from a process beside it. It may be lost at any moment."""
import os
import signal
from pathlib import Path

import pytest

import hosts
import leftovers
import residents
from launching import wait_until
from test_resident import shepherds, stat_of

SLEEP = ["sh", "-c", "echo up; exec sleep 600"]


@pytest.fixture
def agent(cluster):
    if b"__tsan_init" in (hosts.bin_dir() / "dtrain-agent").read_bytes():
        pytest.skip("ThreadSanitizer does not follow this fork, and its agents do without")
    made = residents.Resident(cluster.nodes[0]).start()
    yield made
    made.stop()


def launch(cluster):
    result = cluster.launch(["-H", f"{cluster.nodes[0].address}:2", "--", "true"])
    assert result.code == 0, result


def the_server(agent):
    [pid] = agent.fork_servers()
    return pid


def test_a_shepherd_is_a_child_of_the_agent_and_looks_like_one(cluster, agent):
    job = cluster.start_launch(["-H", f"{cluster.nodes[0].address}:1", "--", *SLEEP])
    job.wait_for("up")
    [shepherd] = shepherds(agent.host)
    assert stat_of(shepherd)[1] == str(agent.pid)
    assert Path(f"/proc/{shepherd}/comm").read_text() == "dtrain-shepherd\n"
    assert os.readlink(f"/proc/{shepherd}/exe") == os.readlink(f"/proc/{agent.pid}/exe")
    # Forked, that is: its addresses are the server's.
    server = the_server(agent)
    assert stat_of(shepherd)[25] == stat_of(server)[25]  # start of its stack
    assert "starts the shepherd without it" not in agent.log
    # Nothing holds on to the server's socket: it is gone with the agent, the job is not.
    agent.kill()
    wait_until(lambda: not Path(f"/proc/{server}").exists(), 10, lambda: leftovers.processes(agent.host))
    assert shepherds(agent.host) == [shepherd]
    agent.start()
    job.signal(signal.SIGINT)
    assert job.wait(30).code == 130


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_is_lost_costs_no_launch(cluster, agent, how):
    launch(cluster)
    before = the_server(agent)
    os.kill(before, how)
    launch(cluster)
    assert agent.log.count("starts the shepherd without it") == 1
    launch(cluster)
    assert agent.log.count("starts the shepherd without it") == 1
    assert the_server(agent) != before
    assert not Path(f"/proc/{before}").exists()
