# SPDX-License-Identifier: Apache-2.0
"""Faults of group K: signals and cancelling, in every state of a launch."""
import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest

import hosts
import launching
import leftovers
from launching import wait_until
from test_faults_c import slow_rsh
from test_identity import GID, UID, as_alice, node  # noqa: F401 - a fixture
from test_resident import agents as residents  # noqa: F401 - a fixture
from test_resident import ranks, stat_of

STUBBORN = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"]
QUIET = ["sh", "-c", "echo up; exec sleep 600"]


def up(cluster, args, count=4):
    launch = cluster.start_launch(args)
    launch.wait_for("up", count=count)
    return launch


# K1
def test_k1_one_interrupt_is_graceful(cluster):
    script = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    launch = up(cluster, [*cluster.hosts_flag(1), "--", "sh", "-c", script])
    launch.signal(signal.SIGINT)
    result = launch.wait(20)
    assert result.code == 130 and result.out.count("told") == 4, result


# K1
def test_k1_second_interrupt_kills_at_once(cluster):
    launch = up(cluster, ["--grace", "60s", *cluster.hosts_flag(1), "--", *STUBBORN])
    launch.signal(signal.SIGINT)
    time.sleep(0.3)  # two of a kind that come together are one to the kernel
    launch.signal(signal.SIGINT)
    result = launch.wait(20)
    assert result.code == 130, result
    leftovers.wait_for_no_processes(cluster, 3)


# K2, K3
@pytest.mark.parametrize("number,codes", [(signal.SIGTERM, (143,)), (signal.SIGHUP, (129, 130))])
def test_k2_k3_term_and_hangup_are_as_one_interrupt(cluster, number, codes):
    launch = up(cluster, ["--grace", "1s", *cluster.hosts_flag(1), "--", *STUBBORN])
    launch.signal(number)
    result = launch.wait(20)
    assert result.code in codes, result
    leftovers.wait_for_no_processes(cluster, 3)


# K4
def test_k4_reader_of_our_output_goes_away(cluster):
    command = ('"$0" launch --grace 1s -H node0:1,node1:1 -- yes | head -n 3; '
               'echo "${PIPESTATUS[0]}"')
    result = cluster.head.run(["bash", "-c", command, hosts.bin_dir() / "dtrain"], timeout=30)
    *lines, code = result.stdout.split("\n")[:-1]
    assert len(lines) == 3 and int(code) not in (0, 2), result
    leftovers.wait_for_no_processes(cluster, 5)


# K4: the workers are asked to end, as by Ctrl-C, and may say so where somebody still listens.
@pytest.mark.parametrize("way", ["ssh", "resident"])
def test_k4_workers_get_term_and_their_grace(cluster, request, way):
    if way == "resident":
        request.getfixturevalue("residents")
    script = ("trap 'echo told >/root/work/told; exit 0' TERM; "
              "while :; do echo a line; sleep 0.01; done")
    # Goes away once both have said that they are ready for it.
    reader = "awk '{print; seen[$1] = 1} seen[\"[0]\"] && seen[\"[1]\"] {exit}'"
    command = (f'"$0" launch -H node0:1,node1:1 -- sh -c "$1" 2>/root/work/err | {reader}; '
               'echo "${PIPESTATUS[0]}"')
    work = [cluster.work(), *(cluster.work(host) for host in cluster.nodes[:2])]
    result = cluster.head.run(["bash", "-c", command, hosts.bin_dir() / "dtrain", script], timeout=30)
    *lines, code = result.stdout.split("\n")[:-1]
    err = (work[0] / "err").read_text()
    assert len(lines) >= 2 and code == "141", (result, err)
    assert "exit code 141" in err, err
    for folder in work[1:]:
        wait_until(lambda told=folder / "told": told.exists() and told.read_text() == "told\n", 10,
                   f"nothing told {folder}")
        (folder / "told").unlink()
    wait_until(lambda: not any(ranks(host) for host in cluster.nodes), 5, "workers are left")


