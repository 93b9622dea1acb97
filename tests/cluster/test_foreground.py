# SPDX-License-Identifier: Apache-2.0
"""Jobs with a terminal in dtrain history, show, logs and rerun, as detached ones are."""
import json
import os
import re
import signal

import detached
import launching
import pytest
from launching import wait_until
from test_detached import residents  # noqa: F401


def dtrain(cluster, *words, check=True, **options):
    return cluster.head.run([cluster.programs / "dtrain", *words], check=check, **options)


def records(cluster):
    return json.loads(dtrain(cluster, "history", "--json", "--limit", "0").stdout)["jobs"]


@pytest.fixture(autouse=True)
def no_jobs(cluster):
    dtrain(cluster, "prune", "--keep-jobs", "0")
    yield
    dtrain(cluster, "prune", "--keep-jobs", "0")


def test_it_is_in_history_and_show_and_its_output_in_logs(cluster):
    script = ('echo "out $RANK"; if [ $RANK = 1 ]; then echo "it went wrong" >&2; exit 7; fi; '
              'exec sleep 600')
    result = cluster.launch(["-x", "WANDB_API_KEY=hush", *cluster.hosts_flag(1, cluster.nodes[:2]), "--", "sh", "-c", script])
    assert result.code == 7, result
    [job] = records(cluster)
    assert job["exit_code"] == 7 and job["command"][:3] == ["launch", "-x", "WANDB_API_KEY=***"], job
    assert job["id"] in dtrain(cluster, "history").stdout
    assert "exit 7" in dtrain(cluster, "ps", "-a").stdout
    told = dtrain(cluster, "show", job["id"]).stdout
    assert "ended, exit code 7" in told and "  | it went wrong\n" in told and "hush" not in told, told
    logs = dtrain(cluster, "logs", job["id"]).stdout
    assert logs == "[1] out 1\n[1 stderr] it went wrong\n[0] out 0\n", logs
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \[1\] out 1\n", dtrain(cluster, "logs", "-t", job["id"]).stdout)
    assert dtrain(cluster, "logs", "--since", "1h", "-r1", job["id"]).stdout == "out 1\n"
    attached = dtrain(cluster, "attach", job["id"], check=False)
    assert attached.returncode == 7 and "[0] out 0\n" in attached.stdout, attached
    assert dtrain(cluster, "wait", job["id"], check=False).returncode == 7
    folder = cluster.head.base / detached.STATE / "jobs" / job["id"]
    assert "journal" not in os.listdir(folder), os.listdir(folder)
    stopped = dtrain(cluster, "stop", job["id"], check=False)
    assert stopped.returncode == 1 and "has ended already" in stopped.stderr, stopped
    assert dtrain(cluster, "rm", job["id"]).returncode == 0
    assert records(cluster) == [] and not folder.exists()


# With what variables said then and not with those of now, where it was launched, and with a terminal again.
def test_it_is_launched_again(cluster):
    script = 'echo "$RANK of $WORLD_SIZE in $PWD with $WORD"'
    work = cluster.work()
    (work / "there").mkdir()
    first = cluster.launch(["-x", "WORD=hello", "--", "sh", "-c", script], cwd="/root/work/there",
                           env={"DTRAIN_NP": "2", "DTRAIN_TAG_OUTPUT": "host"})
    assert first.code == 0, first
    [job] = records(cluster)
    assert "DTRAIN_NP=2" in dtrain(cluster, "show", job["id"]).stdout
    again = dtrain(cluster, "rerun", job["id"], env={"DTRAIN_NP": "1", "DTRAIN_SHOW_RANKS": "0"})
    assert sorted(again.stdout.splitlines()) == sorted(first.out.splitlines()) and "with hello" in again.stdout, again
    assert len(records(cluster)) == 2


def test_other_launchers_words_are_launched_again(cluster):
    first = cluster.head.run([cluster.programs / "dtrain", "mpirun", "-np", "2", "-x", "A_TOKEN=x", "sh", "-c", 'echo "rank $RANK"'])
    [job] = records(cluster)
    assert job["command"][:5] == ["mpirun", "-np", "2", "-x", "A_TOKEN=***"], job
    again = dtrain(cluster, "rerun", job["id"])
    assert sorted(again.stdout.splitlines()) == sorted(first.stdout.splitlines()), again


def test_of_one_that_runs_its_status_is_shown_and_all_its_output(cluster):
    launched = cluster.start_launch([*cluster.hosts_flag(1, cluster.nodes[:2]), "--", "sh", "-c",
                                     'echo "out $RANK"; echo "err $RANK" >&2; while [ ! -e /tmp/end-of-test ]; do sleep 0.05; done; '
                                     'echo "end $RANK"'])
    for rank in (0, 1):
        launched.wait_for(f"[{rank}] out {rank}\n")
        launched.wait_for(f"[{rank}] err {rank}\n", stream="err")
    [running] = json.loads(dtrain(cluster, "ps", "--json").stdout)["jobs"]
    shown = dtrain(cluster, "show", running["id"]).stdout
    assert "2 running" in shown, shown
    assert records(cluster) == []
    for words in (["attach", running["id"]], ["wait", running["id"][:12]], ["rerun", running["id"]]):
        told = dtrain(cluster, *words, check=False)
        assert told.returncode == 1 and f"{running['id']} runs where it was launched; `dtrain logs -f " in told.stderr, told
    logs = dtrain(cluster, "logs").stdout
    assert sorted(logs.splitlines()) == ["[0 stderr] err 0", "[0] out 0", "[1 stderr] err 1", "[1] out 1"], logs
    assert dtrain(cluster, "logs", "--rank", "1").stdout == "out 1\n"
    assert re.fullmatch(r"\S{23} \[1 stderr\] err 1\n", dtrain(cluster, "logs", "-t", "--stream", "stderr").stdout.splitlines(True)[1])
    followed = launching.Launch(cluster.head, [cluster.programs / "dtrain", "logs", "-f", running["id"]])
    followed.wait_for("[1] out 1\n", stream="out")
    for node in cluster.nodes[:2]:
        (node.base / "tmp/end-of-test").touch()
    try:
        assert launched.wait(60).code == 0
        assert followed.wait(60).code == 0
        assert "[0] end 0\n" in followed.out and "[1] end 1\n" in followed.out, followed.out
    finally:
        for node in cluster.nodes[:2]:
            (node.base / "tmp/end-of-test").unlink()
    assert [job["exit_code"] for job in records(cluster)] == [0]


