# SPDX-License-Identifier: Apache-2.0
"""Resident agents live for months: a launch must leave nothing in them. `tools/bench resident` does
a thousand, and looks at memory, too."""
import pytest

import footprint
import residents
from launching import wait_until

WARM_UP = 10  # gRPC's threads and descriptors come with the first launches
LAUNCHES = 25


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
