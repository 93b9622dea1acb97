# SPDX-License-Identifier: Apache-2.0
"""Hosts with resident agents that root reaches over TLS, for tests that leave them as they were."""
import leftovers
import residents
from certificates import Authority, agent_flags
from launching import wait_until

PORT = 9797
TLS = "/root/work/tls"


class TlsCluster:
    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.nodes = cluster.nodes
        self.head = cluster.head
        self._launches = []
        self.authority = Authority(folder, cluster.nodes)
        for node in cluster.nodes:
            self.authority.bundle(f"node:{node.name}", node.path(TLS))
        self.authority.user("root")
        self.authority.bundle("user:root", cluster.head.path(TLS))
        self.agents = [residents.Resident(node, flags=[*agent_flags(PORT), "--allow-root"]).start()
                       for node in cluster.nodes]

    def reach(self, nodes=None):
        """Flags that lead to the hosts, which have no names."""
        return ["--agent", "tcp", "--tls-dir", TLS, "-H",
                ",".join(node.address for node in nodes or self.nodes)]

    def flags(self, slots, nodes=None):
        return ["--agent", "tcp", "--tls-dir", TLS, "--wdir", "/", "--bind", "none", "-H",
                ",".join(f"{node.address}:{slots}" for node in nodes or self.nodes)]

    def start(self, *args, **options):
        self._launches.append(self.cluster.start_launch(args, **options))
        return self._launches[-1]

    def end_launches(self):
        while self._launches:
            self._launches.pop().kill()

    def processes(self):
        agents = [agent.pid for agent in self.agents]
        return [(host.name, *row) for host in self.cluster.hosts
                for row in leftovers.processes(host) if row[0] not in agents]

    def wait_for_no_workers(self, seconds):
        """Nothing but the agents is left, of jobs neither."""
        wait_until(lambda: not self.processes(), seconds, self.processes)
        for agent in self.agents:
            wait_until(lambda agent=agent: not agent.jobs() and not agent.cgroups(), 10,
                       lambda agent=agent: f"{agent.jobs()} {agent.cgroups()}\n{agent.log}")

    def check(self):
        self.wait_for_no_workers(10)
        for agent in self.agents:
            assert not agent.ended(), agent.log