# K4: the output goes to a reader that leaves while the job starts, and to one that never was.
@pytest.mark.parametrize("reader", ["true", "exec <&-; sleep 5"])
def test_k4_a_reader_that_was_never_there(cluster, reader):
    command = f'"$0" launch --grace 1s -H node0:1,node1:1 -- yes | ({reader}); echo "${{PIPESTATUS[0]}}"'
    result = cluster.head.run(["bash", "-c", command, hosts.bin_dir() / "dtrain"], timeout=30)
    assert result.stdout == "141\n", result
    leftovers.wait_for_no_processes(cluster, 5)


# K4: stderr alone is no reason to end a job.
def test_k4_nobody_reads_our_stderr(cluster):
    command = '{ "$0" launch -H node0:1,node1:1 -- sh -c "$1" 2>&3 | cat; echo "${PIPESTATUS[0]}"; } 3> >(true)'
    result = cluster.head.run(
        ["bash", "-c", command, hosts.bin_dir() / "dtrain",
         "i=0; while [ $i -lt 200 ]; do echo $i >&2; i=$((i + 1)); sleep 0.005; done; echo end"], timeout=30)
    assert result.stdout.count("end") == 2 and result.stdout.endswith("\n0\n"), result


# K5
@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_k5_user_signals_reach_every_rank(cluster, name):
    script = f"trap 'echo got {name}; exit 0' {name}; echo up; while :; do sleep 0.05; done"
    launch = up(cluster, [*cluster.hosts_flag(2), "--", "sh", "-c", script], count=8)
    launch.signal(getattr(signal, f"SIG{name}"))
    result = launch.wait(20)
    assert result.code == 0 and result.out.count(f"got {name}") == 8, result


# K5: a program that has no handler for it yet dies of it.
@pytest.mark.parametrize("program", ["exec sleep 600", "sleep 600; exit $?"])
def test_k5_who_sent_a_signal_that_kills_a_rank_is_told(cluster, program):
    launch = up(cluster, ["--grace", "1s", "-H", "node0:1", "--", "sh", "-c", f"echo up; {program}"], count=1)
    jobs = wait_until(lambda: json.loads(cluster.head.run([hosts.bin_dir() / "dtrain", "ps", "--json"]).stdout)["jobs"],
                      20, "the job")
    sender = cluster.head.popen(["sh", "-c", f"kill -USR1 {jobs[0]['launcher_pid']}; read -r x"],
                                stdin=subprocess.PIPE)
    result = launch.wait(20)
    sender.communicate(b"\n")
    assert result.code == 138, result
    assert re.search(r"\(SIGUSR1\), which dtrain passed on from sh \(pid \d+, root\); ", result.err), result


# K5: also with resident agents, each time it comes, and not to others' jobs.
def test_k5_user_signals_reach_the_workers_of_resident_agents(cluster, residents):  # noqa: F811
    script = "trap 'echo got it' USR1; trap 'echo over; exit 0' USR2; echo up; while :; do sleep 0.05; done"
    args = ["--bind", "none", *cluster.hosts_flag(2), "--", "sh", "-c", script]
    launch, other = up(cluster, args, count=8), up(cluster, args, count=8)
    for count in (8, 16, 24):
        launch.signal(signal.SIGUSR1)
        launch.wait_for("got it", count=count)
    launch.signal(signal.SIGUSR2)
    result = launch.wait(20)
    assert result.code == 0 and result.out.count("over") == 8, result
    assert "got it" not in other.out, other.out
    other.signal(signal.SIGUSR2)
    result = other.wait(20)
    assert result.code == 0 and result.out.count("over") == 8, result


# K5: one that comes before there are workers is dropped, which is told, and ends nothing.
def test_k5_a_user_signal_that_comes_too_early_is_told(cluster):
    launch = cluster.start_launch([*slow_rsh(cluster, "node3"), *cluster.hosts_flag(1), "--", "echo", "ran"])
    wait_until(lambda: len(agents(cluster)) >= 3, 20, "three agents")
    launch.signal(signal.SIGUSR1)
    launch.wait_for("SIGUSR1 is ignored", stream="err")
    (cluster.work() / "go").touch()
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("ran") == 4, result


