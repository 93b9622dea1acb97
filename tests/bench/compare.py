# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the cluster, the peers' command lines, the table."""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cluster"))

import hosts  # noqa: E402
import leftovers  # noqa: E402

HERE = Path(__file__).resolve().parent
DTRAIN = str(hosts.bin_dir() / "dtrain")
# Root is refused by default; without the interfaces it tries those that no other host has.
MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--mca", "btl_tcp_if_include", "eth0",
          "--mca", "oob_tcp_if_include", "eth0"]
MPIRUN_LOCAL = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]


def parser(rounds):
    common = argparse.ArgumentParser()
    common.add_argument("--json", metavar="FILE", help="also write all numbers here")
    common.add_argument("--rounds", type=int, default=rounds)
    return common


def arguments(rounds):
    options = parser(rounds).parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: the hosts are made of namespaces")
    return options


def measure(cluster, commands, rounds, warm=True, watch=None):
    """Runs the commands in turn on the head; `watch` is called again and again meanwhile."""
    def go(count):
        spec = json.dumps({"rounds": count, "commands": commands})
        process = cluster.head.popen(["/usr/bin/python3", "-I", HERE / "rounds.py", spec],
                                     stdout=subprocess.PIPE, text=True)
        while watch and process.poll() is None:
            watch()
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
        out, _ = process.communicate()
        if process.returncode != 0:
            sys.exit("the measurement failed")
        return json.loads(out)
    if warm:
        go(1)
    return go(rounds)


def expect(results, code=0):
    for name, rows in results.items():
        bad = [row["code"] for row in rows if (row["code"] == 0) != (code == 0)]
        if bad:
            sys.exit(f"{name} ended with {bad[0]}, not {code}")


def median(rows, key="seconds"):
    return statistics.median(row[key] for row in rows)


def table(title, header, rows):
    print(f"\n{title}")
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  " + "  ".join(str(cell).ljust(width) if i == 0 else str(cell).rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths))))


def verdict(what, value, limit, smaller=True):
    good = value <= limit if smaller else value >= limit
    sign = "at most" if smaller else "at least"
    print(f"  {'met   ' if good else 'MISSED'}  {what}: {value:.3g}, to reach: {sign} {limit:g}")
    return {"what": what, "value": value, "limit": limit, "met": good}


def machine():
    return {"cpus": os.cpu_count(), "kernel": platform.release(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)}


def save(options, numbers):
    print(f"\nmachine: {machine()}")
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine(), **numbers}, indent=1))


__all__ = ["DTRAIN", "HERE", "MPIRUN", "MPIRUN_LOCAL", "arguments", "expect", "hosts", "leftovers",
           "measure", "median", "parser", "save", "table", "verdict"]
