# SPDX-License-Identifier: Apache-2.0
"""dtrain version --verbose, held against the packages that it was built with, and readelf."""
import re
import subprocess

import pytest

from conftest import BIN_DIR, DTRAIN, SOURCE_DIR

# Of each library, the package that has it.
PACKAGES = {"absl": "libabsl-dev", "Boost": "libboost-dev", "c-ares": "libc-ares-dev", "CLI11": "libcli11-dev",
            "fmt": "libfmt-dev", "gRPC": "libgrpc-dev", "libyaml": "libyaml-dev",
            "nlohmann/json": "nlohmann-json3-dev", "OpenSSL": "libssl-dev", "Protobuf": "libprotobuf-dev",
            "spdlog": "libspdlog-dev", "toml++": "libtomlplusplus-dev", "zlib": "zlib1g-dev"}


@pytest.fixture
def said(dtrain):
    out = dtrain("version", "--verbose")
    assert out == dtrain("--version", "--verbose")
    assert out.startswith(dtrain("version"))
    return dict((line[2:16].strip(), line[17:]) for line in out.splitlines() if line.startswith("  "))


def build_id(file):
    out = subprocess.run(["readelf", "-n", file], capture_output=True, text=True, check=True).stdout
    return re.search("Build ID: (.*)", out).group(1)


def test_libraries_are_those_of_the_packages(said):
    for library, package in PACKAGES.items():
        version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True,
                                 check=True).stdout
        upstream = re.match(r"(?:\d+:)?([\d.]*\d)", version).group(1)
        ours = said[library].removesuffix(".0")  # Boost 1.74 is 1.74.0 to its package
        assert upstream.removesuffix(".0").startswith(ours), (library, said[library], version)
    gcc = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    assert said["libstdc++"].startswith(gcc)


def test_what_is_around_it(said):
    assert said["glibc"] == subprocess.run(["getconf", "GNU_LIBC_VERSION"], capture_output=True, text=True,
                                           check=True).stdout.split()[1]
    assert said["build id"] == build_id(DTRAIN)
    assert said["agent"] == f"{BIN_DIR}/dtrain-agent, build id {build_id(BIN_DIR / 'dtrain-agent')}"
    assert re.fullmatch(r"0\.\d+\.\d+, /\S*libssh\.so\.4\S*", said["libssh"])
    git = subprocess.run(["git", "-C", SOURCE_DIR, "rev-parse", "HEAD"], capture_output=True, text=True)
    if git.returncode == 0:
        assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", said["commit"])


def test_a_library_that_cannot_be_used_is_named(monkeypatch, dtrain):
    monkeypatch.setenv("DTRAIN_LIBSSH", "/nonexistent/libssh")
    assert "not usable: load libssh from /nonexistent/libssh (DTRAIN_LIBSSH): " in dtrain("version", "--verbose")