# K5: dtrain's commands send no signal by number, and say so; the API has no such request.
def test_k5_signal_99_is_refused_by_name(cluster):
    dtrain = hosts.bin_dir() / "dtrain"
    launch = up(cluster, [*cluster.hosts_flag(1), "--", *QUIET])
    for words, named in ((["stop", "--signal", "99"], "--signal"), (["stop", "-s", "99"], "-s"),
                         (["signal", "99"], "signal"), (["kill", "-99"], "kill"),
                         (["launch", "--signal", "99", "--", "true"], "--signal")):
        told = cluster.head.run([dtrain, *words], check=False)
        assert told.returncode == 2 and named in told.stderr, told
    [job] = json.loads(cluster.head.run([dtrain, "ps", "--json"]).stdout)["jobs"]
    for method, path in (("POST", "signal?number=99"), ("PUT", "signal/99"), ("DELETE", "ranks/0")):
        told = cluster.head.run(["curl", "-sS", "-X", method, "-w", "\n%{http_code}", "--unix-socket",
                                 f"/run/dtrain/{job['id']}.sock",
                                 f"http://localhost/v1/jobs/{job['id']}/{path}"])
        body, _, status = told.stdout.rpartition("\n")
        assert status == "405" and "only GET and HEAD" in json.loads(body)["error"], told
    assert launch.process.poll() is None
    launch.signal(signal.SIGINT)
    assert launch.wait(20).code == 130


# K6: all workers of a job are suspended for longer than the lease, by someone who wants their GPUs for a
# moment. They go on where they were, and nobody is lost.
@pytest.mark.parametrize("way", ["ssh", "resident"])
def test_k6_a_job_that_is_suspended_beyond_the_lease(cluster, request, way):
    if way == "resident":
        request.getfixturevalue("residents")
    launch = cluster.start_launch(
        ["--lease", "2s", "--tag-output", "rank", *cluster.hosts_flag(1), "--", "sh", "-c",
         "i=0; until [ -e /run/go ]; do echo line $i; i=$((i + 1)); sleep 0.02; done; echo last $i"])
    for rank in range(cluster.size):
        launch.wait_for(f"[{rank}] line 5\n")
    before = [ranks(host) for host in cluster.nodes]
    assert all(len(each) == 1 for each in before), before
    groups = [each[0][0] for each in before]
    try:
        for pid in groups:
            os.killpg(os.getpgid(pid), signal.SIGSTOP)
        wait_until(lambda: all(is_suspended(pid) for pid in groups), 10, "they are not stopped")
        time.sleep(2 * 2 + 0.5)  # the fault is that long: two leases
        suspended = launch.out
        assert launch.process.poll() is None and all(is_suspended(pid) for pid in groups)
        told = json.loads(cluster.head.run([hosts.bin_dir() / "dtrain", "status", "--json"]).stdout)
        assert [host["state"] for host in told["nodes"]] == ["joined"] * 4, told
    finally:
        for pid in groups:
            os.killpg(os.getpgid(pid), signal.SIGCONT)
    for rank in range(cluster.size):
        seen = suspended.count(f"[{rank}] line")
        wait_until(lambda: launch.out.count(f"[{rank}] line") > seen + 5, 20, launch.err)  # noqa: B023
    assert [ranks(host) for host in cluster.nodes] == before
    for host in cluster.nodes:
        host.path("/run/go").touch()
    result = launch.wait(30)
    for host in cluster.nodes:
        host.path("/run/go").unlink()
    assert result.code == 0 and not result.tells_of_loss and "suspect" not in result.err, result
    for rank in range(cluster.size):
        lines = [line.split("] ")[1] for line in result.lines if line.startswith(f"[{rank}] ")]
        assert lines == [*(f"line {i}" for i in range(len(lines) - 1)), f"last {len(lines) - 1}"], lines


def is_suspended(pid):
    """Stopped, or waiting (D) for a child that was stopped before it became another program."""
    return stat_of(pid)[0] in ("T", "D")


# K6: a suspended job can still be ended: TERM would wait for its workers to go on.
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_k6_a_suspended_job_is_ended(cluster, number):
    launch = up(cluster, ["--grace", "1s", *cluster.hosts_flag(1), "--", *QUIET])
    stopped = [ranks(host)[0][0] for host in cluster.nodes]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(is_suspended(pid) for pid in stopped), 10, "they are not stopped")
    launch.signal(number)
    assert launch.wait(20).code == 128 + number
    leftovers.wait_for_no_processes(cluster, 3)


