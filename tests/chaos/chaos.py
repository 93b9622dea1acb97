# SPDX-License-Identifier: Apache-2.0
"""Harms running jobs at random until the time is over or a promise is broken.

    tools/chaos --minutes 60           a new run, with a new seed
    tools/chaos --hours 3              stop it at any time (Ctrl-C, kill -9, power) and
    tools/chaos --resume               continue it, as often as needed, until the three hours are complete
    tools/chaos --seed 7 --round 12    only that round of that seed, as exactly as timing allows; keeps no state
    tools/chaos --plan early           only one kind of harm

Four hosts run resident agents. Each round launches one or two jobs over ssh or TCP, which write lines or sum with
libdtrain, and harms them by one plan:

    plan      harm                                            the launch may end with
    short     one to three faults shorter than the lease      its own code
    early     one such fault while the job starts             its own code, or 200 to 203
    launcher  perhaps one such fault, then the launcher is    nothing, as it was killed; other jobs: their own code, or
              killed                                          143 if they had to be stopped
    shepherd  the first job's shepherds on one or two hosts   203; other jobs as above
              are killed
    long      one fault longer than the lease                 202

A fault that was to be short and took half of the lease, as happens on a busy machine, permits 200 to 203, too. After
each round:

  - each job was over within lease, grace and ten seconds of the last fault (of its beginning, if it ends the job; sums
    that run to their own end take the time they need);
  - its exit code is one of those above;
  - each line of output arrived once and in order, and all of them if the job succeeded;
  - during short faults the workers stayed the same processes;
  - nothing is left on any host but the agents, which still run.

The run ends at the first violation, with exit code 1, the agents' logs, what was left, and the command that repeats the
round. Exit codes: 0 complete, 1 violation, 2 bad input or state, 130 or 143 stopped by SIGINT or SIGTERM.

build/chaos.json keeps the run: its seed, plan, next round, the time spent in complete rounds, what they saw, and the
commits of its pieces, which need not be the same. A round that was interrupted is repeated. --hours or --minutes beside
--resume changes the total. After a violation only a new run can be started.

Other programs, each with its own --help: tools/chaos kills, tools/chaos nodes. tools/chaos launchers [N] kills the
launcher of one detached job N times (250) at random moments and has a new one take the job over each time: the workers
keep their pids, each byte of output arrives once, and the job ends once (test_detached.py, which does it five times).
"""
import argparse
import contextlib
import math
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
import pieces  # noqa: E402

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
STATE = hosts.SOURCE_DIR / "build/chaos.json"
PROGRAMS = ["dtrain", "dtrain-agent", "dtrain-shepherd", "loop-allreduce"]
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
            for mine in result.said_by(rank):
                if self.kind == "sum":
                    if result.code == 0 and mine != [f"rank {rank} goes"]:
                        raise Violation(f"rank {rank} wrote {mine}\n{result}")
                    continue
                last = [f"last {len(mine) - 1}"] if mine and mine[-1].startswith("last") else []
                if mine != [f"line {i}" for i in range(len(mine) - len(last))] + last:
                    raise Violation(f"lines of rank {rank} are missing or doubled\n{result}")
            if self.kind == "sum":
                continue
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

    def struck(self):
        """{kind of fault: how often}."""
        return Counter([fault.name for fault in self.faults] + ["launcher"] * (self.plan == "launcher"))

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


def explain(state, play, world, error):
    print(f"\nVIOLATION in round {state.violation}: {play}\nagain: {pieces.again(state)}\n"
          f"{error}\n", file=sys.stderr)
    for name, agent in world.agents.items():
        print(f"--- agent of {name}, now process {agent.process and agent.pid}\n{agent.log[-6000:]}",
              file=sys.stderr)
    for host in world.cluster.hosts:
        for pid, state, line in leftovers.processes(host):
            print(f"{host.name}: process {pid} ({state}) parent {faults.stat_of(pid)[1]} {line[:150]}",
                  file=sys.stderr)


def play_rounds(run, world, signals, only_one):
    """Whether there was no violation."""
    while not run.state.is_complete():
        signals.check()
        state, number = run.state, run.state.next
        play = Round(random.Random(f"{state.seed}/{number}"), world, state.plan)
        start = time.monotonic()
        try:
            codes = play.play()
        except (Violation, AssertionError) as error:
            signals.check()  # which may be what the round suffered from
            run.violated(number)
            explain(run.state, play, world, error)
            return False
        seconds = time.monotonic() - start
        ends = " and ".join(f"{job.took:.1f}" for job in play.jobs)
        print(f"round {number}: {play} -> {codes} in {seconds:.1f} s, over after {ends} s", flush=True)
        ended = list(zip(play.jobs, codes))
        run.record(seconds,
                   Counter(f"{play.plan} -> {'own code' if code == job.code else code}" for job, code in ended),
                   play.struck(),
                   max((job.took for job, code in ended if not job.has_its_own_time(code)), default=0.0))
        if only_one:
            break
    return True


