# SPDX-License-Identifier: Apache-2.0
"""Each call that the commands make of an agent (NodeStatus, ReadLog, StopJob) has its request lost
and its answer lost: with the link, which is made anew then, or silently, which takes no longer than
--connect-timeout and is told. Logs, which only launchers call, is in test_lost_messages.py."""
import json
import re
import shutil
import signal
import subprocess

import pytest

import hosts
import launching
import residents
from launching import wait_until

DTRAIN = hosts.bin_dir() / "dtrain"
REACH = ["--rsh", "/usr/bin/python3 /root/work/lossy.py {host}", "-H", "node0,node1"]
LIVE = ["sh", "-c", 'echo "up $RANK"; exec sleep 600']
# Less than what makes the agent drop what its launcher has.
COUNT = ["sh", "-c", "seq 1 1000; read -r x; seq 1001 500000; echo last; read -r x; exit 0"]
COUNTED = "".join(f"{number}\n" for number in range(1, 500001)) + "last\n"
LOSSES = [("up", ""), ("down", ""), ("up", "silently"), ("down", "silently")]
# What a silent link costs; both hosts have to be reached within it.
SHORT = f"{launching.patient(5)}s"
# The how many-th message of a link it is: all commands begin with NodeStatus.
STATUS, SECOND = 1, 2


class Lossy:
    def __init__(self, cluster):
        self.cluster = cluster
        self.launches = []
        self.agents = [residents.Resident(host).start() for host in cluster.nodes]
        shutil.copy(hosts.SOURCE_DIR / "tests/cluster/lossy.py", cluster.work())
        (cluster.work() / "elsewhere").mkdir()
        # So that the hosts have the program, and the links carry nothing else than messages.
        assert cluster.launch([*cluster.hosts_flag(1), "--", "true"]).code == 0

    def launch(self, *flags, command=LIVE):
        # Where commands do not look for it.
        launch = self.cluster.start_launch(
            ["--grace", "1s", "--bind", "none", "--tag-output", "none", *flags, "--", *command],
            stdin=subprocess.PIPE, env={"XDG_RUNTIME_DIR": "/root/work/elsewhere"})
        self.launches.append(launch)
        return launch

    def lose(self, direction, number, how):
        (self.cluster.work() / "lose").write_text(f"node0 {direction} {number} {how}")

    def was_lost(self):
        return not (self.cluster.work() / "lose").exists()

    def command(self, *words, timeout="20s"):
        """As from another machine than the launcher's: that is not asked."""
        return launching.Launch(self.cluster.head,
                                [DTRAIN, *words, *REACH, "--connect-timeout", timeout])

    def says(self, *words, **options):
        result = self.command(*words, **options).wait(60)
        assert self.was_lost(), result
        return result


@pytest.fixture(scope="module")
def made():
    with hosts.Cluster(2) as cluster:
        yield Lossy(cluster)


@pytest.fixture
def lossy(made):
    yield made
    for launch in made.launches:
        if launch.process.poll() is None:
            launch.signal(signal.SIGTERM)
            launch.wait(20)
    made.launches.clear()
    (made.cluster.work() / "lose").unlink(missing_ok=True)
    for agent in made.agents:
        wait_until(lambda agent=agent: not agent.jobs(), 20, lambda agent=agent: agent.log)


@pytest.fixture
def job(lossy):
    launch = lossy.launch("-H", "node0:1,node1:1")
    launch.wait_for("up", count=2)
    return launch


def silent(result, code=1):
    """One host did not answer in time: it is named, and what bounds it."""
    assert result.code == code, result
    told = result.err + result.out
    assert f"node0: no answer within {SHORT[:-1]} s" in told and "--connect-timeout" in told, result
    assert "node1: " not in told, result


@pytest.mark.parametrize("direction,how", LOSSES)
def test_a_lost_status_of_nodes(lossy, direction, how):
    lossy.lose(direction, STATUS, how)
    result = lossy.says("nodes", "--json", timeout=SHORT if how else "20s")
    node0, node1 = json.loads(result.out)["nodes"]
    assert node1["state"] == "ok" and node1["host"] == "node1", result
    if how:
        assert result.code == 200 and node0["state"] == "unreachable", result
        assert f"no answer within {SHORT[:-1]} s, though it is connected" in node0["why"], result
    else:
        assert result.code == 0 and node0["state"] == "ok", result


