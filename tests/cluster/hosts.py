# SPDX-License-Identifier: Apache-2.0
"""A cluster of hosts made of Linux namespaces, each with its own address, hostname, process table,
cgroup tree (mounted as on a plain Debian 12), /root, /tmp, /run, /dev/shm and sshd, joined by one bridge. Needs root.

    with Cluster(4) as cluster:
        result = cluster.launch([*cluster.hosts_flag(4), "--", "hostname"])

    /usr/bin/python3 -B tests/cluster/hosts.py 4     # a shell on the head, to look around

The launcher runs on `cluster.head` and reaches `cluster.nodes` by ssh; the head's ~/.ssh names them, as there is no DNS.
The machine itself stays as it is: no file of the user and no interface outside the new namespaces is touched. The hosts
end with the test process, however it ends.
"""
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import checkout
import launching
from launching import SOURCE_DIR, bin_dir, is_sanitized, patient  # noqa: F401 - others take them from here

CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
HERE = SOURCE_DIR / "tests/cluster"
BASES = Path("/var/tmp")
PREFIX = "dtrain-test-"

libc = ctypes.CDLL(None, use_errno=True)


def setns(fd, kind=0):
    if libc.setns(fd, kind) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


@contextlib.contextmanager
def children_in_pid_namespace(fd=None):
    """Children of this thread start in the pid namespace `fd`, or in a new one."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if fd is None:
            if libc.unshare(CLONE_NEWPID) != 0:
                raise OSError(ctypes.get_errno(), "unshare of a pid namespace")
        else:
            setns(fd, CLONE_NEWPID)
        try:
            yield
        finally:
            setns(own, CLONE_NEWPID)
    finally:
        os.close(own)


def cgroup2_mount():
    """Where the machine has its cgroup v2 tree, or None."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(fields.split()[4])
    return None


def remove_stale():
    """What test processes that were killed could not take away."""
    for top in filter(None, (BASES, cgroup2_mount())):
        for path in top.glob(f"{PREFIX}*"):
            owner = path.name[len(PREFIX):].split("-")[0]
            if not os.path.exists(f"/proc/{owner}"):
                remove_cgroup_tree(path) if top != BASES else shutil.rmtree(path, True)


def remove_cgroup_tree(path, keep_top=False):
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            if not keep_top or Path(folder) != path:
                os.rmdir(folder)


