# SPDX-License-Identifier: Apache-2.0
"""--elastic horovod: the ranks of an elastic Horovod script come and go with their hosts, and those on other hosts live on.
The ranks are programs/elastic_rank.py, which does what Horovod's client does."""
import contextlib
import json
import os
import random
import re
import signal

import hosts
import launching
import leftovers
import pytest
import residents
from launching import wait_until
from test_faults_efg import end_ssh_sessions, workers_gone
from test_horovod import NOBODY, knock
from test_resident import workers
from test_waiting import down  # noqa: F401 - a fixture

LEASE, GRACE = 3, 1
FLAGS = ["--elastic", "horovod", "--lease", f"{LEASE}s", "--grace", f"{GRACE}s"]
STEP = re.compile(r"\[(\d+)\] step (\d+) round (\d+) rank (\d+) of (\d+) local (\d+) of (\d+) pid (\d+)")
FOR_EVER = 1000000


def trains(steps, pause=0.05):
    return ["--", "/usr/bin/python3", "-S", hosts.HERE / "programs/elastic_rank.py", steps, pause]


def steps_of(job):
    """(number, step, round, rank, size, local rank, local size, pid) of each line, as they came."""
    return [tuple(map(int, each)) for each in STEP.findall(job.out)]


def pids_at(job, size):
    """By rank, once a step of so many ranks was made by all of them."""
    return {rank: pid for _, _, _, rank, of, _, _, pid in steps_of(job) if of == size}


def wait_for_size(job, size, after=0, timeout=60):
    """Until all ranks of a world of that size have made a step that comes behind `after` lines."""
    def there():
        return len({rank for _, _, _, rank, of, _, _, _ in steps_of(job)[after:] if of == size}) == size
    wait_until(lambda: there() or job.process.poll() is not None, timeout, lambda: (job.out[-3000:], job.err))
    assert there(), job.wait(5)


def start(cluster, *flags, env=None, steps=FOR_EVER):
    return cluster.start_launch([*FLAGS, *flags, *trains(steps)], env=env)


def end(job, code=130):
    job.signal(signal.SIGINT)
    result = job.wait(30)
    assert result.code == code, result
    return result


def test_all_is_well(cluster):
    results = cluster.work()
    result = cluster.launch([*FLAGS, *cluster.hosts_flag(2), "--result-json", "/root/work/r.json", *trains(20)])
    assert result.code == 0, result
    assert sorted(re.findall(r"done 20 rank (\d) of 8", result.out)) == [str(rank) for rank in range(8)], result
    assert "reset" not in result.err and "leaves" not in result.err, result
    made = {(rank, local, size) for _, _, _, rank, _, local, size, _ in steps_of_text(result.out)}
    assert made == {(rank, rank % 2, 2) for rank in range(8)}, made
    written = json.loads((results / "r.json").read_text())
    assert written["exit_code"] == 0 and len(written["ranks"]) == 8, written


def steps_of_text(text):
    return [tuple(map(int, each)) for each in STEP.findall(text)]


def test_a_rank_that_is_killed_takes_its_host_along_and_no_other(cluster):
    job = start(cluster, "-np", 8, "--min-np", 4, *cluster.hosts_flag(2))
    wait_for_size(job, 8)
    before = pids_at(job, 8)
    lines = len(steps_of(job))
    victim = cluster.nodes[2]
    os.kill(workers(victim)[0][0], signal.SIGKILL)
    wait_for_size(job, 6, lines)
    after = pids_at(job, 6)
    assert [after[rank] for rank in range(6)] == [before[rank] for rank in (0, 1, 2, 3, 6, 7)], (before, after)
    assert re.search(r"dtrain: node2 leaves the job: rank [45] was killed by signal 9 \(SIGKILL\) after [\d.]+ s; ",
                     job.err), job.err
    assert not workers(victim), "the other rank there"
    # Nothing that was committed is lost, and nothing is done twice.
    made = {}
    for number, step, _, _, _, _, _, _ in steps_of(job):
        assert step >= made.get(number, 0), (number, step)
        made[number] = step
    end(job)


