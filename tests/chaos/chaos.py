# SPDX-License-Identifier: Apache-2.0
"""Launches jobs on hosts with resident agents, one or two at a time, and harms agents, shepherds,
links and launchers at random moments. After each round: the exit code is one that the faults permit, the output
is whole, workers are the same processes as before, and nothing is left on any host. Ends at the first
round where that is not so, with the seed that brings it back.

    tools/chaos --minutes 60           a new seed
    tools/chaos --seed 7 --round 12    that round of that seed alone, as exactly as time allows
    tools/chaos --plan early           only harm before the start
"""
import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / name) for name in ("bench", "cluster")]

import resident_hosts  # noqa: E402 - it makes the cluster's modules importable
import faults  # noqa: E402
import hosts  # noqa: E402
import launching  # noqa: E402
import leftovers  # noqa: E402

GRACE = 1
# Until nothing may be left: what is cut off hears of it by its lease.
GONE = faults.LEASE + GRACE + 15
# A job is over within the lease, the grace and a few seconds, counted from when the last fault is
# over and its workers were told to end, whatever was harmed; from when the fault began, if the fault
# itself ends the job. The few seconds are for starting what had not started, connecting again and
# taking the last output, on a busy machine.
BOUND = faults.LEASE + GRACE + 10
# Until a launch is ended that is not over by itself.
OVER = 120
COUNTER = """
import os, sys, time
i = 0
while not os.path.exists("/run/go"):
    print("line", i, flush=True)
    i += 1
    time.sleep(0.01)
print("last", i, flush=True)
sys.exit(int(sys.argv[1]))
"""
# What is harmed, and how often each is taken of a hundred times.
PLANS = {"short": 50, "early": 20, "launcher": 10, "shepherd": 10, "long": 10}
# A start that was disturbed: not reached, not ready in time, lost, or its agent ended.
DISTURBED = {200, 201, 202, 203}


class Violation(Exception):
    """A promise that was not kept."""


class World:
    """The hosts, their agents, and what belongs there."""

    def __init__(self, cluster, agents):
        self.cluster = cluster
        self.agents = {agent.host.name: agent for agent in agents}
        self._before = leftovers.Leftovers(cluster)

    def go(self):
        for node in self.cluster.nodes:
            node.path("/run/go").touch()

    def workers(self):
        """{host: [(pid, start time)]} of the processes that shepherds started."""
        return {node.name: sorted(workers(node)) for node in self.cluster.nodes}

    def left(self):
        """What does not belong there, of what is there now. An agent that was started anew does."""
        ours = tuple(f"{name}: process {agent.pid} " for name, agent in self.agents.items())
        return [what for what in self._before.find() if not what.startswith(ours)]

    def settle(self, launcher_killed):
        for node in self.cluster.nodes:
            node.path("/run/go").unlink(missing_ok=True)
        deadline = time.monotonic() + GONE
        while self.left():
            if launcher_killed:
                # Its status socket stays until somebody looks.
                self.cluster.head.run([hosts.bin_dir() / "dtrain", "ps"], check=False)
            if time.monotonic() > deadline:
                raise Violation("left behind:\n" + "\n".join(self.left()))
            time.sleep(0.05)
        for name, agent in self.agents.items():
            if agent.ended():
                raise Violation(f"the agent of {name} has ended with {agent.process.returncode}")


def workers(host):
    rows = leftovers.processes(host)
    shepherds = {str(pid) for pid, _, line in rows if line.endswith(" shepherd")}
    for pid, _, line in rows:
        fields = faults.stat_of(pid)
        if fields[1] in shepherds and "agent" not in line:
            yield pid, fields[19]


