# SPDX-License-Identifier: Apache-2.0
"""Takes one host after another from a job with -N 3:4, a spare and restarts on five hosts: pulls the host's cable, or
kills the agent, the shepherd or every process there.

    tools/chaos nodes --losses 100          with a new seed
    tools/chaos nodes --seed 7              the same losses, as exactly as timing allows

After each loss:

  - all ranks run again within at most 6 s, lease, grace and ten seconds; one lease more is allowed where processes
    were killed;
  - no worker of an earlier attempt is alive when one of the next starts, on whatever host (they share file locks);
  - TORCHELASTIC_RESTART_COUNT has grown by one.

At the end nothing is left on any host. It ends at the first violation, and prints the command that repeats the losses.
"""
import argparse
import os
import random
import re
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

GRACE = 1.0
HOSTS, LEAST = 5, 3  # one of them a spare
WAYS = ["cut", "agent", "shepherd", "all"]
# From a loss to when all run again: until a silent host is lost and its workers are dead (6 s at most until it gets no
# beats any more, lease, grace), and the start; a busy machine needs some seconds.
START = 10.0
SHARED = "/var/tmp"  # all hosts have the same
# The locks are in one folder for all hosts: each attempt has one, shared by its workers as long as they live. Others
# only ask who has it.
WORKER = """
import fcntl, os, struct, sys, time
folder, attempt = sys.argv[1], int(os.environ["DTRAIN_ATTEMPT"])
FLOCK = "hhqqixxxx"  # type, from where, start, length, process
own = open(f"{folder}/{attempt}", "a+")
fcntl.fcntl(own, fcntl.F_SETLK, struct.pack(FLOCK, fcntl.F_RDLCK, 0, 0, 0, 0))
for earlier in range(attempt):
    with open(f"{folder}/{earlier}", "a+") as other:
        answer = fcntl.fcntl(other, fcntl.F_GETLK, struct.pack(FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
        if struct.unpack(FLOCK, answer)[0] != fcntl.F_UNLCK:
            print(f"ALIVE: attempt {earlier} beside {attempt}", flush=True)
print(f"up {attempt} {os.environ['TORCHELASTIC_RESTART_COUNT']} {os.environ['WORLD_SIZE']} {os.environ['DTRAIN_HOST']}",
      flush=True)
time.sleep(100000)
"""


class Violation(Exception):
    """A promise that was not kept."""


