# SPDX-License-Identifier: Apache-2.0
"""One file with everything that tools/gpu-check needs on a machine without compilers or network."""

import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from . import place

MOST_BYTES = 50_000_000
# What every machine has that runs programs of this age.
GLIBC = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
         "ld-linux-x86-64.so.2"}
COMPILERS = {"libstdc++.so.6", "libgcc_s.so.1"}

USAGE = """dtrain's GPU checks, packed on {host}: run ./gpu-check --help.

Needs Python 3.8 or later, an NVIDIA driver, NCCL (the system's, or of pip's nvidia-nccl, which PyTorch
brings) and glibc {glibc} or later: this machine's is shown by `ldd --version`. Nothing else; no network.

  ./gpu-check                 the checks; less than ten minutes on one GPU
  ./gpu-check --rehearse      the same on stand-ins for the driver and NCCL
"""


def needed_glibc(files):
    """The newest version of glibc that any of these asks for, as (2, 36)."""
    newest = (2, 0)
    for file in files:
        text = subprocess.run(["objdump", "-T", str(file)], capture_output=True, text=True, check=True).stdout
        for version in re.findall(r"GLIBC_(\d+)\.(\d+)", text):
            newest = max(newest, tuple(map(int, version)))
    return newest


def check_libc():
    """In a bundle: says so at once when this machine's glibc is too old for it."""
    floor = place.ROOT / "GLIBC"
    if not place.BUNDLED or not floor.exists():
        return
    name, version = platform.libc_ver()
    have = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    need = tuple(int(part) for part in floor.read_text().split("."))
    if name == "glibc" and have >= need:
        return
    raise SystemExit(f"gpu-check: this bundle needs glibc {floor.read_text().strip()} or later, and this machine has "
                     f"{name or 'another C library'} {version}. Build the bundle on a machine as old as this one.")


def libraries_of(file):
    """{name: path or None} as the loader finds them."""
    text = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        words = line.split()
        if words and "statically" not in line:
            found[Path(words[0]).name] = words[2] if len(words) > 2 and words[2].startswith("/") else None
    return found


def copy(source, target, strip=True):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    if strip:
        subprocess.run(["strip", "--strip-unneeded", str(target)], check=True)


def fill(root, preset):
    """Returns the programs and libraries of ours."""
    build = place.ROOT / "build" / preset
    objects = []
    for name in ("dtrain", "dtrain-agent", "dtrain-allreduce", "gpu_check"):
        copy(build / "bin" / name, root / "bin" / name)
        objects.append(root / "bin" / name)
    for name in ("libdtrain.so.0", "fake_cuda/libcuda.so.1", "fake_nccl/libnccl.so.2"):
        copy((build / "lib" / name).resolve(), root / "lib" / name)
        objects.append(root / "lib" / name)
    outside = {}
    for each in list(objects):
        outside.update(libraries_of(build / each.relative_to(root)))
    for name, path in outside.items():
        if name in GLIBC or (root / "lib" / name).exists() or name == "libcuda.so.1":
            continue
        # A machine's own compiler library is newer, as a rule; ours is for those without.
        folder = "lib/spare" if name in COMPILERS else "lib"
        copy(path, root / folder / name)
        objects.append(root / folder / name)
    shutil.copytree(place.ROOT / "runtime/python/dtrain", root / "python/dtrain",
                    ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(place.ROOT / "tools/gpu_check", root / "tools/gpu_check",
                    ignore=shutil.ignore_patterns("__pycache__"))
    copy(place.ROOT / "tools/gpu-check", root / "tools/gpu-check", strip=False)
    (root / "gpu-check").symlink_to("tools/gpu-check")
    shutil.copyfile(place.ROOT / "docs/gpu.md", root / "gpu.md")
    shutil.copyfile(place.ROOT / "LICENSE", root / "LICENSE")
    return objects


def write(path, preset):
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        root = Path(folder, "dtrain-gpu-check")
        objects = fill(root, preset)
        glibc = ".".join(map(str, needed_glibc(objects)))
        (root / "GLIBC").write_text(glibc + "\n")
        (root / "BUNDLE").write_text(USAGE.format(host=platform.node(), glibc=glibc))
        for each in objects:
            missing = set(libraries_of(each)) - GLIBC - COMPILERS - {"libdtrain.so.0", "libcuda.so.1"}
            if missing:
                raise SystemExit(f"gpu-check: {each.name} would need {', '.join(sorted(missing))} from outside")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w:gz") as tar:
            tar.add(root, arcname=root.name, filter=anonymous)
    size = path.stat().st_size
    print(f"{path}: {size / 1e6:.1f} MB; needs glibc {glibc} or later, Python 3.8, a driver and NCCL")
    if size > MOST_BYTES:
        print(f"gpu-check: more than {MOST_BYTES / 1e6:.0f} MB", file=sys.stderr)
        return 1
    return 0


def anonymous(info):
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info
