# SPDX-License-Identifier: Apache-2.0
"""What chaos does to a running job. Each fault knows how long it really took: on a busy machine a
short one may become one that the lease does not cover."""
import signal
import time

LEASE = 8.0
# Short of the lease by so much that TCP's next try still falls within it.
SHORT = 2.0
LONG = LEASE + 3


class Fault:
    """`victims`: names of hosts."""

    def __init__(self, name, victims, seconds):
        self.name = name
        self.victims = victims
        self.seconds = seconds
        self.took = 0.0

    def __str__(self):
        return f"{self.name}({','.join(self.victims)} {self.seconds:.2f}s)"

    def within_lease(self):
        return self.took < LEASE / 2

    def strike(self, world):
        start = time.monotonic()
        getattr(self, f"_{self.name}")(world)
        self.took = time.monotonic() - start

    def _kill(self, world):
        for name in self.victims:
            world.agents[name].kill()
        time.sleep(self.seconds)
        for name in self.victims:
            world.agents[name].start()

    def _restart(self, world):
        for name in self.victims:
            world.agents[name].restart()

    def _stop(self, world):
        for name in self.victims:
            world.agents[name].signal(signal.SIGSTOP)
        time.sleep(self.seconds)
        for name in self.victims:
            world.agents[name].signal(signal.SIGCONT)

    def _cut(self, world):
        hosts = [host for host in world.cluster.hosts if host.name in self.victims]
        for host in hosts:
            world.cluster.cut(host)
        time.sleep(self.seconds)
        for host in hosts:
            world.cluster.heal(host)


def short(dice, world):
    """One that a job lives through once it runs."""
    name = dice.choice(["kill", "kill", "kill", "restart", "stop", "cut", "cut"])
    count = dice.randint(1, world.cluster.size if name in ("kill", "restart") else 2)
    candidates = list(world.agents)
    if name == "cut" and dice.random() < 0.25:
        return Fault(name, ["head"], dice.uniform(0.1, SHORT))
    return Fault(name, sorted(dice.sample(candidates, count)),
                 0 if name == "restart" else dice.uniform(0, SHORT))


def long(dice, world):
    """One that ends the job."""
    name = dice.choice(["kill", "stop", "cut", "cut"])
    victim = dice.choice([*world.agents, "head"] if name == "cut" else list(world.agents))
    return Fault(name, [victim], LONG)
