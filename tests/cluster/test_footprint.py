# SPDX-License-Identifier: Apache-2.0
"""Resident agents live for months: a launch must leave nothing in them. `tools/bench resident` does
a thousand, and looks at memory, too."""
import json
import signal
import time

import pytest

import footprint
import hosts
import leftovers
import residents
from launching import wait_until
from test_node_http import connect
from test_status import ask

WARM_UP = 10  # gRPC's threads and descriptors come with the first launches
LAUNCHES = 25
ROUNDS = 6
AT_REST_KIB = 15 << 10
INTERVAL = 15  # seconds


@pytest.fixture
def agents(cluster):
    made = [residents.Resident(host).start() for host in cluster.nodes]
    yield made
    for agent in made:
        agent.stop()


def launch(cluster, times):
    for _ in range(times):
        result = cluster.launch([*cluster.hosts_flag(2), "--", "true"])
        assert result.code == 0, result


# H7: of finished jobs an agent keeps nothing at all, however many there were.
def test_h7_launches_leave_nothing_in_the_agents(cluster, agents):
    launch(cluster, WARM_UP)
    for agent in agents:
        wait_until(lambda agent=agent: not agent.jobs(), 20, lambda agent=agent: agent.log)
    before = [footprint.of(agent) for agent in agents]
    launch(cluster, LAUNCHES)

    def growth():
        return [footprint.of(agent) - was for agent, was in zip(agents, before)]

    def grown():
        return [more for more in growth() if more.fds > 0 or more.threads > 0 or more.files > 0]

    wait_until(lambda: not grown(), 30, lambda: growth())


# What a job can end by, with its code.
ENDS = {
    "well": (["true"], 0), "a failure": (["sh", "-c", "echo why >&2; exit 3"], 3),
    "a signal": (["sh", "-c", "kill -9 $$"], 137), "no such program": (["/no/such/program"], 127),
    "a lot of output": (["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"], 0),
    "an interrupt": (["sh", "-c", "echo up; exec sleep 600"], 130),
    "its launcher's death": (["sh", "-c", "echo up; exec sleep 600"], -9),
}


def end_one(cluster, how):
    command, code = ENDS[how]
    # A short lease is for the one end that it decides: others would end by it on a machine that pauses.
    lease = ["--lease", "2s"] if code == -signal.SIGKILL else []
    job = cluster.start_launch([*lease, "--grace", "1s", "--bind", "none", "-H", "node0:2", "--", *command])
    if "up" in command[-1]:
        job.wait_for("up", count=2)
        job.signal(signal.SIGINT if code == 130 else signal.SIGKILL)
    result = job.wait(60)
    assert result.code == code, (how, result)


# H7: however they ended. Nor are they in any answer, where their number would be without bounds.
@pytest.mark.launcher_killed
def test_h7_jobs_of_every_end_leave_nothing(cluster):
    agent = residents.Resident(cluster.nodes[0]).start()

    def answer(path):
        connection = connect(agent)  # one that rests is closed
        try:
            return ask(connection, path)[2]
        finally:
            connection.close()

    def series():
        return len(answer("/metrics").splitlines())

    def is_idle():
        return (not json.loads(answer("/v1/jobs"))["jobs"] and not agent.jobs()
                and len(leftovers.processes(agent.host)) == 1)

    def end_each():
        for how in ENDS:
            end_one(cluster, how)
            # A launcher that was killed does not wait for its job's end.
            wait_until(lambda: not agent.jobs(), 40, lambda: agent.log)

    end_each()
    wait_until(is_idle, 40, lambda: agent.log)
    before, lines = footprint.of(agent), series()
    for _ in range(ROUNDS):
        end_each()
    wait_until(is_idle, 20, lambda: agent.log)
    assert series() == lines, answer("/metrics").decode()

    def more():
        return footprint.of(agent) - before

    # gRPC's threads come and go until some time after the last connection.
    wait_until(lambda: more().fds <= 0 and more().files <= 0 and more().threads <= 0, 90,
               lambda: (before, more(), footprint.threads_of_libraries(agent)))
    if not hosts.is_sanitized():
        wait_until(lambda: more().written_kib < 4 << 10, 60, more)
    # The launcher's machine: no socket is left of them but of those that were killed, which the next removes.
    assert len(list(cluster.head.path("/run/dtrain").iterdir())) <= 1
    agent.stop()


# At rest it costs a node next to nothing: memory, and its processors' sleep. Half of them have a watchdog.
def test_an_agent_at_rest(cluster):
    agents = [residents.Resident(host, env={"WATCHDOG_USEC": "10000000"} if index % 2 else {}).start()
              for index, host in enumerate(cluster.nodes)]
    launch(cluster, 3)
    # gRPC goes some time after the last connection.
    wait_until(lambda: not any(footprint.threads_of_libraries(agent) for agent in agents), 90,
               lambda: [footprint.threads_of_libraries(agent) for agent in agents])
    before = [footprint.wake_ups(agent) for agent in agents]
    time.sleep(INTERVAL)  # the measurement
    for agent, then in zip(agents, before):
        now = footprint.wake_ups(agent)
        assert not footprint.threads_of_libraries(agent)
        assert sum(now.values()) - sum(then.values()) <= INTERVAL, (agent.host.name, then, now)
        assert footprint.node_kib(agent) <= AT_REST_KIB, (footprint.node_kib(agent), footprint.of(agent))
    for agent in agents:
        agent.stop()


if hosts.is_sanitized():
    del test_an_agent_at_rest  # a sanitizer has memory and threads of its own
