# SPDX-License-Identifier: Apache-2.0
"""B18: sshd with PAM: the limits of logins (pam_limits), and sessions whose processes are killed when they end,
as by logind with KillUserProcesses=yes. There is no logind on these hosts: pam_exec runs a script that keeps
each session in a cgroup, and kills what is in it at the session's end, as systemd does with its scope."""
import contextlib
import os
import resource
import shlex
import signal

import pytest

import hosts
import launching
import leftovers
import residents
from launching import wait_until
from test_identity import CACHED, node  # noqa: F401 - a fixture

PAM = """
account required pam_unix.so
session required pam_limits.so conf=/root/work/limits.conf
session required pam_umask.so umask=0027
session required pam_exec.so /root/work/session
"""
# Of all users; pam_limits leaves root's alone with a wildcard.
LIMITS = {"nofile": (700, 900), "memlock": (3000, 4000), "nproc": (2000, 2100), "core": (0, 0),
          "stack": (6000, 7000), "priority": 2, "rtprio": (7, 7)}
SESSION = """#!/bin/sh
group=/sys/fs/cgroup/session-$PPID
if [ "$PAM_TYPE" = open_session ]; then
  mkdir $group && echo $PPID >$group/cgroup.procs
  exit
fi
echo $PPID >/sys/fs/cgroup/cgroup.procs
echo $$ >/sys/fs/cgroup/cgroup.procs
for each in $(find $group -depth -type d); do echo 1 >$each/cgroup.kill; done
i=0
until find $group -depth -type d -exec rmdir {} + 2>/dev/null || [ $i = 100 ]; do i=$((i + 1)); sleep 0.05; done
exit 0
"""
SHOW = ("ulimit -a -S; ulimit -a -H; umask; nice; cat /proc/self/oom_score_adj; "
        "grep -E '^Sig[BIC]|^Cap' /proc/self/status")
COUNT = "i=0; until [ -e /tmp/go ]; do echo line $i; i=$((i + 1)); sleep 0.02; done; echo last $i"


@pytest.fixture
def logins(node):  # noqa: F811
    """alice's machine, where PAM has its say."""
    if node.cgroup_dir is None or not (node.cgroup_dir / "cgroup.kill").exists():
        pytest.skip("there are no cgroups to kill")
    work = node.cluster.work(node)
    lines = []
    for what, value in LIMITS.items():
        soft, hard = value if isinstance(value, tuple) else (value, value)
        for user in ("alice", "root"):
            lines += ([f"{user} - {what} {value}\n"] if what == "priority" else
                      [f"{user} soft {what} {soft}\n", f"{user} hard {what} {hard}\n"])
    (work / "limits.conf").write_text("".join(lines))
    (work / "session").write_text(SESSION)
    (work / "session").chmod(0o755)
    (work / "pam").write_text(PAM)
    node.run(["mount", "--bind", "/root/work/pam", "/etc/pam.d/sshd"])
    node.restart_sshd("UsePAM yes\n")
    yield node
    wait_until(lambda: not sessions(node), 20, lambda: sessions(node))


def sessions(host):
    return [path.name for path in host.cgroup_dir.glob("session-*")]


def login(host, user, command, **options):
    return launching.Launch(host.cluster.head, ["ssh", f"{user}@node0", command], **options)


def start(host, user, *command, flags=(), **options):
    return host.cluster.start_launch(["--wdir", "/", "--bind", "none", "--grace", "1s", *flags, "-H",
                                      f"{user}@node0:2", "--tag-output", "rank", "--", *command], **options)


def check_lines(result):
    assert result.code == 0, result
    for rank in range(2):
        lines = [line[4:] for line in result.lines if line.startswith(f"[{rank}] ")]
        assert lines == [*(f"line {i}" for i in range(len(lines) - 1)), f"last {len(lines) - 1}"], lines[-3:]


@contextlib.contextmanager
def going(host):
    """Removes what ends the jobs."""
    go = host.path("/tmp/go")
    try:
        yield go
    finally:
        go.unlink(missing_ok=True)


@pytest.mark.parametrize("user", ["alice", "root"])
def test_b18_a_job_has_the_limits_of_a_login(logins, user):
    told = login(logins, user, f"exec sh -c {shlex.quote(SHOW)}").wait(20)
    for soft, hard in (("700", "900"), ("3000", "4000"), ("6000", "7000")):
        assert soft in told.out and hard in told.out, told
    assert "\n0027\n2\n" in told.out, told
    # But for what is the launching shell's, umask and nice. A user may not go below the nice of the login.
    head = logins.cluster.head.run(["sh", "-c", "umask; nice"]).stdout.split()
    nice = max(int(head[1]), 2 if user == "alice" else -20)
    expected = told.out.replace("\n0027\n2\n", f"\n{head[0]}\n{nice}\n").splitlines()
    usual = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))  # noqa: E731
    result = start(logins, user, "sh", "-c", SHOW, before_exec=usual).wait(30)
    assert result.code == 0, result
    assert ("may not lower it" in result.err) == (nice != int(head[1])), result
    for rank in range(2):
        lines = [line[4:] for line in result.lines if line.startswith(f"[{rank}] ")]
        assert lines == expected, result
    wait_until(lambda: not sessions(logins), 10, lambda: sessions(logins))


