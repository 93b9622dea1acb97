# SPDX-License-Identifier: Apache-2.0
"""Faults of group K: signals and cancelling, in every state of a launch."""
import os
import signal
import time

import pytest

import hosts
import leftovers
from launching import wait_until
from test_faults_c import slow_rsh

STUBBORN = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"]
QUIET = ["sh", "-c", "echo up; exec sleep 600"]


def up(cluster, args, count=4):
    launch = cluster.start_launch(args)
    launch.wait_for("up", count=count)
    return launch


# K1
def test_k1_one_interrupt_is_graceful(cluster):
    script = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    launch = up(cluster, [*cluster.hosts_flag(1), "--", "sh", "-c", script])
    launch.signal(signal.SIGINT)
    result = launch.wait(20)
    assert result.code == 130 and result.out.count("told") == 4, result


# K1
def test_k1_second_interrupt_kills_at_once(cluster):
    launch = up(cluster, ["--grace", "60s", *cluster.hosts_flag(1), "--", *STUBBORN])
    launch.signal(signal.SIGINT)
    time.sleep(0.3)  # two of a kind that come together are one to the kernel
    launch.signal(signal.SIGINT)
    result = launch.wait(20)
    assert result.code == 130, result
    leftovers.wait_for_no_processes(cluster, 3)


# K2, K3
@pytest.mark.parametrize("number,codes", [(signal.SIGTERM, (143,)), (signal.SIGHUP, (129, 130))])
def test_k2_k3_term_and_hangup_are_as_one_interrupt(cluster, number, codes):
    launch = up(cluster, ["--grace", "1s", *cluster.hosts_flag(1), "--", *STUBBORN])
    launch.signal(number)
    result = launch.wait(20)
    assert result.code in codes, result
    leftovers.wait_for_no_processes(cluster, 3)


# K4
def test_k4_reader_of_our_output_goes_away(cluster):
    command = ('"$0" launch --grace 1s -H node0:1,node1:1 -- yes | head -n 3; '
               'echo "${PIPESTATUS[0]}"')
    result = cluster.head.run(["bash", "-c", command, hosts.bin_dir() / "dtrain"], timeout=30)
    *lines, code = result.stdout.split("\n")[:-1]
    assert len(lines) == 3 and int(code) not in (0, 2), result
    leftovers.wait_for_no_processes(cluster, 5)


# K5
@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_k5_user_signals_reach_every_rank(cluster, name):
    script = f"trap 'echo got {name}; exit 0' {name}; echo up; while :; do sleep 0.05; done"
    launch = up(cluster, [*cluster.hosts_flag(2), "--", "sh", "-c", script], count=8)
    launch.signal(getattr(signal, f"SIG{name}"))
    result = launch.wait(20)
    assert result.code == 0 and result.out.count(f"got {name}") == 8, result


# K6: workers and launcher that were stopped for a while are not lost.
def test_k6_stop_and_continue(cluster):
    launch = up(cluster, ["--lease", "6s", *cluster.hosts_flag(1), "--", "sh", "-c",
                          "echo up; sleep 3; echo later"])
    workers = [pid for pid, _, line in leftovers.processes(cluster.nodes[1]) if "later" in line]
    for pid in [*workers, launch.pid]:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    for pid in [*workers, launch.pid]:
        os.kill(pid, signal.SIGCONT)
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("later") == 4, result


# K7
@pytest.mark.parametrize("first", [0.0, 0.05, 0.2, 0.5])
def test_k7_term_every_ten_milliseconds(cluster, first):
    launch = cluster.start_launch([*cluster.hosts_flag(2), "--", *STUBBORN])
    time.sleep(first)
    deadline = time.monotonic() + 20
    while launch.process.poll() is None and time.monotonic() < deadline:
        launch.signal(signal.SIGTERM)
        time.sleep(0.01)
    result = launch.wait(1)
    # -15: it came before the program had set up anything.
    assert result.code in (143, -15), result
    leftovers.wait_for_no_processes(cluster, 5)


# K8
@pytest.mark.parametrize("state", ["connect", "barrier", "start", "run", "stop"])
def test_k8_cancel_in_each_state(cluster, state):
    quiet = [*cluster.hosts_flag(1), "--", *QUIET]
    if state == "connect":
        cluster.cut(cluster.nodes[3])
        launch = cluster.start_launch(quiet)
        wait_until(lambda: agents(cluster), 10, "an agent")
    elif state == "barrier":
        launch = cluster.start_launch([*slow_rsh(cluster, "node3"), *quiet])
        wait_until(lambda: len(agents(cluster)) >= 3, 10, "three agents")
    elif state == "start":
        launch = cluster.start_launch(quiet)
        launch.wait_for("up")
    elif state == "run":
        launch = up(cluster, quiet)
    else:
        launch = up(cluster, ["--grace", "2s", *cluster.hosts_flag(1), "--", "sh", "-c",
                              '[ "$RANK" != 0 ] || { sleep 0.5; exit 8; }; '
                              "trap 'echo told' TERM; echo up; while :; do sleep 0.1; done"], count=3)
        launch.wait_for("told")
    launch.signal(signal.SIGINT)
    result = launch.wait(10)
    if state == "connect":
        cluster.heal(cluster.nodes[3])
    assert result.code == (8 if state == "stop" else 130), result
    leftovers.wait_for_no_processes(cluster, 5)


# K8: a host hangs; its own lease ends what runs there, once it goes on.
@pytest.mark.parametrize("state,grace", [("barrier", 1), ("run", 0), ("run", 2), ("stop", 2)])
def test_k8_cancel_while_a_host_hangs(cluster, state, grace):
    args = ["--grace", f"{grace}s", *cluster.hosts_flag(1), "--"]
    if state == "barrier":
        launch = cluster.start_launch([*slow_rsh(cluster, "node3"), *args, *QUIET])
        wait_until(lambda: len(agents(cluster)) >= 3, 10, "three agents")
    elif state == "run":
        launch = up(cluster, [*args, *QUIET])
    else:
        launch = up(cluster, [*args, "sh", "-c", '[ "$RANK" != 0 ] || { sleep 0.5; exit 8; }; '
                              "trap 'echo told' TERM; echo up; while :; do sleep 0.1; done"], count=3)
    hung = [pid for pid, _, line in leftovers.processes(cluster.nodes[1]) if "dtrain-agent" in line]
    assert hung
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    try:
        if state == "stop":
            launch.wait_for("told")
        launch.signal(signal.SIGINT)
        begin = time.monotonic()
        result = launch.wait(grace + 20)
        took = time.monotonic() - begin
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGCONT)
    assert took < grace + 5, result
    if state == "barrier":
        assert result.code == 130, result
    else:
        assert result.code == 204 and "node1" in result.err, result
    leftovers.wait_for_no_processes(cluster, grace + 5)


def agents(cluster):
    """Hosts that have one. What it forks is called the same until it is another program."""
    return [host for host in cluster.nodes
            if any("dtrain-agent" in row[2] and row[2].endswith("bridge")
                   for row in leftovers.processes(host))]


# K9
def test_k9_time_limit(cluster):
    result = cluster.launch(["--timeout", "1s", "--grace", "1s", *cluster.hosts_flag(1), "--",
                             *STUBBORN], timeout=20)
    assert result.code == 209, result
