# SPDX-License-Identifier: Apache-2.0
"""D15: workers that the kernel kills because memory is used up; H3: and not their agent. Without memory limits in
cgroup v2 the tests use v1's controller; without CAP_SYS_RESOURCE H3 leaves the agent's own OOM score alone."""
import contextlib
import json
import time
from pathlib import Path

import pytest

import hosts
import residents
from test_resident import shepherds, workers

LIMIT = 512 << 20  # more than our own processes take, with sanitizers too
EAT = 'if [ "$RANK" = 1 ]; then exec tail /dev/zero; else sleep 600; fi'


@contextlib.contextmanager
def memory_limit(cluster, node):
    """All sessions of the node share LIMIT bytes, by whichever memory controller there is. Hands over
    what makes a process one of them."""
    v2 = hosts.cgroup2_mount()
    if v2 and "memory" in (v2 / "cgroup.controllers").read_text().split():
        for folder in (v2, cluster.cgroup_root):
            (folder / "cgroup.subtree_control").write_text("+memory")
        (node.cgroup_dir / "memory.swap.max").write_text("0")
        (node.cgroup_dir / "memory.max").write_text(str(LIMIT))
        yield lambda: None
        return
    if not Path("/sys/fs/cgroup/memory").is_dir():
        pytest.skip("this kernel has no memory controller")
    cluster.work(node).joinpath("memory").mkdir()
    node.run(["mount", "-t", "cgroup", "-o", "memory", "cgroup", "/root/work/memory"])
    group = Path("/root/work/memory", cluster.base.name)
    node.path(group).mkdir()

    def enter():
        (group / "cgroup.procs").write_text("0")

    try:
        node.path(group / "memory.limit_in_bytes").write_text(str(LIMIT))
        node.restart_sshd(before_exec=enter)
        yield enter
    finally:
        node.stop_sshd()
        remove(node.path(group))


def remove(group):
    deadline = time.monotonic() + 10
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def is_told(cluster, result, mib):
    assert result.code == 137, result
    lines = [line for line in result.err.splitlines() if "out of memory" in line]
    assert len(lines) == 1, result
    for word in ("rank 1", "node0", f"{mib} MiB"):
        assert word in lines[0], result
    told = json.loads((cluster.work() / "result.json").read_text())
    assert told["exit_code"] == 137 and told["verdict"]["first_failed_rank"] == 1
    rank = told["ranks"][1]
    assert rank["out_of_memory"] and rank["signal"] == 9, told
    assert rank["memory_limit_bytes"] == mib << 20, told
    assert not any("out_of_memory" in other for other in told["ranks"] if other["rank"] != 1)


def score(pid):
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


# H3: as its unit says (OOMScoreAdjust=-900). Its jobs' processes have what they would have without.
def test_h3_workers_are_killed_before_their_agent(make_cluster):
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    with memory_limit(cluster, node) as enter:
        def as_a_service():
            enter()
            with contextlib.suppress(OSError):  # it takes CAP_SYS_RESOURCE
                Path("/proc/self/oom_score_adj").write_text("-900")

        agent = residents.Resident(node, before_exec=as_a_service).start()
        assert score(agent.pid) in (-900, 0)
        other = cluster.start_launch(["-H", "node0:1", "--bind", "none", "--", "sh", "-c",
                                      "echo up; until [ -e /run/go ]; do sleep 0.05; done"])
        other.wait_for("up")
        assert shepherds(node) and workers(node)
        assert {score(pid) for pid in shepherds(node)} == {0}
        assert {score(pid) for pid, _ in workers(node)} == {0}
        result = cluster.launch(["-H", "node0:2", "--bind", "none", "--", "sh", "-c", EAT], timeout=60)
        assert result.code == 137 and "out of memory" in result.err, result
        assert not agent.ended() and "taken over" not in agent.log, agent.log
        node.path("/run/go").touch()
        assert other.wait(30).code == 0, other
        node.path("/run/go").unlink()
        agent.stop()


LAUNCH = ["--result-json", "/root/work/result.json", "-H", "node0:2,node1:1", "--"]


def test_d15_a_kill_by_the_kernel_is_told_with_the_limit(make_cluster):
    cluster = make_cluster(2)
    cluster.work()
    with memory_limit(cluster, cluster.nodes[0]):
        is_told(cluster, cluster.launch([*LAUNCH, "sh", "-c", EAT], timeout=60), LIMIT >> 20)
        # In the same surroundings, a kill that is not the kernel's is not told as one.
        result = cluster.launch([*LAUNCH, "sh", "-c",
                                 'if [ "$RANK" = 1 ]; then kill -9 $$; else sleep 600; fi'])
        assert result.code == 137 and "SIGKILL" in result.err, result
        assert "out of memory" not in result.err, result


@pytest.mark.parametrize("counted", [True, False])
def test_d15_cgroup_v2_counts_are_read(make_cluster, counted):
    """Where the kernel has the v2 controller elsewhere: its files are ours, all else is real."""
    cluster = make_cluster(2)
    cluster.work()
    if not cluster.cgroup_root:
        pytest.skip("no cgroup v2 hierarchy is mounted")
    node = cluster.nodes[0]
    session = Path("/sys/fs/cgroup/session")
    node.path(session).mkdir()
    node.restart_sshd(before_exec=lambda: (session / "cgroup.procs").write_text("0"))
    node.run(["mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup"])
    try:
        node.path(session).mkdir()
        node.path(session / "memory.max").write_text(f"{64 << 20}\n")
        events = node.path(session / "memory.events")
        events.write_text("low 0\nhigh 0\nmax 4\noom 2\noom_kill 2\noom_group_kill 0\n")
        launch = cluster.start_launch([*LAUNCH, "sh", "-c", "echo $RANK=$$; exec sleep 600"])
        launch.wait_for("=", count=3)
        if counted:
            events.write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 3\noom_group_kill 0\n")
        pid = launch.out.partition("1=")[2].split()[0]
        node.run(["kill", "-9", pid])
        result = launch.wait(20)
        if counted:
            is_told(cluster, result, 64)
        else:
            assert result.code == 137 and "out of memory" not in result.err, result
    finally:
        node.run(["umount", "/sys/fs/cgroup"])
        node.stop_sshd()
        remove(node.path(session))
