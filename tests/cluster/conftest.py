# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the cluster tests. The check for leftovers (leftovers.py) runs after every test that has a cluster.

    def test_two_ranks(cluster):                  # four hosts, shared by all tests that leave them as they were
        result = cluster.launch([*cluster.hosts_flag(2), "--", "hostname"])
        assert result.code == 0, result           # prints the whole output when it fails

    def test_other_interfaces(make_cluster):      # a cluster for this test alone
        cluster = make_cluster(2, interfaces=["eth0", "ens5"], cgroup="none")

    @pytest.mark.bound(30)                        # a fault that may leave something behind for 30 s instead of 5
    def test_slow_end(cluster): ...

    if hosts.is_sanitized(): del test_x           # why: a test that cannot run in a sanitizer build

What a test can do to its hosts:

    to                                        write
    run a program on a host                   host.run([...]); host.popen([...]) is a child of the test, so signals reach it
    watch a launch while it runs              launch = cluster.start_launch([...]), launch.wait_for("text"),
                                              launch.signal(...), launch.wait()
    keep files of the test                    cluster.work(host), which is /root/work there; cluster.hostfile("...")
    cut a host off and reconnect it           cluster.cut(node), cluster.heal(node); one way: cut_towards, heal_towards
    lose, delay and slow down frames          with wire.bad_cable(cluster, node, loss=0.2, delay=0.5, rate=125_000, seed=1):
    reset or silently drop connections        cutting.py in front of an agent's port, as in test_faults_g.py
    lose single messages                      lossy.py as --rsh, as in test_lost_messages.py
    add a network                             cluster.add_network("br1", "192.168.7", ["ib0", "ib1"])
    change sshd's settings and environment    node.restart_sshd("MaxStartups 1\n", setenv={...}, before_exec=...)
    fill, damage, slow down or freeze a disk  with FaultyDisk(host, folder) as disk: (faulty_disk.py)
    cut a host's power                        with LosingDisk(host, folder) as disk: (losing_disk.py)
    mount a folder whose server is down       hanging.py, as in test_faults_h.py
    pretend that a host has rebooted          mount a file over /proc/sys/kernel/random/boot_id, as in test_faults_e.py
    hide what Linux added after 4.18 or 5.4   make_cluster(2, kernel="4.18")
    use another Linux distribution            make_cluster(2, image=chroot.base("bullseye", TOOLS)), as in test_debian11.py
"""
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
