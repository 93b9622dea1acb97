# SPDX-License-Identifier: Apache-2.0
"""The jobs of kills.py: what their workers do, how they are stopped, and what of them must be true at their end."""
import signal
from pathlib import Path

import hosts
import launching
import leftovers

GRACE = 1
SLOTS = 2  # ranks on each host
GO, STARTS = "/tmp/go", "/tmp/starts"
JOB = "KILLS_JOB"
# What a launch that did not come to its start ends with: not reached, not ready in time, lost, its agent ended.
DISTURBED = {200, 201, 202, 203}
# Leaves a mark and a process of its own session, which only the job's end ends. Then it says a line each 10 ms and meets the others in a fence each 50 ms. Rank 0 says there whether
# they go on, so all say the same number of lines; what comes back must be of this fence. Then 30 lines more.
COUNT = f"""
import os, select, signal, sys, time
rank, pmi = int(os.environ["RANK"]), int(os.environ["PMI_FD"])
with open("{STARTS}", "a") as starts:
    starts.write(f"{{os.environ['{JOB}']}} {{rank}}\\n")
if os.fork() == 0:
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDWR), 1)
    os.execv("/bin/sleep", ["sleep", "600"])
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
count = 0
def say(word):
    os.write(1, f"{{word}} {{count}}\\n".encode())
def leave():
    # It takes a while to stop, and goes on speaking.
    global count
    for _ in range(30):
        say("line")
        count += 1
        time.sleep(0.01)
    say("last")
def ask(line):
    os.write(pmi, line.encode() + b"\\n")
    answer = b""
    while not answer.endswith(b"\\n"):
        if select.select([pmi], [], [], 0.05)[0]:
            answer += os.read(pmi, 4096)
        elif ended:
            leave()
            os._exit(0)
    return answer.decode()
ask("cmd=init pmi_version=1 pmi_subversion=1")
name = ask("cmd=get_my_kvsname").split("kvsname=")[1].split()[0]
word = "on"
while word == "on" and not ended:
    if count % 5 == 0:
        fence = count // 5
        if rank == 0:
            ask(f"cmd=put kvsname={{name}} key=k{{fence}} value={{'go' if os.path.exists('{GO}') else 'on'}}-{{fence}}")
        ask("cmd=barrier_in")
        word, number = ask(f"cmd=get kvsname={{name}} key=k{{fence}}").split("value=")[1].split()[0].split("-")
        if int(number) != fence:
            sys.exit(9)
    say("line")
    count += 1
    time.sleep(0.01)
leave()
if not ended:
    ask("cmd=finalize")
"""


class Violation(Exception):
    """A promise that was not kept."""


def shepherds(host):
    return [pid for pid, _, line in leftovers.processes(host) if line.endswith(" shepherd")]


def workers(host):
    """(pid, start time) of the processes that shepherds started."""
    parents = set(map(str, shepherds(host)))
    found = set()
    for pid, _, line in leftovers.processes(host):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] in parents and "dtrain-" not in line:
            found.add((pid, fields[19]))
    return found


class Job:
    """`kind`: "count", or "sum" with libdtrain, which ranks of a host do through shared memory. `stop`: "end" of its
    own accord, or "signal" to the launcher."""

    def __init__(self, dice, number):
        self.number = number
        self.kind = dice.choice(["count", "count", "count", "sum"])
        self.way = dice.choice(["ssh", "tcp"])
        self.stop = "signal" if self.kind == "sum" else dice.choice(["end", "signal"])
        self.launch = None

    def __str__(self):
        return f"{self.kind} by {self.way}, stop by {self.stop}"

    @property
    def code(self):
        return 0 if self.stop == "end" else 128 + signal.SIGTERM

    def start(self, world):
        command = ["/usr/bin/python3", "-I", "-c", COUNT]
        if self.kind == "sum":
            command = ["sh", "-c", f'echo "${JOB} $RANK" >>{STARTS}; exec "$0"', hosts.bin_dir() / "loop-allreduce"]
        self.launch = world.cluster.start_launch([
            *world.reach(self.way, SLOTS), "--wdir", "/", "--lease", f"{world.lease:g}", "--grace", str(GRACE), "--bind",
            "none", "-x", f"{JOB}={self.number}", "--", *command])

    def is_over(self):
        return self.launch.process.poll() is not None

    def is_up(self, world):
        said = self.launch.out
        return all(f"rank {rank} goes\n" in said if self.kind == "sum" else f"[{rank}] line 5\n" in said
                   for rank in range(world.size * SLOTS))

    def wait_until_up(self, world, seconds=60):
        """Or over."""
        launching.wait_until(lambda: self.is_over() or self.is_up(world), seconds, lambda: self.launch.err)

    def begin_stop(self, world):
        if self.stop == "end":
            world.cluster.nodes[0].path(GO).touch()
        elif not self.is_over():
            self.launch.signal(signal.SIGTERM)

    def check_output(self, result, size):
        """Each line once and in order; of a job that went well, all."""
        ends = set()
        for rank in range(size * SLOTS):
            for said in result.said_by(rank):
                if self.kind == "sum":
                    if said not in ([], [f"rank {rank} goes"]):
                        raise Violation(f"rank {rank} wrote {said}\n{result}")
                    continue
                last = [f"last {len(said) - 1}"] if said and said[-1].startswith("last") else []
                if said != [f"line {i}" for i in range(len(said) - len(last))] + last:
                    raise Violation(f"lines of rank {rank} are missing or doubled\n{result}")
            if self.kind == "sum":
                continue
            if result.code == 0 and not last:
                raise Violation(f"the end of rank {rank}'s output is missing\n{result}")
            ends.update(last)
        if result.code == 0 and len(ends) > 1:
            raise Violation(f"ranks ended after different fences\n{result}")

    def check_starts(self, world, result):
        """No rank more than once in each start, and all of a job that went well."""
        marks = [line for node in world.cluster.nodes for line in node.path(STARTS).read_text().splitlines()]
        mine = sorted(int(mark.split()[1]) for mark in marks if mark.split()[0] == str(self.number))
        if len(mine) != len(marks):
            raise Violation(f"started in another job's name: {marks}")
        if any(mine.count(rank) > 1 + result.begins_again for rank in mine):
            raise Violation(f"ranks were started twice: {mine}\n{result}")
        if result.code == 0 and sorted(set(mine)) != list(range(world.size * SLOTS)):
            raise Violation(f"only ranks {mine} were started\n{result}")