class Job:
    """Counts until it is told to go on, or sums with libdtrain. Several share the hosts' cores."""

    def __init__(self, dice, number, endless):
        self.number = number
        self.kind = dice.choice(["count", "count", "sum"])
        self.way = dice.choice(["ssh", "tcp"])
        self.slots = dice.randint(1, 3)
        self.code = dice.choice([0, 0, 0, dice.randint(3, 99)]) if self.kind == "count" else 0
        self.rounds = -1 if endless else dice.randint(200, 1500)
        self.launch = None
        self.took = 0.0  # from when nothing kept it any more to its end

    def __str__(self):
        return f"{self.kind} {self.way} 4x{self.slots} code {self.code}"

    def start(self, world):
        reach = resident_hosts.by_ssh if self.way == "ssh" else resident_hosts.by_tcp
        command = ["/usr/bin/python3", "-I", "-c", COUNTER, str(self.code)]
        if self.kind == "sum":
            command = [hosts.bin_dir() / "loop-allreduce"]
        self.launch = launching.Launch(world.cluster.head, [
            *reach(world.cluster, self.slots), "--lease", f"{faults.LEASE:g}", "--grace", str(GRACE),
            "--bind", "none", "-x", f"ROUNDS={self.rounds}", "-x", f"{faults.MARK}={self.number}",
            "--", *command])

    def wait_until_up(self, world):
        world_size = 4 * self.slots
        if self.kind == "sum":
            self.launch.wait_for(" goes", timeout=60, count=world_size)
        for rank in range(world_size if self.kind == "count" else 0):
            self.launch.wait_for(f"[{rank}] line 3\n", timeout=60)

    def stop(self):
        """One that has no end of its own."""
        if self.kind == "sum":
            self.launch.signal(signal.SIGTERM)

    def has_its_own_time(self, code):
        """It ended with `code` after so many sums, which take what a busy machine needs for them."""
        return self.kind == "sum" and self.rounds >= 0 and code == self.code

    def ends_by_stop(self):
        return {128 + signal.SIGTERM} if self.kind == "sum" else {self.code}

    def check_output(self, result):
        """Each line once and in order; all of them when all went well."""
        for rank in range(4 * self.slots):
            mine = [line.split("] ", 1)[1] for line in result.lines if line.startswith(f"[{rank}] ")]
            if self.kind == "sum":
                if result.code == 0 and mine != [f"rank {rank} goes"]:
                    raise Violation(f"rank {rank} wrote {mine}\n{result}")
                continue
            last = [f"last {len(mine) - 1}"] if mine and mine[-1].startswith("last") else []
            if mine != [f"line {i}" for i in range(len(mine) - len(last))] + last:
                raise Violation(f"lines of rank {rank} are missing or doubled\n{result}")
            if result.code == 0 and not last:
                raise Violation(f"the end of rank {rank}'s output is missing\n{result}")


class Round:
    """What happens to one or two jobs, of which the first is the one that is singled out. `dice`
    decides all but the moments' exact time."""

    def __init__(self, dice, world, plan):
        self._dice = dice
        self._world = world
        self.plan = dice.choices(list(PLANS), list(PLANS.values()))[0]
        self.plan = plan or self.plan
        count = dice.choices([1, 2], [60, 40])[0]
        self.jobs = [Job(dice, number, endless=self.plan in ("launcher", "shepherd", "long"))
                     for number in range(count)]
        self.faults = {"short": lambda: [faults.short(dice, world) for _ in range(dice.randint(1, 3))],
                       "early": lambda: [faults.short(dice, world)],
                       "launcher": lambda: [faults.short(dice, world)] * dice.randint(0, 1),
                       "shepherd": lambda: [faults.of_shepherd(dice, world)],
                       "long": lambda: [faults.long(dice, world)]}[self.plan]()
        self.go_during_last = self.plan == "short" and dice.random() < 0.3
        self.moment = dice.uniform(0, 1)

    def __str__(self):
        return (f"{' and '.join(map(str, self.jobs))}, {self.plan}: "
                f"{' '.join(map(str, self.faults)) or '-'}")

    def play(self):
        """The exit codes."""
        world = self._world
        for job in self.jobs:
            job.start(world)
        if self.plan == "early":
            time.sleep(self.moment)
        else:
            for job in self.jobs:
                job.wait_until_up(world)
        before = world.workers()
        for number, fault in enumerate(self.faults):
            last = number == len(self.faults) - 1
            if last and self.go_during_last:
                world.go()
            fault.strike(world)
            if self.plan == "short":
                self._same_workers(before, world.workers(), last and self.go_during_last)
        if self.plan == "launcher":
            time.sleep(self.moment)
            self.jobs[0].launch.signal(signal.SIGKILL)
        if self.plan in ("launcher", "shepherd"):
            self._end_first()
        elif self.plan != "long":
            world.go()
        free = self.faults[-1].began if self.plan == "long" else time.monotonic()
        results = [self._wait(job, free) for job in self.jobs]
        for job, result in zip(self.jobs, results):
            self._check_time(job, result)
            self._check_code(job, result)
            job.check_output(result)
        world.settle(self.plan == "launcher")
        return [result.code for result in results]

    def _end_first(self):
        """The one that was singled out ends by what happened to it, the others are none the wiser
        and are told to end."""
        self._check_time(self.jobs[0], self._wait(self.jobs[0], time.monotonic()))
        for job in self.jobs[1:]:
            job.stop()
        self._world.go()

    @staticmethod
    def _wait(job, free):
        result = job.launch.wait(OVER)
        # Also when it is asked for again.
        job.took = max(job.took, job.launch.started + result.seconds - free)
        return result

    @staticmethod
    def _check_time(job, result):
        if job.took > BOUND and not job.has_its_own_time(result.code):
            raise Violation(f"job {job.number} was over {job.took:.1f} s after the last fault, not "
                            f"within {BOUND:g} s\n{result}")

    def _same_workers(self, before, after, may_end):
        """Who sums may be done at any time; but nobody is started anew."""
        fewer = may_end or any(job.kind == "sum" for job in self.jobs)
        kept = all(set(after[name]) <= set(before[name]) for name in before)
        if self._all_short() and not (kept and (fewer or before == after)):
            raise Violation(f"workers are not the same:\n{before}\n{after}\n{self.jobs[0].launch.err}")

    def _all_short(self):
        return all(fault.within_lease() for fault in self.faults)

    def permitted(self, job):
        disturbed = set() if self._all_short() else DISTURBED
        if job.number == 0 and self.plan == "launcher":
            return {-signal.SIGKILL} | disturbed
        if job.number == 0 and self.plan == "shepherd":
            return {203}
        if self.plan in ("launcher", "shepherd"):
            return job.ends_by_stop() | disturbed
        if self.plan == "long":
            return {202}
        if self.plan == "early":
            return {job.code} | DISTURBED
        return {job.code} | disturbed

    def _check_code(self, job, result):
        if result.code not in self.permitted(job):
            raise Violation(f"exit code {result.code} of job {job.number}, not one of "
                            f"{sorted(self.permitted(job))}\n{result}")


