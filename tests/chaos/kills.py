# SPDX-License-Identifier: Apache-2.0
"""Kills spawner, agent, shepherd and launcher in turn with SIGKILL, at random moments of a job's start, run and
stop. One of two hosts has a resident agent of the user dtrain and root's spawner, the other has an agent of root's. The
jobs write lines and meet in fences, or sum through shared memory.

    tools/chaos kills --kills 60            60 of each, with a new seed
    tools/chaos kills --seed 7 --only 12    only that kill of that seed, as exactly as timing allows

What must hold after each kill:

    killed
    spawner, agent   (started again within a second) the workers are the same, and the job ends with its own code; a
                     launch that has not started yet may end with 200 to 203
    shepherd         the launch ends with 203, which names host and signal, and the workers are gone; a job that was
                     being stopped may end with its own code, one that was starting with 200 to 202, too
    launcher         the workers are gone within lease, grace and ten seconds
    any of them      no line of output is lost or doubled, no rank was started twice, and nothing is left on any host

It ends at the first violation, and prints the command that repeats the kill.
"""
import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cluster"))

import hosts  # noqa: E402
import launching  # noqa: E402
import leftovers  # noqa: E402
import residents  # noqa: E402
import spawners  # noqa: E402
from certificates import Authority, agent_flags  # noqa: E402
from kill_jobs import DISTURBED, GO, GRACE, STARTS, Job, Violation, shepherds, workers  # noqa: E402

VICTIMS = ["spawner", "agent", "shepherd", "launcher"]
PHASES = ["start", "run", "stop"]
LEASE = 6.0
AWAY = 1.0  # at most, until it is started again
# From the last event that a job waits for to its end, and to when nothing is left: lease, grace, and what a busy
# machine needs.
OVER, GONE = LEASE + GRACE + 10, LEASE + GRACE + 15
PORT = 9797