def play_piece(run, signals, only_one):
    """Rounds on hosts of their own, until the run is complete; whether there was no violation."""
    played = False
    try:
        with hosts.Cluster(4) as cluster, resident_hosts.agents(cluster) as agents:
            run.save()
            if not play_rounds(run, World(cluster, agents), signals, only_one):
                sys.exit(1)  # here, so that agents that do not stop hide nothing of what was found
            played = True
    except AssertionError as error:
        if not played:
            raise
        run.violated(run.state.next - 1)
        print(f"\nVIOLATION: the agents did not stop in order after round {run.state.violation}\n{error}",
              file=sys.stderr)
        sys.exit(1)


def begin(options, path):
    """The state to start from."""
    if options.resume:
        state = pieces.resumed(path, options.seconds)
        for name in ("seed", "plan"):
            if getattr(options, name) not in (None, getattr(state, name)):
                raise pieces.Refused(f"the run in {path} has {name} {getattr(state, name)}; "
                                     "start a new one without --resume")
        if state.plan is not None and state.plan not in PLANS:
            raise pieces.Refused(f"the run in {path} has plan {state.plan}, which is not one of {', '.join(PLANS)}")
        return state
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    return pieces.State(seed, options.plan, options.seconds or 20 * 60, next=options.round or 1)


def campaign(options, path, signals):
    state = begin(options, path)
    if state.is_complete():
        if not options.check:
            print(pieces.summary(state, BOUND, faults.KINDS))
        return
    if os.geteuid() != 0:
        raise pieces.Refused("needs root: the hosts are made of namespaces", 1)
    if options.check:
        return
    run = pieces.Run(None if options.round else path, state,
                     *pieces.identify(hosts.SOURCE_DIR, [hosts.bin_dir() / name for name in PROGRAMS]),
                     is_kept=options.resume)
    lines = [None if options.resume or options.round else pieces.replaced(path),
             f"seed {state.seed}",
             f"continuing with round {state.next}, after {state.progress()}" if options.resume else None,
             run.difference()]
    print("\n".join(filter(None, lines)), flush=True)
    try:
        play_piece(run, signals, options.round is not None)
    except pieces.Stopped:
        state = run.state
        if not run.is_kept:
            print("stopped before the first round" if not options.round else "stopped", flush=True)
        elif not state.is_complete() and state.violation is None:
            print(f"stopped in round {state.next}, after {state.progress()}; to continue: tools/chaos --resume",
                  flush=True)
        raise
    print(pieces.summary(run.state, BOUND, faults.KINDS))


def arguments(argv):
    def amount(text):
        value = float(text)
        if not (math.isfinite(value) and value > 0):
            raise ValueError
        return value

    def number(text):
        if int(text) < 1:
            raise ValueError
        return int(text)

    parser = argparse.ArgumentParser(prog="tools/chaos", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    total = parser.add_mutually_exclusive_group()
    total.add_argument("--minutes", type=amount, help="time to spend in rounds (20)")
    total.add_argument("--hours", type=amount, help="the same in hours")
    parser.add_argument("--resume", action="store_true", help="continue the last run instead of starting a new one")
    parser.add_argument("--seed", type=int, help="of a new run; random unless given")
    parser.add_argument("--round", type=number, help="play only this round")
    parser.add_argument("--plan", choices=PLANS, help="play only rounds of this plan")
    parser.add_argument("--check", action="store_true",
                        help="only look whether options and state are valid; needs no build")
    options = parser.parse_args(argv)
    if options.resume and options.round:
        parser.error("--round plays one round by itself: leave out --resume")
    options.seconds = options.hours * 3600 if options.hours else options.minutes and options.minutes * 60
    return options


def main(argv=None, path=STATE):
    options = arguments(argv)
    signals = pieces.Signals()
    try:
        with signals, contextlib.nullcontext() if options.round else pieces.alone(path):
            campaign(options, path, signals)
    except pieces.Stopped:
        sys.exit(128 + signals.number)
    except pieces.Refused as refused:
        print(f"tools/chaos: {refused}", file=sys.stderr)
        sys.exit(refused.code)


if __name__ == "__main__":
    main()