# Holds a process as a debugger does. SIGSTOP would not do: the kernel lets a process group go on that is
# orphaned.
HOLD = """
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
for request in (SEIZE, INTERRUPT):
    if libc.ptrace(request, pid, None, None) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, WALL)
print("held", flush=True)
os.waitpid(pid, WALL)  # its end
"""


# Whoever kills an agent ends its job, also one whose shepherd stands still: after the grace and ten
# seconds more.
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_k6_an_agent_that_is_killed_ends_a_shepherd_that_is_held_and_its_workers(cluster, number):
    launch = up(cluster, ["--grace", "1s", *cluster.hosts_flag(1), "--", *QUIET])
    found = leftovers.processes(cluster.nodes[0])
    (shepherd,) = [pid for pid, _, line in found if line.endswith(" shepherd")]
    (agent,) = [pid for pid, _, line in found if line.split()[1:2] == ["bridge"]]
    with subprocess.Popen(["/usr/bin/python3", "-I", "-c", HOLD, str(shepherd)],
                          stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            os.kill(agent, number)
            assert launch.wait(20).code == 202
            leftovers.wait_for_no_processes(cluster, 15)
        finally:
            holder.kill()


# K6: workers and launcher that were stopped for a while are not lost.
def test_k6_stop_and_continue(cluster):
    launch = up(cluster, ["--lease", "6s", *cluster.hosts_flag(1), "--", "sh", "-c",
                          "echo up; sleep 3; echo later"])
    workers = [pid for pid, _, line in leftovers.processes(cluster.nodes[1]) if "later" in line]
    for pid in [*workers, launch.pid]:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    for pid in [*workers, launch.pid]:
        os.kill(pid, signal.SIGCONT)
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("later") == 4, result


# K7
@pytest.mark.parametrize("first", [0.0, 0.05, 0.2, 0.5])
def test_k7_term_every_ten_milliseconds(cluster, first):
    launch = cluster.start_launch(["--grace", "5s", *cluster.hosts_flag(2), "--", *STUBBORN])
    time.sleep(first)
    deadline = time.monotonic() + 20
    while launch.process.poll() is None and time.monotonic() < deadline:
        launch.signal(signal.SIGTERM)
        time.sleep(0.01)
    result = launch.wait(1)
    # -15: it came before the program had set up anything.
    assert result.code in (143, -15), result
    leftovers.wait_for_no_processes(cluster, 5)


# K8
@pytest.mark.parametrize("state", ["connect", "barrier", "start", "run", "stop"])
def test_k8_cancel_in_each_state(cluster, state):
    quiet = [*cluster.hosts_flag(1), "--", *QUIET]
    if state == "connect":
        cluster.cut(cluster.nodes[3])
        launch = cluster.start_launch(quiet)
        wait_until(lambda: agents(cluster), 10, "an agent")
    elif state == "barrier":
        launch = cluster.start_launch([*slow_rsh(cluster, "node3"), *quiet])
        wait_until(lambda: len(agents(cluster)) >= 3, 10, "three agents")
    elif state == "start":
        launch = cluster.start_launch(quiet)
        launch.wait_for("up")
    elif state == "run":
        launch = up(cluster, quiet)
    else:
        launch = up(cluster, ["--grace", "2s", *cluster.hosts_flag(1), "--", "sh", "-c",
                              '[ "$RANK" != 0 ] || { sleep 0.5; exit 8; }; '
                              "trap 'echo told' TERM; echo up; while :; do sleep 0.1; done"], count=3)
        launch.wait_for("told")
    launch.signal(signal.SIGINT)
    result = launch.wait(10)
    if state == "connect":
        cluster.heal(cluster.nodes[3])
    assert result.code == (8 if state == "stop" else 130), result
    leftovers.wait_for_no_processes(cluster, 5)


# K8: a host hangs; its own lease ends what runs there, once it goes on.
@pytest.mark.parametrize("state,grace", [("barrier", 1), ("run", 0), ("run", 2), ("stop", 2)])
def test_k8_cancel_while_a_host_hangs(cluster, state, grace):
    args = ["--grace", f"{grace}s", *cluster.hosts_flag(1), "--"]
    if state == "barrier":
        launch = cluster.start_launch([*slow_rsh(cluster, "node3"), *args, *QUIET])
        wait_until(lambda: len(agents(cluster)) >= 3, 10, "three agents")
    elif state == "run":
        launch = up(cluster, [*args, *QUIET])
    else:
        launch = up(cluster, [*args, "sh", "-c", '[ "$RANK" != 0 ] || { sleep 0.5; exit 8; }; '
                              "trap 'echo told' TERM; echo up; while :; do sleep 0.1; done"], count=3)
    hung = [pid for pid, _, line in leftovers.processes(cluster.nodes[1]) if "dtrain-agent" in line]
    assert hung
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    try:
        if state == "stop":
            launch.wait_for("told")
        launch.signal(signal.SIGINT)
        begin = time.monotonic()
        result = launch.wait(grace + 20)
        took = time.monotonic() - begin
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGCONT)
    assert took < grace + 5, result
    if state == "barrier":
        assert result.code == 130, result
    else:
        assert result.code == 204 and "node1" in result.err, result
    leftovers.wait_for_no_processes(cluster, grace + 5)


