# SPDX-License-Identifier: Apache-2.0
"""`dtrain nodes`, and `ps`, `status`, `top`, `logs` and `stop` of jobs whose launcher is elsewhere."""
import json
import signal

import pytest

import hosts
import launching
import residents
from launching import wait_until
from test_identity import as_alice, node  # noqa: F401 - a fixture
from test_tcp import tcp  # noqa: F401 - a fixture

DTRAIN = hosts.bin_dir() / "dtrain"
LIVE = ["sh", "-c", 'echo "up $RANK"; echo "trouble $RANK" >&2; exec sleep 600']


def dtrain(host, *args, **options):
    return host.run([DTRAIN, *args], check=False, **options)


def nodes(cluster, *args, code=0):
    told = dtrain(cluster.head, "nodes", "--json", *args, timeout=120)
    assert told.returncode == code, told
    return {entry["host"]: entry for entry in json.loads(told.stdout)["nodes"]}


@pytest.fixture
def agents(cluster):
    made = [residents.Resident(host).start() for host in cluster.nodes[:2]]
    yield made
    for agent in made:
        agent.stop()


@pytest.fixture
def job(cluster, agents):
    """Of the first two nodes, whose launcher runs on the head."""
    launch = cluster.start_launch(["--grace", "1s", "--tag-output", "none",
                                   *cluster.hosts_flag(1, cluster.nodes[:2]), "--", *LIVE])
    launch.wait_for("up", count=2)
    yield launch
    if launch.process.poll() is None:
        launch.signal(signal.SIGTERM)
        launch.wait(20)


def job_of(host):
    """As the resident agent of the host tells of its only job."""
    jobs = json.loads(dtrain(host, "ps", "--json").stdout)["on_nodes"]
    return jobs[0] if jobs else None


# One host is down and one has no agent: the others are told all the same.
def test_one_row_for_each_node(cluster, agents):
    nodes(cluster, "-H", "node[0-2]", "--connect-timeout", "60s")  # brings the agent's program
    cluster.cut(cluster.nodes[3])
    try:
        told = nodes(cluster, "-H", "node[0-3]", code=200)
    finally:
        cluster.heal(cluster.nodes[3])
    assert [told[f"node{i}"]["state"] for i in range(4)] == [
        "ok", "ok", "no agent", "unreachable"], told
    for name in ("node0", "node1", "node2"):
        assert told[name]["hostname"] == name and told[name]["cores"] >= 1, told[name]
    assert told["node0"]["account"] == "root" and told["node0"]["started_unix_s"] > 0
    assert "no resident agent" in told["node2"]["why"]
    assert "connecting" in told["node3"]["why"] or "connect to" in told["node3"]["why"], told


def test_a_name_that_does_not_exist_holds_nobody_up(cluster, agents):
    told = nodes(cluster, "-H", "node0,nosuch.invalid", "--connect-timeout", "60s", code=200)
    assert told["node0"]["state"] == "ok"
    assert told["nosuch.invalid"]["state"] == "unreachable" and told["nosuch.invalid"]["why"]
    page = dtrain(cluster.head, "nodes", "-H", "node0,nosuch.invalid", "--connect-timeout", "60s")
    lines = page.stdout.splitlines()
    assert lines[0].split() == ["NODE", "STATE", "VERSION", "CORES", "GPUS", "JOBS"], page
    assert lines[1].startswith("node0           ok           0.1.0    "), page
    assert lines[2].startswith("nosuch.invalid  unreachable  -        -      -     -"), page
    assert lines[-1].startswith("nosuch.invalid: "), page
    assert page.returncode == 200


# An agent that does not answer though its host is there.
def test_an_agent_that_hangs_holds_nobody_up(cluster, agents):
    agents[1].signal(signal.SIGSTOP)
    try:
        told = nodes(cluster, *cluster.hosts_flag(1, cluster.nodes[:2]), code=200)
    finally:
        agents[1].signal(signal.SIGCONT)
    assert told["node0"]["state"] == "ok"
    assert told["node1"]["state"] == "unreachable"
    assert "no answer within 10 s" in told["node1"]["why"], told


