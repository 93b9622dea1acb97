# SPDX-License-Identifier: Apache-2.0
"""Tests of what is installed for shells, man and systemd, each with the program that reads it."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE_DIR = Path(__file__).resolve().parents[3]
BIN_DIR = Path(os.environ.get("DTRAIN_BIN_DIR") or SOURCE_DIR / "build/release/bin").resolve()
DTRAIN = BIN_DIR / "dtrain"
CTEST_SKIPPED = 77
IN_CI = os.environ.get("CI") == "true"


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(program): the test reads by this program")
    if not DTRAIN.exists():
        pytest.exit(f"no {DTRAIN}: build first, or set DTRAIN_BIN_DIR", 2)


def pytest_collection_modifyitems(items):
    for item in items:
        for marker in item.iter_markers("needs"):
            if shutil.which(marker.args[0]) is None:
                item.add_marker(pytest.mark.skip(reason=f"there is no {marker.args[0]}"))


def pytest_sessionfinish(session, exitstatus):
    skipped = session.config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    if skipped and exitstatus == 0:
        # A skip may hide a broken machine: in CI it is a failure, elsewhere ctest shows it.
        session.exitstatus = 1 if IN_CI else CTEST_SKIPPED


@pytest.fixture
def dtrain():
    """dtrain("man", ...): what it prints."""

    def run(*args):
        done = subprocess.run([DTRAIN, *args], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    return run