def agents(cluster):
    """Hosts that have one. What it forks is called the same until it is another program."""
    return [host for host in cluster.nodes
            if any("dtrain-agent" in row[2] and row[2].endswith("bridge")
                   for row in leftovers.processes(host))]


# K9
def test_k9_time_limit(cluster):
    result = cluster.launch(["--timeout", "1s", "--grace", "1s", *cluster.hosts_flag(1), "--",
                             *STUBBORN], timeout=20)
    assert result.code == 209, result


# K10: nohup and a terminal that closes. The end of a session hangs up its processes.
def test_k10_nohup_outlives_its_terminal(cluster):
    head = cluster.head
    master, terminal = pty.openpty()
    script = ("grep SigIgn /proc/self/status; echo up; until [ -e /run/go ]; do sleep 0.05; done; "
              "echo end")
    # The shell leads the terminal's session: when the terminal goes, all in it get SIGHUP.
    shell = head.popen(
        ["setsid", "--ctty", "--wait", "sh", "-c",
         # The shell that nohup starts is there longer, too, and writes the launcher's code down.
         "nohup sh -c '\"$0\" launch --tag-output none -H node0:1,node1:1 -- sh -c \"$1\"; echo $? >code' "
         '"$0" "$1"',
         hosts.bin_dir() / "dtrain", script],
        stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    out, code = head.path("/root/nohup.out"), head.path("/root/code")
    try:
        wait_until(lambda: out.exists() and out.read_text().count("up") == 2, 30, "two workers")
        launchers = [pid for pid, _, line in leftovers.processes(head) if "dtrain launch" in line
                     and "nohup" not in line and "setsid" not in line]
        os.close(master)
        shell.wait(20)
        running = [pid for pid, _, line in leftovers.processes(head) if pid in launchers]
        assert running, out.read_text()
        for pid in running:
            os.kill(pid, signal.SIGHUP)
        for node in cluster.nodes[:2]:
            node.path("/run/go").touch()
        wait_until(lambda: out.read_text().count("end") == 2, 20, out.read_text)
        leftovers.wait_for_no_processes(cluster, 10)
        assert code.read_text() == "0\n", out.read_text()
        # Workers have the defaults: what our shell ignores is none of theirs.
        ignored = [line for line in out.read_text().splitlines() if "SigIgn" in line]
        assert [int(line.split()[1], 16) for line in ignored] == [0, 0], ignored
    finally:
        for path in (out, code, *(node.path("/run/go") for node in cluster.nodes[:2])):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["HUP", "INT", "TERM", "USR1"])