def test_mistakes_are_told(cluster):
    for args, text in ((["nodes", "node0"], 'unexpected "node0"'),
                       (["nodes", "-H", "a b"], "--hosts"),
                       (["nodes", "--hostfile", "nowhere"], "nowhere"),
                       (["nodes", "--connect-timeout", "soon", "-H", "node0"], "--connect-timeout"),
                       (["nodes", "--jsn"], "--json"),
                       (["status", "-H", "node0", "--hostfile", "x", "y"], "contradict")):
        told = dtrain(cluster.head, *args)
        assert told.returncode == 2 and text in told.stderr, told
    told = dtrain(cluster.head, "nodes", "--agent", "tcp", "-H", "node0")
    assert told.returncode == 206 and "user.crt" in told.stderr, told


def test_jobs_of_another_hosts_launcher(cluster, agents, job):
    one = cluster.nodes[1]
    view = job_of(one)
    assert view["owner"] == "root" and view["phase"] == "running" and view["nodes"] == 2, view
    assert view["ranks"]["running"] == 1, view
    listed = dtrain(one, "ps").stdout.splitlines()
    assert listed[0].split() == ["JOB", "OWNER", "STATE", "RANKS", "ON", "AGE", "COMMAND"], listed
    assert listed[1].startswith(f"{view['id']}  root   running  1 running  "), listed
    page = dtrain(one, "status", view["id"][:11]).stdout
    assert "running" in page and "\n1 " in page, page
    ranks = json.loads(dtrain(one, "status", "--json").stdout)["ranks"]
    assert [rank["rank"] for rank in ranks] == [1] and ranks[0]["pid"] > 0, ranks
    assert dtrain(one, "logs", "--rank", "1").stdout == "up 1\n"
    assert dtrain(one, "logs", "--rank=1", "--stream", "stderr").stdout == "trouble 1\n"
    told = dtrain(one, "logs", "--rank", "0")
    assert told.returncode == 1 and "rank 0 is not on any of these hosts" in told.stderr, told
    # Where its launcher is, that is asked, and the agents do not tell of it once more.
    here = json.loads(dtrain(cluster.head, "ps", "--json", "-H", "node0,node1").stdout)
    assert len(here["jobs"]) == 1 and here["on_nodes"] == [], here


def test_jobs_on_named_hosts(cluster, agents):
    launch = launching.Launch(cluster.nodes[0], [DTRAIN, "launch", "-np", "2", "--grace", "1s",
                                                 "--", *LIVE])
    launch.wait_for("up", count=2)
    seen = json.loads(dtrain(cluster.head, "ps", "--json", "-H", "node0,node1").stdout)["on_nodes"]
    assert [view["on"] for view in seen] == ["node0"], seen
    assert dtrain(cluster.head, "logs", "-H", "node0,node1", "-r1").stdout == "up 1\n"
    told = dtrain(cluster.head, "status", "nosuch", "-H", "node0,node1,node2")
    assert told.returncode == 1 and "no job nosuch is running on node0, node1" in told.stderr, told
    top = launching.Launch(cluster.head, [DTRAIN, "top", "-H", "node0,node1", seen[0]["id"]])
    top.wait_for(seen[0]["id"], count=2)  # two pages
    # An agent that is started anew is no end of the job.
    agents[0].restart()
    top.wait_for(seen[0]["id"], count=2 + top.out.count(seen[0]["id"]))
    # Agents cannot tell which one is meant, even if only one is there.
    told = dtrain(cluster.head, "stop", "-H", "node0,node1")
    assert told.returncode == 2 and f"name it: {seen[0]['id']} of root runs on node0" in told.stderr, told
    stopped = dtrain(cluster.head, "stop", "-H", "node0,node1", seen[0]["id"])
    assert stopped.returncode == 0 and f"{seen[0]['id']} has ended" in stopped.stderr, stopped
    assert launch.wait(20).code == 143
    watched = top.wait(30)
    assert watched.code == 0 and f"{seen[0]['id']} has ended" in watched.err, watched
    told = dtrain(cluster.head, "stop", "-H", "node0,node1")
    assert told.returncode == 1 and "no job is running on node0, node1" in told.stderr, told


