# SPDX-License-Identifier: Apache-2.0
"""--stage: the files of a directory are on every host before workers start, what a host lacks travels, and nothing
stays when the job has ended, however it ends."""
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

import detached
import leftovers
from launching import wait_until
from residents import Resident
from test_resident import shepherds

SHOW = ["sh", "-c", 'echo "$RANK $(cat train.py) $(cat lib/model.py) $(readlink link) $(test -x run.sh && echo x) $PWD"']


def home(host):
    return host.base / "root"


def trees(host):
    return [path for path in (home(host) / ".cache/dtrain/stage/trees").glob("*/*")]


def objects(host):
    return [path for path in (home(host) / ".cache/dtrain/stage/objects").glob("*/*")]


def bridges(host):
    return [pid for pid, _, line in leftovers.processes(host) if "dtrain-agent bridge" in line]


def forget(cluster):
    for host in [cluster.head, *cluster.nodes]:
        shutil.rmtree(home(host) / ".cache/dtrain/stage", ignore_errors=True)


@pytest.fixture
def code(cluster):
    """On the launcher's host alone; elsewhere its path does not exist."""
    forget(cluster)
    folder = home(cluster.head) / "code"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("one")
    (folder / "lib/model.py").write_text("two")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("lib/model.py")
    yield folder
    for host in cluster.nodes:
        assert trees(host) == [], host.name
    shutil.rmtree(folder)
    forget(cluster)


def launch(cluster, *words, flags=(), **options):
    return cluster.launch(["--stage", "/root/code", *flags, *cluster.hosts_flag(1), "--", *words], **options)


def line_of(result):
    lines = [line for line in result.err.splitlines() if line.startswith("dtrain: code ")]
    assert len(lines) == 1, result
    return lines[0]


def test_all_hosts_have_all_files_and_a_change_costs_one(cluster, code):
    result = launch(cluster, *SHOW)
    assert result.code == 0, result
    for rank in range(4):
        assert re.search(rf"{rank} one two lib/model.py x /root/\.cache/dtrain/stage/trees/", result.out), result
    assert re.fullmatch(r"dtrain: code [0-9a-f]{12}: 4 files, \d+ bytes; 3 files sent to 4 hosts in \d+\.\d s",
                        line_of(result)), result
    result = launch(cluster, *SHOW)
    assert "; on all hosts, checked in" in line_of(result), result
    (code / "train.py").write_text("three")
    result = launch(cluster, *SHOW)
    assert result.code == 0 and "0 three two" in result.out, result
    assert "; 1 file sent to 4 hosts in" in line_of(result), result


def test_over_resident_agents_and_in_the_result(cluster, code):
    residents = [Resident(host).start() for host in cluster.nodes]
    try:
        result = launch(cluster, *SHOW, flags=["--result-json", "/root/code.json"])
    finally:
        for resident in residents:
            resident.stop()
    assert result.code == 0 and result.out.count(" one two ") == 4, result
    file = home(cluster.head) / "code.json"
    written = json.loads(file.read_text())["code"]
    file.unlink()
    assert written["files"] == 4 and written["sha256"].startswith(line_of(result)[13:25]), written


def test_the_working_directory_is_the_same_part_of_the_tree(cluster, code):
    result = launch(cluster, "sh", "-c", "cat model.py; cat ../train.py", cwd="/root/code/lib")
    assert result.code == 0 and result.out.count("twoone") == 4, result


def test_what_is_refused_names_itself_and_reaches_no_host(cluster, code):
    (code / "out").symlink_to("../../etc")
    result = launch(cluster, "true")
    assert result.code == 2 and "out is a symbolic link out of the tree (to ../../etc)" in result.err, result
    assert all(objects(host) == [] for host in cluster.nodes)
    (code / "out").unlink()
    os.mkfifo(code / "pipe")
    result = launch(cluster, "true")
    assert result.code == 2 and "pipe is neither a file nor a symbolic link" in result.err, result
    result = launch(cluster, "true", flags=["--stage-exclude", "pipe"])
    assert result.code == 0, result
    result = launch(cluster, "true", flags=["--stage-exclude", "pipe", "--stage-limit", "4"])
    assert result.code == 2 and "The biggest are:" in result.err, result


def test_a_damaged_store_heals(cluster, code):
    assert launch(cluster, "true").code == 0
    for path in objects(cluster.nodes[1]):
        path.chmod(0o600)
        path.write_text("damage")
    result = launch(cluster, *SHOW)
    assert result.code == 0 and "1 one two " in result.out, result
    assert "3 files sent to 1 host in" in line_of(result), result


def test_a_host_that_cannot_take_it_ends_the_launch(cluster, code):
    place = home(cluster.nodes[2]) / ".cache/dtrain/stage"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("no folder")
    try:
        result = launch(cluster, "touch", "/root/started")
        assert result.code == 200 and "node2: cannot stage the code: " in result.err, result
        assert not any((home(host) / "started").exists() for host in cluster.nodes)
    finally:
        place.unlink()


