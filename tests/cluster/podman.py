# SPDX-License-Identifier: Apache-2.0
"""A real podman on the hosts of a cluster, each with a store of its own, and an image that no registry has:
busybox, or with the machine's folders mounted all that this machine has."""
import io
import os
import shutil
import tarfile
from pathlib import Path

import hosts

IMAGE = "localhost/dtrain-test:1"
FOLDER = "/root/work/podman"
STORAGE = f"""
[storage]
driver = "vfs"
graphroot = "{FOLDER}/root"
runroot = "{FOLDER}/run"
"""
APPLETS = ("cat", "env", "grep", "hostname", "id", "kill", "ls", "ps", "pwd", "readlink", "sh", "sleep", "true")
# With these the image has the programs of this machine.
MACHINE = [word for folder in ("/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf",
                               "/etc/ld.so.conf.d", str(hosts.SOURCE_DIR), str(hosts.bin_dir().parent))
           for word in ("--container-mount", f"{folder}:{folder}:ro")]


def missing():
    """Why podman cannot run here; None: it can."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("podman", "crun", "conmon", "busybox"):
        if not shutil.which(program):
            return f"there is no {program}"
    if hosts.cgroup2_mount() is None:
        return "this machine has no cgroup v2, without which podman does not start"
    return None


def make_image(path):
    """A root with busybox, as `podman import` takes it. /lib and /bin are where Debian has them."""
    with tarfile.open(path, "w") as tar:
        def add(name, kind=tarfile.DIRTYPE, target="", data=b"", mode=0o755):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode, info.size = kind, target, mode, len(data)
            tar.addfile(info, io.BytesIO(data) if data else None)

        for folder in ("dev", "etc", "etc/alternatives", "etc/ld.so.conf.d", "home", "proc", "root", "run", "sys",
                       "tmp", "usr", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "var", "var/tmp"):
            add(folder, mode=0o1777 if folder.endswith("tmp") else 0o755)
        for name in ("bin", "lib", "lib64", "sbin"):
            add(name, tarfile.SYMTYPE, f"usr/{name}")
        add("usr/bin/busybox", tarfile.REGTYPE, data=Path(shutil.which("busybox")).resolve().read_bytes())
        for name in APPLETS:
            add(f"usr/bin/{name}", tarfile.SYMTYPE, "busybox")
        add("of-the-image", tarfile.REGTYPE, data=b"I am the image\n", mode=0o644)


def set_up(host):
    """Gives `host` the image; agents there find the store by a variable of their sessions."""
    folder = hosts.Cluster.work(host._cluster, host) / "podman"
    folder.mkdir(exist_ok=True)
    (folder / "storage.conf").write_text(STORAGE)
    make_image(folder / "image.tar")
    host.restart_sshd(setenv={"CONTAINERS_STORAGE_CONF": f"{FOLDER}/storage.conf"}) if host.sshd else None
    podman(host, "import", f"{FOLDER}/image.tar", IMAGE)
    # What podman makes once, for ever.
    podman(host, "run", "--rm", "--network", "host", "--cgroups", "disabled", "--ulimit", "nofile=1024:1024",
           "--ulimit", "nproc=4096:4096", IMAGE, "true")


def podman(host, *words, check=True):
    return host.run(["podman", *words], timeout=60, check=check,
                    env={"CONTAINERS_STORAGE_CONF": f"{FOLDER}/storage.conf"})


def containers(host):
    """Records of containers, with their state."""
    return podman(host, "ps", "--all", "--format", "{{.Names}} {{.Status}}").stdout.splitlines()
