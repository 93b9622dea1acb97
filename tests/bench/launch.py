# SPDX-License-Identifier: Apache-2.0
"""How long starting and ending a job takes: 16 ranks of /bin/true on four hosts reached by ssh, and
4 ranks on this machine, beside Open MPI's mpirun and four plain ssh in parallel."""
from compare import (DTRAIN, MPIRUN, MPIRUN_LOCAL, arguments, expect, hosts, measure, median, save,
                     table, verdict)


def rows(results, base):
    reference = median(results[base])
    return [(name, f"{median(runs) * 1000:.0f}", f"{min(r['seconds'] for r in runs) * 1000:.0f}",
             f"{max(r['seconds'] for r in runs) * 1000:.0f}", f"{median(runs) / reference:.2f}")
            for name, runs in results.items()]


def main():
    options = arguments(rounds=15)
    with hosts.Cluster(4) as cluster:
        hostfile = cluster.hostfile(4)
        names = " ".join(node.name for node in cluster.nodes)
        four = "for i in 1 2 3 4; do /bin/true & done; wait"
        far = measure(cluster, {
            "dtrain": [DTRAIN, "launch", "--hostfile", hostfile, "--", "/bin/true"],
            "mpirun": [*MPIRUN, "--hostfile", hostfile, "-np", "16", "/bin/true"],
            "4 x ssh": ["sh", "-c", f"for n in {names}; do ssh $n '{four}' & done; wait"],
        }, options.rounds)
        near = measure(cluster, {
            "dtrain": [DTRAIN, "launch", "-np", "4", "--", "/bin/true"],
            "mpirun": [*MPIRUN_LOCAL, "-np", "4", "/bin/true"],
        }, options.rounds)
    expect(far)
    expect(near)
    header = ("", "median ms", "min", "max", "x mpirun")
    table(f"16 x /bin/true on 4 hosts over ssh, {options.rounds} rounds", header, rows(far, "mpirun"))
    table(f"4 x /bin/true on this machine, {options.rounds} rounds", header, rows(near, "mpirun"))
    print()
    checks = [verdict("launch over ssh, x mpirun", median(far["dtrain"]) / median(far["mpirun"]), 0.5),
              verdict("local launch, ms", median(near["dtrain"]) * 1000, 60)]
    save(options, {"ssh": far, "local": near, "checks": checks})


main()