# Who stopped it is what the job's user must read, and that it is no fault.
def test_a_job_that_is_stopped_on_a_node_says_who_did_it(cluster, agents, job):
    stopped = dtrain(cluster.nodes[1], "stop", launching.only_job(cluster.nodes[1]))
    assert stopped.returncode == 0 and "has ended" in stopped.stderr, stopped
    result = job.wait(20)
    assert result.code == 143, result
    assert "node1: the job was stopped here by admin root (unix socket" in result.err, result
    assert [agent.jobs() for agent in agents] == [[], []]
    assert 'method="/dtrain.v1.Agent/StopJob"' in agents[1].log


# The launcher is dead, and its lease has not run out yet.
@pytest.mark.launcher_killed
def test_a_job_without_its_launcher_can_be_stopped(cluster, agents):
    launch = cluster.start_launch(["--grace", "1s", "--lease", "20s",
                                   *cluster.hosts_flag(1, cluster.nodes[:1]), "--", *LIVE])
    launch.wait_for("up")
    launch.kill()
    wait_until(lambda: job_of(cluster.nodes[0])["state"] == "away", 20, "it is not missed")
    stopped = dtrain(cluster.nodes[0], "stop", launching.only_job(cluster.nodes[0]))
    assert stopped.returncode == 0, stopped
    assert job_of(cluster.nodes[0])["state"] == "finished"
    # For as long as its launcher may come back to hear of it.
    wait_until(lambda: agents[0].jobs() == [], 60, lambda: agents[0].log)


# kill -9 of the agent: what it told of a job, the next one tells again.
def test_the_next_agent_tells_of_jobs_of_the_one_before(cluster, agents):
    launch = cluster.start_launch(
        ["--grace", "1s", "--exit-timeout", "0", "-H", "node0:2", "--", "sh", "-c",
         'echo "up $RANK"; if [ $RANK = 1 ]; then exit 0; fi; exec sleep 600'])
    launch.wait_for("up", count=2)
    host = cluster.nodes[0]

    def rank_states():
        page = json.loads(dtrain(host, "status", "--json").stdout)
        return [rank["state"] for rank in page["ranks"]]

    wait_until(lambda: rank_states() == ["running", "ended"], 20, rank_states)
    before = json.loads(dtrain(host, "status", "--json").stdout)["ranks"]
    pid = before[0]["pid"]
    agents[0].kill()
    assert nodes(cluster, "-H", "node0")["node0"]["state"] == "no agent"
    agents[0].start()
    assert rank_states() == ["running", "ended"]
    after = json.loads(dtrain(host, "status", "--json").stdout)
    assert after["ranks"][0]["pid"] == pid and after["job"]["command"][0] == "sh", after
    assert dtrain(host, "logs", "--rank", "0").stdout == "up 0\n"
    assert dtrain(host, "logs").stdout == "[0] up 0\n[1] up 1\n"
    assert dtrain(host, "stop", launching.only_job(host)).returncode == 0
    assert launch.wait(20).code == 143


def test_logs_are_followed_to_the_end(cluster, agents):
    script = 'echo first; read -r x; seq 100000; printf "no newline"'
    launch = launching.Launch(
        cluster.nodes[0], [DTRAIN, "launch", "-np", "1", "--stdin", "0", "--tag-output", "none",
                           "--", "sh", "-c", script], stdin=-1)
    launch.wait_for("first")
    follower = launching.Launch(cluster.head, [DTRAIN, "logs", "-f", "-H", "node0"])
    follower.wait_for("first")
    launch.process.stdin.write(b"go\n")
    launch.process.stdin.close()
    assert launch.wait(30).code == 0
    told = follower.wait(20)
    assert told.code == 0, told
    whole = "first\n" + "".join(f"{n}\n" for n in range(1, 100001)) + "no newline"
    # The job may be over, and its output gone with it, before all of it was asked for.
    assert whole.startswith(told.out) or "bytes are no longer available]" in told.out, told


GPUS = """driver 535.1
reads /root/work/reads
gpu uuid=GPU-5d1c pci=00000000:3B:00.0 memory=85899345920 used=1073741824 utilisation=97 temperature=61 ecc=2
gpu uuid=GPU-5d1d pci=00000000:3C:00.0 memory=85899345920 mig=1
"""