def test_k10_what_was_ignored_at_the_start_stays_so(cluster, name):
    number = getattr(signal, f"SIG{name}")
    launch = cluster.start_launch(
        ["-H", "node0:1", "--", "sh", "-c",
         "echo up; until [ -e /run/go ]; do sleep 0.05; done; echo end"],
        before_exec=lambda: signal.signal(number, signal.SIG_IGN))
    launch.wait_for("up")
    launch.signal(number)
    cluster.nodes[0].path("/run/go").touch()
    try:
        result = launch.wait(20)
    finally:
        cluster.nodes[0].path("/run/go").unlink()
    assert result.code == 0 and "end" in result.out, result


# K12: as a service manager, a container or cron starts it.
@pytest.mark.parametrize("env", [{"HOME": None}, {"XDG_RUNTIME_DIR": None},
                                 {"HOME": None, "XDG_RUNTIME_DIR": None, "USER": None}])
def test_k12_without_home_or_runtime_directory(cluster, env):
    dtrain = hosts.bin_dir() / "dtrain"
    clean = ["env", *(word for name in env for word in ("-u", name))]
    job = cluster.head.popen(
        [*clean, dtrain, "launch", "-np", "-1", "--", "sh", "-c",
         "until [ -e /run/go ]; do sleep 0.05; done"], start_new_session=True)
    try:
        seen = lambda: cluster.head.run([*clean, dtrain, "ps"], check=False).stdout  # noqa: E731
        wait_until(lambda: "running" in seen(), 20, seen)
    finally:
        cluster.head.path("/run/go").touch()
        code = job.wait(20)
        cluster.head.path("/run/go").unlink()
    assert code == 0


# K12: as the first process of a container: signals without a handler do nothing to it.
def test_k12_as_pid_one(cluster):
    dtrain = hosts.bin_dir() / "dtrain"
    run = cluster.head.run(["unshare", "--pid", "--fork", "--mount-proc", dtrain, "launch", "-np", "-2",
                            "--tag-output", "none", "--", "sh", "-c", "echo done"])
    assert run.stdout == "done\ndone\n", run


# Ends when it is told to, with what it is told to.
WAITS = ["sh", "-c", "echo up; until [ -e /run/go ]; do sleep 0.05; done; echo end"]
CRON = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "HOME": "/root", "LOGNAME": "root"}


def only_job(told):
    """The view of the one job that `dtrain status --json` tells of, if it does."""
    return told.returncode == 0 and json.loads(told.stdout)["job"]


# K12: a container's first process, with cron's environment: found from inside and outside, ended from
# either side, and nothing of the container is left.
@pytest.mark.parametrize("end", ["by itself", "stop outside", "stop inside", "TERM", "INT"])
def test_k12_as_pid_one_of_a_container(cluster, end):
    dtrain, head = hosts.bin_dir() / "dtrain", cluster.head
    clean = ["env", "-i", *(f"{name}={value}" for name, value in CRON.items())]
    launch = launching.Launch(head, [*clean, "unshare", "--pid", "--fork", "--mount-proc", dtrain, "launch",
                                     "--grace", "1s", "-H", "node0:1,node1:1", "--", *WAITS])
    launch.wait_for("up", count=2)
    with open(f"/proc/{launch.pid}/task/{launch.pid}/children", encoding="ascii") as children:
        [first] = map(int, children.read().split())
    [there, within] = numbers_of(first)[-2:]
    assert within == "1"
    inside = [*clean, "nsenter", "--target", there, "--pid", "--mount"]
    for reach in (clean, inside, []):
        status = [*reach, dtrain, "status", "--json"]
        job = wait_until(lambda: only_job(head.run(status, check=False)), 20, status)  # noqa: B023
        assert job["ranks"]["running"] == 2, job
    if end == "by itself":
        for host in cluster.nodes[:2]:
            host.path("/run/go").touch()
    elif end.startswith("stop"):
        told = head.run([*(inside if end == "stop inside" else []), dtrain, "stop", job["id"]], check=False)
        # Inside, all ends with the first process.
        assert f"{job['id']} has ended" in told.stderr or (end == "stop inside" and told.returncode == -9), told
    else:  # as the container's runtime does, from outside
        os.kill(first, getattr(signal, f"SIG{end}"))
    result = launch.wait(30)
    for host in cluster.nodes[:2]:
        host.path("/run/go").unlink(missing_ok=True)
    assert result.code == {"by itself": 0, "INT": 130}.get(end, 143), result
    assert result.out.count("end") == (2 if end == "by itself" else 0), result