@pytest.mark.parametrize("direction,how", LOSSES)
def test_a_lost_status_of_jobs(lossy, job, direction, how):
    commands = {("up", "silently"): [["ps"]], ("down", "silently"): [["status"]]}
    for words in commands.get((direction, how), [["ps"], ["status"]]):
        lossy.lose(direction, STATUS, how)
        result = lossy.says(*words, "--json", timeout=SHORT if how else "20s")
        told = json.loads(result.out)
        view = told["on_nodes"][0] if words == ["ps"] else told["job"]
        assert view["phase"] == "running", result
        assert [part["host"] for part in view["parts"]] == (["node1"] if how else ["node0", "node1"]), result
        if how and words == ["ps"]:
            silent(result)
            assert told["unreachable"][0].startswith("node0: "), result
        elif how:
            silent(result, code=0)  # what was asked for is shown, and that something is missing
        else:
            assert result.code == 0 and not result.err, result


@pytest.mark.parametrize("direction,how", LOSSES)
def test_a_lost_piece_of_output(lossy, job, direction, how):
    lossy.lose(direction, SECOND, how)
    result = lossy.says("logs", "--rank", "0", timeout=SHORT if how else "20s")
    if how:
        silent(result)
        assert not result.out, result
    else:
        assert result.code == 0 and result.out == "up 0\n", result
    if how and direction == "down":
        return
    # The other host's is not held up.
    lossy.lose(direction, STATUS, how)
    result = lossy.says("logs", "--rank", "1", timeout=SHORT if how else "20s")
    assert result.code == 0 and result.out == "up 1\n", result


# What follows the output shows each byte once, whichever of its messages is lost.
@pytest.mark.parametrize("direction,number", [("up", 2), ("up", 4), ("down", 2), ("down", 4)])
def test_output_is_followed_without_gap_or_double(lossy, direction, number):
    launch = lossy.launch("-H", "node0:1", "--stdin", "0", command=COUNT)
    launch.process.stdin.write(b"go\n")
    launch.process.stdin.flush()
    launch.wait_for("last")
    lossy.lose(direction, number, "")
    follower = lossy.command("logs", "-f")
    follower.wait_for("last")
    assert lossy.was_lost()
    launch.process.stdin.close()
    assert launch.wait(30).code == 0
    result = follower.wait(30)
    assert result.code == 0 and result.out == COUNTED, result


def test_output_is_followed_though_the_agent_is_killed(lossy):
    launch = lossy.launch("-H", "node0:1", "--stdin", "0", command=COUNT)
    launch.wait_for("\n1000\n")
    follower = lossy.command("logs", "-f")
    follower.wait_for("\n1000\n")
    lossy.agents[0].kill()
    lossy.agents[0].start()
    launch.process.stdin.write(b"go\n")
    launch.process.stdin.flush()
    follower.wait_for("last")
    launch.process.stdin.close()
    assert launch.wait(30).code == 0
    result = follower.wait(30)
    assert result.code == 0 and result.out == COUNTED, result


# The third message of a command that ends a job is the first that asks whether it has ended.
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("number", [SECOND, 3])
def test_a_lost_stop_is_said_again(lossy, job, direction, number):
    lossy.lose(direction, number, "")
    result = lossy.says("stop", launching.only_job(lossy.cluster.nodes[0]))
    assert result.code == 0 and "has ended" in result.err, result
    ended = job.wait(20)
    assert ended.code == 143 and ended.err.count("the job was stopped here by") >= 1, ended


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_stop_without_an_answer_may_be_repeated(lossy, job, direction):
    stop = ["stop", launching.only_job(lossy.cluster.nodes[0])]
    lossy.lose(direction, SECOND, "silently")
    result = lossy.says(*stop, timeout=SHORT)
    # The other host has heard of it, which ends the job, and then both tell so.
    assert result.code == 0 and "has ended" in result.err, result
    assert job.wait(20).code == 143
    again = lossy.command(*stop).wait(30)
    # Its launcher was on this machine, and has left a record.
    assert again.code == 1 and f"{stop[1]} has ended already" in again.err, again


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_stop_that_nobody_answers(lossy, direction):
    launch = lossy.launch("-H", "node0:1")
    launch.wait_for("up")
    stop = ["stop", launching.only_job(lossy.cluster.nodes[0])]
    lossy.lose(direction, SECOND, "silently")
    result = lossy.says(*stop, timeout=SHORT)
    silent(result)
    assert "whether the job has ended there is not known: repeat `dtrain stop`" in result.err, result
    again = lossy.command(*stop).wait(30)
    # Lost on its way there, it has to be said again; lost on the way back, it need not.
    assert again.code == 0 or (direction == "down" and re.search("is running on node0|has ended already", again.err)), again
    assert launch.wait(20).code == 143
