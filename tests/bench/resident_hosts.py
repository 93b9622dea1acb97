# SPDX-License-Identifier: Apache-2.0
"""Hosts with resident agents, for benchmarks: launchers reach them by ssh and by TCP with TLS."""
import contextlib

from compare import DTRAIN, HERE, hosts  # first: it makes the cluster's modules importable

import residents
from certificates import Authority, agent_flags

PORT = 9797
TLS = "/root/work/tls"


@contextlib.contextmanager
def agents(cluster, flags=()):
    """An agent on each node that listens with a certificate; the head is given one for root."""
    authority = Authority(cluster.base, cluster.nodes)
    authority.user("root")
    authority.bundle("user:root", cluster.work() / "tls")
    made = []
    try:
        for node in cluster.nodes:
            authority.bundle(f"node:{node.name}", cluster.work(node) / "tls")
            own = [*agent_flags(PORT, TLS), "--allow-root", *flags]
            made.append(residents.Resident(node, flags=own))
            made[-1].start()
        yield made
        for agent in made:
            agent.stop()
    finally:
        for agent in made:
            if agent.process is not None:
                agent.kill()


def by_ssh(cluster, slots):
    return [DTRAIN, "launch", *cluster.hosts_flag(slots)]


def by_tcp(cluster, slots, nodes=None):
    """`nodes`: of the cluster, all unless said."""
    where = ",".join(f"{node.address}:{slots}" for node in nodes or cluster.nodes)
    return [DTRAIN, "launch", "--agent", "tcp", "--tls-dir", TLS, "-H", where]


__all__ = ["HERE", "PORT", "agents", "by_ssh", "by_tcp", "hosts"]