def test_what_workers_write_stays_out_of_the_store_and_goes_with_the_job(cluster, code):
    result = launch(cluster, "sh", "-c", "echo worse >train.py; mkdir -p a/b; echo x >a/b/c; exit 3")
    assert result.code == 3, result
    result = launch(cluster, *SHOW)
    assert "; on all hosts, checked in" in line_of(result) and "2 one two" in result.out, result


def test_copies_may_be_kept(cluster, code):
    result = launch(cluster, "sh", "-c", "echo made > new", flags=["--stage-keep"])
    assert result.code == 0, result
    named = re.findall(r"(/root/\.cache/dtrain/stage/trees/\*/(kept-dtrain-\w+-0)) ", result.err)
    assert len(named) == 1 and "rm -r" in result.err, result
    [(path, name)] = named
    # Neither the next job nor a look for leftovers takes them for what a dead one has left.
    assert launch(cluster, "true").code == 0
    for host in cluster.nodes:
        host.run([cluster.programs / "dtrain-agent", "reap"])
        [kept] = trees(host)
        assert kept.name == name and (kept / "new").read_text() == "made\n" and (kept / "train.py").exists(), host.name
    # Old ones go, and those that the user removes.
    gone, *others = cluster.nodes
    gone.run(["sh", "-c", f"rm -r {path}"])
    assert trees(gone) == []
    for host in others:
        [kept] = trees(host)
        month = 31 * 86400
        os.utime(kept, (kept.stat().st_atime - month, kept.stat().st_mtime - month))
    assert launch(cluster, "true").code == 0
    assert all(trees(host) == [] for host in others)
    result = cluster.launch(["--stage-keep", *cluster.hosts_flag(1), "--", "true"])
    assert result.code == 2 and "--stage-keep requires --stage DIR" in result.err, result


def test_restarts_have_the_same_code_also_after_it_has_changed(cluster, code):
    script = "cat train.py; echo; test $DTRAIN_ATTEMPT = 1 && exit 0; while ! test -e /root/go; do sleep 0.1; done; exit 1"
    launcher = cluster.start_launch(["--stage", "/root/code", "--max-restarts", 1, "--backoff", "10ms", *cluster.hosts_flag(1),
                              "--", "sh", "-c", script])
    launcher.wait_for("one", count=4)
    (code / "train.py").write_text("changed")
    for host in cluster.nodes:
        shutil.rmtree(home(host) / ".cache/dtrain/stage/objects")
        (home(host) / "go").touch()
    try:
        result = launcher.wait()
    finally:
        for host in cluster.nodes:
            (home(host) / "go").unlink()
    assert result.code == 0 and "changed" not in result.out and "3 files sent to 4 hosts" in result.err, result


def test_two_jobs_at_once(cluster, code):
    one = cluster.start_launch(["--stage", "/root/code", *cluster.hosts_flag(1), "--", *SHOW])
    two = cluster.start_launch(["--stage", "/root/code", *cluster.hosts_flag(1), "--", *SHOW])
    for launcher in (one, two):
        result = launcher.wait()
        assert result.code == 0 and result.out.count(" one two ") == 4, result


@pytest.mark.parametrize("who", ["shepherd", "agent"])
def test_killed_while_it_stages_leaves_nothing(cluster, code, who):
    (code / "big").write_bytes(os.urandom(80 << 20))
    host = cluster.nodes[1]
    launcher = cluster.start_launch(["--lease", "3s", "--grace", "1s", "--stage", "/root/code", *cluster.hosts_flag(1), "--",
                                     "true"])
    wait_until(lambda: trees(host), 60, "no tree")
    for pid in {"shepherd": shepherds, "agent": bridges}[who](host):
        os.kill(pid, signal.SIGKILL)
    result = launcher.wait()
    # It is as if that host had never come.
    assert result.code == 0 and re.search("node1: .*the start begins again and waits for that host", result.err), result
    wait_until(lambda: not trees(host), 20, lambda: trees(host))


# ---- without a terminal --------------------------------------------------------------------------


@pytest.mark.launcher_killed
def test_a_detached_job_has_its_code_whoever_launches_it(cluster, code):
    """A restart by the second launcher, when neither the directory nor the hosts' stores have the code any more."""
    script = ("cat train.py; test $DTRAIN_ATTEMPT = 1 && while ! test -e /root/end; do sleep 0.1; done; "
              "test $DTRAIN_ATTEMPT = 1 && exit 0; while ! test -e /root/go; do sleep 0.1; done; exit 1")
    residents = [Resident(host).start() for host in cluster.nodes]
    job = None
    try:
        job = detached.launch(cluster, ["--stage", "/root/code", "--max-restarts", 1, "--backoff", "10ms",
                                        *cluster.hosts_flag(1), "--", "sh", "-c", script])
        (code / "train.py").write_text("changed")
        for host in cluster.nodes:
            shutil.rmtree(home(host) / ".cache/dtrain/stage/objects")
        job.kill_launcher()
        job.start_launcher()
        wait_until(lambda: job.holder.get("generation") == 2 and job.holder["stage"] == "runs", 20, lambda: job.log)
        assert (job.folder / "code.contents").exists()
        for host in cluster.nodes:
            (home(host) / "go").touch()
        wait_until(lambda: all(job.output(rank, attempt=1) == b"one" for rank in range(4)), 30, lambda: job.log)
        for host in cluster.nodes:
            (home(host) / "end").touch()
        summary = job.wait(30)
        assert summary["exit_code"] == 0 and summary["code"]["files"] == 4, summary
        assert not (job.folder / "code.contents").exists()
    finally:
        if job and not job.summary:
            job.stop()
        for resident in residents:
            resident.stop()
        for host in cluster.nodes:
            for name in ("go", "end"):
                (home(host) / name).unlink(missing_ok=True)