def test_followers_of_one_see_bars_and_prompts(cluster):
    script = 'if [ $RANK = 0 ]; then printf "\\r10%%"; else printf "name? "; fi; exec sleep 600'
    launched = cluster.start_launch(["--grace", "1s", *cluster.hosts_flag(1, cluster.nodes[:2]), "--", "sh", "-c", script])
    shown = ("[0] 10%\n", "[1] name? ")
    for text in shown:
        launched.wait_for(text)
    followed = launching.Launch(cluster.head, [cluster.programs / "dtrain", "logs", "-f"])
    for text in shown:
        followed.wait_for(text)
    launched.signal(signal.SIGTERM)
    assert launched.wait(60).code == 143
    assert followed.wait(60).code == 0


@pytest.mark.launcher_killed
def test_followers_of_one_whose_launcher_is_killed_learn_it(cluster):
    launched = cluster.start_launch(["-np", "1", "--", "sh", "-c", "echo up; exec sleep 600"])
    launched.wait_for("up\n")
    followed = launching.Launch(cluster.head, [cluster.programs / "dtrain", "logs", "-f"])
    followed.wait_for("up\n")
    launched.process.kill()
    told = followed.wait(20)
    assert told.code == 1 and "was killed; its workers end with it" in told.err, told
    launched.process.wait(20)
    assert records(cluster) == []


# [history] holds for them, too, and many may end at once.
def test_many_end_at_once_and_no_more_than_asked_for_are_kept(cluster):
    config = cluster.head.base / "root/.config/dtrain/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    launches = [cluster.start_launch(["-np", "1", "--oversubscribe", "--", "true"]) for _ in range(6)]
    assert [each.wait(60).code for each in launches] == [0] * 6
    assert len(records(cluster)) == 6
    try:
        config.write_text("[history]\njobs = 2\n")
        assert cluster.launch(["-np", "1", "--", "true"]).code == 0
        assert len(records(cluster)) == 2
    finally:
        config.unlink()
        config.parent.rmdir()
        config.parent.parent.rmdir()


@pytest.mark.parametrize("spoil", ["a file instead", "others may write"])
def test_without_a_state_folder_a_launch_is_as_it_was(cluster, spoil):
    state = cluster.head.base / "root/.local/state/dtrain"
    aside = state.with_name("aside")
    state.rename(aside)
    try:
        if spoil == "a file instead":
            state.write_text("")
        else:
            state.mkdir()
            state.chmod(0o777)
        result = cluster.launch(["-np", "1", "--", "true"])
        assert (result.code, result.out, result.err) == (0, "", ""), result
        result = cluster.launch(["-v", "-np", "1", "--", "true"])
        assert result.code == 0 and "dtrain: the job is not in dtrain history: " in result.err, result
    finally:
        state.unlink() if state.is_file() else os.rmdir(state)
        aside.rename(state)


def test_a_hanging_on_end_is_ended(cluster):
    result = cluster.launch(["-np", "1", "--on-end", "sleep 600; true", "--on-end-timeout", "1s", "--", "true"])
    assert result.code == 0, result
    assert "dtrain: warning: --on-end has not ended within 1s (--on-end-timeout): it is ended\n" in result.err, result
    assert "dtrain: warning: --on-end ended with 143\n" in result.err, result


def test_a_hanging_on_end_is_told_of(cluster):
    launched = cluster.start_launch(["-np", "1", "--on-end", "sleep 600; true", "--", "true"])
    launched.wait_for("dtrain: --on-end still runs, as process ", stream="err", timeout=60)
    pid = int(re.search(r"still runs, as process (\d+)", launched.err)[1])
    wait_until(lambda: len(records(cluster)) == 1, 60, "no record")
    cluster.head.run(["kill", "--", f"-{pid}"])
    assert launched.wait(60).code == 0


def test_a_hanging_on_end_of_a_detached_job_is_shown(cluster, residents):  # noqa: F811
    job = detached.launch(cluster, [*cluster.hosts_flag(1, cluster.nodes[:1]), "--on-end", "sleep 600; true", "--", "true"])
    dtrain(cluster, "wait", job.id)
    assert re.search(r"^--on-end +still runs$", dtrain(cluster, "show", job.id).stdout, re.M)
    assert json.loads(dtrain(cluster, "show", "--json", job.id).stdout)["on_end_runs"] is True
    told = wait_until(lambda: re.search(r"dtrain: --on-end still runs, as process (\d+); it is ended after 1h ", job.log), 60,
                      lambda: job.log)
    refused = dtrain(cluster, "rm", job.id, check=False)
    assert refused.returncode == 1 and "its --on-end command runs" in refused.stderr, refused
    cluster.head.run(["kill", "--", f"-{told[1]}"])
    job.wait(60)
    assert "still runs" not in dtrain(cluster, "show", job.id).stdout
