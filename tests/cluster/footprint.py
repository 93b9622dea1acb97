# SPDX-License-Identifier: Apache-2.0
"""What a resident agent takes of its machine."""
import os
from dataclasses import astuple, dataclass
from pathlib import Path

import residents


@dataclass
class Footprint:
    written_kib: int  # memory that it has written to
    fds: int
    threads: int
    files: int  # below its state directory

    def __sub__(self, before):
        return Footprint(*(a - b for a, b in zip(astuple(self), astuple(before))))


def memory_kib(pid, kind):
    """kind: "Private_Dirty:" is what it has written to; "Private_" has the pages of its program, too, as long as no
    other process runs it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(kind))


def node_kib(agent):
    """What an agent has: also of its program, which other agents on this machine may share."""
    program = 0
    for line in Path(f"/proc/{agent.pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            ours = line.endswith("/dtrain-agent")
        elif ours and line.startswith("Shared_"):
            program += int(line.split()[1])
    return program + memory_kib(agent.pid, "Private_")


def of(agent):
    process = Path(f"/proc/{agent.pid}")
    state = agent.host.path(residents.STATE)
    return Footprint(memory_kib(agent.pid, "Private_Dirty:"), len(os.listdir(process / "fd")),
                     len(os.listdir(process / "task")),
                     sum(len(names) + len(leaves) for _, names, leaves in os.walk(state)))


def threads_of_libraries(agent):
    """gRPC's, for example: they have names of their own."""
    names = []
    for task in Path(f"/proc/{agent.pid}/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:
            names.append("one that ends")
    return [name for name in names if name != "dtrain-agent"]


def wake_ups(agent):
    """How often its threads, each by its number, have waited for something so far."""
    told = {}
    for task in Path(f"/proc/{agent.pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        told[task.name] = int(next(line for line in lines
                                   if line.startswith("voluntary_ctxt_switches:")).split()[1])
    return told
