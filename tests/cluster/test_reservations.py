# SPDX-License-Identifier: Apache-2.0
"""Several jobs on hosts with resident agents: who gets which GPUs and cores, and what a dead job
has left. The GPUs are those of the fake NVML, loaded by the agent's own code."""
import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

import hosts
import leftovers
import residents
from launching import wait_until
from test_faults_d import ESCAPED, python
from test_resident import shepherds

CORES = len(os.sched_getaffinity(0))
HOLD = "echo up; until [ -e /root/work/go ]; do sleep 0.02; done"
GPUS = "driver 535.1\n" + "".join(
    f"gpu uuid=GPU-{i} pci=00000000:3{i}:00.0 used=1048576\n" for i in range(4))
GIB = 1 << 30


@pytest.fixture
def serve(make_cluster):
    """Makes hosts with a resident agent on each, with the GPUs of `description`."""
    made = []

    def start(nodes, description=None):
        cluster = make_cluster(nodes)
        made.append((cluster, []))
        for host in cluster.nodes:
            made[-1][1].append(start_agent(cluster, host, description))
        return made[-1]

    yield start
    for cluster, agents in made:
        go(cluster)
        for agent in agents:
            agent.stop()


def start_agent(cluster, host, description=None):
    env = None
    if description:
        describe(cluster.work(host), description)
        library = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
        env = {"FAKE_NVML": "/root/work/nvml", "DTRAIN_NVML_LIBRARY": str(library)}
    return residents.Resident(host, env=env).start()


def describe(work, text):
    (work / "new").write_text(text)
    (work / "new").rename(work / "nvml")


def go(cluster):
    for host in cluster.nodes:
        (cluster.work(host) / "go").touch()


def names(cluster, slots=""):
    return ["-H", ",".join(f"{host.name}{slots}" for host in cluster.nodes)]


def test_cores_that_a_job_has_are_not_given_to_another(serve):
    cluster, agents = serve(2)
    first = cluster.start_launch([*names(cluster), "--", "sh", "-c", HOLD])
    first.wait_for("up", count=CORES * 2)
    refused = cluster.launch([*names(cluster), "--", "true"])
    assert refused.code == 200, refused
    job = re.search(r"held by your own job (dtrain-\w+)", refused.err)
    assert job and "--wait" in refused.err, refused
    assert f"cores 0-{CORES - 1}" in refused.err and "node0, node1" in refused.err, refused
    # Who shares gets them, also on some of the hosts.
    for flag in (["--oversubscribe"], ["--bind", "none"]):
        shared = cluster.launch([*flag, "-H", f"node0:{CORES}", "--", "true"])
        assert shared.code == 0, shared
    # An agent that was killed knows it again.
    agents[1].kill()
    agents[1].start()
    refused = cluster.launch(["-H", f"node1:{CORES}", "--", "true"])
    assert refused.code == 200 and job.group(1) in refused.err, refused
    # Another waits until the first is through.
    waiting = cluster.start_launch(["--wait", "60", *names(cluster), "--", "echo", "mine"])
    waiting.wait_for(f"your own job {job.group(1)}", stream="err")
    assert "mine" not in waiting.out
    go(cluster)
    assert first.wait(30).code == 0
    result = waiting.wait(30)
    assert result.code == 0 and result.out.count("mine") == CORES * 2, result


# An agent that is told to end lets nobody in, and goes when those who were in have begun.
def test_an_agent_that_ends_lets_launches_begin(serve):
    cluster, agents = serve(1)
    first = cluster.start_launch([*names(cluster), "--", "sh", "-c", HOLD])
    first.wait_for("up", count=CORES)
    waiting = cluster.start_launch(["--wait", "60", *names(cluster), "--", "sh", "-c",
                                    "echo mine; until [ -e /root/work/end ]; do sleep 0.02; done"])
    waiting.wait_for("waiting, up to 60 s", stream="err")
    agents[0].signal(signal.SIGTERM)
    wait_until(lambda: "waiting for launches that have begun" in agents[0].log, 20, agents[0].log)
    go(cluster)
    assert agents[0].process.wait(20) == 0, agents[0].log
    agents[0].start()  # and takes it over
    waiting.wait_for("mine", count=CORES)
    (cluster.work(cluster.nodes[0]) / "end").touch()
    assert first.wait(30).code == 0
    result = waiting.wait(30)
    assert result.code == 0 and result.out.count("mine") == CORES, result


