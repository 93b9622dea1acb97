# SPDX-License-Identifier: Apache-2.0
"""Each message between a launcher and an agent is lost once, on its way there or back, and the link
with it: what was asked for happens once, or not at all, and is told. C2: with the first message down, the
Welcome, a join is repeated. What commands ask is in test_lost_calls.py."""
import shutil

import pytest

import hosts
import residents

RSH = ["--rsh", "/usr/bin/python3 /root/work/lossy.py {host}"]
# Two ranks on node0, which are fed, take part in a fence and write in two pieces.
WORKER = ("read line; echo \"got $line\"; mkdir /root/work/once.$DTRAIN_RANK || exit 99; "
          "echo \"last $DTRAIN_RANK\"")
# Beats, a fifth of the lease apart, are messages too, and those before the start would make more of them the
# longer it takes on a loaded machine.
LAUNCH = [*RSH, "--lease", "15s", "--stdin", "all", "--bind", "none", "-H", "node0:2", "--", "sh",
          "-c", WORKER]


@pytest.fixture
def lossy(make_cluster):
    cluster = make_cluster(1)
    shutil.copy(hosts.SOURCE_DIR / "tests/cluster/lossy.py", cluster.work())
    cluster.work(cluster.nodes[0])
    agent = residents.Resident(cluster.nodes[0]).start()
    # So that the node has the program, and the link carries nothing else than messages.
    assert cluster.launch(["-H", "node0:1", "--", "true"]).code == 0
    yield cluster, agent
    agent.stop()


def lose(cluster, direction, number, args):
    work, node_work = cluster.work(), cluster.work(cluster.nodes[0])
    (work / "lose").write_text(f"node0 {direction} {number}")
    (work / "input").write_bytes(b"hello\n")
    with open(work / "input") as stdin:
        result = cluster.launch(args, stdin=stdin, timeout=60)
    starts = sorted(path.name for path in node_work.glob("once.*"))
    for name in starts:
        (node_work / name).rmdir()
    was_lost = not (work / "lose").exists()
    (work / "lose").unlink(missing_ok=True)
    return result, starts, was_lost


# What is said before the start, of which a loss is told: Hello, Reserve and HoldPorts; Opened, attached, Welcome,
# Reserved and PortsHeld. gRPC may put two of them into one frame, and an acknowledgement into another.
BEFORE_THE_START = {"up": 4, "down": 5}


# G8, and C2: also the answer alone is lost, when the agent has acted.
@pytest.mark.parametrize("direction", ["up", "down"])
def test_g8_each_message_is_lost_once(lossy, direction):
    cluster, agent = lossy
    rode_through, failed, number = 0, 0, 1
    while True:
        result, starts, was_lost = lose(cluster, direction, number, LAUNCH)
        if not was_lost:
            break
        note = f"{direction} {number}: {result}\n{agent.log}"
        if result.code == 0:
            assert starts == ["once.0", "once.1"], note
            assert sorted(result.lines) == ["[0] got hello", "[0] last 0", "[1] got hello",
                                            "[1] last 1"], note
            rode_through += 1
        else:
            # Lost before anything was started: it says so, and nothing was.
            assert result.code in (200, 202) and "node0" in result.err, note
            assert not starts, note
            failed += 1
        residents.launching.wait_until(lambda: not agent.jobs(), 40, lambda: agent.log)
        number += 1
    print(f"{direction}: {number - 1} messages, {rode_through} ridden through, {failed} told")
    # Without a loss there is none to tell, and there is something to lose.
    assert result.code == 0 and rode_through >= 3 and failed <= BEFORE_THE_START[direction], (rode_through, failed)
