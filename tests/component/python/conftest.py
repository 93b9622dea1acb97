# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package: each runs functions on the ranks of a local job, by dtrain.run()."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE_DIR = Path(__file__).resolve().parents[3]
PACKAGES = SOURCE_DIR / "runtime/python"
BUILD_DIR = Path(os.environ.get("DTRAIN_BUILD_DIR") or SOURCE_DIR / "build/release").resolve()
CTEST_SKIPPED = 77
IN_CI = os.environ.get("CI") == "true"

# This process and all that it starts use what was built, and leave no bytecode in the sources.
sys.dont_write_bytecode = True
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
os.environ.setdefault("DTRAIN_BIN", str(BUILD_DIR / "bin/dtrain"))
os.environ.setdefault("DTRAIN_LIBRARY", str(BUILD_DIR / "lib/libdtrain.so.0"))
os.environ["PYTHONPATH"] = str(PACKAGES)
sys.path.insert(0, str(PACKAGES))
# Two cores at most for tests that have up to four ranks.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def sanitizer_preload():
    """Libraries that a Python must have been started with to load a sanitized libdtrain."""
    if b"__asan_init" not in Path(os.environ["DTRAIN_LIBRARY"]).read_bytes():
        return []
    # libstdc++ with it, so that it finds the functions of exceptions that it wraps.
    found = [subprocess.run(["clang", f"-print-file-name={name}"], capture_output=True, text=True,
                            check=True).stdout.strip()
             for name in ("libclang_rt.asan-x86_64.so", "libstdc++.so.6")]
    return [os.path.realpath(path) for path in found]


def pytest_configure(config):
    for name in ("DTRAIN_BIN", "DTRAIN_LIBRARY"):
        if not Path(os.environ[name]).exists():
            pytest.exit(f"no {os.environ[name]}: build first, or set DTRAIN_BUILD_DIR", 2)


def pytest_collection_modifyitems(items):
    """A module names the packages that it needs: NEEDS = ("numpy",)."""
    for item in items:
        for package in getattr(item.module, "NEEDS", ()):
            if importlib.util.find_spec(package) is None:
                item.add_marker(pytest.mark.skip(reason=f"there is no Python package {package}"))


def pytest_sessionfinish(session, exitstatus):
    skipped = session.config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    if skipped and exitstatus == 0:
        # A skip may hide a broken machine: in CI it is a failure, elsewhere ctest shows it.
        session.exitstatus = 1 if IN_CI else CTEST_SKIPPED


@pytest.fixture
def on_ranks():
    """on_ranks(n, function, ...): runs it on n local ranks, within a job; the list of results."""
    import dtrain

    def run(ranks, function, *args, **options):
        return dtrain.run(_in_job, function, *args, np=-ranks, timeout=120,
                          launch_args=worker_flags(), **options)

    return run


def worker_flags():
    """For the workers alone: dtrain itself has AddressSanitizer within."""
    preload = sanitizer_preload()
    if not preload:
        return []
    # Python itself frees little at its end.
    return [f"-xLD_PRELOAD={' '.join(preload)}", "-xASAN_OPTIONS=detect_leaks=0"]


def _in_job(function, *args):
    import dtrain

    dtrain.init()
    return function(*args)


@pytest.fixture
def launch():
    """launch(n, script, ...): `dtrain launch -np -n python script`; (exit code, stdout, stderr)."""

    def run(ranks, *command, env=None, timeout=120, flags=()):
        done = subprocess.run(
            [os.environ["DTRAIN_BIN"], "launch", "-np", f"-{ranks}", *worker_flags(), *flags, "--", sys.executable,
             *map(str, command)],
            capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
        return done.returncode, done.stdout, done.stderr

    return run
