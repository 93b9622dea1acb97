# SPDX-License-Identifier: Apache-2.0
"""Hosts whose kernel lacks what came after Linux 5.4 or 4.18: processes are started and their ends noticed
all the same. $DTRAIN_TEST_KERNEL has any cluster test run so; on Debian 11: test_debian11.py."""
import os
import signal

import pytest

import leftovers
import residents
from launching import wait_until


@pytest.fixture(params=["5.4", "4.18"])
def cluster(make_cluster, request):
    return make_cluster(2, kernel=request.param)


def begin(cluster, *flags):
    launch = cluster.start_launch(["--grace", "1s", *flags, *cluster.hosts_flag(2), "--", "sh", "-c",
                                   "trap 'exit 5' TERM; echo up; while :; do sleep 600 & wait; done"])
    launch.wait_for("up\n", count=4)
    return launch


def kill(node, word):
    found = sorted(pid for pid, _, line in leftovers.processes(node) if word in line)
    os.kill(found[0], signal.SIGKILL)


def test_the_hosts_are_as_old_as_they_say(cluster):
    result = cluster.nodes[0].run(["/usr/bin/python3", "-I", "-c", f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(436, 100, 200, 0) == -1 and ctypes.get_errno() == errno.ENOSYS
found = libc.syscall(434, 1, 0)
print(found == -1 and ctypes.get_errno() == errno.ENOSYS)"""])
    assert result.stdout == f"{cluster.kernel == '4.18'}\n", result


def test_exit_codes_come_back(cluster):
    result = cluster.launch([*cluster.hosts_flag(2), "--", "sh", "-c", "exit $((RANK == 3 ? 7 : 0))"])
    assert result.code == 7 and "rank 3 on node1" in result.err, result


def test_ranks_inherit_no_more_descriptors_than_on_this_kernel(cluster, make_cluster):
    words = ["-H", "node0:2", "--", "ls", "/proc/self/fd"]
    result, wanted = cluster.launch(words), make_cluster(1).launch(words)
    assert result.code == 0 and sorted(result.lines) == sorted(wanted.lines), (result, wanted)


@pytest.mark.parametrize("who,code", [("sh -c trap", 137), (" shepherd", 203), (" bridge", 202)])
def test_killed_processes_are_noticed(cluster, who, code):
    launch = begin(cluster)
    kill(cluster.nodes[1], who)
    result = launch.wait(30)
    assert result.code == code, result


def test_the_next_resident_agent_takes_over_a_job_and_notices_its_end(cluster):
    resident = residents.Resident(cluster.nodes[0]).start()
    try:
        launch = begin(cluster)
        resident.kill()
        resident.start()
        wait_until(resident.jobs, 10, lambda: resident.log)
        kill(cluster.nodes[0], " shepherd")
        result = launch.wait(60)
        assert result.code == 203, (result, resident.log)
    finally:
        resident.stop()


def test_jobs_are_stopped_from_another_process(cluster):
    launch = begin(cluster)
    stopped = cluster.head.run([cluster.programs / "dtrain", "stop"])
    assert "ended" in stopped.stdout + stopped.stderr, stopped
    assert launch.wait(30).code in (130, 143)
