# SPDX-License-Identifier: Apache-2.0
"""The Python package: its files, and the wheel that has dtrain's programs with them."""
import base64
import csv
import hashlib
import io
import shutil
import subprocess
import time
import zipfile
from pathlib import Path


def build_pure(source, work, epoch):
    """The wheel that setuptools makes of runtime/python, in a folder of its own; returns its files by name."""
    copy, out = work / "python-source", work / "python-wheel"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    out.mkdir()
    subprocess.run(
        ["/usr/bin/python3", "-c", "import sys\nfrom setuptools import build_meta\n"
                                   "build_meta.build_wheel(sys.argv[1])", out],
        cwd=copy, check=True, stdout=open(work / "log", "ab"), stderr=subprocess.STDOUT,
        env={"SOURCE_DATE_EPOCH": str(epoch), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def unpack(files, folder):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _hash(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def write(pure, portable, machine, version, work, out, epoch):
    """dtrain-<version>-py3-none-manylinux_2_28_<machine>.whl: `pure` and the programs.

    pip copies .data/scripts to the environment's bin, and .data/data to the environment itself, so that
    libraries lie in ../lib of the programs, where both of them look."""
    tag = f"py3-none-manylinux_2_28_{machine}"
    info, data = f"dtrain-{version}.dist-info", f"dtrain-{version}.data"
    files = {name: (content, False) for name, content in pure.items() if name != f"{info}/RECORD"}
    (wheel, _) = files[f"{info}/WHEEL"]
    lines = [line for line in wheel.decode().splitlines() if line and not line.startswith(("Tag:", "Root-Is-"))]
    files[f"{info}/WHEEL"] = ("\n".join([*lines, "Root-Is-Purelib: false", f"Tag: {tag}", ""]).encode(), False)
    for name in ("dtrain", "dtrain-agent", "dtrain-allreduce"):
        files[f"{data}/scripts/{name}"] = ((portable / "bin" / name).read_bytes(), True)
    files[f"{data}/data/lib/libdtrain.so.0"] = ((portable / "lib/libdtrain.so.0").read_bytes(), False)
    for file in [*(portable / "lib/dtrain").glob("*.so"), *(work / "agents").iterdir()]:
        files[f"{data}/data/lib/dtrain/{file.name}"] = (file.read_bytes(), False)
    files[f"{info}/licenses/LICENSE"] = ((Path(__file__).parents[2] / "LICENSE").read_bytes(), False)
    for file in (work / "third-party").rglob("*"):
        if file.is_file():
            files[f"{info}/licenses/third-party/{file.relative_to(work / 'third-party')}"] = (file.read_bytes(), False)

    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name in sorted(files):
        rows.writerow([name, _hash(files[name][0]), len(files[name][0])])
    rows.writerow([f"{info}/RECORD", "", ""])
    names = sorted(files, key=lambda name: (name.startswith(info), name))  # metadata last, as PEP 427 wants
    files[f"{info}/RECORD"] = (record.getvalue().encode(), False)
    path = out / f"dtrain-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in [*names, f"{info}/RECORD"]:
            entry = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
            content, program = files[name]
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            archive.writestr(entry, content)
    return path
