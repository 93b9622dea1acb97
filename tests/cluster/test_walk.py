# SPDX-License-Identifier: Apache-2.0
"""docs/detached.md from beginning to end, as a user types it in terminals that come and go: a training by PyTorch's DDP,
over ssh, which loses its terminal, a host and its launcher, and goes on from its checkpoint."""
import http.client
import importlib.util
import itertools
import json
import math
import os
import re
import shutil
import signal

import pytest

import hosts
from detached import Job
from launching import wait_until
from leftovers import processes
from terminal import Terminal
from test_detached import private, private_agents, state  # noqa: F401
from test_faults_efg import end_ssh_sessions

LEASE, GRACE = 4, 1
LAUNCH = (f"dtrain launch -d --name night --max-restarts 3 -N 3:4 --lease {LEASE}s --grace {GRACE}s --hostfile hosts "
          "/usr/bin/python3 train.py .")
STEP = re.compile(r"step (\d+), loss (\S+)$", re.M)


@pytest.fixture
def project(cluster):
    """A folder that all hosts share, as trainings have one."""
    folder = cluster.base / "project"
    folder.mkdir()
    shutil.copy(hosts.HERE / "programs/torch_train.py", folder / "train.py")
    (folder / "hosts").write_text("".join(f"{node.name} slots=1\n" for node in cluster.nodes))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def terminal(cluster, project):
    """Opens one."""
    opened = []

    def opens():
        opened.append(Terminal(cluster.head, project))
        opened[-1].run(f"export PATH={cluster.programs}:$PATH")
        return opened[-1]

    yield opens
    for each in opened:
        each.close()


def expected_losses():
    """Of each step of torch_train.py, from 1."""
    samples, features, rate = 240, 8, 0.01
    inputs = [[math.sin(row * (column + 1)) for column in range(features)] for row in range(samples)]
    weights = [-1.0 - column for column in range(features)]  # by how much they are wrong
    while True:
        errors = [sum(map(lambda x, w: x * w, row, weights)) for row in inputs]
        yield sum(error * error for error in errors) / samples
        for column in range(features):
            weights[column] -= rate * 2 / samples * sum(error * row[column] for error, row in zip(errors, inputs))


def check_training(job, begin):
    """Each step has the loss that a training without interruptions has. `begin`: the step before attempt 1's first."""
    steps = [[(int(step), float(loss)) for step, loss in STEP.findall(job.output(0, attempt=attempt).decode())]
             for attempt in (0, 1)]
    before, after = ([step for step, _ in of] for of in steps)
    # What rank 0 did last may not have left its host.
    assert before == list(range(1, len(before) + 1)) and before[-1] <= begin <= before[-1] + 3, (before, begin)
    assert after == list(range(begin + 1, begin + 1 + len(after))) and len(after) > 20, (after, begin)
    expected = list(itertools.islice(expected_losses(), after[-1]))
    assert expected[-1] < expected[begin] < expected[0] / 1.1, "that is no training"
    for step, loss in sum(steps, []):
        assert math.isclose(loss, expected[step - 1], rel_tol=1e-6), (step, loss, expected[step - 1])


def told(shell, words):
    """A command of dtrain that succeeds: what it prints."""
    code, printed = shell.run(f"dtrain {words}")
    assert code == 0, (words, code, printed)
    return printed


def get(cluster, port, path, token=None):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.sock = hosts.socket_in_namespace(cluster.head.namespace("net"))
    connection.sock.settimeout(10)
    connection.sock.connect(("127.0.0.1", port))
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def look_at_page(cluster, shell, job):
    """What the browser gets of it: the page, and the job."""
    shell.type("dtrain page night")
    port, token = shell.wait_for(r"^http://127\.0\.0\.1:(\d+)/#t=([0-9a-f]+)$").groups()
    shell.wait_for(f"^dtrain: page of {job.id}; Ctrl-C ends it$")
    status, page = get(cluster, int(port), "/")
    assert status == 200 and b"<html" in page, page[:200]
    assert get(cluster, int(port), "/v1/jobs")[0] == 401
    status, jobs = get(cluster, int(port), "/v1/jobs", token)
    assert status == 200 and job.id in jobs.decode(), jobs
    status, shown = get(cluster, int(port), f"/v1/jobs/{job.id}", token)
    assert status == 200, shown
    assert shell.interrupt()[0] == 0
    return json.loads(shown)