class Host:
    """One machine. Everything it shows of itself is its own."""

    def __init__(self, cluster, name, address, cgroup):
        self.name = name
        self.address = address
        self.base = cluster.base / name
        self.sshd = None
        self.services = []  # children that outlive a test
        self._children = []
        self._cluster = cluster
        self.cgroup_dir = cluster.cgroup_root / name if cluster.cgroup_root else None
        self.start_in = self.cgroup_dir  # the cgroup of new processes
        for folder in ("root/.ssh", f"tmp/{launching.SANITIZER_FOLDER}"):
            (self.base / folder).mkdir(parents=True, mode=0o700)
        (self.base / "tmp").chmod(0o1777)
        (self.base / "tmp" / launching.SANITIZER_FOLDER).chmod(0o1777)
        (self.base / "shadow").write_text("root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n")
        if self.cgroup_dir:
            self.cgroup_dir.mkdir()
        # Libraries of ours are looked for where they were built.
        built = {str(checkout.CHECKOUT), str(checkout.PROGRAMS.parent)}
        config = {
            "name": name,
            "cgroup": cgroup,
            "cgroup_dir": str(self.cgroup_dir or ""),
            "image": cluster.image and {
                "system": str(cluster.image), "place": str(self.base / "image"),
                "shared": [str(cluster.base), *sorted({str(SOURCE_DIR), str(bin_dir().parent), *built})]},
            "keep": sorted(built),
            "covers": [["/root", str(self.base / "root")], ["/tmp", str(self.base / "tmp")],
                       ["/run", "tmpfs"], ["/dev/shm", "tmpfs"]],
            "files": [["/etc/shadow", str(self.base / "shadow")]],
        }
        with children_in_pid_namespace():
            self._init = subprocess.Popen(
                ["/usr/bin/python3", "-I", "-S", str(HERE / "hostinit.py"), json.dumps(config)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        self.pid = self._init.pid
        self._namespaces = {}

    def wait_until_up(self):
        if self._init.stdout.readline() != b"ready\n":
            raise RuntimeError(f"host {self.name} did not come up")
        for kind in ("pid", "cgroup", "ipc", "uts", "net", "mnt"):
            self._namespaces[kind] = os.open(f"/proc/{self.pid}/ns/{kind}",
                                             os.O_RDONLY | os.O_CLOEXEC)

    def popen(self, argv, env=None, cwd="/root", before_exec=None, **options):
        """A process on this host, a direct child of the test process: signals reach it."""
        procs = None
        if self.cgroup_dir:
            procs = os.open(self.start_in / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

        def enter():
            if procs is not None:
                os.write(procs, b"0")
            for kind in ("cgroup", "ipc", "uts", "net", "mnt"):
                setns(self._namespaces[kind])
            os.chdir(cwd)
            # The tests may run under nohup or as a shell's background job.
            for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
                signal.signal(ignored, signal.SIG_DFL)
            if before_exec:
                before_exec()

        try:
            with children_in_pid_namespace(self._namespaces["pid"]):
                process = subprocess.Popen([str(arg) for arg in self._cluster.on_kernel(argv)],
                                           preexec_fn=enter,
                                           env=self._cluster.environment(env), **options)
            self._children.append(process)
            return process
        finally:
            if procs is not None:
                os.close(procs)

    def run(self, argv, timeout=30, check=True, env=None, stdin=None, cwd="/root"):
        process = self.popen(argv, env=env, cwd=cwd, text=True, start_new_session=True,
                             stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(stdin, timeout=patient(timeout))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        if check and process.returncode != 0:
            raise RuntimeError(f"{self.name}: {argv} ended with {process.returncode}\n{out}{err}")
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def path(self, path):
        """The host's file `path`, as the test process can open it."""
        return Path(f"/proc/{self.pid}/root{path}")

    def network(self, batch):
        """Runs `ip -batch` lines in the host's network namespace."""
        run_ip(self._namespaces["net"], batch)

    def namespace(self, kind):
        """A descriptor of the host's namespace: "net", "pid", "mnt", …"""
        return self._namespaces[kind]

    @property
    def pid_namespace(self):
        return os.stat(self._namespaces["pid"]).st_ino

    def start_sshd(self, extra="", setenv=None, before_exec=None):
        """`extra`: further lines of sshd_config, which win over the defaults. `setenv`: variables
        of every session. Sessions inherit sshd's limits, which `before_exec` may change."""
        config = self.base / "sshd_config"
        # What ssh does not carry to the agents: where sanitizers write their reports.
        variables = {**launching.SANITIZER_OPTIONS, **(setenv or {})}
        config.write_text(extra + SSHD_CONFIG.format(
            base=self.base, setenv=" ".join(f"{k}={v}" for k, v in variables.items())))
        self.sshd = self.popen(["/usr/sbin/sshd", "-D", "-e", "-f", config],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=open(self.base / "sshd.log", "ab"),
                               before_exec=before_exec, start_new_session=True)

    def wait_for_sshd(self, deadline):
        while not self._is_listening():
            if time.monotonic() > deadline or self.sshd.poll() is not None:
                raise RuntimeError((self.base / "sshd.log").read_text())
            time.sleep(0.005)

    def restart_sshd(self, extra="", **options):
        self.stop_sshd()
        self.start_sshd(extra, **options)
        self.wait_for_sshd(time.monotonic() + 10)

    def stop_sshd(self):
        if not self.sshd:
            return
        self.sshd.kill()
        self.sshd.wait()
        self.sshd = None
        # A child that it had just forked has the listening socket for a moment: another sshd could not bind, and
        # a connection would succeed.
        deadline = time.monotonic() + patient(10)
        while self._is_listening():
            assert time.monotonic() < deadline, f"{self.name}: something still listens on port 22"
            time.sleep(0.01)

    def _is_listening(self):
        with socket_in_namespace(self._namespaces["net"]) as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", 22)) == 0

    def reap(self):
        """Waits for the children of this process on the host that were killed."""
        for child in self._children:
            if child is not self.sshd and child not in self.services:
                child.wait(10)

    def remove_cgroups(self):
        if self.cgroup_dir:
            remove_cgroup_tree(self.cgroup_dir, keep_top=True)

    def close(self):
        self._init.kill()
        # Process 1 stays until every process of its namespace is reaped, ours by us.
        for child in self._children:
            child.wait()
        self._init.wait()
        self._init.stdout.close()
        for fd in self._namespaces.values():
            os.close(fd)
        if self.cgroup_dir:
            remove_cgroup_tree(self.cgroup_dir)


SSHD_CONFIG = """
Port 22
HostKey {base}/host_key
AuthorizedKeysFile {base}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
PidFile none
PrintMotd no
MaxStartups 100
LogLevel ERROR
SetEnv {setenv}
"""


def run_ip(namespace, batch):
    process = subprocess.run(["ip", "-batch", "-"], input=batch, text=True, capture_output=True,
                             preexec_fn=lambda: setns(namespace, CLONE_NEWNET))
    if process.returncode != 0:
        raise RuntimeError(f"ip failed: {process.stderr}\n{batch}")


def socket_in_namespace(namespace):
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(namespace, CLONE_NEWNET)
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        finally:
            setns(own, CLONE_NEWNET)
    finally:
        os.close(own)


def new_network_namespace():
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare of a network namespace")
        try:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            setns(own, CLONE_NEWNET)
    finally:
        os.close(own)


class Cluster:
    """`nodes` hosts node0, node1, … and the head. `cgroup`: "v2", "readonly" or "none".
    `interfaces`: the name of each node's interface, "eth0" unless given. `image`: a folder with the
    system of all hosts, in the place of this machine's; unless given, $DTRAIN_TEST_IMAGE. `kernel`: "5.4" or
    "4.18", all processes on the hosts lack what came later; unless given, $DTRAIN_TEST_KERNEL. `programs`: the folder with dtrain.

    Any test on another system: DTRAIN_TEST_IMAGE=FOLDER DTRAIN_BIN_DIR=build/release/portable/bin."""

    def __init__(self, nodes, cgroup="v2", interfaces=None, image=None, kernel=None, programs=None):
        self.size = nodes
        self.image = image or os.environ.get("DTRAIN_TEST_IMAGE")
        self.kernel = kernel or os.environ.get("DTRAIN_TEST_KERNEL")
        self.programs = programs or bin_dir()
        self.cgroup = cgroup
        self.interfaces = interfaces or ["eth0"] * nodes
        self.nodes = []
        self.head = None
        self.base = None
        self.cgroup_root = None
        self._fabric = None

    def __enter__(self):
        remove_stale()
        self.base = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=BASES))
        self.base.chmod(0o755)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _build(self):
        mounted = cgroup2_mount() if self.cgroup != "none" else None
        if mounted:
            self.cgroup_root = mounted / self.base.name
            self.cgroup_root.mkdir()
        self._fabric = new_network_namespace()
        self.head = Host(self, "head", "10.77.0.100", self.cgroup)
        for index in range(self.size):
            self.nodes.append(Host(self, f"node{index}", f"10.77.0.{index + 1}", self.cgroup))
        self._make_keys()
        for host in self.hosts:
            host.wait_until_up()
        self._make_network()
        for node in self.nodes:
            node.start_sshd()
        for node in self.nodes:
            node.wait_for_sshd(time.monotonic() + 10)

    @property
    def hosts(self):
        return [self.head, *self.nodes]

    def _make_keys(self):
        ssh = self.head.base / "root/.ssh"
        make_key(ssh / "id_ed25519")
        known, config = [], []
        for node in self.nodes:
            make_key(node.base / "host_key")
            shutil.copy(ssh / "id_ed25519.pub", node.base / "authorized_keys")
            kind, key, *_ = (node.base / "host_key.pub").read_text().split()
            known.append(f"{node.address},{node.name} {kind} {key}\n")
            config.append(f"Host {node.name}\n  HostName {node.address}\n  HostKeyAlias {node.name}\n")
        (ssh / "known_hosts").write_text("".join(known))
        config.append("Host *\n  User root\n  StrictHostKeyChecking yes\n"
                      "  IdentityFile ~/.ssh/id_ed25519\n")
        (ssh / "config").write_text("".join(config))

    def _make_network(self):
        lines = ["link set lo up", "link add br0 type bridge", "link set br0 up"]
        for host, interface in zip(self.hosts, ["eth0", *self.interfaces]):
            lines += [f"link add {host.name} type veth peer name {interface} netns {host.pid}",
                      f"link set {host.name} master br0 up"]
        run_ip(self._fabric, "\n".join(lines) + "\n")
        for host, interface in zip(self.hosts, ["eth0", *self.interfaces]):
            host.network(f"link set lo up\naddr add {host.address}/24 dev {interface}\n"
                         f"link set {interface} up\n")

    def add_network(self, bridge, subnet, interfaces):
        """A second wire between the nodes: interfaces[i] is its name on node i."""
        lines = [f"link add {bridge} type bridge", f"link set {bridge} up"]
        for index, (node, interface) in enumerate(zip(self.nodes, interfaces)):
            port = f"{bridge}n{index}"
            lines += [f"link add {port} type veth peer name {interface} netns {node.pid}",
                      f"link set {port} master {bridge} up"]
        run_ip(self._fabric, "\n".join(lines) + "\n")
        for index, (node, interface) in enumerate(zip(self.nodes, interfaces)):
            node.network(f"addr add {subnet}.{index + 1}/24 dev {interface}\n"
                         f"link set {interface} up\n")

    def in_fabric(self, start, argv, **options):
        """`start` is subprocess.run or Popen: beside the bridges, where the other ends of all cables
        are, each named after its host."""
        return start(argv, preexec_fn=lambda: setns(self._fabric, CLONE_NEWNET), **options)

    def fabric(self, batch):
        """Runs `ip -batch` lines there."""
        run_ip(self._fabric, batch)

    def interface_of(self, host):
        return "eth0" if host is self.head else self.interfaces[self.nodes.index(host)]

    def cut(self, host):
        """Pulls the host's cable: nothing tells the two sides."""
        run_ip(self._fabric, f"link set {host.name} nomaster\n")

    def heal(self, host):
        run_ip(self._fabric, f"link set {host.name} master br0\n")

    def cut_towards(self, host):
        """One way only: the host can send and is heard, but nothing reaches it."""
        subprocess.run(["bridge", "link", "set", "dev", host.name, "flood", "off", "mcast_flood",
                        "off", "bcast_flood", "off", "learning", "off"], check=True,
                       preexec_fn=lambda: setns(self._fabric, CLONE_NEWNET))
        subprocess.run(["ip", "link", "set", "dev", "br0", "type", "bridge", "fdb_flush"],
                       check=True, preexec_fn=lambda: setns(self._fabric, CLONE_NEWNET))

    def heal_towards(self, host):
        subprocess.run(["bridge", "link", "set", "dev", host.name, "flood", "on", "mcast_flood",
                        "on", "bcast_flood", "on", "learning", "on"], check=True,
                       preexec_fn=lambda: setns(self._fabric, CLONE_NEWNET))

    def on_kernel(self, argv):
        """The command that runs a program as on the kernel of this cluster."""
        if not self.kernel:
            return argv
        # Portable builds have no copy of it, because it runs on this machine.
        places = [bin_dir(), bin_dir().parent.parent / "bin"]
        program = next(place / "old-kernel" for place in places if (place / "old-kernel").exists())
        return [program, self.kernel, *argv]

    def environment(self, extra=None):
        base = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/bash",
                "LANG": "C.UTF-8", **launching.SANITIZER_OPTIONS}
        base.update(extra or {})
        return {name: value for name, value in base.items() if value is not None}

    def hosts_flag(self, slots, nodes=None):
        chosen = self.nodes if nodes is None else nodes
        return ["-H", ",".join(f"{node.name}:{slots}" for node in chosen)]

    def hostfile(self, text, name="hosts"):
        """Writes a hostfile in the head's work folder; `text` or a number of slots for each."""
        if isinstance(text, int):
            text = "".join(f"{node.name} slots={text}\n" for node in self.nodes)
        folder = self.work()
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return f"/root/work/{name}"

    def work(self, host=None):
        """A folder for the test's own files on `host`, by default the head: /root/work there."""
        folder = (host or self.head).base / "root/work"
        folder.mkdir(exist_ok=True)
        return folder

    def start_launch(self, args, **options):
        return launching.Launch(self.head, [self.programs / "dtrain", "launch", *args], **options)

    def launch(self, args, timeout=60, **options):
        return self.start_launch(args, **options).wait(timeout)

    def close(self):
        for host in [self.head, *self.nodes]:
            if host:
                host.close()
        if self._fabric is not None:
            os.close(self._fabric)
        if self.cgroup_root:
            remove_cgroup_tree(self.cgroup_root)
        shutil.rmtree(self.base, ignore_errors=True)


def make_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "dtrain-test", "-f",
                    str(path)], check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    # A shell on the head of a cluster, to look around: python3 hosts.py [nodes] [command...]
    with Cluster(int(sys.argv[1]) if len(sys.argv) > 1 else 4) as shell_cluster:
        command = sys.argv[2:] or ["/bin/bash", "--norc"]
        sys.exit(shell_cluster.head.popen(command, env={"TERM": os.environ.get("TERM", "dumb")})
                 .wait())