def explain(seed, number, play, world, error):
    print(f"\nVIOLATION in round {number}: {play}\nagain: tools/chaos --seed {seed} --round {number}\n"
          f"{error}\n", file=sys.stderr)
    for name, agent in world.agents.items():
        print(f"--- agent of {name}, now process {agent.process and agent.pid}\n{agent.log[-6000:]}",
              file=sys.stderr)
    for host in world.cluster.hosts:
        for pid, state, line in leftovers.processes(host):
            print(f"{host.name}: process {pid} ({state}) parent {faults.stat_of(pid)[1]} {line[:150]}",
                  file=sys.stderr)


def run(options, world):
    outcomes = Counter()
    longest = (0.0, 0)
    deadline = time.monotonic() + options.minutes * 60
    number = options.round or 1
    while time.monotonic() < deadline:
        play = Round(random.Random(f"{options.seed}/{number}"), world, options.plan)
        start = time.monotonic()
        try:
            codes = play.play()
        except (Violation, AssertionError) as error:
            explain(options.seed, number, play, world, error)
            return False
        ends = " and ".join(f"{job.took:.1f}" for job in play.jobs)
        print(f"round {number}: {play} -> {codes} in {time.monotonic() - start:.1f} s, over after {ends} s",
              flush=True)
        for job, code in zip(play.jobs, codes):
            if not job.has_its_own_time(code):
                longest = max(longest, (job.took, number))
            outcomes[f"{play.plan} -> {'own code' if code == job.code else code}"] += 1
        number += 1
        if options.round:
            break
    print(f"no violation in {number - (options.round or 1)} rounds, seed {options.seed}:",
          ", ".join(f"{count} x {what}" for what, count in sorted(outcomes.items())))
    print(f"the longest end: {longest[0]:.1f} s after the last fault, in round {longest[1]}; "
          f"{BOUND:g} s are allowed")
    return True


def main():
    parser = argparse.ArgumentParser(prog="tools/chaos")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--plan", choices=PLANS, help="only what is harmed like this")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: the hosts are made of namespaces")
    print(f"seed {options.seed}", flush=True)
    with hosts.Cluster(4) as cluster, resident_hosts.agents(cluster) as agents:
        if not run(options, World(cluster, agents)):
            sys.exit(1)  # here, so that agents that do not stop hide nothing of what was found


main()