class Campaign:
    def __init__(self, cluster, folder, lease, dice):
        self._cluster = cluster
        self._lease = lease
        self._dice = dice
        self._cut = {}  # host: when
        self.launch = cluster.start_launch([
            "--max-restarts", "1000000", "-N", f"{LEAST}:{HOSTS - 1}", "--spare", "1", "--lease", f"{lease:g}", "--grace", f"{GRACE:g}",
            "--backoff", "100ms:1s", *cluster.hosts_flag(1), "--", "/usr/bin/python3", "-I", "-c", WORKER, folder])
        self.attempt = 0

    def bound(self, way):
        silence = self._lease + min(6.0, self._lease * 2 / 5) + GRACE
        return silence + START if way == "cut" else self._lease + silence + START

    def running(self):
        """The hosts of the present attempt."""
        found = re.findall(rf"\bup {self.attempt} (\d+) (\d+) (\S+)", self.launch.out)
        if not found or len(found) < int(found[0][1]):
            return None
        if {count for count, _, _ in found} != {str(self.attempt)}:
            raise Violation(f"attempt {self.attempt} counts as {found}")
        return [host for _, _, host in found]

    def wait_until_it_runs(self, seconds):
        """How long that took."""
        began = time.monotonic()
        while self.running() is None:
            if self.launch.process.poll() is not None:
                raise Violation(f"the launch has ended\n{self.launch.wait(5)}")
            if "ALIVE" in self.launch.out:
                break
            self._heal_what_is_needed()
            if time.monotonic() - began > seconds:
                raise Violation(f"attempt {self.attempt} does not run after {seconds:g} s")
            time.sleep(0.01)
        if "ALIVE" in self.launch.out:
            raise Violation("workers of two attempts at once")
        return time.monotonic() - began

    def lose(self):
        victim = self._dice.choice([node for node in self._cluster.nodes if node.name in self.running()])
        way = self._dice.choice(WAYS)
        self._strike(victim, way)
        before, self.attempt = self.attempt, self.attempt + 1
        took = self.wait_until_it_runs(self.bound(way))
        instead = sorted(set(self.running()))
        self._heal()
        return f"attempt {before}: {way} of {victim.name}; runs on {', '.join(instead)} after {took:.1f} s", way, took

    def _strike(self, victim, way):
        if way == "cut":
            self._cluster.cut(victim)
            self._cut[victim] = time.monotonic()
            return
        for pid, _, line in leftovers.processes(victim):
            is_agent = "dtrain-agent" in line and "bridge" in line
            is_shepherd = line.endswith(" shepherd")
            if way == "all" or (way == "agent" and is_agent) or (way == "shepherd" and is_shepherd):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    # A host that cannot be done without, because others were left out for good: its cable comes back when it is lost.
    def _heal_what_is_needed(self):
        said = self.launch.err
        is_needed = said.count(" is left out ") >= HOSTS - LEAST
        if self._cut and is_needed and said.count("dtrain: restart") >= self.attempt:
            self._heal()

    # The cable is back; sshd has yet to notice that its sessions are over.
    def _heal(self):
        for host in list(self._cut):
            self._cluster.heal(host)
            del self._cut[host]
            for pid, _, line in leftovers.processes(host):
                if "sshd" in line:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue

    def stop(self):
        self.launch.signal(signal.SIGINT)
        result = self.launch.wait(30)
        if result.code != 130:
            raise Violation(f"exit code {result.code} after Ctrl-C\n{result}")


def run(options, cluster, folder):
    before = leftovers.Leftovers(cluster)
    campaign = Campaign(cluster, folder, options.lease, random.Random(options.seed))
    campaign.wait_until_it_runs(60)
    ways, longest = Counter(), {}
    try:
        for number in range(options.losses):
            told, way, took = campaign.lose()
            ways[way] += 1
            longest[way] = max(longest.get(way, 0), took)
            print(f"loss {number}: {told}", flush=True)
        campaign.stop()
        # What an agent and a shepherd leave that were killed at once goes with the next launch there.
        swept = cluster.launch([*cluster.hosts_flag(1), "--", "true"])
        if swept.code != 0:
            raise Violation(f"the next launch failed\n{swept}")
        # All but the empty cgroups of those.
        launching.wait_until(lambda: all(": cgroup " in what for what in before.find()), 60, before.find)
    except (Violation, AssertionError) as error:
        print(f"\nVIOLATION: {error}\nagain: tools/chaos nodes --seed {options.seed}\n{campaign.launch.err[-6000:]}\n"
              f"{campaign.launch.out[-2000:]}", file=sys.stderr)
        for host in cluster.hosts:
            for pid, state, line in leftovers.processes(host):
                print(f"{host.name}: process {pid} ({state}) {line[:150]}", file=sys.stderr)
        return False
    print(f"no violation after {options.losses} losses, seed {options.seed}, lease {options.lease:g} s; running again after:",
          ", ".join(f"{way} ({count}) {longest[way]:.1f} s at most" for way, count in sorted(ways.items())))
    return True


def main():
    parser = argparse.ArgumentParser(prog="tools/chaos nodes", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--losses", type=int, default=100)
    parser.add_argument("--lease", type=float, default=15, help="seconds")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: the hosts are made of namespaces")
    print(f"seed {options.seed}", flush=True)
    with hosts.Cluster(HOSTS) as cluster, tempfile.TemporaryDirectory(dir=SHARED) as folder:
        if not run(options, cluster, folder):
            sys.exit(1)


if __name__ == "__main__":
    main()
