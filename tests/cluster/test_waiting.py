# SPDX-License-Identifier: Apache-2.0
"""Hosts that are not up yet, that go before the workers run, and whose login shells or files stop a start."""
import contextlib
import os
import signal

import pytest

from launching import wait_until
from terminal import Terminal
from test_faults_b import HELLO, fails
from test_faults_g import states
from test_restarts import agents

SHORT = ["--connect-timeout", "1s"]


@pytest.fixture
def down(cluster):
    """The last node without its sshd, until `up` is called."""
    node = cluster.nodes[3]
    node.stop_sshd()

    class Down:
        host = node

        @staticmethod
        def up():
            node.start_sshd()
    yield Down
    if node.sshd is None:
        node.restart_sshd()


def test_a_host_that_comes_later_is_waited_for(cluster, down):
    job = cluster.start_launch(["--start-timeout", "2m", *cluster.hosts_flag(1), *HELLO])
    job.wait_for("waiting for node3: connection refused; trying again, for up to 120 s (--start-timeout)", stream="err")
    down.up()
    result = job.wait(60)
    assert result.code == 0 and "on node3" in result.out, result


def test_the_line_on_a_terminal_says_for_what(cluster, down):
    terminal = Terminal(cluster.head)
    try:
        words = ["--start-timeout", "2m", *cluster.hosts_flag(1), "--", "hostname"]
        terminal.type(f"TERM=xterm {cluster.programs / 'dtrain'} launch {' '.join(words)}")
        terminal.wait_for(r"waiting for node3 \(connection refused, [2-9]\d* tries\)")
        down.up()
        code, shown = terminal.end()
        assert code == 0 and "node3" in shown, shown
    finally:
        terminal.close()


def test_a_host_that_never_comes_is_given_up_with_the_cause(cluster, down):
    result = fails(cluster, [*SHORT, *cluster.hosts_flag(1), *HELLO], "node3", "connection refused",
                   "still so after 1 s (--connect-timeout; --start-timeout allows more)")
    assert "node0:" not in result.err


def test_a_name_that_is_published_later(cluster):
    names = cluster.head.base / "root/.ssh/config"
    before = names.read_text()
    try:
        job = cluster.start_launch(["--start-timeout", "2m", "-H", "node0:1,lately:1", *HELLO])
        job.wait_for("waiting for lately: name", stream="err")
        names.write_text(f"Host lately\n  HostName {cluster.nodes[1].address}\n  HostKeyAlias node1\n{before}")
        result = job.wait(60)
        assert result.code == 0 and "on node1" in result.out, result
    finally:
        names.write_text(before)


COMMAND = """#!/bin/sh
host=$1
shift
if [ ! -e /root/work/up ]; then
  echo 'error: unable to upgrade connection: container not found ("main")' >&2
  exit 1
fi
exec ssh -o BatchMode=yes "$host" "$@"
"""


def test_a_container_that_is_not_ready(cluster):
    work = cluster.work()
    (work / "exec").write_text(COMMAND)
    (work / "exec").chmod(0o755)
    job = cluster.start_launch(["--start-timeout", "2m", "--rsh", "/root/work/exec {host}", "-H", "node0:1", *HELLO])
    job.wait_for("waiting for node0: container not found", stream="err")
    (work / "up").touch()
    result = job.wait(60)
    assert result.code == 0 and "on node0" in result.out, result


def test_what_does_not_pass_fails_at_once(cluster):
    work = cluster.work()
    (work / "exec").write_text("#!/bin/sh\necho 'Error from server (Forbidden): pods is forbidden' >&2\nexit 1\n")
    (work / "exec").chmod(0o755)
    result = fails(cluster, ["--start-timeout", "2m", "--rsh", "/root/work/exec {host}", "-H", "node0:1", *HELLO], "forbidden")
    assert "waiting for" not in result.err and "still so" not in result.err, result


