# SPDX-License-Identifier: Apache-2.0
"""The tarball, the .debs and the .rpms: deploy/packages, configured for each."""
import gzip
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


def _run(command, log, **variables):
    with open(log, "a", encoding="utf-8") as out:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                              env={**os.environ, **variables})
    if done.returncode != 0:
        lines = Path(log).read_text(errors="replace").splitlines()[-25:]
        raise SystemExit("\n".join([*lines, f"tools/package: {command[0]} failed with {done.returncode}; see {log}"]))


def _configure(form, build, portable, machine, version, reference, work):
    _run(["cmake", "-S", SOURCE / "deploy/packages", "-B", build, f"-DDTRAIN_FORM={form}",
          f"-DDTRAIN_VERSION={version}", f"-DDTRAIN_MACHINE={machine}", f"-DDTRAIN_PORTABLE={portable}",
          f"-DDTRAIN_REFERENCE={reference}", f"-DDTRAIN_WORK={work}"], work / "log")


def pack(folder, out, name, epoch):
    """out/name.tar.gz with `folder` as name/, the same for the same files."""
    def plain(member):
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = epoch
        program = member.mode & (0o755 if member.mode & 0o044 else 0o711)  # one that nobody may read stays so
        member.mode = 0o755 if member.isdir() else program if member.mode & 0o100 else 0o644
        return member

    path = out / f"{name}.tar.gz"
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 6, file, epoch) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(folder, name, recursive=False, filter=plain)
            for each in sorted(folder.rglob("*")):
                archive.add(each, f"{name}/{each.relative_to(folder)}", recursive=False, filter=plain)
    return path


def tarball(portable, machine, version, reference, work, out, epoch):
    build, tree = work / "tar", work / "tree"
    _configure("tar", build, portable, machine, version, reference, work)
    # Units name the programs by this prefix, which install.sh replaces.
    _run(["cmake", "--install", build, "--prefix", "/usr"], work / "log", DESTDIR=str(tree))
    return pack(tree / "usr", out, f"dtrain-{version}-linux-{machine}", epoch)


def packages(form, portable, machine, version, reference, work, out, epoch):
    """The .debs or .rpms."""
    build = work / form
    _configure(form, build, portable, machine, version, reference, work)
    _run(["cpack", "--config", build / "CPackConfig.cmake"], work / "log", SOURCE_DATE_EPOCH=str(epoch))
    made = sorted((build / "packages").glob(f"*.{form}"))
    for file in made:
        shutil.move(file, out / file.name)
    return [out / file.name for file in made]
