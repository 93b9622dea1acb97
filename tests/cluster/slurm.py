# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on the hosts of a cluster: munged and slurmctld on the first node, a slurmd on every
node, all of it in the cluster's own folder. The machine's own Slurm and munge are not touched.

    with Slurm(cluster) as slurm:
        slurm.run(["salloc", "-N2", "hostname"])
"""
import os
import shutil
import stat
import subprocess

import launching

PROGRAMS = ("/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/srun")
CPUS = 8
GPUS = 4

# Hosts are given by address: there is no DNS. config_overrides: the machine under test may have
# fewer cores than the nodes are said to have.
CONFIG = """
ClusterName=dtrain-test
SlurmctldHost={control}({address})
AuthInfo=socket={base}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool-%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd-%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
MinJobAge=60
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=10:00 State=UP
"""


def missing_programs():
    return [program for program in PROGRAMS if not os.path.exists(program)]


class Slurm:
    """Starts it all on entry, and ends it all on exit."""

    def __init__(self, cluster, cpus=CPUS):
        self.cluster = cluster
        self._cpus = cpus
        self._control = cluster.nodes[0]
        self.base = cluster.base / "slurm"
        self._daemons = []

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _start(self):
        (self.base / "state").mkdir(parents=True, mode=0o755)
        lines = [f"NodeName={node.name} NodeAddr={node.address} CPUs={self._cpus} Gres=gpu:{GPUS} "
                 "State=UNKNOWN" for node in self.cluster.nodes]
        (self.base / "slurm.conf").write_text(CONFIG.format(
            control=self._control.name, address=self._control.address, base=self.base,
            nodes="\n".join(lines)))
        # Unused, but the default looks at what is mounted, and refuses some of it.
        (self.base / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        # Slurm asks no more of a GPU than that it is a device: these are as good as /dev/null.
        (self.base / "gres.conf").write_text(f"Name=gpu File={self.base}/gpu[0-{GPUS - 1}]\n")
        for index in range(GPUS):
            os.mknod(self.base / f"gpu{index}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        for node in self.cluster.nodes:
            (self.base / f"spool-{node.name}").mkdir()
        self._start_munge()
        self._daemon(self._control, ["/usr/sbin/slurmctld", "-D", "-i"])
        for node in self.cluster.nodes:
            self._daemon(node, ["/usr/sbin/slurmd", "-D", "-N", node.name])
        self.wait_until_idle()

    def _start_munge(self):
        key = self.base / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._daemon(self._control, [
            "/usr/sbin/munged", "--foreground", "--force", f"--key-file={key}",
            f"--socket={self.base}/munge.socket", f"--pid-file={self.base}/munged.pid",
            f"--log-file={self.base}/munged.log", f"--seed-file={self.base}/munged.seed"])
        launching.wait_until((self.base / "munge.socket").exists, 10, "no socket of munged")

    def _daemon(self, host, argv):
        with open(self.base / f"{os.path.basename(argv[0])}-{host.name}.out", "ab") as out:
            daemon = host.popen(argv, env=self.environment(), cwd="/", stdin=subprocess.DEVNULL,
                                stdout=out, stderr=out, start_new_session=True)
        host.services.append(daemon)
        self._daemons.append((host, daemon))

    def environment(self):
        return {"SLURM_CONF": str(self.base / "slurm.conf")}

    def run(self, argv, **options):
        """Runs one of Slurm's commands on the head."""
        return self.cluster.head.run(argv, env=self.environment(), **options)

    def start(self, argv, env=None, **options):
        """The same, to be looked at while it runs."""
        return launching.Launch(self.cluster.head, argv, env={**self.environment(), **(env or {})},
                                **options)

    def state(self):
        """A line for each node: "node0 idle none"."""
        out = self.run(["sinfo", "-h", "-N", "-o", "%N %t %E"], check=False)
        return out.stdout + out.stderr

    def logs(self):
        """What the daemons have written."""
        return "".join(path.read_text() for path in sorted(self.base.glob("slurm*.log")))

    def wait_until_idle(self):
        launching.wait_until(self._all_idle, 20, lambda: self.state() + self.logs())

    def _all_idle(self):
        return self.state().count(" idle ") == len(self.cluster.nodes)

    def close(self):
        for host, daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()
            host.services.remove(daemon)
        shutil.rmtree(self.base, ignore_errors=True)
