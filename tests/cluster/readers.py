# SPDX-License-Identifier: Apache-2.0
"""The machines on which a reader types the commands of a page: a Reader for each page, with all that the
page expects of its reader and does not make by itself."""
import contextlib
import os
import shlex
import shutil
import uuid

import hosts
import podman
import slurm
import test_identity
from launching import wait_until

ROOT = hosts.SOURCE_DIR
PATH = f"{hosts.bin_dir()}:{ROOT}/deploy/pki:/usr/sbin:/usr/bin:/sbin:/bin"
WORK = "/root/work"


class Reader:
    """Types on the head, in /root/work. The nodes are node0, … and by ssh also gpu01, …"""

    def __init__(self, make_cluster, nodes=2):
        self.cluster = make_cluster(nodes)
        self.head = self.cluster.head
        self.nodes = self.cluster.nodes
        self.variables = {"PATH": PATH, "USER": "root"}
        self.cluster.work()
        with (self.head.base / "root/.ssh/config").open("a") as file:
            for index, node in enumerate(self.nodes):
                file.write(f"Host {name_of(index)}\n  HostName {node.address}\n  HostKeyAlias {node.name}\n")
        for node in self.nodes:
            node.restart_sshd("Subsystem sftp internal-sftp\n")

    def type(self, steps):
        """[(command, its output)] of all steps that can be run, in one shell."""
        mark = uuid.uuid4().hex
        script, ran = [], []
        for step in steps:
            if step.reason:
                continue
            if step.file:
                script.append(f"printf %s {shlex.quote(step.text)} >{WORK}/{step.file}")
            for command in step.commands or ():
                # The exit code of each is there for the next one to ask for.
                script.append(f"{{ {command.text}\n}} 2>&1; code=$?; printf '\\n{mark}\\n'; (exit $code)")
                ran.append(command)
        done = self.head.run(["bash", "-c", "\n".join(script)], timeout=240, check=False, cwd=WORK,
                             env=self.variables)
        outputs = done.stdout.split(f"\n{mark}\n")
        assert len(outputs) == len(ran) + 1, f"{done.stdout}\n{done.stderr}"
        return list(zip(ran, outputs))

    def share_work(self):
        """One folder /root/work for all, as on a shared file system."""
        for node in self.nodes:
            self.cluster.work(node)
            node.run(["mount", "--bind", self.head.base / "root/work", WORK])

    def own_etc(self):
        """/etc is each host's own, its changes in memory; there the hosts have names, alice has an account,
        and the configuration of an agent waits."""
        for host in self.cluster.hosts:
            self.cluster.work(host)
            host.run(["sh", "-c", f"mkdir {WORK}/etc && mount -t tmpfs tmpfs {WORK}/etc &&"
                                  f"mkdir {WORK}/etc/changes {WORK}/etc/aside && mount -t overlay overlay "
                                  f"-o lowerdir=/etc,upperdir={WORK}/etc/changes,workdir={WORK}/etc/aside /etc"])
            etc = host.path("/etc")
            (etc / "shadow").write_text((host.base / "shadow").read_text() + "alice:*:19000:0:99999:7:::\n")
            with (etc / "passwd").open("a") as file:
                file.write(f"alice:x:{test_identity.UID}:{test_identity.GID}::/tmp:/bin/sh\n")
            with (etc / "hosts").open("a") as file:
                file.write(f"{self.head.address} head\n")
                file.writelines(f"{node.address} {name_of(index)}\n" for index, node in enumerate(self.nodes))
            (etc / "dtrain").mkdir(exist_ok=True)
        self.variables["HOME"] = f"{WORK}/home"
        self.head.path(f"{WORK}/home").mkdir()


def name_of(index):
    return f"gpu{index + 1:02}"


@contextlib.contextmanager
def ssh_alone(make_cluster):
    yield Reader(make_cluster)