def trainings(cluster):
    return [line for host in cluster.nodes for _, how, line in processes(host) if "train.py" in line and how != "Z"]


def launch_and_close(cluster, shell):
    code, printed = shell.run(LAUNCH)
    assert code == 0, printed
    said = re.fullmatch(r"dtrain: supervised by minder, process \d+: starts the job's launcher again if it is killed\n"
                        r"(dtrain-[0-9a-f]{12})\n", printed)
    assert said and len(trainings(cluster)) == 4, printed
    shell.close()
    job = Job(cluster, said[1])
    assert job.launcher and job.minder and len(trainings(cluster)) == 4
    return job


def come_back(shell, job):
    assert re.search(rf"^{job.id}  night  run +4 running  4 +\d+ s +/usr/bin/python3 train\.py \.$", told(shell, "ps"), re.M)
    status = told(shell, "status")
    assert f"{job.id}: run, 4 running, " in status and "detached, named night; controlled by process " in status, status
    assert all(re.search(rf"^{rank} +node{rank} +\d+ +running", status, re.M) for rank in range(4)), status
    shown = told(shell, "show night")
    assert f"{job.id} (night): running\n" in shown and f"\n{LAUNCH[len('dtrain '):]}\n" in shown, shown
    assert told(shell, "history") == "no job has ended\n"
    code, printed = shell.run("dtrain rm night")
    assert code == 1 and f"{job.id} has not ended: `dtrain stop {job.id}` ends it" in printed, printed
    code, printed = shell.run("dtrain wait --timeout 100ms night")
    assert code == 210 and printed == f"dtrain: still running: {job.id}\n", printed


def attach_and_leave(shell, job):
    """What was missed, what comes, and that the job goes on."""
    shell.type("dtrain attach night")
    shell.wait_for(r"^\[0\] step 15, ")
    code, printed = shell.interrupt()
    assert code == 0, printed
    assert printed.endswith(f"dtrain: left; {job.id} goes on; `dtrain stop {job.id}` ends it\n"), printed
    steps = [int(step) for step, _ in STEP.findall(printed)]
    assert steps == list(range(steps[0], steps[-1] + 1)), printed  # each once
    assert re.search(r"^\[3\] rank 3 of 4 on node3, attempt 0, goes on after step 0$", printed, re.M), printed
    kept = told(shell, "logs night")
    assert kept.startswith("[0] rank 0 of 4 on node0, attempt 0, goes on after step 0\n[0] step 1, loss "), kept
    assert int(STEP.findall(kept)[-1][0]) >= steps[-1], kept
    assert told(shell, "logs -r 2 --tail 1") == "rank 2 of 4 on node2, attempt 0, goes on after step 0\n"


def lose_a_host(cluster, watching, shell, job):
    """The step after which the others go on."""
    watching.type("dtrain attach night")
    watching.wait_for(r"^\[0\] step ")
    cluster.cut(cluster.nodes[0])
    begin = int(watching.wait_for(r"^\[0\] rank 0 of 3 on node1, attempt 1, goes on after step (\d+)$", 60)[1])
    watching.wait_for(rf"^\[2\] rank 2 of 3 on node3, attempt 1, goes on after step {begin}$")
    assert "dtrain: attempt 1\n" in watching.shown, watching.shown
    before = watching.shown[:watching.shown.index("dtrain: attempt 1\n")]
    assert re.search(r"^dtrain: .*node0.*lost", before, re.M) and re.search(r"^dtrain: .*restart", before, re.M), before
    status = told(shell, "status night")
    assert re.search(r"^warning: node0 is left out \(at least 3 are needed\): ", status, re.M), status
    assert re.search(r"^node0 +not used ", status, re.M) and re.search(r"^0 +node1 +\d+ +running", status, re.M), status
    shown = told(shell, "show night")
    assert f"{job.id} (night): running, attempt 1\n" in shown, shown
    assert re.search(r"^  attempt 0: node0: the connection to its agent is lost: ", shown, re.M), shown
    assert begin - 3 <= int(STEP.findall(told(shell, "logs --attempt 0 --tail 1"))[0][0]) <= begin
    return begin


