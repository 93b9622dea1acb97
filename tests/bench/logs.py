# SPDX-License-Identifier: Apache-2.0
"""How fast output comes back: 4 ranks write 100 MB each in lines of 100 bytes, over ssh and on this
machine, beside Open MPI's mpirun (which does not encrypt). Peak memory of launcher and agents."""
import os
import re

from compare import (DTRAIN, MPIRUN, MPIRUN_LOCAL, arguments, expect, hosts, leftovers, measure,
                     median, save, table, verdict)

MEGABYTES = 100
WRITER = ("import os\nblock = b''.join(b'%099d\\n' % i for i in range(1000))\n"
          f"for _ in range({MEGABYTES * 10}):\n"
          "    left = memoryview(block)\n"
          "    while left: left = left[os.write(1, left):]\n")
KINDS = {"dtrain launch": "launcher", "dtrain-agent bridge": "agent", "exe shepherd": "shepherd"}
PAYLOAD = 4 * MEGABYTES * 1_000_000


class AgentMemory:
    """Peak resident size of each of our processes on the hosts, sampled while they live."""

    def __init__(self, cluster):
        self._hosts = cluster.hosts
        self.peaks = {}

    def __call__(self):
        for host in self._hosts:
            for pid, _, line in leftovers.processes(host):
                kind = KINDS.get(" ".join([os.path.basename(line.split(" ")[0]), *line.split(" ")[1:2]]))
                if kind is None:
                    continue
                try:
                    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
                        peak = int(re.search(r"VmHWM:\s*(\d+)", status.read()).group(1))
                except (OSError, AttributeError):
                    continue
                self.peaks[kind] = max(self.peaks.get(kind, 0), peak)


def rows(results):
    reference = median(results["mpirun"], "drained")
    return [(name, f"{PAYLOAD / median(runs, 'drained') / 1e6:.0f}",
             f"{median(runs, 'drained'):.2f}", f"{reference / median(runs, 'drained'):.2f}",
             f"{max(run['rss_kib'] for run in runs) // 1024}") for name, runs in results.items()]


def main():
    options = arguments(rounds=3)
    with hosts.Cluster(4) as cluster:
        memory = AgentMemory(cluster)
        writer = ["/usr/bin/python3", "-I", "-c", WRITER]
        far = measure(cluster, {
            "dtrain": [DTRAIN, "launch", "--hostfile", cluster.hostfile(1), "--", *writer],
            "mpirun": [*MPIRUN, "--hostfile", cluster.hostfile(1), "-np", "4", *writer],
        }, options.rounds, warm=False, watch=memory)
        near = measure(cluster, {
            "dtrain": [DTRAIN, "launch", "-np", "4", "--", *writer],
            "mpirun": [*MPIRUN_LOCAL, "-np", "4", *writer],
        }, options.rounds, warm=False, watch=memory)
    expect(far)
    expect(near)
    for runs in (*far.values(), *near.values()):
        assert all(run["bytes"] >= PAYLOAD for run in runs), "output was lost"
    header = ("", "MB/s", "median s", "x mpirun", "RSS MiB")
    table(f"4 x {MEGABYTES} MB over ssh, {options.rounds} rounds", header, rows(far))
    table(f"4 x {MEGABYTES} MB on this machine, {options.rounds} rounds", header, rows(near))
    table("peak memory of dtrain", ("", "MiB"),
          [(kind, kib // 1024) for kind, kib in sorted(memory.peaks.items())])
    print()
    faster = [median(r["mpirun"], "drained") / median(r["dtrain"], "drained") for r in (far, near)]
    checks = [verdict("logs over ssh, x mpirun", faster[0], 1.3, smaller=False),
              verdict("logs on this machine, x mpirun", faster[1], 3, smaller=False),
              verdict("peak memory of any process, MiB", max(memory.peaks.values()) / 1024, 256)]
    save(options, {"ssh": far, "local": near, "rss_kib": memory.peaks, "checks": checks})


main()
