# SPDX-License-Identifier: Apache-2.0
"""What tools/package makes, installed into empty systems with one command, used there, renewed while a job
runs, and removed: nothing is left."""
import functools
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

import checkout
import chroot
import hosts
import portable

BUILD = hosts.bin_dir().parent
# Python's are for the wheel; rpm is Debian's, told to forget that it is on Debian.
TOOLS = "python3-pip,python3-venv,rpm"
RPM = "rpm --force-debian"
# Accounts stay, too.
OF_THE_SYSTEM = re.compile(r"/(var/(cache|log|lib/(apt|dpkg|rpm))|root/\.rpmdb|"
                           r"etc/(ld\.so\.cache|\.pwd\.lock|(passwd|group|g?shadow)-?))(/|$)")
FIRST_JOB = ("dtrain launch -np 4 -- python3 -c "
             "'import os; print(\"rank\", os.environ[\"RANK\"], \"of\", os.environ[\"WORLD_SIZE\"])'")
SIZES = """\
import dtrain
def size():
    dtrain.init()
    return dtrain.size()
print(dtrain.run(size, np=2))
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The folder with all that is released."""
    if "\nID=debian\n" not in Path("/etc/os-release").read_text():
        pytest.skip("portable programs are built on Debian")
    portable.build("dtrain_reference")
    return portable.package(tmp_path_factory.mktemp("released"))


@pytest.fixture(params=["bullseye", "bookworm"])
def system(request, released, tmp_path):
    if chroot.missing():
        pytest.skip(chroot.missing())
    tree = chroot.Chroot(tmp_path, chroot.base(request.param, TOOLS))
    try:
        for file in released.iterdir():
            if "debug" not in file.name:
                shutil.copy(file, tree.path("/run"))
        yield tree
    finally:
        tree.close()