def stop_agent(host, number=signal.SIGKILL):
    for pid in agents(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# node3 is not up, and so the start is held up while node1 goes.
def test_an_agent_that_is_killed_before_the_workers_run(cluster, down):
    job = cluster.start_launch(["--start-timeout", "2m", *cluster.hosts_flag(1), *HELLO])
    job.wait_for("waiting for node3", stream="err")
    wait_until(lambda: states(cluster)[1] == "joined", 20, "node1 does not join")
    stop_agent(cluster.nodes[1])
    # With the hosts that there are it cannot start: it waits for the one that is gone, too.
    job.wait_for("not all workers ran yet: the start begins again and waits for that host", stream="err")
    down.up()
    result = job.wait(60)
    assert result.code == 0 and all(f"on node{index}" in result.out for index in range(4)), result


@pytest.mark.parametrize("flags", [["-N", "2:4"], ["--min-nodes", "2"], ["--spare", "1"]])
def test_others_take_the_place_of_one_that_is_gone_before_the_workers_run(cluster, down, flags):
    job = cluster.start_launch(["--start-timeout", "2m", *flags, *cluster.hosts_flag(1), *HELLO])
    job.wait_for("waiting for node3", stream="err")
    wait_until(lambda: states(cluster)[1] == "joined", 20, "node1 does not join")
    stop_agent(cluster.nodes[1])
    job.wait_for("not all workers ran yet: the start begins again without that host, unless it is back at once", stream="err")
    down.up()
    result = job.wait(90)
    assert result.code == 0 and "on node0" in result.out and "on node2" in result.out, result
    assert "restart" not in result.err, result


# It is silent, and its connection stands.
def test_others_take_the_place_of_one_whose_agent_is_stopped(cluster, down):
    job = cluster.start_launch(["--lease", "3s", "--start-timeout", "2m", "--min-nodes", "2", *cluster.hosts_flag(1),
                                *HELLO])
    job.wait_for("waiting for node3", stream="err")
    wait_until(lambda: states(cluster)[1] == "joined", 20, "node1 does not join")
    stopped = agents(cluster.nodes[1])
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        job.wait_for("node1: no message from it for ", stream="err")
        job.wait_for("not all workers ran yet: the start begins again without that host", stream="err")
        down.up()
        result = job.wait(90)
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert result.code == 0 and "on node0" in result.out and "on node2" in result.out, result
    assert "restart" not in result.err, result


@pytest.fixture
def startup(cluster):
    """A start-up file of node1's login shell."""
    file = cluster.nodes[1].base / "root/.bashrc"
    before = file.read_bytes() if file.exists() else None
    yield file
    if before is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(before)


def test_a_path_that_has_nothing_in_it(cluster, startup):
    startup.write_text("PATH=/opt/x\n")
    result = cluster.launch(["-H", "node1:1", "--", "/bin/sh", "-c", "echo here"])
    assert result.code == 0 and "here" in result.out, result


@pytest.mark.parametrize("text", ["exit 0\n", "exit 3\n", "exec true\n"])
def test_a_start_up_file_that_ends_the_shell_is_named(cluster, startup, text):
    startup.write_text(text)
    fails(cluster, ["-H", "node1:1", *HELLO], "node1", "a start-up file of the login shell")


def test_a_start_up_file_that_reads_is_given_nothing_of_ours(cluster, startup):
    startup.write_text("read a; read b; read c\n")
    result = cluster.launch(["-H", "node1:1", *HELLO])
    assert result.code == 0 and "on node1" in result.out, result


def test_a_start_up_file_that_hangs_is_the_phase_that_is_named(cluster, startup):
    startup.write_text("cat >/dev/null\n")
    result = cluster.launch(["--start-timeout", "3s", "-H", "node0:1,node1:1", *HELLO])
    assert result.code == 201 and "node1 (login shell: its start-up files)" in result.err, result
    assert "node0 (" not in result.err, result


def test_a_script_that_one_host_lacks(cluster):
    for host in cluster.nodes[:2]:
        (cluster.work(host) / "train.py").write_text("print('trained')\n")
    cluster.work(cluster.nodes[2])
    result = cluster.launch(["--wdir", "/root/work", "-H", "node0:1,node1:1,node2:1", "--", "python3", "-u", "train.py", "--lr", "1"])
    assert result.code == 127, result
    assert "node2: there is no train.py in /root/work for python3 to run" in result.err, result
    (cluster.work(cluster.nodes[2]) / "train.py").write_text("print('trained')\n")
    result = cluster.launch(["--wdir", "/root/work", "-H", "node0:1,node1:1,node2:1", "--", "python3", "-u", "train.py"])
    assert result.code == 0 and result.out.count("trained") == 3, result


def test_variables_of_a_slurm_job_that_has_ended(cluster):
    work = cluster.work()
    (work / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n")
    (work / "squeue").chmod(0o755)
    env = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_TASKS_PER_NODE": "1(x2)",
           "PATH": f"/root/work:{os.environ['PATH']}"}
    result = cluster.launch(["--", "true"], env=env)
    assert result.code == 2 and "SLURM_JOB_ID=4711" in result.err and "unset SLURM_JOB_ID" in result.err, result