def kill_the_launcher(watching, shell, job):
    """By the process that `show` names, as its user would. The one that is attached is told."""
    controls = re.search(r"controlled by +a launcher, process (\d+) on head, .* generation 1$", told(shell, "show night"), re.M)
    assert shell.run(f"kill -9 {controls[1]}")[0] == 0
    wait_until(lambda: job.holder.get("generation") == 2 and job.holder["stage"] != "opens", 10, lambda: job.log)
    at = int(STEP.findall(watching.shown)[-1][0])
    watching.wait_for(rf"^\[0\] step {at + 15}, ")
    assert f"dtrain: minder: the launcher of {job.id} was killed by signal 9: starting it again (1 of 5)\n" in watching.shown
    status = wait_until(lambda: shell.run("dtrain status night")[1], 10, "no status")
    assert re.search(r"; controlled by process \d+ on head, generation 2; supervised by minder, process \d+, "
                     r"launcher restarts: 1$", status, re.M), status


def end(cluster, watching, shell, job, project):
    shell.type("dtrain wait night")
    (project / "enough").touch()
    assert shell.end() == (0, f"dtrain: {job.id} has ended with exit code 0\n")
    code, printed = watching.end()
    assert code == 0 and all(f"[{rank}] rank {rank} has trained\n" in printed for rank in range(3)), printed
    job.wait(10)
    assert trainings(cluster) == []


def look_back(shell, job):
    assert told(shell, "ps") == "no jobs\n"
    assert re.search(rf"^{job.id}  night  .* exit 0, ", told(shell, "ps -a"), re.M)
    assert re.search(rf"^{job.id}  night  [-\d]+ [:\d]+  \d+ s +0 +launch -d --name night ", told(shell, "history"), re.M)
    shown = told(shell, "show night")
    assert f"{job.id} (night): ended, exit code 0\n" in shown, shown
    assert re.search(r"^  attempt 0, ran [\d.]+ s: node0: the connection to its agent is lost: .*\n"
                     r"  attempt 1, ran [\d.]+ s: succeeded$", shown, re.M), shown
    last = "".join(f"[{rank}] rank {rank} has trained\n" for rank in range(3))
    assert told(shell, "logs --tail 1 night") == last
    assert told(shell, "attach --tail 1 night") == "dtrain: attempt 1\n" + last
    assert shell.run("dtrain stop night") == (1, f"dtrain: stop: {job.id} has ended already\n")


def forget(host):
    """How its workers ended is kept for a day, as nobody asked for it before the job's end. The next agent tidies up."""
    end_ssh_sessions(host)
    keep = [pid for pid, _, line in processes(host) if line.endswith((" shepherd", "dtrain-agent keep"))]
    for pid in keep:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes(host), 20, lambda: processes(host))


def again(cluster, shell, job):
    code, printed = shell.run("dtrain rerun night")
    assert code == 0, printed
    second = Job(cluster, printed.splitlines()[-1])
    assert second.id != job.id and shell.run("dtrain wait night") == (0, f"dtrain: {second.id} has ended with exit code 0\n")
    after = int(STEP.findall(job.output(0, attempt=1).decode())[-1][0])
    assert told(shell, "logs -r0 night").startswith(f"rank 0 of 4 on node0, attempt 0, goes on after step {after}\n"
                                                f"step {after + 1}, loss ")
    second.wait(10)
    return second


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="there is no python3-torch")
@pytest.mark.launcher_killed
def test_a_night(cluster, private, project, terminal):  # noqa: F811
    job = launch_and_close(cluster, terminal())
    shell, watching = terminal(), terminal()
    come_back(shell, job)
    attach_and_leave(shell, job)
    try:
        begin = lose_a_host(cluster, watching, shell, job)
        kill_the_launcher(watching, shell, job)
        assert look_at_page(cluster, shell, job)["state"] == "running"
        end(cluster, watching, shell, job, project)
    finally:
        cluster.heal(cluster.nodes[0])
    look_back(shell, job)
    look_at_page(cluster, shell, job)
    check_training(job, begin)
    forget(cluster.nodes[0])
    second = again(cluster, shell, job)
    assert told(shell, f"rm night {job.id}") == ""
    assert not job.folder.exists() and not second.folder.exists()
    assert told(shell, "history") == "no job has ended\n"