class World:
    """The hosts. node0's jobs are started by `spawner`; `agents` by host name."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.lease = LEASE
        self.size = len(cluster.nodes)
        authority = Authority(folder, cluster.nodes)
        authority.user("alice")
        authority.bundle("user:alice", cluster.work() / "alice")
        for node in cluster.nodes:
            spawners.add_users(node)
        guarded, plain = cluster.nodes
        authority.bundle(f"node:{guarded.name}", guarded.path("/home/dtrain/tls"))
        guarded.run(["chown", "-R", str(spawners.USERS["dtrain"]), "/home/dtrain/tls"])
        authority.bundle(f"node:{plain.name}", cluster.work(plain) / "tls")
        self.spawner = spawners.Spawner(guarded, ["--patience", "10"])
        self.agents = {guarded.name: spawners.make_agent(guarded, agent_flags(PORT, "/home/dtrain/tls")),
                       plain.name: residents.Resident(plain, agent_flags(PORT))}
        self._before = None

    def start(self):
        self.spawner.start()
        for agent in self.agents.values():
            agent.start()
        launching.wait_until(lambda: "dtrain-spawner serves on" in self.agents["node0"].log, 20, "no spawner")
        self.sweep()
        self._before = leftovers.Leftovers(self.cluster)

    def reach(self, way, slots):
        if way == "ssh":
            return ["-H", ",".join(f"alice@{node.name}:{slots}" for node in self.cluster.nodes)]
        return ["--agent", "tcp", "--tls-dir", "/root/work/alice", "-H",
                ",".join(f"{node.address}:{slots}" for node in self.cluster.nodes)]

    def sweep(self):
        """A job of the same user, with which the scratch folder of a killed shepherd goes (ADR 30)."""
        result = self.cluster.launch([*self.reach("ssh", 1), "--wdir", "/", "--bind", "none", "--", "true"])
        if result.code != 0:
            raise Violation(f"the next launch failed\n{result}")

    def workers(self):
        return {node.name: workers(node) for node in self.cluster.nodes}

    def left(self):
        own = [f"{name}: process {agent.pid} " for name, agent in self.agents.items()]
        own += [f"node0: process {self.spawner.process.pid} "]
        return [what for what in self._before.find() if not what.startswith(tuple(own))
                and what not in ("node0: cgroup /spawner", "node0: cgroup /jobs")]

    def prepare(self):
        for node in self.cluster.nodes:
            node.path(STARTS).touch()
            node.path(STARTS).chmod(0o666)

    def settle(self, launcher_killed):
        for node in self.cluster.nodes:
            node.path(STARTS).unlink()
            node.path(GO).unlink(missing_ok=True)
        self.sweep()
        deadline = time.monotonic() + GONE
        while self.left():
            if launcher_killed:
                # Its status socket stays until somebody looks.
                self.cluster.head.run([hosts.bin_dir() / "dtrain", "ps"], check=False)
            if time.monotonic() > deadline:
                raise Violation("left behind:\n" + "\n".join(self.left()))
            time.sleep(0.02)
        for name, agent in self.agents.items():
            if agent.ended():
                raise Violation(f"the agent of {name} has ended with {agent.process.returncode}")
        if self.spawner.process.poll() is not None:
            raise Violation(f"the spawner has ended with {self.spawner.process.returncode}")

    def stop(self):
        for agent in self.agents.values():
            agent.stop()
        self.spawner.stop()


class Kill:
    """One kill of `victim`. `dice` decides all but the moments' exact time."""

    def __init__(self, dice, world, number):
        self._world = world
        self.victim = VICTIMS[number % len(VICTIMS)]
        # So that a few kills of each victim are in all phases.
        self.phase = PHASES[(number + number // len(VICTIMS)) % len(PHASES)]
        self.host = dice.choice(world.cluster.nodes) if self.victim != "spawner" else world.cluster.nodes[0]
        self.job = Job(dice, number)
        self.moment = dice.uniform(0, {"start": 0.35, "run": 0.5, "stop": 0.3}[self.phase])
        self.away = dice.uniform(0, AWAY)
        self.took = self.ended_after = 0.0
        self.struck = True

    def __str__(self):
        where = "head" if self.victim == "launcher" else self.host.name
        return (f"{self.victim} of {where} {self.moment:.3f} s into {self.phase}, away {self.away:.2f} s; "
                f"{self.job}")

    def play(self):
        """The exit code."""
        world, job = self._world, self.job
        world.prepare()
        job.start(world)
        if self.phase != "start":
            job.wait_until_up(world)
        if self.phase == "stop":
            job.begin_stop(world)
        time.sleep(self.moment)
        before = world.workers()
        self._strike()
        if self.victim in ("spawner", "agent"):
            if self.phase == "start":
                job.wait_until_up(world)
            elif self.phase == "run":
                self._check_same(before)
            if self.phase != "stop":
                job.begin_stop(world)
        elif self.victim == "shepherd" and not self.struck and self.phase == "start":
            job.begin_stop(world)
        free = time.monotonic()
        result = job.launch.wait(120)
        if self.victim in ("shepherd", "launcher"):
            self._wait_for_no_workers(free)
        else:
            self.ended_after = max(0.0, job.launch.started + result.seconds - free)
        if self.ended_after > OVER:
            raise Violation(f"over after {self.ended_after:.1f} s, not within {OVER:g}\n{result}")
        self._check_code(result)
        job.check_output(result, world.size)
        job.check_starts(world, result)
        world.settle(self.victim == "launcher")
        return result.code

    def _strike(self):
        world, began = self._world, time.monotonic()
        if self.victim in ("spawner", "agent"):
            one = world.spawner if self.victim == "spawner" else world.agents[self.host.name]
            one.kill()
            time.sleep(self.away)
            one.start()
        elif self.victim == "launcher":
            self.struck = not self.job.is_over()
            self.job.launch.signal(signal.SIGKILL)
        else:
            self._strike_shepherd()
        self.took = time.monotonic() - began

    def _strike_shepherd(self):
        """There may be none yet, or none any more."""
        deadline = time.monotonic() + 30
        while not (pids := shepherds(self.host)):
            if self.job.is_over() or self.phase == "stop" or time.monotonic() > deadline:
                self.struck = False
                return
            time.sleep(0.002)
        try:
            os.kill(pids[0], signal.SIGKILL)
        except ProcessLookupError:
            self.struck = False

    def _check_same(self, before):
        after = self._world.workers()
        if not self.job.is_over() and after != before and self._is_short():
            raise Violation(f"workers are not the same:\n{before}\n{after}\n{self.job.launch.err}")

    def _is_short(self):
        return self.took < LEASE / 2

    def _wait_for_no_workers(self, since):
        while any(left := self._world.workers().values()):
            if time.monotonic() > since + OVER:
                raise Violation(f"workers {OVER:g} s after the kill: {left}\n{self.job.launch.err}")
            time.sleep(0.02)
        self.ended_after = time.monotonic() - since

    def permitted(self):
        own = {self.job.code}
        if self.victim == "launcher":
            return {-signal.SIGKILL} if self.struck else own
        if self.victim == "shepherd":
            # A job that stops may be over on that host.
            codes = {203} | (own if self.phase == "stop" or not self.struck else set())
            return codes | DISTURBED if self.phase == "start" else codes
        return own | DISTURBED if self.phase == "start" or not self._is_short() else own

    def _check_code(self, result):
        if result.code not in self.permitted():
            raise Violation(f"exit code {result.code}, not one of {sorted(self.permitted())}\n{result}")
        if self.victim == "shepherd" and result.code == 203 and self.phase == "run":
            place = self.host.name if self.job.way == "ssh" else self.host.address
            for word in ("shepherd", "killed by signal 9", place):
                if word not in result.err:
                    raise Violation(f"203 does not say {word!r}\n{result}")


def explain(options, number, kill, world, error):
    print(f"\nVIOLATION after kill {number}: {kill}\nagain: tools/chaos kills --seed {options.seed} --only {number}\n"
          f"{error}\n", file=sys.stderr)
    for name, agent in world.agents.items():
        print(f"--- agent of {name}, now process {agent.process and agent.pid}\n{agent.log[-6000:]}", file=sys.stderr)
    print(f"--- spawner\n{world.spawner.log[-6000:]}", file=sys.stderr)
    for host in world.cluster.hosts:
        for pid, state, line in leftovers.processes(host):
            print(f"{host.name}: process {pid} ({state}) {line[:150]}", file=sys.stderr)


def run(options, world):
    outcomes, longest, struck = Counter(), Counter(), 0
    numbers = [options.only] if options.only is not None else range(options.kills * len(VICTIMS))
    for number in numbers:
        kill = Kill(random.Random(f"{options.seed}/{number}"), world, number)
        began = time.monotonic()
        try:
            code = kill.play()
        except (Violation, AssertionError) as error:
            explain(options, number, kill, world, error)
            return False
        print(f"kill {number}: {kill} -> {code}{'' if kill.struck else ', nobody was there'}, over after "
              f"{kill.ended_after:.1f} s, {time.monotonic() - began:.1f} s in all", flush=True)
        struck += kill.struck
        outcomes[f"{kill.victim} at {kill.phase} -> {'own code' if code == kill.job.code else code}"] += 1
        longest[kill.victim] = max(longest[kill.victim], kill.ended_after)
    print(f"no violation after {struck} kills, seed {options.seed}:",
          ", ".join(f"{count} x {what}" for what, count in sorted(outcomes.items())))
    print("the longest end:", ", ".join(f"{victim} {seconds:.1f} s" for victim, seconds in longest.items()),
          f"({OVER:g} s are allowed)")
    return True


def main():
    parser = argparse.ArgumentParser(prog="tools/chaos kills", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--kills", type=int, default=60, help="of each victim")
    parser.add_argument("--only", type=int, help="only the kill of this number")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: the hosts are made of namespaces")
    print(f"seed {options.seed}", flush=True)
    with hosts.Cluster(2) as cluster, tempfile.TemporaryDirectory() as folder:
        world = World(cluster, Path(folder))
        world.start()
        if not run(options, world):
            sys.exit(1)  # here, so that agents that do not stop hide nothing of what was found
        world.stop()


if __name__ == "__main__":
    main()
