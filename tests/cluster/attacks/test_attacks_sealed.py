# SPDX-License-Identifier: Apache-2.0
"""Attacks of other suites, which have an agent of root's, on the packages' agent: the user dtrain's, under its unit's
system call filter. The suites that take `guarded` always have that one. It must serve and refuse exactly as it does
without the filter; README.md says which attacks are left to an agent of root's."""
import json
import subprocess

import pytest

import hosts
import sealed
import spawners
import test_attacks_lingering as lingering
from guarded import PORT, alices_job, guarded  # noqa: F401 - fixtures
from test_attacks_crowds import TLS, Attacked
from test_attacks_crowds import test_calls_that_are_never_whole  # noqa: F401 - runs here, too
from test_attacks_crowds import test_connections_that_say_nothing_over_http  # noqa: F401
from test_attacks_crowds import test_messages_that_grow_when_they_are_read  # noqa: F401
from test_attacks_orders import test_a_restart_is_not_kept_from_its_name, twice  # noqa: F401
from test_attacks_orders import test_each_sees_and_ends_its_own  # noqa: F401
from test_attacks_orders import test_jobs_that_are_not_there_cost_a_part_of_the_agents_time  # noqa: F401
from test_attacks_orders import test_one_user_does_not_hold_all_ports  # noqa: F401
from test_attacks_terminal import test_output_of_another_user_is_text  # noqa: F401

# Calls whose arguments are wrong, so that the kernel says so unless the filter comes first; the unit allows the last one again.
TRY = """
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
def told(name, *args):
    return "done" if getattr(libc, name)(*args) == 0 else errno.errorcode[ctypes.get_errno()]
print(json.dumps([told("unshare", 0x7fffffff), told("setns", -1, 0), told("process_vm_readv", 1, None, 0, None, 0, 1),
                  told("chown", b"/none", 0, 0), told("sched_setscheduler", 0, 3, ctypes.byref(ctypes.c_int(0)))]))
"""


class Crowded(Attacked):
    """What the suite of crowds attacks."""

    def __init__(self, place):  # not Attacked's, which makes an agent of root's
        self.node, self.agent = place.node, place.agent
        self.node.cluster = place.cluster
        (place.cluster.work() / "tls").symlink_to("alice")
        self.tls = f"{self.node.address}:{PORT}:{TLS}"
        self.build = self.node.run([hosts.bin_dir() / "dtrain-agent", "version"]).stdout.split()[1]


@pytest.fixture
def place(guarded):  # noqa: F811
    """What those tests take for their node."""
    return guarded


@pytest.fixture
def attacked(guarded, alices_job):  # noqa: F811
    crowded = Crowded(guarded)
    yield crowded
    (guarded.cluster.work() / "tls").unlink()


def told(node, *before):
    def become():
        spawners.become("dtrain")()
        for step in before:
            step()

    process = node.popen(["/usr/bin/python3", "-I", "-c", TRY], cwd="/", before_exec=become, text=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out
    return json.loads(out)


def test_the_filter_is_the_units_and_the_agents_alone(guarded, alices_job):  # noqa: F811
    assert told(guarded.node) == ["EINVAL", "EBADF", "EINVAL", "ENOENT", "done"]
    filtered = sealed.program()
    assert told(guarded.node, lambda: sealed.enter(filtered)) == ["EPERM"] * 4 + ["done"]
    ours = sealed.filters("self")
    assert sealed.filters(guarded.agent.pid) == ours + (not hosts.is_sanitized())
    assert sealed.filters(guarded.spawner.process.pid) == ours
    [shepherd] = guarded.shepherds_of("alice")  # and so her workers
    assert sealed.filters(shepherd) == ours


# In this kernel's way alone: on Linux 5.4 the spawner cannot work.
def test_no_descriptor_of_a_strangers_is_the_agents_to_close(guarded, alices_job):  # noqa: F811
    lingering.test_no_descriptor_of_a_strangers_is_the_agents_to_close(guarded, alices_job, None)