def test_what_cannot_be_staged_is_no_job(cluster, code):
    os.mkfifo(code / "pipe")
    result = cluster.launch(["-d", "--stage", "/root/code", *cluster.hosts_flag(1), "--", "true"])
    assert result.code != 0 and "pipe is neither a file nor a symbolic link" in result.err, result
    assert cluster.head.run([cluster.programs / "dtrain", "ps"]).stdout == "no jobs\n"


# ---- --verify-code -------------------------------------------------------------------------------


@pytest.fixture
def copies(cluster, code):
    """On all hosts, as of a file server."""
    for host in cluster.nodes:
        shutil.copytree(code, home(host) / "code", symlinks=True)
    yield [home(host) / "code" for host in cluster.nodes]
    for host in cluster.nodes:
        shutil.rmtree(home(host) / "code")


def test_hosts_with_the_same_code_start(cluster, code, copies):
    (copies[2] / "cache").write_text("of its own")
    result = cluster.launch(["--verify-code", "/root/code", *cluster.hosts_flag(1), "--", "sh", "-c", "cat train.py; pwd"],
                            cwd="/root/code")
    assert result.code == 0 and result.out.count("one/root/code\n") == 4, result
    assert "4 files" in line_of(result) and "; on all hosts, checked in" in line_of(result), result
    assert all(objects(host) == [] for host in cluster.nodes)


def test_a_host_with_other_code_starts_nothing_anywhere(cluster, code, copies):
    (copies[1] / "train.py").write_text("two")
    (copies[3] / "lib/model.py").unlink()
    result = cluster.launch(["--verify-code", "/root/code", *cluster.hosts_flag(1), "--", "touch", "/root/started"])
    assert result.code == 200, result
    assert re.search(r"node1: --verify-code: /root/code differs from the one on the launching host: "
                     r"train.py is [0-9a-f]{8}, should be [0-9a-f]{8}", result.err), result
    assert "node3: --verify-code: " in result.err and "lib/model.py is missing" in result.err, result
    assert not any((home(host) / "started").exists() for host in cluster.nodes)


def test_a_host_with_other_code_may_only_be_warned_of(cluster, code, copies):
    (copies[1] / "train.py").write_text("two")
    result = cluster.launch(["--verify-code", "/root/code", "--verify-code-warn", *cluster.hosts_flag(1), "--", "cat", "train.py"],
                            cwd="/root/code")
    assert result.code == 0 and result.out.count("one") == 3 and "two" in result.out, result
    assert re.search(r"node1: --verify-code: /root/code differs from the one on the launching host: "
                     r"train.py is [0-9a-f]{8}, should be [0-9a-f]{8}", result.err), result
    assert "compared on all hosts in" in line_of(result) and "; on all hosts, checked" not in result.err, result


def test_one_flag_of_the_two(cluster, code):
    result = cluster.launch(["--verify-code-warn", *cluster.hosts_flag(1), "--", "true"])
    assert result.code == 2 and "--verify-code-warn requires --verify-code DIR" in result.err, result
    result = cluster.launch(["--verify-code", "/root/code", "--stage", "/root/code", *cluster.hosts_flag(1), "--", "true"])
    assert result.code == 2 and "give one of the two" in result.err, result
    result = cluster.launch(["--verify-code", "/root/none", *cluster.hosts_flag(1), "--", "true"])
    assert result.code == 2 and "--verify-code /root/none: it is not a directory" in result.err, result


@pytest.mark.launcher_killed
def test_a_launcher_that_is_killed_while_it_stages(cluster, code):
    """The next one begins the attempt again, with the code that the first had read."""
    (code / "big").write_bytes(os.urandom(40 << 20))
    residents = [Resident(host).start() for host in cluster.nodes]
    try:
        launcher = cluster.start_launch(["-d", "--stage", "/root/code", *cluster.hosts_flag(1), "--", "cat", "train.py"])
        wait_until(lambda: all(trees(host) for host in cluster.nodes), 30, "no trees")
        [(pid, _)] = detached.launchers(cluster.head)
        (code / "train.py").write_text("changed")
        os.kill(pid, signal.SIGKILL)
        result = launcher.wait()
        assert result.code == 0, result
        job = detached.Job(cluster, result.out.strip())
        assert job.wait(30)["exit_code"] == 0 and "killed by signal 9: starting it again" in job.log, job.log
        assert [job.output(rank) for rank in range(4)] == [b"one"] * 4
    finally:
        for resident in residents:
            resident.stop()