# Nothing tells the ranks, either: Gloo's own limit has to.
def test_a_host_that_is_cut_off(cluster):
    gone = cluster.nodes[1]
    job = start(cluster, "-N", "2:4", *cluster.hosts_flag(1), env={"HOROVOD_GLOO_TIMEOUT_SECONDS": "6"})
    wait_for_size(job, 4)
    before = pids_at(job, 4)
    lines = len(steps_of(job))
    cluster.cut(gone)
    try:
        wait_for_size(job, 3, lines, timeout=30)
        after = pids_at(job, 3)
        assert [after[rank] for rank in range(3)] == [before[rank] for rank in (0, 2, 3)], (before, after)
        workers_gone(gone, LEASE + GRACE + 10)
    finally:
        cluster.heal(gone)
    end(job)
    end_ssh_sessions(gone)


def test_the_host_of_rank_0_is_lost(cluster):
    gone = cluster.nodes[0]
    job = start(cluster, "-N", "2:4", *cluster.hosts_flag(1))
    wait_for_size(job, 4)
    before = pids_at(job, 4)
    lines = len(steps_of(job))
    for pid, _, line in leftovers.processes(gone):
        if "dtrain-agent" in line and "bridge" in line:
            os.kill(pid, signal.SIGKILL)
    wait_for_size(job, 3, lines)
    after = pids_at(job, 3)
    assert [after[rank] for rank in range(3)] == [before[rank] for rank in (1, 2, 3)], (before, after)
    end(job)


def test_never_again_until_all_begins_again(cluster):
    result = cluster.launch([*FLAGS, "-np", 2, "--cool-down", "never", "--max-restarts", 1, "--backoff", "10ms",
                             *cluster.hosts_flag(1, cluster.nodes[:2]), "--", "sh", "-c",
                             'echo attempt $DTRAIN_ATTEMPT; [ "$DTRAIN_ATTEMPT" = 1 ] || exit 3'])
    assert result.code == 0, result
    assert result.out.count("attempt 0") >= 1 and result.out.count("attempt 1") == 2, result


def test_a_host_comes_back_when_it_has_cooled_down(cluster):
    job = start(cluster, "-N", "2:4", "--cool-down", "1s:2s", *cluster.hosts_flag(1))
    wait_for_size(job, 4)
    before = pids_at(job, 4)
    lines = len(steps_of(job))
    os.kill(workers(cluster.nodes[3])[0][0], signal.SIGKILL)
    wait_for_size(job, 3, lines)
    wait_for_size(job, 4, len(steps_of(job)))
    after = {rank: pid for _, _, _, rank, _, _, _, pid in steps_of(job)[-8:]}
    assert [after[rank] for rank in range(3)] == [before[rank] for rank in range(3)], (before, after)
    assert after[3] != before[3]
    # They were told: no sum broke for it.
    assert job.out.count("hosts changed at step") == 3, job.out[-3000:]
    end(job)


def test_all_ranks_fail(cluster):
    result = cluster.launch([*FLAGS, "-N", "1:4", *cluster.hosts_flag(1), "--", "sh", "-c", "exit 7"])
    assert result.code == 7, result


def test_a_rank_that_fails_before_the_first_round_ends_the_job(cluster):
    result = cluster.launch([*FLAGS, "-N", "1:4", *cluster.hosts_flag(1), "--", "sh", "-c",
                             '[ "$HOROVOD_RANK" = 2 ] && exit 9; exec sleep 600'])
    assert result.code == 9, result
    assert "node2" in result.err, result


def test_no_resets_are_left(cluster):
    job = start(cluster, "-N", "1:4", "--reset-limit", 1, *cluster.hosts_flag(1))
    wait_for_size(job, 4)
    lines = len(steps_of(job))
    os.kill(workers(cluster.nodes[3])[0][0], signal.SIGKILL)
    wait_for_size(job, 3, lines)
    os.kill(workers(cluster.nodes[2])[0][0], signal.SIGKILL)
    result = job.wait(30)
    assert result.code == 208, result
    assert "no resets left (--reset-limit 1)" in result.err, result


def test_too_few_are_left(cluster):
    job = start(cluster, "-np", 4, "--min-np", 4, "--join-timeout", "4s", "--cool-down", "60s:60s", *cluster.hosts_flag(1))
    wait_for_size(job, 4)
    os.kill(workers(cluster.nodes[3])[0][0], signal.SIGKILL)
    result = job.wait(40)
    assert result.code == 202, result
    assert "4 ranks are needed (--min-np)" in result.err and "node3" in result.err, result


