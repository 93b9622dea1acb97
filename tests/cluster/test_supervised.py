# SPDX-License-Identifier: Apache-2.0
"""Launchers of detached jobs that are killed come back by themselves: who starts them again, how often, what is left
when that one is killed too, and that it goes with the job."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from detached import Job, launch, launchers
from launching import wait_until
from test_detached import COUNTS, FLAGS, all_workers, check_output, ended, residents, state  # noqa: F401

pytestmark = pytest.mark.launcher_killed


def counting(cluster, *flags):
    return launch(cluster, [*FLAGS, *flags, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])


def kill_and_wait(job, generation):
    """Only the launcher. Its successor, once it has the job."""
    pid = wait_until(lambda: job.launcher, 60, lambda: job.log)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: job.holder.get("generation") == generation and job.holder.get("stage") != "opens", 60,
               lambda: job.log)
    assert job.launcher != pid, job.log


def run(cluster, *words, check=True):
    return cluster.head.run([cluster.programs / "dtrain", *words], check=check)


def test_a_killed_launcher_is_back_by_itself(cluster, residents, ended):  # noqa: F811
    result = cluster.launch(["-d", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    job = Job(cluster, result.out.strip())
    minder, before = job.minder, all_workers(cluster)
    assert f"dtrain: supervised by minder, process {_inner_pid(minder)}: " in result.err, result
    for kill in range(3):
        at = len(job.output(3))
        began = time.monotonic()
        kill_and_wait(job, kill + 2)
        assert time.monotonic() - began < 3, job.log
        wait_until(lambda: len(job.output(3)) > at + 100, 60, lambda: job.log)
        assert job.minder == minder and all_workers(cluster) == before, job.log
        assert f"killed by signal 9: starting it again ({kill + 1} of 5)" in job.log
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44, job.log
    check_output(job, job.summary["verdict"]["first_failed_rank"])


def test_what_a_minder_holds(cluster, residents, ended):  # noqa: F811
    job = counting(cluster)
    minder = job.minder
    proc = Path(f"/proc/{minder}")
    fds = {os.readlink(fd) for fd in (proc / "fd").iterdir()}
    assert fds == {"/dev/null", f"/root/.local/state/dtrain/jobs/{job.id}/launcher.log",
                   f"/root/.local/state/dtrain/jobs/{job.id}/minder", "anon_inode:[pidfd]"}, fds
    assert os.readlink(proc / "cwd").rstrip("/") in ("", str(cluster.head.base)), os.readlink(proc / "cwd")
    stat = (proc / "stat").read_text().rpartition(")")[2].split()
    assert stat[3] == str(minder), "not the leader of a session"
    assert stat[4] == "0", "has a terminal"
    rollup = (proc / "smaps_rollup").read_text()
    private = sum(int(kb) for kb in re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+)", rollup, re.M))
    assert int(re.search(r"^Private_Dirty:\s+(\d+)", rollup, re.M)[1]) < 4096, rollup
    print("private", private, "kB")
    for number in (signal.SIGHUP, signal.SIGINT):
        os.kill(minder, number)
    ended()
    job.wait(60)
    assert job.minder is None


def _inner_pid(pid):
    """As its own namespace counts."""
    return int(re.search(r"^NSpid:.*?(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.M)[1])


def test_six_kills_are_too_many_and_attach_continues(cluster, residents, ended):  # noqa: F811
    job = counting(cluster)
    before = all_workers(cluster)
    for kill in range(5):
        kill_and_wait(job, kill + 2)
    os.kill(job.launcher, signal.SIGKILL)
    wait_until(lambda: job.minder is None and job.launcher is None, 60, lambda: job.log)
    assert re.search(rf"5 times before within 10 minutes: it is not started again; `dtrain attach {job.id}` continues"
                     " the job\n", job.log), job.log
    shown = run(cluster, "show", job.id).stdout
    assert "unattended" in shown and f"dtrain attach {job.id}" in shown, shown
    time.sleep(1.5)  # longer than anybody would wait before a start
    assert job.launcher is None and all_workers(cluster) == before
    waits = run(cluster, "wait", "--timeout", "1s", job.id, check=False)
    assert waits.returncode == 210 and "started a new one" in waits.stderr, waits
    assert job.minder and all_workers(cluster) == before
    assert job.stop().returncode == 0
    assert job.wait(60)["exit_code"] == 143 and not any(all_workers(cluster))


def test_a_killed_minder_harms_nothing(cluster, residents, ended):  # noqa: F811
    job = counting(cluster)
    launcher, before = job.launcher, all_workers(cluster)
    assert json.loads(run(cluster, "show", "--json", job.id).stdout)["supervisor"]["kind"] == "minder"
    job.kill_minder()
    at = len(job.output(3))
    wait_until(lambda: len(job.output(3)) > at + 100, 60, lambda: job.log)
    assert job.launcher == launcher
    told = json.loads(run(cluster, "show", "--json", job.id).stdout)
    assert told["supervisor"] is None and told["state"] == "running"
    shown = run(cluster, "show", job.id).stdout
    assert re.search(rf"supervised by +nobody; if the launcher is killed, dtrain attach {job.id} continues", shown), shown
    os.kill(launcher, signal.SIGKILL)
    wait_until(lambda: job.launcher is None, 60, "it lives")
    assert "unattended" in run(cluster, "show", job.id).stdout
    # The next one has a minder again.
    waits = run(cluster, "wait", "--timeout", "1s", job.id, check=False)
    assert waits.returncode == 210 and "started a new one" in waits.stderr, waits
    assert job.minder and job.launcher and all_workers(cluster) == before
    kill_and_wait(job, 3)
    assert all_workers(cluster) == before
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44
    check_output(job, job.summary["verdict"]["first_failed_rank"])


def test_a_stop_between_two_launchers(cluster, residents, ended):  # noqa: F811
    job = counting(cluster)
    os.kill(job.launcher, signal.SIGKILL)
    stopped = job.stop()
    assert stopped.returncode == 0, stopped
    assert job.wait(60)["exit_code"] == 143 and not any(all_workers(cluster))


# It ends by itself with a reason, and a new try would end likewise.
def test_a_job_that_no_launcher_can_go_on_with_is_left_alone(cluster, residents, ended):  # noqa: F811
    job = counting(cluster)
    spec = (job.folder / "spec").read_bytes()
    (job.folder / "spec").write_bytes(b"\xff" * 20)
    os.kill(job.launcher, signal.SIGKILL)
    wait_until(lambda: job.minder is None, 60, lambda: job.log)
    assert job.launcher is None and job.log.count("starting it again") == 1 and "spec is damaged" in job.log, job.log
    (job.folder / "spec").write_bytes(spec)
    assert job.stop().returncode == 0
    assert job.wait(60)["exit_code"] == 143 and not any(all_workers(cluster))


# A minder that is killed, and a launcher that somebody started by hand, who supervises it.
def test_a_launcher_of_ones_own_has_the_job(cluster, residents, ended):  # noqa: F811
    job = counting(cluster)
    job.kill_launcher()
    taken = job.start_launcher()
    wait_until(lambda: job.holder.get("generation") == 2 and job.holder["stage"] != "opens", 60, lambda: taken.err)
    assert "supervised by nobody" in run(cluster, "status", job.id).stdout
    ended()
    job.wait(60)


# The minder has the build with which the job was launched.
def test_an_upgrade_meanwhile(cluster, residents, ended, tmp_path):  # noqa: F811
    place = cluster.work() / "old"
    place.mkdir(parents=True)
    for name in ("dtrain", "dtrain-agent", "dtrain-shepherd"):
        shutil.copy(cluster.programs / name, place)
    launched = cluster.head.run(["/root/work/old/dtrain", "launch", "-d", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40",
                                 "--", *COUNTS])
    job = Job(cluster, launched.stdout.strip())
    before, build = all_workers(cluster), os.stat(f"/proc/{job.launcher}/exe").st_ino
    (place / "new").write_text("#!/bin/sh\necho another build\n")
    (place / "new").chmod(0o755)
    os.rename(place / "new", place / "dtrain")
    kill_and_wait(job, 2)
    assert os.stat(f"/proc/{job.launcher}/exe").st_ino == build and all_workers(cluster) == before
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44
    shutil.rmtree(place)


def test_ps_and_status_say_who_supervises(cluster, residents, ended):  # noqa: F811
    job = counting(cluster)
    pid = _inner_pid(job.minder)
    listed = run(cluster, "ps", "-a").stdout
    assert "SUPERVISOR" in listed and f"minder, process {pid}" in listed, listed
    assert "SUPERVISOR" not in run(cluster, "ps").stdout
    told = json.loads(run(cluster, "ps", "--json").stdout)["jobs"][0]
    assert told["supervisor"] == {"kind": "minder", "pid": pid, "host": "head"} and told["launcher_restarts"] == 0, told
    kill_and_wait(job, 2)
    shown = wait_until(lambda: run(cluster, "status", job.id, check=False).stdout, 60, "no status")
    assert f"supervised by minder, process {pid}, launcher restarts: 1" in shown, shown
    ended()
    job.wait(60)
    assert not launchers(cluster.head)


# ---- by systemd's manager of the user: the real one, on a host of which systemd is not process 1 ----

SYSTEMD = "/lib/systemd/systemd"
MANAGER = {"XDG_RUNTIME_DIR": "/run/user/0", "HOME": "/root", "PATH": "/usr/bin:/bin", "SYSTEMD_LOG_TARGET": "console"}


@pytest.fixture
def manager(cluster):
    """systemd's manager of root, who lingers."""
    head = cluster.head
    if not os.path.exists(SYSTEMD) or not shutil.which("systemd-run") or head.cgroup_dir is None:
        pytest.skip("needs systemd and cgroup v2")
    head.run(["sh", "-ec", "mkdir -p /run/systemd/system /run/user/0; chmod 700 /run/user/0; mkdir -p /var/lib/systemd; "
                           "mount -t tmpfs tmpfs /var/lib/systemd; mkdir /var/lib/systemd/linger; "
                           "touch /var/lib/systemd/linger/root"])
    log = head.base / "manager.log"
    with open(log, "wb") as to:
        process = head.popen([SYSTEMD, "--user"], env=MANAGER, stdin=subprocess.DEVNULL, stdout=to, stderr=to)
    private = head.path("/run/user/0/systemd/private")
    wait_until(lambda: private.exists(), 60, lambda: log.read_text(errors="replace"))
    yield lambda *words: head.run(["systemctl", "--user", *words], env=MANAGER, check=False).stdout
    process.terminate()
    process.wait(60)
    head.run(["sh", "-ec", "umount /var/lib/systemd; rm -rf /run/systemd /run/user"])
    # It has moved the host's process 1 into a cgroup of its own, which stays.
    head.run(["sh", "-ec", "cd /sys/fs/cgroup; for pid in $(cat init.scope/cgroup.procs); do echo $pid >cgroup.procs; done; "
                           "for each in init.scope app.slice; do [ ! -d $each ] || rmdir $each; done"])
    log.unlink()


