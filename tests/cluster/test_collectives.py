# SPDX-License-Identifier: Apache-2.0
"""Programs on libdtrain and what disturbs them: stopped and killed ranks, lost hosts, the timeline
and the counters of the whole job."""
import json
import os
import re
import signal

import pytest

import hosts
from launching import wait_until


@pytest.fixture
def loop():
    """programs/loop_allreduce.c, by a name of our own: other tests run it at the same time."""
    path = hosts.bin_dir() / f"loop-allreduce-{os.getpid()}"
    path.unlink(missing_ok=True)  # of a killed run whose process had the same number
    os.link(hosts.bin_dir() / "loop-allreduce", path)
    yield path
    path.unlink()


def pids_of(binary):
    """Pids of the workers by rank."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe") != str(binary):
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                found[int(re.search(rb"(?:^|\0)RANK=(\d+)", file.read()).group(1))] = int(pid)
        except (OSError, AttributeError):
            continue
    return found


def begin(cluster, loop, *flags):
    job = cluster.start_launch([*cluster.hosts_flag(2), *flags, "--", loop])
    job.wait_for(" goes", count=8)
    return job


# M1
def test_m1_stopped_rank_is_named_and_ends_the_job(cluster, loop):
    job = begin(cluster, loop, "--collective-timeout", "2", "--grace", "1")
    os.kill(pids_of(loop)[5], signal.SIGSTOP)
    result = job.wait(30)
    assert result.code == 205, result
    assert "rank 5 on node2 is stopped" in result.err, result
    assert "--collective-timeout" in result.err


# M2
@pytest.mark.parametrize("rank", [0, 6])
def test_m2_killed_rank_ends_the_others(cluster, loop, rank):
    job = begin(cluster, loop, "--grace", "1")
    os.kill(pids_of(loop)[rank], signal.SIGKILL)
    result = job.wait(30)
    assert result.code == 137, result
    assert re.search(rf"rank {rank} on node{rank // 2} .*SIGKILL", result.err), result
    assert not pids_of(loop)


def test_a_stopped_rank_that_goes_on_harms_nothing(cluster, loop):
    job = cluster.start_launch([*cluster.hosts_flag(2), "-x", "ROUNDS=2000", "--", loop])
    job.wait_for(" goes", count=8)
    pid = pids_of(loop).get(3)
    if pid is not None:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "T", 10,
                   "rank 3 stops")
        os.kill(pid, signal.SIGCONT)
    result = job.wait(60)
    assert result.code == 0, result


def test_timeline_and_counters_of_the_whole_job(cluster, loop):
    trace, summary = (f"{cluster.base}/{name}.json" for name in ("trace", "result"))
    result = cluster.launch([*cluster.hosts_flag(2), "-v", "-x", "ROUNDS=100", "--timeline", trace,
                             "--result-json", summary, "--", loop])
    assert result.code == 0, result
    with open(trace, encoding="utf-8") as file:
        events = json.load(file)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {f"rank {r} (node{r // 2})" for r in range(8)} <= set(names.values()), names
    assert {f"node node{n}" for n in range(4)} <= set(names.values()), names
    for pid, name in names.items():
        if not name.startswith("rank "):
            continue
        mine = [e for e in events if e["pid"] == pid and e["ph"] == "X"]
        life = next(e for e in mine if e["name"] == "worker")
        collectives = [e for e in mine if e["name"] == "allreduce"]
        assert len(collectives) == 100, (name, len(collectives))
        assert [e["args"]["number"] for e in collectives] == sorted(
            e["args"]["number"] for e in collectives)
        assert sum(e["name"] == "step" for e in mine) == 100
        # One machine, one clock: what the offsets of the nodes add is their error.
        for event in mine:
            assert event["ts"] >= life["ts"] - 5e4, (event, life)
            assert event["ts"] + event["dur"] <= life["ts"] + life["dur"] + 5e4, (event, life)
        check_nesting([e for e in mine if e["tid"] == 1])
    with open(summary, encoding="utf-8") as file:
        ranks = json.load(file)["ranks"]
    for rank in ranks:
        counters = rank["collectives"]
        assert counters["operations"] >= 100, rank
        assert counters["bytes"] >= 100 * 4 * 65536, rank
        assert 0 < counters["wait_s"] <= counters["busy_s"], rank
    assert re.search(r"^ +rank +host +collectives +MB +inside +waiting$", result.err, re.M), result


def check_nesting(events):
    """Slices of one track lie apart or inside each other, as the viewers want it."""
    open_until = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        begin, end = event["ts"], event["ts"] + event["dur"]
        while open_until and open_until[-1] <= begin + 0.01:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 0.01, event
        open_until.append(end)


def test_horovod_timeline_names_the_file(cluster, loop):
    trace = f"{cluster.base}/horovod.json"
    result = cluster.launch(["-H", "node0:2", "-x", "ROUNDS=30", "--", loop],
                            env={"HOROVOD_TIMELINE": trace})
    assert result.code == 0, result
    assert any(e["name"] == "allreduce" for e in json.load(open(trace, encoding="utf-8")))
    os.unlink(trace)
    result = cluster.launch(["-H", "node0:2", "--", "true"], env={"HOROVOD_TIMELINE": trace})
    assert result.code == 0 and not os.path.exists(trace), result
