# SPDX-License-Identifier: Apache-2.0
"""Resident agents live for months: a launch must leave nothing in them. `tools/bench resident` does
a thousand, and looks at memory, too."""
import time

import pytest

import footprint
import residents
from launching import wait_until
from test_faults_j import is_sanitized

WARM_UP = 10  # gRPC's threads and descriptors come with the first launches
LAUNCHES = 25
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


# At rest it costs a node next to nothing: memory, and its processors' sleep. Half of them have a watchdog.
def test_an_agent_at_rest(cluster):
    if is_sanitized():
        pytest.skip("a sanitizer has memory and threads of its own")
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
        assert len(agent.fork_servers()) == 1
        assert footprint.node_kib(agent) <= AT_REST_KIB, (footprint.node_kib(agent), footprint.of(agent))
    for agent in agents:
        agent.stop()