def units(manager):
    return [line.split()[0] for line in manager("list-units", "--all", "--plain", "--no-legend", "dtrain-*").splitlines()]


def test_systemd_starts_a_killed_launcher_again(cluster, residents, ended, manager):  # noqa: F811
    result = cluster.launch(["-d", *FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    assert result.code == 0, result
    job = Job(cluster, result.out.strip())
    unit = f"{job.id}.service"
    assert f"dtrain: supervised by systemd unit {unit}: " in result.err, (result, job.log)
    assert units(manager) == [unit] and job.minder is None
    assert json.loads(run(cluster, "show", "--json", job.id).stdout)["supervisor"] == {
        "kind": "systemd", "unit": unit, "host": "head"}
    before = all_workers(cluster)
    for kill in range(2):
        kill_and_wait(job, kill + 2)
        at = len(job.output(3))
        wait_until(lambda: len(job.output(3)) > at + 100, 60, lambda: job.log)
        assert all_workers(cluster) == before
    assert job.holder["unit"] == unit and job.minder is None
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44, job.log
    check_output(job, job.summary["verdict"]["first_failed_rank"])
    wait_until(lambda: units(manager) == [], 60, lambda: manager("status", unit))


def test_systemd_gives_up_too_and_a_stopped_unit_is_no_stopped_job(cluster, residents, ended, manager):  # noqa: F811
    job = counting(cluster)
    before = all_workers(cluster)
    for kill in range(5):
        kill_and_wait(job, kill + 2)
    os.kill(job.launcher, signal.SIGKILL)
    wait_until(lambda: units(manager) == [], 60, lambda: manager("status"))
    assert job.launcher is None and all_workers(cluster) == before
    waits = run(cluster, "wait", "--timeout", "1s", job.id, check=False)
    assert waits.returncode == 210 and "started a new one" in waits.stderr, waits
    assert units(manager) == [f"{job.id}.service"] and all_workers(cluster) == before
    manager("stop", f"{job.id}.service")
    wait_until(lambda: job.launcher is None and units(manager) == [], 60, lambda: manager("status"))
    assert job.summary is None and all_workers(cluster) == before
    assert job.stop().returncode == 0
    assert job.wait(60)["exit_code"] == 143 and not any(all_workers(cluster))


def test_systemd_does_not_start_again_what_ends_by_itself(cluster, residents, ended, manager):  # noqa: F811
    job = counting(cluster)
    spec = (job.folder / "spec").read_bytes()
    (job.folder / "spec").write_bytes(b"\xff" * 20)
    os.kill(job.launcher, signal.SIGKILL)
    wait_until(lambda: "spec is damaged" in job.log and units(manager) == [], 60, lambda: job.log)
    assert job.log.count("spec is damaged") == 1 and job.launcher is None
    (job.folder / "spec").write_bytes(spec)
    assert job.stop().returncode == 0
    assert job.wait(60)["exit_code"] == 143 and not any(all_workers(cluster))


# What systemd-run says of it is in the log, and the job has a launcher all the same.
def test_without_an_answer_of_the_manager_there_is_a_minder(cluster, residents, ended, manager):  # noqa: F811
    job_of_that_name = ["systemd-run", "--user", "--quiet", "--property=Type=exec", "--", "/no/such/program"]
    assert cluster.head.run(job_of_that_name, env=MANAGER, check=False).returncode != 0
    manager("stop", "dbus.socket", "dbus.service")  # the second way to it, which may be there already
    cluster.head.path("/run/user/0/bus").unlink(missing_ok=True)
    private = cluster.head.path("/run/user/0/systemd/private")
    private.rename(private.with_name("gone"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(private))  # nobody listens
    job = counting(cluster)
    assert job.minder and "systemd-run has not started" in job.log, job.log
    listener.close()
    private.unlink()
    private.with_name("gone").rename(private)
    ended()
    job.wait(60)


# ---- logins -------------------------------------------------------------------------------------


# As logind does it with KillUserProcesses=yes.
def test_a_logout_ends_the_session_and_no_job(cluster, residents, ended, manager):  # noqa: F811
    head = cluster.head
    session = head.cgroup_dir / "session-3.scope"
    session.mkdir()
    head.run(["sh", "-ec", "mkdir -p /run/systemd/logind.conf.d; "
                           "printf '[Login]\nKillUserProcesses=yes\n' >/run/systemd/logind.conf.d/90.conf"])
    in_session = ["sh", "-c", 'echo $$ >/sys/fs/cgroup/session-3.scope/cgroup.procs; exec "$@"', "sh"]
    shell = head.popen([*in_session, "sleep", "1000"])
    try:
        launched = head.run([*in_session, cluster.programs / "dtrain", "launch", "-d", *FLAGS, *cluster.hosts_flag(1), "-x",
                             "CODE=40", "--", *COUNTS], env=MANAGER)
        job = Job(cluster, launched.stdout.strip())
        assert units(manager) == [f"{job.id}.service"], (launched, job.log)
        wait_until(lambda: all(job.output(rank) for rank in range(4)), 60, lambda: job.log)
        before, launcher = all_workers(cluster), job.launcher
        (session / "cgroup.kill").write_text("1")
        assert shell.wait(10) == -signal.SIGKILL
        wait_until(lambda: "populated 0" in (session / "cgroup.events").read_text(), 10, "the session lives")
        at = len(job.output(3))
        wait_until(lambda: len(job.output(3)) > at + 100, 60, lambda: job.log)
        assert all_workers(cluster) == before and job.launcher == launcher, job.log
        ended()
        assert 40 <= job.wait(60)["exit_code"] < 44, job.log
        check_output(job, job.summary["verdict"]["first_failed_rank"])
        wait_until(lambda: units(manager) == [], 60, lambda: manager("status", f"{job.id}.service"))
    finally:
        session.rmdir()


def test_a_launch_that_a_logout_would_end_is_refused(cluster):
    head = cluster.head
    if head.cgroup_dir is None:
        pytest.skip("needs cgroup v2")
    head.run(["sh", "-ec", "mkdir -p /run/systemd/system /run/systemd/logind.conf.d; mkdir -m 777 /tmp/state; "
                           "printf '[Login]\\nKillUserProcesses=yes\\n' >/run/systemd/logind.conf.d/90.conf; "
                           "chown daemon /tmp/state; mkdir /sys/fs/cgroup/session-3.scope"])
    launch_as_daemon = (f"exec setpriv --reuid=daemon --regid=daemon --clear-groups env HOME=/tmp/state XDG_STATE_HOME=/tmp/state "
                        f"{cluster.programs}/dtrain launch -d -np 1 -- true")
    try:
        refused = head.run(["sh", "-c", "echo $$ >/sys/fs/cgroup/session-3.scope/cgroup.procs; " + launch_as_daemon],
                           check=False)
        assert refused.returncode == 200 and refused.stdout == "", refused
        assert ("ends your processes when you log out (KillUserProcesses=yes in /run/systemd/logind.conf.d/90.conf)"
                in refused.stderr and "loginctl enable-linger" in refused.stderr), refused
        assert not list((head.base / "tmp/state").iterdir()), "a job was made"
        # Elsewhere, as a service, it does not concern it.
        other = head.run(["sh", "-c", launch_as_daemon], check=False)
        assert "log out" not in other.stderr, other
    finally:
        head.run(["sh", "-c", "rm -rf /run/systemd /tmp/state; rmdir /sys/fs/cgroup/session-3.scope"])
