# SPDX-License-Identifier: Apache-2.0
"""What chaos does to a running job. Each fault knows how long it really took: on a busy machine a
short one may become one that the lease does not cover."""
import contextlib
import os
import signal
import time
from pathlib import Path

import leftovers

LEASE = 8.0
# Short of the lease by so much that TCP's next try still falls within it.
SHORT = 2.0
LONG = LEASE + 3
# The environment variable that tells which job of a round a worker belongs to.
MARK = "CHAOS_JOB"
KINDS = {"kill": "agents killed", "restart": "agents restarted", "stop": "agents stopped for a while",
         "cut": "links cut", "deafen": "links cut towards hosts", "shepherd": "shepherds killed",
         "launcher": "launchers killed"}


def stat_of(pid):
    """Fields of /proc/PID/stat behind the name; it may have ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [""] * 40


def shepherds(host, job):
    """Processes whose children are workers of that job."""
    mark = f"{MARK}={job}".encode()
    rows = leftovers.processes(host)
    own = {str(pid) for pid, _, line in rows if line.endswith(" shepherd")}
    return {int(parent) for pid, _, _ in rows if (parent := stat_of(pid)[1]) in own
            and mark in leftovers.environment_of(pid).split(b"\0")}


class Fault:
    """`victims`: names of hosts."""

    def __init__(self, name, victims, seconds):
        self.name = name
        self.victims = victims
        self.seconds = seconds
        self.took = 0.0
        self.began = 0.0

    def __str__(self):
        return f"{self.name}({','.join(self.victims)} {self.seconds:.2f}s)"

    def within_lease(self):
        return self.took < LEASE / 2

    def strike(self, world):
        self.began = time.monotonic()
        getattr(self, f"_{self.name}")(world)
        self.took = time.monotonic() - self.began

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
        self._part(world, world.cluster.cut, world.cluster.heal)

    def _deafen(self, world):
        """They send and are heard, and hear nothing."""
        self._part(world, world.cluster.cut_towards, world.cluster.heal_towards)

    def _part(self, world, cut, heal):
        hosts = [host for host in world.cluster.hosts if host.name in self.victims]
        for host in hosts:
            cut(host)
        time.sleep(self.seconds)
        for host in hosts:
            heal(host)

    def _shepherd(self, world):
        for host in world.cluster.nodes:
            if host.name in self.victims:
                for pid in shepherds(host, 0):
                    # The end of the first victim's may have ended the others'.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def of_shepherd(dice, world):
    """Ends the first job of the round, and no other."""
    count = dice.randint(1, 2)
    return Fault("shepherd", sorted(dice.sample(list(world.agents), count)), 0)


def short(dice, world):
    """One that a job lives through once it runs."""
    name = dice.choice(["kill", "kill", "kill", "restart", "stop", "cut", "cut", "deafen"])
    count = dice.randint(1, world.cluster.size if name in ("kill", "restart") else 2)
    candidates = list(world.agents)
    if name == "cut" and dice.random() < 0.25:
        return Fault(name, ["head"], dice.uniform(0.1, SHORT))
    return Fault(name, sorted(dice.sample(candidates, count)),
                 0 if name == "restart" else dice.uniform(0, SHORT))


def long(dice, world):
    """One that ends the job."""
    name = dice.choice(["kill", "stop", "cut", "cut", "deafen"])
    victim = dice.choice([*world.agents, "head"] if name == "cut" else list(world.agents))
    return Fault(name, [victim], LONG)