@contextlib.contextmanager
def with_agents(make_cluster):
    """Three nodes on which an agent can be started, and from which ssh leads back to the head."""
    reader = Reader(make_cluster, 3)
    reader.own_etc()
    head = reader.head
    hosts.make_key(head.base / "host_key")
    # As docs/pki.md says: with its key a node can ask for a signature, and do nothing else.
    key = (head.base / "root/.ssh/id_ed25519.pub").read_text()
    (head.base / "authorized_keys").write_text(f'command="dtrain-pki sign {WORK}/home/dtrain-ca --tar",restrict {key}')
    head.start_sshd(setenv={"PATH": PATH})
    for node in reader.nodes:
        node.restart_sshd("Subsystem sftp internal-sftp\n",
                          setenv={"PATH": f"{ROOT}/tests/cluster/stand_ins:{PATH}"})
        ssh = node.base / "root/.ssh"
        shutil.copy(head.base / "root/.ssh/id_ed25519", ssh)
        (ssh / "config").write_text("StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n")
        node.path("/etc/dtrain/agent.conf").write_text("")
    try:
        yield reader
    finally:
        for node in reader.nodes:
            wait_until(lambda node=node: not list((node.cgroup_dir or node.base).glob("dtrain-*")), 10, "an agent keeps a cgroup")
            node.run([ROOT / "tests/cluster/stand_ins/systemctl", "stop", "dtrain-agent"])
            shutil.rmtree(node.path("/run/dtrain-agent"), ignore_errors=True)
            node.path("/run/dtrain-agent.log").unlink(missing_ok=True)


@contextlib.contextmanager
def with_certificates(make_cluster):
    """As with_agents, with certificates for the nodes and for root, who is the one who types."""
    with with_agents(make_cluster) as reader:
        steps = ["dtrain-pki init ~/ca", "dtrain-pki user ~/ca root --admin",
                 "mkdir -p ~/.config/dtrain/tls",
                 "dtrain-pki bundle ~/ca user:root | tar -x -C ~/.config/dtrain/tls"]
        for index, node in enumerate(reader.nodes):
            name = name_of(index)
            steps += [f"dtrain-pki node ~/ca {name}",
                      f"dtrain-pki bundle ~/ca node:{name} | ssh {name} 'umask 077; mkdir /etc/dtrain/tls;"
                      " tar -x -C /etc/dtrain/tls'"]
            node.path("/etc/dtrain/agent.conf").write_text("allow-root = true\n")
        reader.head.run(["bash", "-ec", "\n".join(steps)], env=reader.variables)
        for node in reader.nodes:
            node.run(["systemctl", "restart", "dtrain-agent"],
                     env={"PATH": f"{ROOT}/tests/cluster/stand_ins:{PATH}"})
        yield reader


@contextlib.contextmanager
def with_slurm(make_cluster):
    reader = Reader(make_cluster)
    reader.share_work()
    with slurm.Slurm(reader.cluster) as running:
        reader.variables.update(running.environment())
        yield reader


@contextlib.contextmanager
def with_podman(make_cluster):
    reader = Reader(make_cluster)
    for node in reader.nodes:
        podman.set_up(node)
    try:
        yield reader
    finally:
        for node in reader.nodes:
            node.path("/dev/shm/libpod_lock").unlink()  # podman's own, for ever


@contextlib.contextmanager
def in_the_repository(make_cluster):
    """/root/work looks like the root of the repository after `tools/build`, on all hosts."""
    reader = Reader(make_cluster, 4)
    reader.share_work()
    work = reader.cluster.work()
    shutil.copytree(ROOT / "examples", work / "examples")
    os.symlink(ROOT / "runtime", work / "runtime")
    (work / "build").mkdir()
    os.symlink(hosts.bin_dir().parent, work / "build/release")
    # Gloo without a launcher looks for the machine by its name, which the hosts of the tests cannot resolve.
    reader.variables.update(GLOO_SOCKET_IFNAME="lo", HOME=f"{WORK}/home", PYTHONPATH=f"{WORK}/runtime/python",
                            DTRAIN_LIBRARY=str(hosts.bin_dir().parent / "lib/libdtrain.so.0"))
    yield reader