# Horovod's own server would let the others run into Gloo's 30 s.
def test_a_slow_import_is_waited_for(cluster):
    job = start(cluster, *cluster.hosts_flag(1), env={"ELASTIC_LATE": "node1:33"}, steps=5)
    result = job.wait(90)
    assert result.code == 0 and result.out.count("done 5 ") == 4, result


def test_resident_agents_see_one_job(cluster):
    three = cluster.nodes[:3]
    agents = [residents.Resident(host).start() for host in three]
    try:
        job = start(cluster, "-N", "2:3", "--cool-down", "1s:1s", *cluster.hosts_flag(1, three))
        wait_for_size(job, 3)
        lines = len(steps_of(job))
        os.kill(workers(three[2])[0][0], signal.SIGKILL)
        wait_for_size(job, 2, lines)
        wait_for_size(job, 3, len(steps_of(job)))

        def dtrain(*words):
            # As on a machine that does not have its launcher.
            return cluster.head.run(["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o mode=0700 none /run/dtrain && exec "$@"', "sh",
                                     cluster.programs / "dtrain", *words], check=False)
        seen = {}

        def all_there():  # the agent of the host that came back may still have its last session
            listed = dtrain("ps", "-H", "node[0-2]", "--json")
            assert listed.returncode == 0, listed
            [one] = json.loads(listed.stdout)["on_nodes"]
            seen.update(one)
            return (one["nodes"], one["world_size"], one["ranks"]["running"]) == (3, 3, 3)
        wait_until(all_there, 20, lambda: seen)
        # The worker that came is the fourth, on whichever host: so its lines are tagged.
        read = dtrain("logs", "-H", "node[0-2]", "--rank", "3", seen["id"])
        assert read.returncode == 0 and " rank 2 of 3 " in read.stdout, read
        shown = dtrain("status", "-H", "node[0-2]", seen["id"])
        assert re.search(r"^3 +node2 +\d+ +running", shown.stdout, re.M), shown
        events = cluster.head.run(["curl", "-sS", "--unix-socket", f"/run/dtrain/{seen['id']}.sock",
                                   f"http://localhost/v1/jobs/{seen['id']}/events"]).stdout
        assert '"phase"' in events and '"lost"' not in events, events
        # One that hears of it suffices.
        stopped = dtrain("stop", "-H", "node1", seen["id"])
        assert stopped.returncode == 0 and f"{seen['id']} has ended" in stopped.stderr, stopped
        result = job.wait(20)
        assert result.code == 143 and "node1: the job was stopped here by " in result.err, result
        assert not any(workers(node) for node in three)
    finally:
        for agent in agents:
            agent.stop()


# One of its ranks has failed, and the other takes its time.
def test_a_stop_at_a_host_whose_run_ends_ends_the_job(cluster):
    three = cluster.nodes[:3]
    agents = [residents.Resident(host).start() for host in three]
    try:
        stubborn = ["sh", "-c", '[ "$(hostname)" != node2 ] || trap "" TERM; exec "$@"', "sh"]
        job = cluster.start_launch(["--elastic", "horovod", "--lease", f"{LEASE}s", "--grace", "60s", "-N", "2:3",
                                    *cluster.hosts_flag(2, three), "--", *stubborn, *trains(FOR_EVER)[1:]])
        wait_for_size(job, 6)
        lines = len(steps_of(job))
        (victim, _), (other, _) = workers(three[2])
        os.kill(victim, signal.SIGKILL)
        wait_for_size(job, 4, lines)
        stop = launching.Launch(three[2], [cluster.programs / "dtrain", "stop", launching.only_job(three[2])])
        wait_until(lambda: "StopJob" in agents[2].log, 20, lambda: (stop.err, agents[2].log))
        wait_until(lambda: not workers(three[0]) and not workers(three[1]), 20, lambda: job.err)
        os.kill(other, signal.SIGKILL)
        stopped = stop.wait(30)
        assert stopped.code == 0 and "has ended" in stopped.err, stopped
        result = job.wait(30)
        assert result.code == 143 and "node2: the job was stopped here by " in result.err, result
    finally:
        for agent in agents:
            agent.stop()