def numbers_of(pid):
    """By which the namespaces that it is in know a process, the outermost first."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        [numbers] = [line.split()[1:] for line in status if line.startswith("NSpid:")]
    return numbers


@pytest.fixture
def users(node):  # noqa: F811
    """alice's machine: she has a home, and no session."""
    node.path("/run/user").mkdir(exist_ok=True)
    yield node
    node.run(["rm", "-rf", "/run/user"])


def as_her(users, env, *words, **options):
    variables = [f"{name}={value}" for name, value in env.items()]
    return launching.Launch(users, ["env", "-i", *variables, *words], cwd="/", before_exec=as_alice, **options)


SUDO = ["setpriv", "--reuid", str(UID), "--regid", str(GID), "--init-groups", "env"]
HERS = {"PATH": "/usr/bin:/bin", "HOME": "/home/alice", "USER": "alice", "LOGNAME": "alice"}
# Whose environment the launch has, and with which one its status is asked for.
STARTS = {
    "cron, then a login": (HERS, {**HERS, "XDG_RUNTIME_DIR": f"/run/user/{UID}"}),
    "a login, then cron": ({**HERS, "XDG_RUNTIME_DIR": f"/run/user/{UID}"}, HERS),
    "su with root's variables": ({**HERS, "HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/0"}, HERS),
    "no variables at all": ({"PATH": "/usr/bin:/bin"}, HERS),
    "a login that is over": ({**HERS, "XDG_RUNTIME_DIR": "/run/user/no-such"}, HERS),
}


# K12: a user's job, begun in one environment and looked for in another. logind makes /run/user/UID at the
# first login, and removes it after the last.
@pytest.mark.parametrize("session", ["before", "later", "never"])
@pytest.mark.parametrize("start", STARTS)
def test_k12_status_finds_a_job_begun_elsewhere(users, start, session):
    begun, asked = STARTS[start]
    dtrain = hosts.bin_dir() / "dtrain"
    runtime = users.path(f"/run/user/{UID}")

    def log_in():
        for folder, owner in ((runtime, UID), (users.path("/run/user/0"), 0)):
            folder.mkdir(mode=0o700)
            os.chown(folder, owner, owner)

    if session == "before":
        log_in()
    launch = as_her(users, begun, dtrain, "launch", "--grace", "1s", "-np", "-1", "--", *WAITS)
    launch.wait_for("up")
    if session == "later":
        log_in()
    try:
        told = as_her(users, asked, dtrain, "status", "--json").wait(20)
        assert told.code == 0 and json.loads(told.out)["job"]["ranks"]["running"] == 1, (told, launch.err)
        # And by the one who began it.
        told = as_her(users, begun, dtrain, "ps", "--json").wait(20)
        assert len(json.loads(told.out)["jobs"]) == 1, told
    finally:
        users.path("/run/go").touch()
        result = launch.wait(20)
        users.path("/run/go").unlink()
    assert result.code == 0 and result.out.count("end") == 1, result


# K12: sudo -u alice, from root's shell: setpriv changes the ids alone, so all variables are root's.
def test_k12_under_another_users_ids(users):
    dtrain = hosts.bin_dir() / "dtrain"
    launch = launching.Launch(users, [*SUDO, dtrain, "launch", "--grace", "1s", "-np", "-2", "--", *WAITS],
                              cwd="/", env={"XDG_RUNTIME_DIR": None})
    launch.wait_for("up", count=2)
    told = users.run([*SUDO, dtrain, "status", "--json"], check=False, cwd="/")
    own = as_her(users, HERS, dtrain, "status", "--json").wait(20)
    users.path("/run/go").touch()
    result = launch.wait(20)
    users.path("/run/go").unlink()
    assert result.code == 0 and result.out.count("end") == 2, result
    for code, out in ((told.returncode, told.stdout), (own.code, own.out)):
        assert code == 0 and json.loads(out)["job"]["ranks"]["running"] == 2, (told, own, result.err)
