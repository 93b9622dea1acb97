# SPDX-License-Identifier: Apache-2.0
"""`dtrain detach`: a job that was launched from a terminal goes on without it."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time

import leftovers
import pytest
from detached import Job
from launching import Launch, read_all, wait_until
from test_detached import COUNTS, all_workers, check_output, ended, launch, private, residents, state  # noqa: F401

FLAGS = ["--lease", "3s", "--grace", "1s"]
STILL_RUNNING = 210


def begin(cluster, args, **options):
    """A launch in the foreground whose workers all run, and its job."""
    launched = cluster.start_launch(args, **options)
    found = []

    def running():
        told = dtrain(cluster, "ps", "--json")
        found[:] = [each for each in json.loads(told.stdout)["jobs"] if each["phase"] == "run"]
        return found or launched.process.poll() is not None
    wait_until(running, 60, lambda: launched.err)
    assert len(found) == 1, launched.err
    return launched, Job(cluster, found[0]["id"])


def dtrain(cluster, *words, check=True):
    return cluster.head.run([cluster.programs / "dtrain", *words], check=check)


def lines_of(rank, text):
    """What the terminal has of a rank."""
    return [line.split("] ", 1)[1] for line in text.splitlines() if line.startswith(f"[{rank}] ")]


def test_the_terminal_is_given_back_and_the_job_goes_on(cluster, residents, ended):  # noqa: F811
    launched, job = begin(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    for rank in range(4):
        launched.wait_for(f"[{rank}] {rank}:20\n")
    before = all_workers(cluster)
    assert all(len(of) == 1 for of in before) and not job.folder.exists()
    told = dtrain(cluster, "detach", job.id[:12])
    assert told.stdout == f"{job.id} goes on without its terminal\n" and told.stderr == "", told
    result = launched.wait(60)
    assert result.code == STILL_RUNNING, result
    assert re.search(rf"^dtrain: detached, and supervised by minder, process \d+: {job.id} goes on; "
                     rf"`dtrain attach {job.id}` shows it, `dtrain stop {job.id}` ends it$", result.err, re.M), result
    assert all_workers(cluster) == before and job.minder and job.launcher
    # What is kept goes on exactly where the terminal ended, and has what it showed.
    shown = {rank: lines_of(rank, result.out) for rank in range(4)}
    wait_until(lambda: all(len(job.output(rank).splitlines()) > len(shown[rank]) + 20 for rank in range(4)), 60,
               lambda: job.log)
    assert "dtrain: " not in job.log.replace("dtrain: warning: ", ""), job.log
    attached = Launch(cluster.head, [cluster.programs / "dtrain", "attach", job.id])
    attached.wait_for("[2] 2:", stream="out")
    ended()
    left = attached.wait(60)
    assert 40 <= left.code < 44 and left.err.count(" exited with code 4") == 1, left.err
    assert 40 <= job.wait(60)["exit_code"] < 44, job.log
    assert all_workers(cluster) == [[], [], [], []]
    check_output(job, job.summary["verdict"]["first_failed_rank"])
    for rank in range(4):
        kept = job.output(rank).decode().splitlines()
        assert len(shown[rank]) > 20 and kept[:len(shown[rank])] == shown[rank]
    assert job.id in dtrain(cluster, "history").stdout
    again = dtrain(cluster, "detach", job.id, check=False)
    assert again.returncode == 1 and "is a detached job already" in again.stderr, again


# A shell whose terminal closes sends SIGHUP; the launcher of the job is not there any more to get it.
@pytest.mark.launcher_killed
def test_its_launcher_is_one_like_any_other(cluster, residents, ended):  # noqa: F811
    launched, job = begin(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    dtrain(cluster, "detach")
    launched.wait(60)
    os.kill(job.launcher, signal.SIGKILL)
    wait_until(lambda: job.holder.get("generation") == 3, 60, lambda: job.log)
    at = {rank: len(job.output(rank)) for rank in range(4)}
    wait_until(lambda: all(len(job.output(rank)) > at[rank] + 150 for rank in range(4)), 60, lambda: job.log)
    assert all_workers(cluster) == before
    assert job.stop().returncode == 0
    assert job.wait(60)["exit_code"] == 143 and not any(all_workers(cluster))
    for rank in range(4):
        lines = job.output(rank).decode().splitlines()[1:]
        assert len(lines) > 20 and lines == [f"{rank}:{i}" for i in range(1, len(lines) + 1)], lines


# Whoever reads it learns that nobody can type any more.
def test_stdin_ends(cluster, residents):  # noqa: F811
    reader, writer = os.pipe()
    launched, job = begin(cluster, [*FLAGS, *cluster.hosts_flag(1), "--", "sh", "-c", "cat; echo over; exec sleep 600"],
                          stdin=reader)
    os.close(reader)
    os.write(writer, b"typed\n")
    launched.wait_for("[0] typed\n")
    assert lines_of(0, launched.out) == ["typed"]
    dtrain(cluster, "detach")
    assert launched.wait(60).code == STILL_RUNNING
    os.close(writer)
    wait_until(lambda: job.output(0) == b"typed\nover\n", 60, lambda: job.output(0))
    assert job.stop().returncode == 0


def test_restarts_and_log_files_go_on(cluster, residents, ended):  # noqa: F811
    # The first attempt fails before it is detached, the second after that.
    fails = ["sh", "-c", 'echo "up $RANK $DTRAIN_ATTEMPT $TORCHELASTIC_RESTART_COUNT"; '
                         '[ "$DTRAIN_ATTEMPT" = 0 ] && { [ "$RANK" = 1 ] && exit 7; exec sleep 600; }; '
                         '[ "$DTRAIN_ATTEMPT" = 1 ] && { while [ ! -e /tmp/end-of-test ]; do sleep 0.05; done; exit 9; }; '
                         'exit 0']
    folder = cluster.work()
    launched = cluster.start_launch([*FLAGS, "--max-restarts", 2, "--backoff", "0s:1s", "--log-dir", "work/logs",
                                     "--result-json", "work/result.json", *cluster.hosts_flag(1), "--", *fails])
    launched.wait_for("up 0 1 1", timeout=30)
    launched.wait_for("up 3 1 1")
    told = dtrain(cluster, "detach", "--json")
    job = Job(cluster, json.loads(told.stdout)["id"])
    assert json.loads(told.stdout)["detached"] is True and launched.wait(60).code == STILL_RUNNING
    ended()
    summary = job.wait(40)
    assert summary["exit_code"] == 0, job.log
    assert json.loads((folder / "result.json").read_text())["exit_code"] == 0  # not in /work, where its launcher is
    shown = json.loads(dtrain(cluster, "show", "--json", job.id).stdout)
    assert [each["attempt"] for each in shown["attempts"]][:2] == [0, 1], shown["attempts"]
    assert "code 7" in shown["attempts"][0]["cause"] and "code 9" in shown["attempts"][1]["cause"], shown["attempts"]
    assert [each["restart_counts"] for each in shown["attempts"][:2]] == [True, True], shown["attempts"]
    assert job.output(2, attempt=2) == b"up 2 2 2\n" and job.output(2, attempt=1) == b"up 2 1 1\n"
    for rank in range(4):
        kept = (folder / f"logs/rank-{rank:05}.out").read_text()
        # Others may have been ended before they wrote anything, by the failure of rank 1.
        assert kept.removeprefix(f"up {rank} 0 0\n") == f"up {rank} 1 1\nup {rank} 2 2\n", kept
        assert rank != 1 or kept.startswith("up 1 0 0\n"), kept


def test_what_log_files_lack_is_reported_by_the_next_launcher(cluster, residents, ended):  # noqa: F811
    host, until = cluster.nodes[0], "until [ -e /tmp/%s-of-test ]; do sleep 0.05; done; echo %s; "
    launched, job = begin(cluster, [*FLAGS, "--log-dir", "work/lost", *cluster.hosts_flag(1, [host]), "--", "sh", "-c",
                                    until % ("lose", "lost") + until % ("end", "end")])
    file = cluster.work() / "lost/rank-00000.out"
    file.mkdir()
    (host.base / "tmp/lose-of-test").touch()
    launched.wait_for("rank-00000.out: Is a directory; the log files", stream="err")
    file.rmdir()
    dtrain(cluster, "detach")
    assert launched.wait(60).code == STILL_RUNNING
    ended()
    assert job.wait(60)["exit_code"] == 207, job.log
    (host.base / "tmp/lose-of-test").unlink()
    assert file.read_text() == "end\n"
    assert "rank-00000.out lacks 5 bytes since" in job.log, job.log


# More than the launcher remembers of a rank. The terminal, or here the file, has it.
def test_output_that_was_only_shown_is_counted(cluster, residents, ended, tmp_path):  # noqa: F811
    size = 3 << 20
    with open(tmp_path / "shown", "wb+") as shown:
        launched, job = begin(cluster, [*FLAGS, *cluster.hosts_flag(1, cluster.nodes[:1]), "--", "sh", "-c",
                                        f"yes 0123456 | head -c {size}; echo much; while [ ! -e /tmp/end-of-test ]; do "
                                        "sleep 0.05; done; echo end"], stdout=shown)
        wait_until(lambda: b"much\n" in read_all(shown), 60, lambda: launched.err)
        dtrain(cluster, "detach")
        assert launched.wait(60).code == STILL_RUNNING
        assert read_all(shown) == b"0123456\n" * (size // 8) + b"much\n"
    ended()
    assert job.wait(60)["exit_code"] == 0
    segments = sorted((job.folder / "logs/0").glob("rank-00000.out.*"))
    text = b"".join(path.read_bytes() for path in segments)
    first = int(segments[0].name.rpartition(".")[2])
    assert first > 0 and first + len(text) == size + len("much\nend\n"), [path.name for path in segments]
    assert text.endswith(b"0123456\nmuch\nend\n")
    told = dtrain(cluster, "logs", job.id).stdout
    assert told.startswith(f"[dtrain: {first} bytes are no longer available]\n"), told[:200]


def test_staged_code_goes_on(cluster, residents, ended):  # noqa: F811
    folder = cluster.work() / "code"
    folder.mkdir()
    (folder / "train.sh").write_text('echo "$DTRAIN_ATTEMPT old"; while [ ! -e /tmp/end-of-test ]; do sleep 0.05; done; '
                                     '[ "$DTRAIN_ATTEMPT" = 1 ] || exit 5\n')
    for flags, code in (([], 5), (["--max-restarts", "1", "--backoff", "0s:1s"], 0)):
        launched, job = begin(cluster, [*FLAGS, *flags, "--stage", "/root/work/code", *cluster.hosts_flag(1), "--", "sh",
                                        "train.sh"])
        launched.wait_for("[3] 0 old")
        (folder / "train.sh").write_text('echo new\n')
        dtrain(cluster, "detach")
        assert launched.wait(60).code == STILL_RUNNING
        ended()
        assert job.wait(30)["exit_code"] == code, job.log
        if flags:
            assert job.output(3, attempt=1) == b"1 old\n", job.output(3, attempt=1)
        for host in cluster.nodes:
            (host.base / "tmp/end-of-test").unlink()
        (folder / "train.sh").write_text('echo "$DTRAIN_ATTEMPT old"; while [ ! -e /tmp/end-of-test ]; do sleep 0.05; '
                                         'done; [ "$DTRAIN_ATTEMPT" = 1 ] || exit 5\n')


# ---- Over ssh, without resident agents ----

def to_be_left(cluster):
    """Folders of jobs that bridges keep ready for a private agent."""
    return [path for host in cluster.nodes for path in (host.base / "root/.cache/dtrain").glob("run-*/keep-*/kept/*")]


def bridge_of(host):
    """The process id of the agent of the only job there."""
    bridge, = [pid for pid, _, line in leftovers.processes(host) if "dtrain-agent" in line and "bridge" in line]
    return bridge


# One host has a private agent already, which has to find the job beside its own.
def test_without_resident_agents(cluster, private, ended):  # noqa: F811
    launched, job = begin(cluster, [*FLAGS, "--bind", "none", *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    beside = launch(cluster, [*FLAGS, "--bind", "none", "-H", "node1:1", "-x", "CODE=0", "--", *COUNTS])
    assert len(private()) == 1
    for rank in range(4):
        launched.wait_for(f"[{rank}] {rank}:20\n")
    before = all_workers(cluster)
    dtrain(cluster, "detach", job.id)
    result = launched.wait(60)
    assert result.code == STILL_RUNNING, result
    wait_until(lambda: len(private()) == 4, 10, lambda: job.log)
    assert all_workers(cluster) == before and not to_be_left(cluster)
    shown = {rank: lines_of(rank, result.out) for rank in range(4)}
    wait_until(lambda: all(len(job.output(rank).splitlines()) > len(shown[rank]) + 20 for rank in range(4)), 60,
               lambda: job.log)
    assert all_workers(cluster) == before
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44, job.log
    check_output(job, job.summary["verdict"]["first_failed_rank"])
    assert beside.wait(60)["exit_code"] == 0
    check_output(beside, 0)


def holders(file):
    """Processes other than this one that have it open."""
    found = []
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                found.append(int(path.split("/")[2]))
        except OSError:
            pass  # it has just ended
    return sorted({*found} - {os.getpid()})


# What is on its way when the connection is cut is neither lost nor kept twice, and nothing of ours holds the terminal.
@pytest.mark.parametrize("where", [["-H", "node1:1,node2:1"], ["-np", "2"]], ids=["ssh", "local"])
def test_output_on_its_way(cluster, private, where):  # noqa: F811
    numbers = "import sys\nfor i in range(400000): print(i)\nprint('up', flush=True)\nsys.stdin.read()\n" \
              "for i in range(100000): print(i)"
    folder = cluster.work()
    launched, job = begin(cluster, ["--log-dir", "work/logs", "--bind", "none", *where, "--stdin", "all", "--",
                                    "/usr/bin/python3", "-c", numbers], stdin=subprocess.PIPE)
    dtrain(cluster, "detach", job.id)  # they are at it, and their stdin ends
    result = launched.wait(60)
    assert result.code == STILL_RUNNING, result
    assert holders(launched._err) == []
    assert job.wait(60)["exit_code"] == 0, job.log
    wanted = [*map(str, range(400000)), "up", *map(str, range(100000))]
    for rank in range(2):
        assert (folder / f"logs/rank-{rank:05}.out").read_text().splitlines() == wanted
    assert not to_be_left(cluster)


# It stands for a moment: that is neither the job's end nor in the way of another try.
def test_a_host_that_does_not_answer_in_time(cluster, private, ended):  # noqa: F811
    launched, job = begin(cluster, ["--grace", "1s", *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    bridge = bridge_of(cluster.nodes[2])
    os.kill(bridge, signal.SIGSTOP)
    try:
        refused(cluster, launched, "node2 did not say within 6 s")
    finally:
        os.kill(bridge, signal.SIGCONT)
    assert all_workers(cluster) == before
    dtrain(cluster, "detach", job.id)
    assert launched.wait(60).code == STILL_RUNNING
    assert all_workers(cluster) == before
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44, job.log


# Three hosts have said that they keep the job when the launcher is killed: nobody comes for it.
@pytest.mark.launcher_killed
def test_a_launcher_that_is_killed_before_it_hands_over(cluster, private):  # noqa: F811
    launched, job = begin(cluster, [*FLAGS, *cluster.hosts_flag(1), "--", "sleep", "600"])
    bridge = bridge_of(cluster.nodes[2])
    os.kill(bridge, signal.SIGSTOP)
    asker = Launch(cluster.head, [cluster.programs / "dtrain", "detach", job.id])
    try:
        wait_until(lambda: len(to_be_left(cluster)) == 3, 20, lambda: to_be_left(cluster))
        launched.process.kill()
        launched.process.wait(10)
    finally:
        os.kill(bridge, signal.SIGCONT)
    assert asker.wait(60).code == 1
    wait_until(lambda: not any("sleep" in line for host in cluster.nodes for line in names(host)), 60,
               lambda: [names(host) for host in cluster.nodes])


# A step ends with the command that srun started, and takes all its processes with it.
def test_in_a_slurm_step(cluster):
    launched, job = begin(cluster, ["-np", "2", "--", "sleep", "600"], env={"SLURM_STEP_ID": "0"})
    refused(cluster, launched, "Slurm ends all processes of a step", "install the resident agent there")
    assert not to_be_left(cluster)
    stopped(launched)


# ---- What cannot be, with the job as it was ----

def refused(cluster, launched, *text):
    told = dtrain(cluster, "detach", check=False)
    assert told.returncode == 1 and told.stdout == "", told
    for part in text:
        assert part in told.stderr, told.stderr
    assert launched.process.poll() is None
    return told


def stopped(launched):
    launched.signal(signal.SIGTERM)
    assert launched.wait(60).code == 143


def test_another_launchers_command_line(cluster, residents):  # noqa: F811
    launched = Launch(cluster.head, [cluster.programs / "dtrain", "mpirun", "-np", "2", "--host", "node0,node1",
                                     "sh", "-c", "echo up; exec sleep 600"])
    launched.wait_for("up\n", count=2)
    refused(cluster, launched, "only what `dtrain launch` has started can be detached")
    stopped(launched)


def test_while_it_starts_or_ends(cluster, residents):  # noqa: F811
    # A node that is connected to, and never answers.
    node = cluster.nodes[3]
    residents[3].signal(signal.SIGSTOP)
    launched = cluster.start_launch([*FLAGS, *cluster.hosts_flag(1), "--", "sleep", "600"])
    wait_until(lambda: json.loads(dtrain(cluster, "ps", "--json").stdout)["jobs"], 60, lambda: launched.err)
    refused(cluster, launched, "its workers do not run")
    residents[3].signal(signal.SIGCONT)
    wait_until(lambda: any("sleep" in line for line in names(node)), 60, lambda: launched.err)
    stopped(launched)


# As after Ctrl-Z.
@pytest.mark.parametrize("command", ["detach", "stop"])
def test_a_launcher_that_was_paused(cluster, residents, ended, command):  # noqa: F811
    launched, job = begin(cluster, ["--grace", "1s", *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    launched.signal(signal.SIGSTOP)
    try:
        told = Launch(cluster.head, [cluster.programs / "dtrain", command, job.id]).wait(30)
    finally:
        launched.signal(signal.SIGCONT)
    assert told.code == 0, told
    result = launched.wait(60)
    if command == "stop":
        assert result.code == 143 and not any(all_workers(cluster)), result
        return
    assert result.code == STILL_RUNNING and all_workers(cluster) == before, result
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44, job.log


def names(host):
    return [line for _, _, line in leftovers.processes(host)]


# Nobody loses a job to a folder that cannot be used.
def test_a_state_folder_that_cannot_be_used(cluster, residents, ended):  # noqa: F811
    launched, job = begin(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    place = job.folder.parent.parent
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o777)
    refused(cluster, launched, "dtrain", "others")
    place.chmod(0o700)
    # One that fails at the last moment: there is something else where the folder is to be.
    for folder in (place / "jobs", job.folder):
        folder.mkdir(mode=0o700)
    (job.folder / "x").touch()
    refused(cluster, launched, job.id)
    assert [path.name for path in (place / "jobs").iterdir()] == [job.id]
    shutil.rmtree(job.folder)
    assert launched.process.poll() is None and all_workers(cluster) == before
    dtrain(cluster, "detach")
    assert launched.wait(60).code == STILL_RUNNING
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44


# Ten programs start at once: none of them is so slow that the lease of FLAGS would run out.
def test_two_at_once(cluster, residents, ended):  # noqa: F811
    launched, job = begin(cluster, ["--grace", "1s", *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
    before = all_workers(cluster)
    askers = [Launch(cluster.head, [cluster.programs / "dtrain", "detach", job.id]) for _ in range(8)]
    results = [asker.wait(30) for asker in askers]
    assert [result.code for result in results].count(0) >= 1, results
    for result in results:
        assert result.code == 0 or re.search("already|being detached|no job|ended|cannot|connect|hear", result.err), result
    assert launched.wait(60).code == STILL_RUNNING and all_workers(cluster) == before
    ended()
    assert 40 <= job.wait(60)["exit_code"] < 44


# At whatever moment: the job is one or the other, and somebody can end it.
@pytest.mark.launcher_killed
def test_a_launcher_that_is_killed_while_it_hands_over(cluster, residents, ended):  # noqa: F811
    for moment in (0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12):
        launched, job = begin(cluster, [*FLAGS, *cluster.hosts_flag(1), "-x", "CODE=40", "--", *COUNTS])
        before = all_workers(cluster)
        asked = Launch(cluster.head, [cluster.programs / "dtrain", "detach", job.id])
        time.sleep(moment)
        launched.signal(signal.SIGKILL)
        launched.process.wait()
        told = asked.wait(50)
        detached = job.folder.exists()
        assert told.code in (0, 1) and (detached or told.code == 1), told
        if detached:
            attached = Launch(cluster.head, [cluster.programs / "dtrain", "attach", job.id])
            attached.wait_for("[1] 1:")
            assert all_workers(cluster) == before, job.log
            assert job.stop().returncode == 0
            assert attached.wait(60).code == 143 == job.wait(60)["exit_code"]
        wait_until(lambda: not any(all_workers(cluster)), 20, "workers live")
