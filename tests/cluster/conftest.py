# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the cluster tests. The check for leftovers runs after every test that has a cluster."""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import checkout  # noqa: E402 - first
import hosts  # noqa: E402
import leftovers  # noqa: E402

IN_CI = os.environ.get("CI") == "true"
CTEST_SKIPPED = 77


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "bound(seconds): how long after the test something may still be there")
    config.addinivalue_line(
        "markers", "launcher_killed: its status socket is there until dtrain ps removes it")
    if not checkout.NO_HOSTS and not (hosts.bin_dir() / "dtrain").exists():
        pytest.exit(f"no dtrain in {checkout.PROGRAMS}: build first, or set DTRAIN_BIN_DIR", 2)


def pytest_collection_modifyitems(items):
    if checkout.NO_HOSTS:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=checkout.NO_HOSTS))


def pytest_sessionfinish(session, exitstatus):
    skipped = session.config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    if skipped and exitstatus == 0:
        # A skip may hide a broken machine: in CI it is a failure, elsewhere ctest shows it.
        session.exitstatus = 1 if IN_CI else CTEST_SKIPPED


@pytest.fixture(scope="session")
def shared_cluster():
    with hosts.Cluster(4) as made:
        yield made


@pytest.fixture
def cluster(shared_cluster, request):
    """Four hosts, shared by all tests that leave them as they were."""
    yield from checked(shared_cluster, request)


@pytest.fixture
def make_cluster(request):
    """Makes a cluster for one test: make_cluster(2, cgroup="none")."""
    made = []

    def make(*args, **options):
        cluster = hosts.Cluster(*args, **options)
        made.append((cluster, leftovers.Leftovers(cluster.__enter__())))
        return cluster

    try:
        yield make
        for _, left in made:
            fail_on_leftovers(left, request)
    finally:
        for cluster, _ in made:
            cluster.close()


def checked(cluster, request):
    left = leftovers.Leftovers(cluster)
    yield cluster
    fail_on_leftovers(left, request)


def fail_on_leftovers(left, request):
    marker = request.node.get_closest_marker("bound")
    seconds = marker.args[0] if marker else 5
    if hosts.is_sanitized():
        seconds *= 4  # the looks for leaks, which stop their process
    found = left.wait_for_none(seconds)
    if found and request.node.get_closest_marker("launcher_killed"):
        jobs = left.remove_dead_sockets()
        found = jobs + left.wait_for_none(seconds)
    if found:
        left.remove()
        pytest.fail(f"left behind {seconds} s after the test:\n" + "\n".join(found), pytrace=False)