# How each form is installed, renewed and removed; what of PATH it needs.
FORMS = {
    "wheel": ("/opt/venv/bin/pip install --no-index /run/dtrain-*.whl",
              "/opt/venv/bin/pip install --no-index --force-reinstall /run/dtrain-*.whl",
              "/opt/venv/bin/pip uninstall -y dtrain", "/opt/venv/bin:"),
    "tarball": ("sh /run/install.sh --prefix /opt/dtrain", "sh /run/install.sh --prefix /opt/dtrain",
                "sh /run/install.sh --prefix /opt/dtrain --uninstall && rmdir /opt/dtrain", "/opt/dtrain/bin:"),
    "deb": ("dpkg -i /run/*.deb", "dpkg -i /run/*.deb",
            "dpkg --purge python3-dtrain libdtrain-dev dtrain dtrain-agent libdtrain0", ""),
    "rpm": (f"{RPM} -i --nodeps /run/*.rpm", f"{RPM} -U --replacepkgs --nodeps /run/*.rpm",
            f"{RPM} -e dtrain libdtrain-devel dtrain-agent libdtrain", ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_installed_used_renewed_and_removed(system, form):
    install, renew, remove, path = FORMS[form]
    if form == "wheel":
        system.run("python3 -m venv /opt/venv")
    before = system.files()
    environment = {"PATH": f"{path}/usr/sbin:/usr/bin:/sbin:/bin"}

    system.run(install)
    out = system.run(FIRST_JOB, **environment)
    assert sorted(out.splitlines()) == [f"[{rank}] rank {rank} of 4" for rank in range(4)]
    if form == "rpm":
        assert system.run(f"{RPM} -V --nodeps dtrain libdtrain-devel dtrain-agent libdtrain") == ""
    else:  # Debian's loader does not know rpm's folder for libraries
        assert '"wrong": 0' in system.run("dtrain launch -np 2 -- dtrain-allreduce --sizes 4K --json", **environment)
    if form in ("wheel", "deb"):
        python = f"{path.rstrip(':') or '/usr/bin'}/python3"
        # Without the environment's PATH, as notebooks are started.
        system.path("/tmp/job.py").write_text(SIZES)
        assert system.run(f"PYTHONDONTWRITEBYTECODE=1 {python} /tmp/job.py") == "[2, 2]\n"

    job = subprocess.Popen(**system.command(
        "dtrain launch -np 2 --stdin all -- sh -c 'echo up; read line; echo got $line; exit 5'", **environment),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert {job.stdout.readline(), job.stdout.readline()} == {"[0] up\n", "[1] up\n"}
        system.run(renew)
        out, _ = job.communicate("the end\n", timeout=60)
    finally:
        job.kill()
    assert job.returncode == 5 and "got the end\n" in out, out
    assert "rank 0 of 4" in system.run(FIRST_JOB, **environment)

    system.run(remove)
    assert not [name for name in system.programs() if name.startswith("dtrain")]
    assert [path for path in system.files() ^ before if not OF_THE_SYSTEM.search(path)] == []


def test_the_same_files_give_the_same_bytes(released, tmp_path):
    again = portable.package(tmp_path / "again")
    sums = (released / "SHA256SUMS").read_text()
    assert (again / "SHA256SUMS").read_text() == sums
    listed = dict(reversed(line.split("  ")) for line in sums.splitlines())
    assert set(listed) == {file.name for file in released.iterdir()} - {"SHA256SUMS"}
    for name, digest in listed.items():
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == digest
    # The folder that they were built in is in none but the debug files.
    for file in (BUILD / "portable").glob("*/**/*.so.0"):
        assert str(checkout.CHECKOUT).encode() not in file.read_bytes()
    for name in ("dtrain", "dtrain-agent", "dtrain-spawner", "dtrain-shepherd", "dtrain-allreduce"):
        assert str(checkout.CHECKOUT).encode() not in (BUILD / "portable/bin" / name).read_bytes()


def test_third_parties_are_those_that_the_program_names(released):
    with tarfile.open(*released.glob("*-linux-x86_64.tar.gz")) as archive:
        files = {name.partition("/third-party/")[2]: archive.extractfile(name).read()
                 for name in archive.getnames()
                 if re.search(r"/third-party/.*(json|copyright|NOTICE|LGPL-2\.1)$", name)}
    listed = json.loads(files["dtrain-0.1.0-x86_64.spdx.json"])
    versions = {one["name"]: one["versionInfo"] for one in listed["packages"]}
    said = subprocess.run([BUILD / "portable/bin/dtrain", "version", "--verbose"], capture_output=True, text=True,
                          check=True).stdout
    names = {"absl": "abseil", "Boost": "boost1.74", "CLI11": "cli11", "fmt": "fmtlib", "gRPC": "grpc",
             "libstdc++": "gcc-12", "nlohmann/json": "nlohmann-json3", "Protobuf": "protobuf", "OpenSSL": "openssl",
             "toml++": "tomlplusplus"}
    inside = said.partition("Inside:\n")[2].partition("On this machine")[0]
    for name, version in (line.split() for line in inside.splitlines()):
        assert re.match(rf"(\d+:)?{re.escape(version)}", versions[names.get(name, name)]), (name, version, versions)
    assert all(f"{name}.copyright" in files for name in set(versions) - {"dtrain"})
    assert b"snapshot.debian.org/package/libssh/" in files["NOTICE"] and files["common-licenses/LGPL-2.1"]
    with zipfile.ZipFile(*released.glob("*.whl")) as wheel:
        licences = {name.partition("/licenses/third-party/")[2]: wheel.read(name) for name in wheel.namelist()}
    assert files == {name: licences[name] for name in files}


@pytest.fixture
def place(released, tmp_path):
    """A folder with the tarball, its checksum and the script."""
    folder = tmp_path / "place"
    folder.mkdir()
    for file in (*released.glob("*-linux-x86_64.tar.gz"), released / "install.sh", released / "SHA256SUMS"):
        shutil.copy(file, folder)
    return folder


def install(place, *words, prefix, **environment):
    return subprocess.run(["sh", place / "install.sh", "--prefix", prefix, *words], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=60, env={**os.environ, **environment})


def fake(tmp_path, name, script):
    """A PATH on which `name` is another program."""
    (tmp_path / "fakes").mkdir(exist_ok=True)
    (tmp_path / "fakes" / name).write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "fakes" / name).chmod(0o755)
    return f"{tmp_path / 'fakes'}:{os.environ['PATH']}"


@pytest.mark.parametrize("wrong,message", [
    ("damaged", "is damaged: its SHA-256 is "), ("no sums", "/SHA256SUMS, which is needed to verify"),
    ("unlisted", "does not list dtrain-"), ("no tarball", "no dtrain-*-linux-x86_64.tar.gz beside install.sh"),
    ("glibc", "this system has glibc 2.27, dtrain needs 2.28"), ("musl", "has another C library"),
    ("kernel", "this system has Linux 4.17.0, dtrain needs 4.18"), ("machine", "there is no dtrain for riscv64"),
    ("job", "a test job failed"), ("others", "/bin/dtrain is there and not from install.sh"),
])
def test_install_refuses_and_leaves_nothing(place, tmp_path, wrong, message):
    prefix, path = tmp_path / "prefix", os.environ["PATH"]
    (tarball,) = place.glob("*.tar.gz")
    if wrong == "damaged":
        with open(tarball, "r+b") as file:
            file.seek(5_000_000)
            file.write(b"damaged")
    elif wrong == "no sums":
        (place / "SHA256SUMS").unlink()
    elif wrong == "unlisted":
        (place / "SHA256SUMS").write_text("")
    elif wrong == "no tarball":
        tarball.unlink()
    elif wrong in ("glibc", "musl"):
        path = fake(tmp_path, "getconf", "echo glibc 2.27" if wrong == "glibc" else "exit 1")
    elif wrong == "kernel":
        path = fake(tmp_path, "uname", '[ "$1" = -r ] && echo 4.17.0 || exec /usr/bin/uname "$@"')
    elif wrong == "machine":
        path = fake(tmp_path, "uname", '[ "$1" = -m ] && echo riscv64 || exec /usr/bin/uname "$@"')
    elif wrong == "job":
        path = fake(tmp_path, "true", "exit 1")
    elif wrong == "others":
        (prefix / "bin").mkdir(parents=True)
        (prefix / "bin/dtrain").write_text("another\n")
    done = install(place, prefix=prefix, PATH=path)
    assert done.returncode == 1 and message in done.stderr, done
    left = [file for file in prefix.rglob("*") if not file.is_dir()] if prefix.exists() else []
    assert left == ([prefix / "bin/dtrain"] if wrong == "others" else [])


@pytest.mark.parametrize("wrong,message", [
    (None, ""), ("unsigned", "/SHA256SUMS.sig, which is needed to verify"), ("another's", "was not signed with the key in "),
    ("changed", "was not signed with the key in ")])
def test_install_asks_for_a_signature(place, tmp_path, wrong, message):
    for key in ("ours", "another's"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    sums = place / "SHA256SUMS"
    if wrong != "unsigned":
        key = tmp_path / ("another's" if wrong == "another's" else "ours")
        subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "dtrain", "-f", key, sums], check=True)
    if wrong == "changed":
        sums.write_text(sums.read_text() + f"{'0' * 64}  more\n")
    done = install(place, "--signer", tmp_path / "ours.pub", prefix=tmp_path / "prefix")
    assert (done.returncode != 0) == bool(wrong) and message in done.stderr, done
    assert (tmp_path / "prefix/bin/dtrain").exists() == (not wrong)


@pytest.mark.parametrize("check", ["ssh-keygen", "sha256sum"])
def test_install_takes_what_it_has_checked(place, tmp_path, check):
    """Also if somebody who may write to that folder changes it just then."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "dtrain", "-f", tmp_path / "key", place / "SHA256SUMS"],
                   check=True)
    path = fake(tmp_path, check, f'{shutil.which(check)} "$@" || exit\n'
                f'for file in {place}/*.tar.gz {place}/SHA256SUMS; do echo other >$file; done')
    done = install(place, "--signer", tmp_path / "key.pub", prefix=tmp_path / "prefix", PATH=path)
    assert done.returncode == 0 and (tmp_path / "prefix/bin/dtrain").exists(), done
    assert all(file.read_text() == "other\n" for file in place.glob("*.tar.gz"))


def test_install_downloads(place, tmp_path):
    """With the checksum from beside the tarball."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=place)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/dtrain-0.1.0-linux-x86_64.tar.gz"
            prefix = tmp_path / "prefix"
            done = install(place, "--from", url, prefix=prefix)
            assert done.returncode == 0 and f"installed dtrain 0.1.0 in {prefix}" in done.stdout, done
            done = install(place, "--from", url.replace("dtrain-0", "other-0"), prefix=tmp_path / "none")
            assert done.returncode == 1 and f"cannot download http://127.0.0.1:{server.server_port}/other" in done.stderr
            assert not (tmp_path / "none").exists()
        finally:
            server.shutdown()


def test_install_killed_at_any_step_is_mended_by_the_next(place, tmp_path):
    """Killed at the start of each program that it runs from unpacking on."""
    whole = tmp_path / "whole"
    assert install(place, prefix=whole).returncode == 0
    wanted = {file.relative_to(whole) for file in whole.rglob("*") if "dtrain-releases" not in file.parts}
    for program in ("gzip", "tar", "find", "mv", "ln", "sed", "rm"):
        for count in (1, 3):
            prefix, counter = tmp_path / f"{program}{count}", tmp_path / f"counter-{program}{count}"
            path = fake(tmp_path, program, f'echo >>{counter}; [ $(wc -l <{counter}) -ne {count} ] || kill -9 $PPID\n'
                        f'exec {shutil.which(program)} "$@"')
            killed = install(place, prefix=prefix, PATH=path)
            (tmp_path / "fakes" / program).unlink()
            assert killed.returncode in (0, 1, -signal.SIGKILL, 128 + signal.SIGKILL), killed
            if (prefix / "bin/dtrain").exists():  # then it is a whole one
                assert subprocess.run([prefix / "bin/dtrain", "launch", "-np", "1", "--", "true"]).returncode == 0
            done = install(place, prefix=prefix)
            assert done.returncode == 0, done
            assert {file.relative_to(prefix) for file in prefix.rglob("*")
                    if "dtrain-releases" not in file.parts} == wanted
            assert len(list((prefix / "lib/dtrain-releases").glob("new.*"))) == 1
            assert install(place, "--uninstall", prefix=prefix).returncode == 0
            assert [file for file in prefix.rglob("*")] == []
