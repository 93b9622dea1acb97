# SPDX-License-Identifier: Apache-2.0
"""How long a failed job takes to end: from the moment that one of 16 ranks on four hosts exits with
3, while the others sleep, until the launcher is gone; and what is still there then."""
import sys
import time

from compare import (DTRAIN, MPIRUN, arguments, hosts, leftovers, save, table, verdict)

# All hosts share the machine's monotonic clock.
WORKER = """
import os, sys, time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
if rank == 6:
    time.sleep(1)
    with open(sys.argv[1], "w") as stamp:
        stamp.write(str(time.monotonic()))
    os._exit(3)
time.sleep(600)
"""


def once(cluster, argv):
    stamp = cluster.base / "stamp"
    stamp.unlink(missing_ok=True)
    process = cluster.head.popen([*argv, "/usr/bin/python3", "-I", "-c", WORKER, stamp],
                                 stdin=-3, stdout=-3, stderr=-3)
    code = process.wait(120)
    ended = time.monotonic()
    left = [row for host in cluster.nodes for row in leftovers.processes(host)
            if "sshd" not in row[2] and row[1] != "Z"]
    leftovers.wait_for_no_processes(cluster, 30)
    if code != 3:
        sys.exit(f"{argv[0]} ended with {code}, not 3")
    return {"seconds": ended - float(stamp.read_text()), "left": len(left)}


def main():
    options = arguments(rounds=5)
    with hosts.Cluster(4) as cluster:
        hostfile = cluster.hostfile(4)
        commands = {"dtrain": [DTRAIN, "launch", "--hostfile", hostfile, "--"],
                    "mpirun": [*MPIRUN, "--hostfile", hostfile, "-np", "16"]}
        results = {name: [] for name in commands}
        for _ in range(options.rounds):
            for name, argv in commands.items():
                results[name].append(once(cluster, argv))
    middle = {name: sorted(run["seconds"] for run in runs)[len(runs) // 2]
              for name, runs in results.items()}
    table(f"from a rank's failure to the launcher's exit, 16 ranks on 4 hosts, {options.rounds} rounds",
          ("", "median s", "max s", "processes left"),
          [(name, f"{middle[name]:.2f}", f"{max(run['seconds'] for run in runs):.2f}",
            max(run["left"] for run in runs)) for name, runs in results.items()])
    print()
    checks = [verdict("stop, s", middle["dtrain"], 0.5),
              verdict("processes left", max(run["left"] for run in results["dtrain"]), 0)]
    save(options, {"stop": results, "checks": checks})


main()