def test_gpus_are_told(make_cluster):
    cluster = make_cluster(1)
    work = cluster.work(cluster.nodes[0])
    (work / "nvml").write_text(GPUS)
    library = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
    agent = residents.Resident(cluster.nodes[0], env={
        "FAKE_NVML": "/root/work/nvml", "DTRAIN_NVML_LIBRARY": str(library)}).start()
    launch = cluster.start_launch(["--grace", "1s", "-H", "node0:1", "--", *LIVE])
    launch.wait_for("up")
    first, second = nodes(cluster, "-H", "node0")["node0"]["gpus"]
    assert (first["utilisation_percent"], first["temperature_celsius"],
            first["uncorrected_ecc_errors"]) == (97, 61, 2), first
    assert "of root" in first["withheld"] and "MIG" in second["fault"], (first, second)
    page = dtrain(cluster.head, "nodes", "-H", "node0").stdout
    assert " 1/80 GiB  97%  61 C  2 " in page and " 0/2 " in page, page
    launch.signal(signal.SIGTERM)
    assert launch.wait(20).code == 143
    agent.stop()


# A driver that hangs is worth a row, not the loss of one.
def test_a_driver_that_hangs_is_told(make_cluster):
    cluster = make_cluster(1)
    (cluster.work(cluster.nodes[0]) / "nvml").write_text("slow nvmlInit_v2 60000\n")
    library = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
    agent = residents.Resident(cluster.nodes[0], env={
        "FAKE_NVML": "/root/work/nvml", "DTRAIN_NVML_LIBRARY": str(library)}).start()
    told = nodes(cluster, "-H", "node0", "--connect-timeout", "30s")["node0"]
    assert told["state"] == "ok" and "does not answer" in told["gpu_error"], told
    agent.stop()


# I2: another user's job is there in name only; its output and its end are not for her.
def test_strangers_see_that_a_node_is_used_and_no_more(node):  # noqa: F811
    agent = residents.Resident(node).start()
    launch = node.cluster.start_launch(["--grace", "1s", "-H", "node0:1", "--", *LIVE])
    launch.wait_for("up")

    def as_her(*args):
        return launching.Launch(node, [DTRAIN, *args], cwd="/", before_exec=as_alice,
                                env={"HOME": "/home/alice", "USER": "alice"}).wait(30)

    seen = json.loads(as_her("nodes", "--json").out)["nodes"][0]["jobs"]
    assert [job["owner"] for job in seen] == ["root"], seen
    assert not {"command", "ranks", "world_size"} & set(seen[0]), seen
    for args in (["logs"], ["stop", seen[0]["id"]], ["logs", "--rank", "7"]):
        told = as_her(*args)
        assert told.code == 206 and "may not" in told.err, told
        assert "up" not in told.out, told
    # A line for each method, however often she asks.
    assert agent.log.count("audit: denied") == 2, agent.log
    assert launch.process.poll() is None
    launch.signal(signal.SIGTERM)
    assert launch.wait(20).code == 143
    agent.stop()


def test_over_tcp(tcp):  # noqa: F811
    flags = ["--agent", "tcp", "--tls-dir", "/root/work/tls", "-H", tcp.node.address]

    def told(*args):
        return dtrain(tcp.node.cluster.head, *args, *flags)

    launch = tcp.node.cluster.start_launch([*tcp.flags("--grace", "1s"), *LIVE])
    launch.wait_for("up", count=2)
    entry = json.loads(told("nodes", "--json").stdout)["nodes"][0]
    assert entry["state"] == "ok" and entry["jobs"][0]["owner"] == "alice", entry
    assert entry["jobs"][0]["ranks"]["running"] == 2, entry
    tcp.authority.user("eve", "--observer")
    tcp.become("user:eve")
    entry = json.loads(told("nodes", "--json").stdout)["nodes"][0]
    assert entry["jobs"][0]["ranks"]["running"] == 2, "an observer sees jobs"
    assert "no job" not in told("ps").stdout
    # The launcher is on the head, too: agents are only asked for what it does not know.
    launch.signal(signal.SIGTERM)
    assert launch.wait(20).code == 143
    tcp.agent.kill()
    entry = json.loads(told("nodes", "--json").stdout)["nodes"][0]
    assert entry["state"] == "unreachable" and "is a resident agent running" in entry["why"], entry
    tcp.agent.start()
