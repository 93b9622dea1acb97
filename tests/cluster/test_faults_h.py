# SPDX-License-Identifier: Apache-2.0
"""Faults of group H: too few descriptors, no cgroups."""
import resource

import hosts
import leftovers
from test_faults_d import ESCAPED, python


def limit_files(number):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


# H1
def test_h1_too_few_open_files_on_a_host(make_cluster):
    cluster = make_cluster(2)
    cluster.nodes[1].restart_sshd(before_exec=limit_files(64))
    result = cluster.launch(["-H", "node0:40,node1:40", "--oversubscribe", "--", "sh", "-c",
                             "echo started"])
    assert result.code == 200, result
    assert "node1" in result.err and "open files" in result.err.lower(), result
    assert "started" not in result.out
    leftovers.wait_for_no_processes(cluster, 10)
    # What does fit still runs there.
    result = cluster.launch(["-H", "node0:1,node1:1", "--", "true"])
    assert result.code == 0, result


# H1: the launcher itself. Not with sanitizers: UBSan makes a pipe for each check of a vptr, and
# reports an error of its own where it cannot.
if hosts.bin_dir().parent.name not in ("asan", "tsan"):
    def test_h1_too_few_open_files_for_the_launcher(cluster):
        result = cluster.start_launch([*cluster.hosts_flag(1), "--", "sh", "-c", "echo started"],
                                      before_exec=limit_files(14)).wait(30)
        assert result.code in (200, 207), result
        assert "open files" in result.err.lower(), result


# H9
def test_h9_without_cgroups_it_warns_and_still_leaves_nothing(make_cluster):
    for layout in ("none", "readonly"):
        cluster = make_cluster(2, cgroup=layout)
        result = cluster.launch([*cluster.hosts_flag(2), "--", *python(ESCAPED)])
        assert result.code == 0 and "cgroup" in result.err, result
        leftovers.wait_for_no_processes(cluster, 3)


# H9
def test_h9_require_cgroup_refuses(make_cluster):
    cluster = make_cluster(1, cgroup="none")
    result = cluster.launch(["--require-cgroup", "-H", "node0:1", "--", "sh", "-c", "echo started"])
    assert result.code == 200 and "node0" in result.err and "cgroup" in result.err, result
    assert "started" not in result.out
