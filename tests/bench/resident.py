# SPDX-License-Identifier: Apache-2.0
"""Whether resident agents grow: a thousand launches in a row against four of them, by ssh and by TCP
in turn, and what each takes of its machine before, half-way and after."""
import sys
import time
from dataclasses import asdict
from pathlib import Path

from compare import expect, hosts, leftovers, measure, median, parser, save, table, verdict

import footprint
import resident_hosts

WARM_UP = 50
# An allocator does not come back to the byte: it takes a few pages whenever more is on its way at once
# than ever before. A leak of a kilobyte a launch is seen; 3,200 launches take no more than 1,000.
MEMORY_KIB = 768


# gRPC's threads come and go with the load, until it is let go, 15 s after the last connection.
GRPC_THREADS = ("grpc", "default-execut", "resolver-execut", "event_engine")


def threads(pid):
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            names.append((task / "comm").read_text())
        except OSError:
            pass  # it has just ended
    return names


def settled(cluster, agents):
    """Nothing is left of the launches but the agents themselves, at rest."""
    ours = {agent.pid for agent in agents}
    deadline = time.monotonic() + 60
    while any(agent.jobs() for agent in agents) or any(
            pid not in ours for node in cluster.nodes for pid, _, _ in leftovers.processes(node)) or any(
            name.startswith(GRPC_THREADS) for pid in ours for name in threads(pid)):
        if time.monotonic() > deadline:
            sys.exit("a launch has left processes, jobs or gRPC's threads behind")
        time.sleep(0.1)
    return [footprint.of(agent) for agent in agents]


def launches(cluster, count):
    each = count // 2
    results = measure(cluster, {
        "ssh": [*resident_hosts.by_ssh(cluster, 4), "--", "/bin/true"],
        "TCP": [*resident_hosts.by_tcp(cluster, 4), "--", "/bin/true"],
    }, each, warm=False)
    expect(results)
    return results


def rows(agents, taken):
    found = []
    for index, agent in enumerate(agents):
        for name in asdict(taken[0][index]):
            values = [getattr(when[index], name) for when in taken]
            found.append((f"{agent.host.name} {name}", *values, values[-1] - values[0]))
    return found


def main():
    options = parser(rounds=1)
    options.add_argument("--launches", type=int, default=1000)
    options = options.parse_args()
    with hosts.Cluster(4) as cluster, resident_hosts.agents(cluster) as agents:
        launches(cluster, WARM_UP)
        taken = [settled(cluster, agents)]
        times = []
        for _ in range(2):
            times.append(launches(cluster, options.launches // 2))
            taken.append(settled(cluster, agents))
        found = rows(agents, taken)
    table(f"{options.launches} launches of 16 x /bin/true on 4 resident agents, half of them over TCP",
          ("", "before", "half-way", "after", "growth"), found)
    for way in ("ssh", "TCP"):
        print(f"  a launch over {way}: first half {median(times[0][way]) * 1000:.0f} ms, second half "
              f"{median(times[1][way]) * 1000:.0f} ms")
    growth = [after - before for before, after in zip(taken[0], taken[-1])]
    print()
    checks = [verdict("growth of the memory that an agent has written to, KiB",
                      max(more.written_kib for more in growth), MEMORY_KIB)]
    checks += [verdict(f"growth of an agent's {name}", max(getattr(more, name) for more in growth), 0)
               for name in ("fds", "threads", "files")]
    save(options, {"footprint": [[asdict(one) for one in when] for when in taken], "times": times,
                   "checks": checks})
    if not all(check["met"] for check in checks):
        sys.exit(1)


main()
