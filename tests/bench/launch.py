# SPDX-License-Identifier: Apache-2.0
"""How long starting and ending a job takes: 16 ranks of /bin/true on four hosts reached by ssh, and
4 ranks on this machine, beside Open MPI's mpirun and four plain ssh in parallel; and 16 and 128
ranks by resident agents, beside Slurm's srun, whose slurmd is resident, too."""
import sys

from compare import (DTRAIN, MPIRUN, MPIRUN_LOCAL, arguments, expect, hosts, measure, median, save,
                     table, verdict)

import resident_hosts
import slurm as slurm_hosts

HEADER = ("", "median ms", "min", "max")
# Of the 16 and 128 ranks on four hosts: the ranks of each, and what to reach, x srun.
RESIDENT = {4: 0.35, 32: 0.4}


def rows(results, base):
    reference = median(results[base])
    return [(name, f"{median(runs) * 1000:.0f}", f"{min(r['seconds'] for r in runs) * 1000:.0f}",
             f"{max(r['seconds'] for r in runs) * 1000:.0f}", f"{median(runs) / reference:.2f}")
            for name, runs in results.items()]


def measure_far(cluster, rounds):
    hostfile = cluster.hostfile(4)
    names = " ".join(node.name for node in cluster.nodes)
    four = "for i in 1 2 3 4; do /bin/true & done; wait"
    return measure(cluster, {
        "dtrain": [DTRAIN, "launch", "--hostfile", hostfile, "--", "/bin/true"],
        "mpirun": [*MPIRUN, "--hostfile", hostfile, "-np", "16", "/bin/true"],
        "4 x ssh": ["sh", "-c", f"for n in {names}; do ssh $n '{four}' & done; wait"],
    }, rounds)


def measure_near(cluster, rounds):
    return measure(cluster, {
        "dtrain": [DTRAIN, "launch", "-np", "4", "--", "/bin/true"],
        "mpirun": [*MPIRUN_LOCAL, "-np", "4", "/bin/true"],
    }, rounds)


def check_that_agents_served(agents):
    """By both ways: a bridge that finds none would be the agent itself."""
    for agent in agents:
        for way in ('proof="unix socket"', 'proof="certificate'):
            if way not in agent.log:
                sys.exit(f"{agent.host.name}: nothing came with {way}\n{agent.log[-2000:]}")


def measure_resident(cluster, rounds):
    """{ranks of a host: results}. srun both ways: it asks for its nodes itself, or starts a step on
    nodes that are its own already, as dtrain's are."""
    results = {}
    # Room for both.
    with slurm_hosts.Slurm(cluster, cpus=2 * max(RESIDENT)) as slurm, \
            resident_hosts.agents(cluster) as agents:
        for each in RESIDENT:
            shape = ["-Q", "-N4", f"-n{4 * each}", f"--ntasks-per-node={each}"]
            srun = ["env", *(f"{key}={value}" for key, value in slurm.environment().items()), "srun"]
            slurm.run(["salloc", *shape, "--no-shell", "-J", "steps"])
            job = slurm.run(["squeue", "-h", "-n", "steps", "-o", "%A"]).stdout.strip()
            results[each] = measure(cluster, {
                "dtrain over ssh": [*resident_hosts.by_ssh(cluster, each), "--", "/bin/true"],
                "dtrain over TCP": [*resident_hosts.by_tcp(cluster, each), "--", "/bin/true"],
                "srun": [*srun, *shape, "/bin/true"],
                "srun, a step": [*srun, *shape, f"--jobid={job}", "/bin/true"],
            }, rounds)
            expect(results[each])
            slurm.run(["scancel", job])
            slurm.wait_until_idle()
        check_that_agents_served(agents)
    return results


def main():
    options = arguments(rounds=15)
    if missing := slurm_hosts.missing_programs():
        sys.exit(f"there is no {', '.join(missing)}: tools/install-deps test installs Slurm")
    with hosts.Cluster(4) as cluster:
        far = measure_far(cluster, options.rounds)
        near = measure_near(cluster, options.rounds)
        resident = measure_resident(cluster, options.rounds)
    expect(far)
    expect(near)
    table(f"16 x /bin/true on 4 hosts over ssh, {options.rounds} rounds", (*HEADER, "x mpirun"),
          rows(far, "mpirun"))
    table(f"4 x /bin/true on this machine, {options.rounds} rounds", (*HEADER, "x mpirun"),
          rows(near, "mpirun"))
    for each, results in resident.items():
        table(f"{4 * each} x /bin/true on 4 hosts with resident agents, {options.rounds} rounds",
              (*HEADER, "x srun"), rows(results, "srun"))
    print()
    checks = [verdict("launch over ssh, x mpirun", median(far["dtrain"]) / median(far["mpirun"]), 0.5),
              verdict("local launch, ms", median(near["dtrain"]) * 1000, 60)]
    checks += [verdict(f"{4 * each} ranks by resident agents over {way}, x srun",
                       median(results[f"dtrain over {way}"]) / median(results["srun"]), limit)
               for each, limit in RESIDENT.items() for results in (resident[each],)
               for way in ("TCP", "ssh")]
    save(options, {"ssh": far, "local": near, "resident": resident, "checks": checks})


main()