def test_the_door_of_a_host_dies(cluster):
    job = start(cluster, "-N", "2:4", *cluster.hosts_flag(1))
    wait_for_size(job, 4)
    lines = len(steps_of(job))
    [door] = [pid for pid, _, line in leftovers.processes(cluster.nodes[2]) if line.endswith(" store")]
    os.kill(door, signal.SIGKILL)
    wait_for_size(job, 3, lines)
    assert "node2 leaves the job: " in job.err and "was killed by signal 9" in job.err, job.err
    end(job)


def processes_like(host, end):
    return [pid for pid, _, line in leftovers.processes(host) if line.endswith(end)]


# One process of the job after another, of any kind and on any host. Not while ranks look for each other: Horovod's own end
# by SIGABRT then, all of them.
def test_random_kills(cluster):
    seed = int(os.environ.get("DTRAIN_SEED") or random.randrange(1 << 30))
    print(f"DTRAIN_SEED={seed}")
    choose = random.Random(seed)
    job = start(cluster, "-N", "1:4", "--cool-down", "1s:1s", *cluster.hosts_flag(1))
    wait_for_size(job, 4)
    kinds = {"rank": lambda host: [pid for pid, *_ in workers(host)], "shepherd": lambda host: processes_like(host, " shepherd"),
             "door": lambda host: processes_like(host, " store"), "agent": lambda host: processes_like(host, " bridge")}
    for kind in choose.sample([*kinds, *kinds], 2 * len(kinds)):
        host = choose.choice(cluster.nodes)
        lines = len(steps_of(job))
        for pid in kinds[kind](host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for_size(job, 4, lines + 4, timeout=120)
        for each in cluster.nodes:
            assert len(workers(each)) <= 1, (kind, each.name)
    end(job)


# ---- hosts by a command -------------------------------------------------------------------

class Listed:
    """A command that prints what stands in a file."""

    def __init__(self, cluster, *nodes):
        self.path = cluster.work() / "hosts"
        self.write(*nodes)
        self.flags = ["--discover", "cat /root/work/hosts", "--join-timeout", "10s"]

    def write(self, *nodes):
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{node.name}:1\n" for node in nodes))
        new.rename(self.path)


def test_hosts_come_and_go(cluster):
    one, two, three, _ = cluster.nodes
    listed = Listed(cluster, one, two)
    job = start(cluster, "--min-np", 1, *listed.flags)
    wait_for_size(job, 2)
    before = pids_at(job, 2)
    listed.write(one, two, three)
    wait_for_size(job, 3)
    grown = pids_at(job, 3)
    assert {rank: grown[rank] for rank in (0, 1)} == before, (before, grown)
    assert "node2 joins the job" in job.err, job.err
    lines = len(steps_of(job))
    # Rank 0's among those that go.
    listed.write(three)
    wait_for_size(job, 1, lines)
    assert pids_at(job, 1) == {0: grown[2]}
    for gone in (one, two):
        wait_until(lambda gone=gone: not workers(gone), 20, lambda: leftovers.processes(gone))
    assert "removed from the job" not in job.err, job.err
    # Nothing broke: they were told each time, and those that go were ended when the others had left them.
    result = end(job)
    assert "a sum broke" not in result.out.split("node2 joins")[0], result


# The first has no other to prove an address with, and must not get loopback.
def test_a_job_that_begins_with_one_host_can_grow(cluster):
    one, two, *_ = cluster.nodes
    listed = Listed(cluster, one)
    job = start(cluster, "--min-np", 1, *listed.flags)
    wait_for_size(job, 1)
    before = pids_at(job, 1)
    listed.write(one, two)
    wait_for_size(job, 2)
    assert pids_at(job, 2)[0] == before[0]
    end(job)


# Only one of the two answers at first, and must not get loopback, either.
def test_a_listed_host_that_is_not_up_yet_joins(cluster, down):
    listed = Listed(cluster, cluster.nodes[0], down.host)
    job = start(cluster, "--min-np", 1, *listed.flags[:2], "--join-timeout", "60s")
    job.wait_for("2 hosts are needed, 1 is there", stream="err")
    down.up()
    wait_for_size(job, 2)
    end(job)


def test_a_job_whose_only_host_is_not_up_yet_waits_for_it(cluster, down):
    listed = Listed(cluster, down.host)
    job = start(cluster, "--min-np", 1, *listed.flags[:2], "--join-timeout", "60s")
    job.wait_for("1 rank is needed (-np), 0 are there: waiting up to", stream="err")
    assert re.search(r"missing: node3 \(.*refused", job.err, re.I), job.err
    down.up()
    wait_for_size(job, 1)
    end(job)


def test_a_host_that_refuses_our_key_is_not_waited_for(cluster):
    one = cluster.nodes[0]
    keys = one.base / "authorized_keys"
    before = keys.read_text()
    keys.write_text("")
    try:
        result = cluster.launch([*FLAGS, "--min-np", 1, *Listed(cluster, one).flags, *trains(1)])
    finally:
        keys.write_text(before)
    assert result.code == 200 and "node0: " in result.err and "waiting up to" not in result.err, result


# As pods in a routed network: the one that comes later has no address in the network of the first.
@pytest.mark.parametrize("flags", [[], ["--net", "10.77.0.0/16"]])
def test_hosts_with_networks_of_their_own_join(make_cluster, flags):
    cluster = make_cluster(2)
    one, two = cluster.nodes
    for host in (one, two):
        host.network(f"addr del {host.address}/24 dev eth0\naddr add {host.address}/32 dev eth0\n"
                     "route add 10.77.0.0/24 dev eth0\n")
    listed = Listed(cluster, one)
    job = start(cluster, "--min-np", 1, *flags, *listed.flags)
    wait_for_size(job, 1)
    before = pids_at(job, 1)
    listed.write(one, two)
    wait_for_size(job, 2)
    assert pids_at(job, 2)[0] == before[0]
    end(job)


def test_hosts_that_the_command_names_later_are_waited_for(cluster):
    one, two, three, _ = cluster.nodes
    listed = Listed(cluster, one)
    job = start(cluster, "-N", "3:4", *listed.flags[:2], "--join-timeout", "60s")
    job.wait_for("3 hosts are needed", stream="err")
    listed.write(one, two, three)
    wait_for_size(job, 3)
    end(job)


def test_all_begins_again_with_the_hosts_of_then(cluster):
    one, two, three, four = cluster.nodes
    listed = Listed(cluster, one, two)
    job = cluster.start_launch([*FLAGS, "--min-np", 2, "--max-restarts", 1, "--backoff", "3s:3s", *listed.flags, "--", "sh", "-c",
                                'echo "attempt $DTRAIN_ATTEMPT of $HOROVOD_RANK"; [ "$DTRAIN_ATTEMPT" = 1 ] || exit 3; exec "$@"',
                                "sh", *trains(FOR_EVER)[1:]])
    job.wait_for("dtrain: restart 1 of 1", stream="err")
    listed.write(three, four)
    wait_for_size(job, 2)
    assert "attempt 1 of 0" in job.out and "attempt 1 of 1" in job.out, job.out
    assert not workers(one) and not workers(two) and workers(three) and workers(four)
    end(job)


def test_a_command_that_fails_later_changes_nothing(cluster):
    listed = Listed(cluster, *cluster.nodes[:2])
    job = start(cluster, "--min-np", 1, *listed.flags)
    wait_for_size(job, 2)
    listed.path.unlink()
    job.wait_for("dtrain: warning: --discover: \"cat /root/work/hosts\" exited with code 1: cat: /root/work/hosts: "
                 "No such file or directory; the hosts stay as they are", stream="err")
    lines = len(steps_of(job))
    wait_for_size(job, 2, lines + 40)
    listed.write(*cluster.nodes[:3])
    wait_for_size(job, 3)
    assert job.err.count("the hosts stay as they are") == 1, job.err
    end(job)


@pytest.mark.parametrize("command, said", [
    ("echo no hosts today >&2; exit 3", "exited with code 3: no hosts today"),
    ("echo a:b:c", 'printed a line that is not a host: line 1: "a:b:c" is not HOST or HOST:SLOTS'),
    ("true", "has printed no host within 1 s"),
    ("kill -9 $$", "was killed by signal 9"),
    ("yes node0:1", "printed more than 4 MiB")])
def test_a_command_that_fails_at_first_ends_the_job(cluster, command, said):
    result = cluster.launch(["--elastic", "horovod", "--discover", command, "--join-timeout", "1s", "--", "true"])
    assert result.code == 200 and said in result.err, result


def test_as_horovodrun(cluster):
    listed = Listed(cluster, *cluster.nodes[:2])
    script = listed.path.with_name("discover.sh")
    script.write_text("#!/bin/sh\nexec cat /root/work/hosts\n")
    script.chmod(0o755)
    job = launching.Launch(cluster.head, [cluster.programs / "dtrain", "horovodrun", "-np", 2, "--min-np", 2, "--max-np", 3,
                         "--host-discovery-script", "/root/work/discover.sh", *trains(FOR_EVER)[1:]])
    wait_for_size(job, 2)
    listed.write(*cluster.nodes)
    wait_for_size(job, 3)
    assert max(each[4] for each in steps_of(job)) == 3
    end(job)


# ---- how it ends ---------------------------------------------------------------------------

@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_is_stopped(cluster, number, code):
    job = start(cluster, "-N", "2:4", *cluster.hosts_flag(1))
    wait_for_size(job, 4)
    job.signal(number)
    result = job.wait(20)
    assert result.code == code, result
    for host in cluster.nodes:
        assert not workers(host), host.name


def test_it_is_stopped_while_ranks_still_import(cluster):
    job = start(cluster, *cluster.hosts_flag(1), env={"ELASTIC_LATE": "node1:600"})
    for host in cluster.nodes:
        wait_until(lambda host=host: workers(host), 30, lambda: job.err)
    end(job)


@pytest.mark.launcher_killed
def test_its_launcher_is_killed(cluster):
    job = start(cluster, "-N", "2:4", *cluster.hosts_flag(1))
    wait_for_size(job, 4)
    job.signal(signal.SIGKILL)
    job.wait(10)
    for host in cluster.nodes:
        workers_gone(host, LEASE + GRACE + 10)


def test_what_is_asked_of_it(cluster):
    job = start(cluster, "-N", "2:4", *cluster.hosts_flag(1))
    wait_for_size(job, 4)
    told = json.loads(cluster.head.run([cluster.programs / "dtrain", "ps", "--json"]).stdout)["jobs"][0]
    assert told["state"] == "running", told
    detached = cluster.head.run([cluster.programs / "dtrain", "detach", told["id"]], check=False)
    assert detached.returncode == 1 and "a job with --elastic ends with its launcher" in detached.stderr, detached
    end(job)


def door_of(host):
    """The port of its door."""
    [pid] = {pid for pid, *_ in workers(host)}
    return int(re.search(rb"HOROVOD_GLOO_RENDEZVOUS_PORT=(\d+)", leftovers.environment_of(pid))[1])


# Another user of the node, a machine that is not the job's, and the same user on another of the job's hosts.
def test_strangers_get_nothing_at_a_door(cluster):
    job = start(cluster, *cluster.hosts_flag(1, cluster.nodes[:3]))
    wait_for_size(job, 3)
    one, two, _, other = cluster.nodes
    port = door_of(one)
    assert knock(one, NOBODY, "127.0.0.1", port) == "[]"
    assert knock(one, NOBODY, one.address, port) == "[]"
    assert knock(other, 0, one.address, port) == "[]"
    assert knock(two, 0, one.address, port) == "[]"
    lines = len(steps_of(job))
    wait_for_size(job, 3, lines)
    end(job)


# Garbage of the job's own user, at a door that is open: it ends no round.
def test_garbage_at_a_door(cluster):
    job = start(cluster, *cluster.hosts_flag(1, cluster.nodes[:2]))
    wait_for_size(job, 2)
    one = cluster.nodes[0]
    answers = knock(one, 0, one.address, door_of(one))
    assert "200" in answers and "400" in answers, answers
    lines = len(steps_of(job))
    wait_for_size(job, 2, lines)
    assert {each[2] for each in steps_of(job)} == {1}
    end(job)


def test_an_address_that_nobody_understands_is_told_once(cluster):
    job = start(cluster, "-N", "1:2", "--cool-down", "1s:2s", *cluster.hosts_flag(1, cluster.nodes[:2]),
                env={"ELASTIC_STRANGE": "1"})
    wait_for_size(job, 2)
    job.wait_for("changes of hosts reach the job only when a collective fails: ", stream="err")
    lines = len(steps_of(job))
    os.kill(workers(cluster.nodes[1])[0][0], signal.SIGKILL)
    wait_for_size(job, 1, lines)
    end(job)
    assert job.err.count("changes of hosts reach the job only") == 1, job.err
