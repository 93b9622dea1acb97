# SPDX-License-Identifier: Apache-2.0
"""The .debs of this build, installed into clean systems. What tests take from here are fixtures."""
import re
import shutil
import subprocess

import chroot
import hosts
import launching
import portable
import pytest

PACKAGES = ("dtrain", "dtrain-agent", "libdtrain0", "libdtrain-dev", "python3-dtrain")
# What any package leaves: what was fetched, written down or made of all packages, bytecode of other
# packages, and accounts, which the system keeps.
OF_THE_SYSTEM = re.compile(
    r"/(var/(cache|log|lib/(apt|dpkg))|etc/(ld\.so\.cache|resolv\.conf|\.pwd\.lock|(passwd|group|g?shadow)-?))(/|$)"
    r"|/__pycache__(/|$)")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The .debs of this build; install.sh, the tarball and SHA256SUMS are beside them."""
    portable.build("dtrain_reference")
    out = portable.package(tmp_path_factory.mktemp("built") / "debs", "--only", "deb,tar")
    files = list(out.glob("*.deb"))
    assert len(files) == len(PACKAGES)
    return files


def dependencies(files):
    """What the packages need of others."""
    for file in files:
        line = subprocess.run(["dpkg-deb", "-f", file, "Depends"], capture_output=True, text=True,
                              check=True).stdout
        yield from (one for one in line.strip().split(", ") if one.split(" ")[0] not in PACKAGES)


def install(files, tree):
    """Installs the packages with what they say they need; the tree knows what it had before."""
    for file in files:
        shutil.copy(file, tree.path("/run"))
    needed = ", ".join(sorted(set(dependencies(files))))
    tree.run(f"apt-get satisfy -y --no-install-recommends '{needed}'")
    tree.before = tree.files()
    tree.run("dpkg -i /run/*.deb")


@pytest.fixture
def clean(tmp_path):
    """A clean system that systemd runs, where alice has an account."""
    if chroot.missing():
        pytest.skip(chroot.missing())
    if hosts.cgroup2_mount() is None:
        pytest.skip("there is no cgroup v2 tree")
    tree = chroot.Booted(tmp_path)
    try:
        tree.run("useradd -m alice")
        yield tree
    finally:
        tree.close()


@pytest.fixture
def booted(built, clean):
    """The same, with the packages."""
    install(built, clean)
    return clean


def agent(tree, unit="dtrain-agent"):
    """The process of the resident agent, once it serves."""
    launching.wait_until(lambda: "yes" in tree.run(
        f"systemctl is-active -q {unit} && test -S /run/dtrain-agent/agent.sock && echo yes"
        " || true"), 60, lambda: tree.run(f"systemctl status {unit} dtrain-spawner; journalctl -n 50 || true"))
    return tree.run(f"systemctl show -P MainPID {unit}").strip()


def launch(tree, words, user="alice:alice", **env):
    """A running launch of alice's; what it prints is in order."""
    return subprocess.Popen(
        **tree.command(f"cd /; exec dtrain launch {words}", user=user, **{"HOME": "/home/alice", **env}),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def workers(tree):
    """Process ids and start times of the workers, who run a-worker, a copy of cat."""
    found = {}
    for stat in tree.run("cat /proc/[0-9]*/stat 2>/dev/null; true").splitlines():
        pid, rest = stat.split(" ", 1)
        if rest.startswith("(a-worker)"):
            found[pid] = rest.rpartition(")")[2].split()[19]
    return found


def start_workers(tree, words, **env):
    """A launch of two workers, once they run, and they."""
    tree.run("cp /bin/cat /usr/bin/a-worker")
    job = launch(tree, f"-np 2 --stdin all {words}", **env)
    try:
        launching.wait_until(lambda: len(workers(tree)) == 2 or job.poll() is not None, 60, "the job does not run")
        assert job.poll() is None, job.stdout.read()
    except BaseException:
        job.kill()
        raise
    return job, workers(tree)


def processes(tree):
    """The names of all that is ours."""
    return [name for name in tree.programs() if name.startswith("dtrain") or name == "a-worker"]