def test_a_wait_has_its_end_and_can_be_cancelled(serve):
    cluster, _ = serve(1)
    first = cluster.start_launch([*names(cluster), "--", "sh", "-c", HOLD])
    first.wait_for("up", count=CORES)
    result = cluster.launch(["--wait", "1500ms", *names(cluster), "--", "true"])
    assert result.code == 200 and "not free within 1.5 s" in result.err, result
    waiting = cluster.start_launch(["--wait", "10m", *names(cluster), "--", "true"])
    waiting.wait_for("waiting, up to 600 s", stream="err")
    waiting.signal(signal.SIGINT)
    assert waiting.wait(10).code == 130
    go(cluster)
    assert first.wait(30).code == 0


VISIBLE = ["sh", "-c", "echo got $CUDA_VISIBLE_DEVICES.; " + HOLD]


@pytest.mark.launcher_killed
def test_gpus_go_to_one_job_each(serve):
    cluster, [agent] = serve(1, GPUS)
    first = cluster.start_launch(["-np", "1", *names(cluster), "--", *VISIBLE])
    first.wait_for("got GPU-0.")
    second = cluster.start_launch(["-np", "2", *names(cluster), "--", *VISIBLE])
    second.wait_for("got GPU-1,GPU-2.", count=2)
    refused = cluster.launch(["-np", "2", *names(cluster), "--", "true"])
    assert refused.code == 200, refused
    assert "GPU 0: held by your own job" in refused.err, refused
    agent.kill()
    agent.start()
    refused = cluster.launch(["-np", "2", *names(cluster), "--", "true"])
    assert refused.code == 200 and "GPU 0: held by your own job" in refused.err, refused
    third = cluster.launch(["-np", "1", *names(cluster), "--", "sh", "-c",
                            "echo got $CUDA_VISIBLE_DEVICES."])
    assert third.code == 0 and "got GPU-3." in third.out, third
    # Killed without a word: what it had is free once its workers are gone.
    second.signal(signal.SIGKILL)
    assert second.wait(10).code == -signal.SIGKILL
    waited = cluster.start_launch(["--wait", "60", "-np", "3", *names(cluster), "--", *VISIBLE])
    waited.wait_for("got GPU-1,GPU-2,GPU-3.", count=3, timeout=60)
    go(cluster)
    assert first.wait(30).code == 0
    assert waited.wait(30).code == 0


def test_launches_at_once_never_get_the_same_gpu(serve):
    cluster, _ = serve(2, GPUS)
    # mkdir is the lock that must never be found taken.
    body = ("for u in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do "
            "[ $DTRAIN_LOCAL_RANK != 0 ] || mkdir /root/work/$u || exit 99; done; "
            "sleep 0.1; [ $DTRAIN_LOCAL_RANK != 0 ] || for u in "
            "$(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do rmdir /root/work/$u; done")
    launches = [cluster.start_launch(["--wait", "100", "-np", str(n), "--map-by", "node",
                                      *names(cluster), "--", "sh", "-c", body])
                for n in (8, 4, 8, 6)]
    for launch in launches:
        result = launch.wait(110)
        assert result.code == 0, result


def test_d14_a_gpu_whose_memory_is_held_is_not_given_out(serve):
    cluster, _ = serve(1, GPUS)
    work = cluster.work(cluster.nodes[0])
    held = GPUS.replace("30:00.0 used=1048576", f"30:00.0 used={3 * GIB}")
    (work / "held").write_text(held)
    result = cluster.launch(["-np", "1", *names(cluster), "--", "cp", "/root/work/held",
                             "/root/work/nvml"], timeout=40)
    assert "GPU-0" in result.err, result
    seen = cluster.launch(["-np", "1", *names(cluster), "--", "sh", "-c",
                           "echo got $CUDA_VISIBLE_DEVICES."])
    assert seen.code == 0 and "got GPU-1." in seen.out, seen
    refused = cluster.launch(["-np", "4", *names(cluster), "--", "true"])
    assert refused.code == 200 and "withheld after job" in refused.err, refused
    describe(work, GPUS)
    result = cluster.launch(["-np", "4", *names(cluster), "--", "true"])
    assert result.code == 0, result


def held_gpu(cluster):
    """What a worker does that leaves 3 GiB of its GPU in use."""
    held = GPUS.replace("30:00.0 used=1048576", f"30:00.0 used={3 * GIB}")
    (cluster.work(cluster.nodes[0]) / "held").write_text(held)
    return "cp /root/work/held /root/work/nvml"


def withheld_gpus(cluster):
    """Why GPUs are not given out, by their index."""
    asked = cluster.head.run([hosts.bin_dir() / "dtrain", "nodes", "--json", "-H", "node0"])
    [node] = json.loads(asked.stdout)["nodes"]
    return {gpu["index"]: gpu["withheld"] for gpu in node["gpus"] if gpu.get("withheld")}