# Too low for so many ranks: before the start, with the limit's name.
def test_b18_a_limit_of_the_login_that_is_too_low(logins):
    limits = logins.path("/root/work/limits.conf")
    limits.write_text(limits.read_text().replace("hard nofile 900", "hard nofile 64")
                      .replace("soft nofile 700", "soft nofile 64"))
    result = logins.cluster.launch(["--wdir", "/", "--bind", "none", "-H", "alice@node0:40", "--", "echo",
                                    "ran"])
    assert result.code == 200 and "node0" in result.err and "open files" in result.err, result
    assert "ran" not in result.out, result


# Sessions of the same user come and go beside the job's, and what they leave running is killed.
@pytest.mark.parametrize("user", ["alice", "root"])
def test_b18_a_job_outlives_other_sessions(logins, user):
    with going(logins) as go:
        job = start(logins, user, "sh", "-c", COUNT)
        job.wait_for("[0] line 5\n")
        job.wait_for("[1] line 5\n")
        [own] = sessions(logins)
        for _ in range(3):
            told = login(logins, user, "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo started").wait(20)
            assert told.out == "started\n", told
            wait_until(lambda: sessions(logins) == [own], 10, lambda: sessions(logins))
        assert not [line for _, _, line in leftovers.processes(logins) if line == "sleep 600"]
        assert job.process.poll() is None
        go.touch()
        check_lines(job.wait(30))


# The job ends with its session, wherever that is ended, and nothing of it is left but, where its shepherd was
# killed with it, an empty folder in /tmp that the next job's agent removes.
@pytest.mark.parametrize("user", ["alice", "root"])
@pytest.mark.parametrize("end", ["interrupt", "launcher killed", "session killed"])
@pytest.mark.launcher_killed
def test_b18_nothing_is_left_of_a_job_whose_session_ends(logins, user, end):
    job = start(logins, user, "sh", "-c", "trap '' TERM HUP; echo up; while :; do sleep 1; done")
    job.wait_for("up", count=2)
    [own] = sessions(logins)
    if end == "session killed":  # loginctl terminate-session
        (logins.cgroup_dir / own / "cgroup.kill").write_text("1")
        for folder, _, _ in os.walk(logins.cgroup_dir / own):
            with contextlib.suppress(OSError):
                with open(f"{folder}/cgroup.kill", "w") as kill:
                    kill.write("1")
    else:
        job.signal(signal.SIGINT if end == "interrupt" else signal.SIGKILL)
    result = job.wait(30)
    assert result.code == {"interrupt": 130, "launcher killed": -9, "session killed": 202}[end], result
    leftovers.wait_for_no_processes(logins.cluster, 20)
    # A session that was killed cannot tidy up itself.
    wait_until(lambda: end == "session killed" or not sessions(logins), 10, lambda: sessions(logins))
    for name in sessions(logins):
        hosts.remove_cgroup_tree(logins.cgroup_dir / name)
    if end != "interrupt":
        assert start(logins, user, "true").wait(30).code == 0
        wait_until(lambda: not sessions(logins), 10, lambda: sessions(logins))


# With a resident agent workers are in its groups, not in the session's: it may end and the job goes on.
def test_b18_jobs_of_a_resident_agent_outlive_their_session(logins):
    agent = residents.Resident(logins).start()
    try:
        with going(logins) as go:
            job = start(logins, "alice", "sh", "-c", COUNT, flags=["--lease", "10s"])
            job.wait_for("[0] line 5\n")
            job.wait_for("[1] line 5\n")
            for _ in range(2):
                [own] = sessions(logins)
                with open(logins.cgroup_dir / own / "cgroup.kill", "w") as kill:
                    kill.write("1")
                seen = job.out.count("line")
                wait_until(lambda: job.out.count("line") > seen + 20, 30, job.err)  # noqa: B023
                hosts.remove_cgroup_tree(logins.cgroup_dir / own)
            go.touch()
            check_lines(job.wait(30))
    finally:
        agent.stop()
        logins.run(["rm", "-rf", CACHED.parent])
