# SPDX-License-Identifier: Apache-2.0
"""The cross-built programs under QEMU's user emulation, with the C library of Debian 11; and a job of nodes
of both machines. Needs what docs/transports.md names for cross-building, and the build of preset aarch64.

QEMU 7.2 does not support CLONE_PIDFD, so launches run as on Linux 4.18, where dtrain does not need it.
Programs are told to be QEMU's in a user namespace of their own, which leaves the machine as it is (Linux 6.7)."""
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import hosts
import launching

BUILD = hosts.SOURCE_DIR / "build/aarch64"
ROOT = hosts.SOURCE_DIR / "build/arm64-root"
PORTABLE = BUILD / "portable"
QEMU = "qemu-aarch64-static"
UNITS = ("base", "hosts", "plan", "runtime", "transport")
# An ELF file of 64 bits, little endian, for machine 183; the kernel keeps QEMU open (F), which so is there in
# any root, and leaves argv[0] as it is (P).
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# Debian 11's arm64 library appears beside the machine's own, as multiarch would install it.
ENTER = f"""#!/bin/sh
[ -n "$DTRAIN_INSIDE" ] || DTRAIN_INSIDE=1 exec unshare --user --map-root-user --mount sh "$0" "$@"
unset DTRAIN_INSIDE
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc &&
mount -t overlay overlay -o lowerdir={ROOT}/bullseye/lib:/usr/lib /usr/lib &&
printf %s ':dtrain:M::{MAGIC}:{MASK}:{shutil.which(QEMU)}:FP' >/proc/sys/fs/binfmt_misc/register || exit 99
exec "$@"
"""


@pytest.fixture(scope="module")
def enter(tmp_path_factory):
    """The words before a command that make aarch64 programs run like any."""
    if platform.machine() != "x86_64":
        pytest.skip("this machine is not an x86_64 one")
    for program in (QEMU, "aarch64-linux-gnu-g++"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    if not (BUILD / "build.ninja").exists():
        pytest.skip("nothing is cross-built: run tools/arm64-root and cmake --preset aarch64")
    targets = ["portable", *(f"unit_{unit}" for unit in UNITS)]
    done = subprocess.run(["cmake", "--build", BUILD, "-j2", "--target", *targets], text=True,
                          stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    script = tmp_path_factory.mktemp("enter") / "enter"
    script.write_text(ENTER)
    script.chmod(0o755)
    if run([script, "true"]).returncode == 99:
        pytest.skip("this kernel has no binfmt_misc for user namespaces (Linux 6.7)")
    return [script]


def run(words, timeout=100, **options):
    return subprocess.run([str(word) for word in words], text=True, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=timeout, **options)


def old_kernel():
    return [hosts.bin_dir() / "old-kernel", "4.18"]


@pytest.mark.parametrize("unit", UNITS)
def test_units(enter, unit):
    done = run([QEMU, "-L", ROOT / "bookworm", BUILD / f"bin/unit_{unit}"], timeout=300)
    assert done.returncode == 0 and "[  PASSED  ]" in done.stdout, done.stdout[-3000:] + done.stderr


def test_constructors_exceptions_and_old_functions_work(enter):
    done = run([*enter, PORTABLE / "bin/portable-probe"])
    assert done.stdout == "portable-probe: all right with glibc 2.31\n", done


def test_the_check_sees_what_is_not_portable(enter):
    tool = hosts.SOURCE_DIR / "tools/check-portable"
    programs = [PORTABLE / f"bin/dtrain{name}" for name in ("", "-agent", "-spawner", "-shepherd")]
    done = run([tool, *programs, PORTABLE / "lib/libdtrain.so.0",
                PORTABLE / "lib/dtrain/libdtrain-ssh.so"])
    assert done.returncode == 0, done
    done = run([tool, BUILD / "bin/unit_base"])
    assert done.returncode == 1 and "another start file" in done.stderr, done


def test_a_job_on_this_machine(enter):
    done = run([*enter, PORTABLE / "bin/dtrain", "--version"])
    assert done.returncode == 0 and done.stdout.startswith("dtrain "), done
    launch = [*enter, *old_kernel(), PORTABLE / "bin/dtrain", "launch", "-np", "2", "--"]
    done = run([*launch, "sh", "-c", "echo of $WORLD_SIZE; exit $((RANK * 7))"])
    assert done.returncode == 7 and "rank 1" in done.stderr, done
    assert sorted(done.stdout.splitlines()) == ["[0] of 2", "[1] of 2"], done


def test_all_reduce(enter):
    launch = [*enter, *old_kernel(), PORTABLE / "bin/dtrain", "launch", "-np", "3", "--"]
    done = run([*launch, PORTABLE / "bin/dtrain-allreduce"])
    assert done.returncode == 0 and "every element is right on every rank" in done.stdout, done


def installation(folder):
    """A launcher with agents for both machines."""
    for name in ("bin", "lib/dtrain"):
        (folder / name).mkdir(parents=True)
    shutil.copy(hosts.bin_dir() / "dtrain", folder / "bin")
    shutil.copy(hosts.bin_dir() / "dtrain-agent", folder / "bin")
    shutil.copy(PORTABLE / "bin/dtrain-agent", folder / "lib/dtrain/agent-aarch64")
    return folder / "bin/dtrain"


def test_a_job_of_nodes_of_both_machines(enter, make_cluster):
    """node1 has QEMU, and a uname that says aarch64."""
    cluster = make_cluster(2)
    folder = cluster.base / "both"
    dtrain = installation(folder)
    shutil.copy(enter[0], folder)
    (folder / "uname").write_text("#!/bin/sh\necho aarch64\n")
    (folder / "rsh").write_text(f"""#!/bin/sh
host=$1; shift
[ $host = node0 ] || set -- env PATH={folder}:/usr/bin:/bin {folder}/enter {' '.join(map(str, old_kernel()))} "$@"
exec ssh $host "$@"
""")
    (folder / "worker").write_text(f"""#!/bin/sh
[ ! -e /lib/ld-linux-aarch64.so.1 ] || exec {PORTABLE}/bin/dtrain-allreduce "$@"
exec {hosts.bin_dir()}/dtrain-allreduce "$@"
""")
    for name in ("uname", "rsh", "worker"):
        (folder / name).chmod(0o755)
    for _ in ("pushed", "cached"):
        result = launching.Launch(cluster.head, [
            str(dtrain), "launch", "--rsh", f"{folder}/rsh {{host}}", *cluster.hosts_flag(2), "--",
            f"{folder}/worker", "--max-bytes", "1M"]).wait(100)
        assert result.code == 0 and "4 ranks" in result.out, result
        assert "every element is right on every rank" in result.out, result
    machines = []
    for node in cluster.nodes:
        agent, = Path(node.path("/root/.cache/dtrain")).glob("agent-*/dtrain-agent")
        machines.append(agent.read_bytes()[18])
    assert machines == [62, 183]