# What ends the job: its launcher, which is killed, or an agent that cannot take it over.
@pytest.mark.launcher_killed
@pytest.mark.parametrize("end", ["launcher killed", "not taken over"])
def test_d14_a_gpu_is_withheld_however_the_job_ends(serve, end):
    cluster, [agent] = serve(1, GPUS)
    launch = cluster.start_launch(["-np", "1", "--grace", "1s", "--lease", "3s", *names(cluster), "--",
                                   "sh", "-c", f"{held_gpu(cluster)}; {HOLD}"])
    launch.wait_for("up")
    job = agent.jobs()[0].partition(".")[0]
    if end == "launcher killed":
        launch.signal(signal.SIGKILL)
        assert launch.wait(10).code == -signal.SIGKILL
    else:
        agent.kill()
        for pid in shepherds(agent.host):
            os.kill(pid, signal.SIGSTOP)
        agent.start()
        assert launch.wait(30).code == 202
    wait_until(lambda: f"after job {job} of root: GPU 0" in agent.log, 30, lambda: agent.log)
    assert list(withheld_gpus(cluster)) == [0] and job in withheld_gpus(cluster)[0]
    for _ in range(2):
        refused = cluster.launch(["-np", "4", *names(cluster), "--", "true"])
        assert refused.code == 200, refused
        assert f"withheld after job {job}" in refused.err, refused
        agent.kill()
        agent.start()
    describe(cluster.work(cluster.nodes[0]), GPUS)
    wait_until(lambda: not withheld_gpus(cluster), 20, lambda: agent.log)
    result = cluster.launch(["-np", "4", *names(cluster), "--", "true"])
    assert result.code == 0, result
    assert not agent.host.path(f"{residents.STATE}/withheld").exists()


def reap(host, *flags):
    process = host.popen([hosts.bin_dir() / "dtrain-agent", "reap", *flags], stdout=-1, stderr=-2)
    out = process.communicate(timeout=30)[0].decode()
    return process.returncode, out


def is_stopped(pid):
    """With all of its threads."""
    states = [path.read_text().rpartition(")")[2].split()[0]
              for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def kill_and_wait(pids):
    # First none of them may notice the other's end.
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(map(is_stopped, pids)), 10, "they do not stop")
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a shepherd goes with its agent
            os.kill(pid, signal.SIGKILL)

    def lives(pid):
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
        except OSError:
            return False

    wait_until(lambda: not any(map(lives, pids)), 10, "killed processes are still there")


def leave_something(cluster):
    """A job of which agent and shepherd are killed at once; what escaped them is left."""
    host = cluster.nodes[0]
    launch = cluster.start_launch(["-H", "node0:1", "--", *python(
        ESCAPED + "print('up', flush=True); time.sleep(600)")])
    launch.wait_for("up")
    # The shepherd first: the agent's end would leave a stopped process in a group without a parent,
    # and the kernel lets such a one go on.
    agents = [pid for end in (" shepherd", " bridge")
              for pid, _, line in leftovers.processes(host) if line.endswith(end)]
    assert len(agents) >= 2, leftovers.processes(host)
    kill_and_wait(agents)
    assert launch.wait(30).code in (202, 203), launch

    def escaped():
        return [pid for pid, _, line in leftovers.processes(host) if "sleep(600)" in line]

    # The worker itself dies with its shepherd.
    wait_until(lambda: len(escaped()) < 2, 10, escaped)
    return escaped()


# H12: by hand
def test_h12_reap_ends_what_dead_jobs_have_left(make_cluster):
    cluster = make_cluster(1)
    host = cluster.nodes[0]
    assert reap(host) == (0, "no job has left anything behind\n")
    left = leave_something(cluster)
    assert left
    live = cluster.start_launch(["-H", "node0:1", "--", "sh", "-c", "echo live; exec sleep 600"])
    live.wait_for("live")
    code, out = reap(host, "--dry-run")
    assert code == 0 and out.count("of job dtrain-") == len(left) and "user root" in out, out
    code, out = reap(host)
    assert code == 0 and out.count("ended pid ") == len(left), out
    assert reap(host) == (0, "no job has left anything behind\n")
    assert live.process.poll() is None and shepherds(host)
    live.signal(signal.SIGINT)
    assert live.wait(20).code == 130


# H12: by an agent, at its start
def test_h12_an_agent_that_starts_ends_what_dead_jobs_have_left(make_cluster):
    cluster = make_cluster(1)
    left = leave_something(cluster)
    assert left
    agent = start_agent(cluster, cluster.nodes[0])
    assert agent.log.count("killing what a dead job has left: pid ") == len(left), agent.log
    agent.stop()
    leftovers.wait_for_no_processes(cluster, 5)
