# SPDX-License-Identifier: Apache-2.0
"""--max-restarts: the workers of one attempt are dead before the next begins, on every host; what it begins with is
new, and what it ends with is told."""
import contextlib
import json
import os
import re
import signal

import pytest

import leftovers
from launching import Launch, only_job, wait_until
from residents import Resident
from test_faults_efg import end_ssh_sessions, workers_gone
from test_resident import workers

# A job that wants all of them is refused while another one holds one.
CORES = len(os.sched_getaffinity(0))
LEASE, GRACE = 3, 1
FLAGS = ["--lease", f"{LEASE}s", "--grace", f"{GRACE}s"]
FAILS_TWICE = ["sh", "-c", 'echo "up $DTRAIN_ATTEMPT $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS $MASTER_PORT"; '
                           '[ "$DTRAIN_ATTEMPT" -ge 2 ] || { [ "$RANK" = 1 ] && exit 7; exec sleep 600; }']
# Each attempt lives until it is told otherwise, and says who and where it is.
LIVES = ["sh", "-c", 'echo "attempt $DTRAIN_ATTEMPT of $WORLD_SIZE on $(hostname)"; exec sleep 600']


def agents(host):
    return [pid for pid, _, line in leftovers.processes(host) if "dtrain-agent" in line and "bridge" in line]


def test_a_rank_that_fails_is_followed_by_another_attempt_of_all(cluster):
    results = cluster.work()
    result = cluster.launch([*FLAGS, "--max-restarts", 3, "--backoff", "100ms", *cluster.hosts_flag(1), "--result-json",
                             "/root/work/r.json", "--", *FAILS_TWICE])
    assert result.code == 0, result
    ups = [line.split("] ")[1].split()[1:] for line in result.lines if "] up " in line]
    # The others may be ended before they write.
    assert [line.split()[2] for line in result.lines if line.startswith("[1] up ")] == ["0", "1", "2"], result
    assert [attempt for attempt, _, _ in ups].count("2") == 4, result
    assert all(f"{attempt}/3" == count for attempt, count, _ in ups), ups
    ports = {attempt: {port for a, _, port in ups if a == attempt} for attempt in "012"}
    assert all(len(of) == 1 for of in ports.values()), ports
    assert "dtrain: restart 1 of 3 in 0.1 s: rank 1 on node1 exited with code 7\n" in result.err, result
    assert "dtrain: restart 2 of 3 in 0.2 s: rank 1 on node1 exited with code 7\n" in result.err, result
    written = json.loads((results / "r.json").read_text())
    assert [(each["attempt"], each["exit_code"], each["restart_counts"]) for each in written["attempts"]] == \
        [(0, 7, True), (1, 7, True), (2, 0, False)], written["attempts"]


def test_when_no_restarts_are_left_each_attempt_is_told(cluster):
    result = cluster.launch([*FLAGS, "--max-restarts", 2, "--backoff", "50ms", *cluster.hosts_flag(1, cluster.nodes[:2]),
                             "--", "sh", "-c", "echo no >&2; exit $((3 + RANK))"])
    assert result.code == 208, result
    told = result.err[result.err.index("dtrain: no restarts left (--max-restarts 2):\n"):]
    assert re.fullmatch(r"dtrain: no restarts left \(--max-restarts 2\):\n"
                        r"(  attempt \d, (ran [\d.]+ s|not started): rank \d on node\d exited with code [34]\n){3}"
                        r"dtrain: exit code 208\n", told), result


def test_what_only_the_user_can_mend_is_not_tried_again(cluster):
    result = cluster.launch(["--max-restarts", 5, *cluster.hosts_flag(1), "--", "/no/such/program"])
    assert result.code == 127 and "restart" not in result.err, result
    result = cluster.launch(["--max-restarts", 5, "-H", "node0:1,node77:1", "--", "true"])
    assert result.code == 200 and "restart" not in result.err, result


def test_a_budget_refills_and_some_codes_restart_nothing(cluster):
    fails = ["sh", "-c", '[ "$RANK" = 0 ] || exec sleep 600; [ "$DTRAIN_ATTEMPT" = 3 ] && exit 65; exit 7']
    result = cluster.launch([*FLAGS, "--max-restarts", 1, "--restart-window", "1ms", "--no-restart-on", "2,64-78",
                             "--backoff", "10ms", *cluster.hosts_flag(1, cluster.nodes[:2]), "--", *fails])
    assert result.code == 65 and result.err.count("dtrain: restart 1 of 1 in ") == 3, result
    assert "dtrain: not restarted: exit code 65 is in --no-restart-on\n" in result.err, result


def start(cluster, *flags):
    return cluster.start_launch([*FLAGS, *flags, "--", *LIVES])


# The cable is cut: nobody tells the launcher, and the workers over there end by their own lease. Only when that is
# over does another attempt begin, on the hosts that are left.
def test_a_host_that_is_cut_off_is_left_behind(cluster):
    gone = cluster.nodes[3]
    job = start(cluster, "--max-restarts", 1, "-N", "2:4", *cluster.hosts_flag(1))
    job.wait_for("attempt 0 of 4", count=4)
    cluster.cut(gone)
    try:
        job.wait_for("attempt 1 of 3", count=3, timeout=60)
        assert not workers(gone), "workers of two attempts at once"
    finally:
        cluster.heal(gone)
    assert "dtrain: restart, not counted as other hosts can take over, in " in job.err, job.err
    job.signal(signal.SIGINT)
    result = job.wait(20)
    assert result.code == 130, result
    assert re.search(r"dtrain: 2 attempts:\n  attempt 0, ran [\d.]+ s: node3: the connection to its agent is lost: .*\n"
                     r"  attempt 1, ran [\d.]+ s: ended by SIGINT(, sent by .*)?\n", result.err), result
    workers_gone(gone, LEASE + GRACE + 10)
    end_ssh_sessions(gone)


# As systemd does it: all processes are told to end, those of ssh, the agent and the workers at the same moment, and what
# is left is killed. Whichever of them is heard of first, it is the host that has left.
@pytest.mark.parametrize("way", ["ssh", "resident"])
def test_a_host_that_is_shut_down_costs_no_restart(cluster, way):
    gone = cluster.nodes[3]
    residents = [Resident(host).start() for host in cluster.nodes] if way == "resident" else []
    try:
        job = start(cluster, "--max-restarts", 1, "-N", "2:4", *cluster.hosts_flag(1))
        job.wait_for("attempt 0 of 4", count=4)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid, _, _ in leftovers.processes(gone):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            wait_until(lambda: not workers(gone), 20, "its workers live")
        cluster.cut(gone)
        try:
            job.wait_for("attempt 1 of 3", count=3, timeout=60)
        finally:
            cluster.heal(gone)
        assert "dtrain: restart, not counted as other hosts can take over, in " in job.err, job.err
        assert re.search(r"^node3 is left out ", job.err, re.M), job.err
        job.signal(signal.SIGINT)
        assert job.wait(20).code == 130
        for agent in residents[3:]:
            agent.kill()  # to be reaped
            agent.start()  # the system is up again
    finally:
        for agent in residents:
            agent.stop()
        end_ssh_sessions(gone)


def kill_all(host):
    """Its cgroups stay."""
    for pid, _, _ in leftovers.processes(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# As `kill -9 -1` of a rank does it. The host answers when it is asked again, and so nothing waits for leases.
def test_a_host_whose_processes_were_all_killed(cluster):
    hit = cluster.nodes[1]
    job = cluster.start_launch(["--max-restarts", "1", "--lease", "100s", "--grace", "100s", *cluster.hosts_flag(1), "--", *LIVES])
    job.wait_for("attempt 0 of 4", count=4)
    kill_all(hit)
    job.wait_for("attempt 1 of 4", count=4, timeout=60)
    assert "dtrain: restart 1 of 1 in 1 s" in job.err, job.err
    assert "dtrain's processes on node1, or their connection, were killed (perhaps by a rank: `kill -9 -1`)" in job.err, job.err
    job.signal(signal.SIGINT)
    assert job.wait(20).code == 130
    hit.remove_cgroups()


def test_a_spare_takes_the_place_of_a_host_that_dies(cluster):
    gone = cluster.nodes[1]
    job = start(cluster, "--spare", 1, *cluster.hosts_flag(1))
    job.wait_for("attempt 0 of 3", count=3)
    assert "node3" not in job.out
    cluster.cut(gone)
    try:
        job.wait_for("attempt 1 of 3", count=3, timeout=60)
        assert not workers(gone), "workers of two attempts at once"
    finally:
        cluster.heal(gone)
    assert sorted(re.findall(r"attempt 1 of 3 on (node\d)", job.out)) == ["node0", "node2", "node3"], job.out
    # With the node rank of the one that is gone: the ranks of the others stay where they were.
    assert "[1] attempt 1 of 3 on node3" in job.out and "[2] attempt 1 of 3 on node2" in job.out, job.out
    assert "node1 is left out" in job.err, job.err
    job.signal(signal.SIGINT)
    assert job.wait(20).code == 130
    workers_gone(gone, LEASE + GRACE + 10)
    end_ssh_sessions(gone)


def test_a_spare_is_held_and_its_loss_is_no_failure(cluster):
    three = cluster.nodes[:3]
    residents = [Resident(host).start() for host in three]
    try:
        job = start(cluster, "--spare", 1, *cluster.hosts_flag(1, three))
        job.wait_for("attempt 0 of 2", count=2)
        listed = json.loads(cluster.head.run([cluster.programs / "dtrain", "ps", "--json"]).stdout)["jobs"]
        shown = cluster.head.run([cluster.programs / "dtrain", "status", listed[0]["id"]]).stdout
        assert re.search(r"^node1 +joined ", shown, re.M) and re.search(r"^node2 +spare ", shown, re.M), shown
        others = [*cluster.hosts_flag(CORES, three[2:]), "--", "true"]
        def refused():  # once the agent has it: nothing waits for that
            result = cluster.launch(others)
            return result.code == 200 and "held by other jobs: node2: cores" in result.err and listed[0]["id"] in result.err
        wait_until(refused, 20, "others can have it")
        residents[2].kill()
        job.wait_for("node2, a spare, is lost: ", stream="err", timeout=60)
        residents[2].start()
        taken = cluster.launch(others)
        assert taken.code == 0, taken
        assert job.process.poll() is None and job.out.count("attempt 1") == 0
        job.signal(signal.SIGINT)
        assert job.wait(20).code == 130
    finally:
        for agent in residents:
            agent.stop()


@pytest.mark.launcher_killed
def test_what_a_dead_launcher_held_on_a_spare_is_free_after_its_lease(cluster):
    two = cluster.nodes[:2]
    residents = [Resident(host).start() for host in two]
    try:
        job = start(cluster, "--spare", 1, *cluster.hosts_flag(1, two))
        job.wait_for("attempt 0 of 1")
        others = [*cluster.hosts_flag(CORES, two[1:]), "--", "true"]
        wait_until(lambda: cluster.launch(others).code == 200, 20, "the spare is not held")
        job.kill()
        wait_until(lambda: cluster.launch(others).code == 0, LEASE + GRACE + 10, "the spare is held for nobody")
    finally:
        for agent in residents:
            agent.stop()


# One that joined at the start, too: it is let go before the next attempt takes it.
def test_a_spare_that_is_held_takes_a_place(cluster):
    three = cluster.nodes[:3]
    residents = [Resident(host).start() for host in three]
    try:
        job = start(cluster, "--spare", 1, "--max-restarts", 1, *cluster.hosts_flag(1, three))
        job.wait_for("attempt 0 of 2", count=2)
        cluster.cut(three[1])
        try:
            job.wait_for("attempt 1 of 2", count=2, timeout=60)
        finally:
            cluster.heal(three[1])
        assert sorted(re.findall(r"attempt 1 of 2 on (node\d)", job.out)) == ["node0", "node2"], job.out
        job.signal(signal.SIGINT)
        assert job.wait(20).code == 130
        end_ssh_sessions(three[1])
    finally:
        for agent in residents:
            agent.stop()


def test_a_spare_whose_agent_is_told_to_end_is_let_go_at_once(cluster):
    two = cluster.nodes[:2]
    residents = [Resident(host).start() for host in two]
    try:
        job = start(cluster, "--spare", 1, *cluster.hosts_flag(1, two))
        job.wait_for("attempt 0 of 1")
        others = [*cluster.hosts_flag(CORES, two[1:]), "--", "true"]
        wait_until(lambda: cluster.launch(others).code == 200, 20, "the spare is not held")
        residents[1].restart()
        job.wait_for("node1, a spare, is lost: its agent was told to end; it is tried again at the next restart", stream="err")
        assert "waiting for launches" not in residents[1].log, residents[1].log
        assert cluster.launch(others).code == 0
        job.signal(signal.SIGINT)
        assert job.wait(20).code == 130
    finally:
        for agent in residents:
            agent.stop()


# By an agent, which knows of no attempts to come.
def test_a_stop_while_an_attempt_ends_is_followed_by_no_other(cluster):
    two = cluster.nodes[:2]
    work = [cluster.work(host) for host in two]
    residents = [Resident(host).start() for host in two]
    try:
        script = ('echo "up $DTRAIN_ATTEMPT"; trap "echo told" TERM; '
                  '[ "$RANK" = 1 ] || { until [ -e /root/work/fail ]; do sleep 0.05; done; exit 7; }; '
                  'until [ -e /root/work/go ]; do sleep 0.05; done')
        job = cluster.start_launch(["--lease", f"{LEASE}s", "--grace", "60s", "--max-restarts", 5, "--backoff", "100ms",
                                    *cluster.hosts_flag(1, two), "--", "sh", "-c", script])
        job.wait_for("up 0", count=2)
        (work[0] / "fail").touch()
        job.wait_for("told")
        stop = Launch(two[1], [cluster.programs / "dtrain", "stop", only_job(two[1])])
        wait_until(lambda: "StopJob" in residents[1].log, 20, lambda: (stop.err, residents[1].log))
        (work[1] / "go").touch()
        stopped = stop.wait(30)
        assert stopped.code == 0 and "has ended" in stopped.err, stopped
        result = job.wait(30)
        assert result.code == 143, result
        assert "node1: the job was stopped here by admin root" in result.err and "restart 1" not in result.err, result
        assert "up 1" not in result.out, result
    finally:
        for agent in residents:
            agent.stop()


def lose(host):
    """Until its sshd is started again, it cannot be reached."""
    host.stop_sshd()
    for pid in agents(host):
        os.kill(pid, signal.SIGKILL)


# That a program fails there is no evidence about the host.
def test_a_host_whose_ranks_have_failed_does_when_another_is_lost(cluster):
    two = cluster.nodes[:2]
    fails = '[ "$RANK" = 0 ] && [ "$DTRAIN_ATTEMPT" -lt 2 ] && exit 7; ' + LIVES[-1]
    job = cluster.start_launch([*FLAGS, "--max-restarts", 3, "--backoff", "100ms", "-N", "1:2",
                                *cluster.hosts_flag(1, two), "--", "sh", "-c", fails])
    job.wait_for("attempt 2 of 2", count=2, timeout=60)
    lose(two[1])
    try:
        job.wait_for("attempt 3 of 1 on node0", timeout=60)
    finally:
        two[1].restart_sshd()
    assert "node0 is left out" not in job.err, job.err
    job.signal(signal.SIGINT)
    assert job.wait(20).code == 130


def test_a_host_that_was_left_out_is_better_than_none(cluster):
    two = cluster.nodes[:2]
    job = start(cluster, "--max-restarts", 9, "--backoff", "100ms", "-N", "1:2", *cluster.hosts_flag(1, two))
    for attempt in range(2):
        job.wait_for(f"attempt {attempt} of 2", count=2, timeout=60)
        kill_all(two[0])
    job.wait_for("dtrain: node0 is left out while others suffice: 2 attempts within 600 s ended by its fault",
                 stream="err", timeout=60)
    job.wait_for("attempt 2 of 1 on node1", timeout=60)
    lose(two[1])
    try:
        job.wait_for(", with node0 again: ", stream="err", timeout=60)
        job.wait_for("attempt 3 of 1 on node0", timeout=60)
    finally:
        two[1].restart_sshd()
    job.signal(signal.SIGINT)
    assert job.wait(20).code == 130
    two[0].remove_cgroups()


def test_a_host_that_the_job_needs_is_waited_for(cluster):
    gone = cluster.nodes[1]
    job = start(cluster, "--max-restarts", 1, *cluster.hosts_flag(1, cluster.nodes[:2]))
    job.wait_for("attempt 0 of 2", count=2)
    lose(gone)
    job.wait_for("the restart is tried again for another ", stream="err", timeout=60)
    gone.restart_sshd()
    job.wait_for("attempt 1 of 2", count=2, timeout=60)
    job.signal(signal.SIGINT)
    assert job.wait(20).code == 130


def test_too_few_hosts_for_a_restart(cluster):
    gone = cluster.nodes[1]
    job = start(cluster, "--max-restarts", 1, "--join-timeout", "6s", *cluster.hosts_flag(1, cluster.nodes[:2]))
    job.wait_for("attempt 0 of 2", count=2)
    gone.stop_sshd()
    try:
        for pid in agents(gone):
            os.kill(pid, signal.SIGKILL)
        result = job.wait(60)
    finally:
        gone.restart_sshd()
    assert result.code == 202, result
    assert "dtrain: no restart within 6 s (--join-timeout): " in result.err and "node1: " in result.err, result


def test_ctrl_c_between_attempts(cluster):
    job = cluster.start_launch([*FLAGS, "--max-restarts", 5, "--backoff", "1h:1h", *cluster.hosts_flag(1), "--", "false"])
    job.wait_for("dtrain: restart 1 of 5 in 3600 s", stream="err")
    # Nothing is left there meanwhile.
    for host in cluster.nodes:
        wait_until(lambda: not agents(host) and not workers(host), 10, lambda: leftovers.processes(host))
    job.signal(signal.SIGINT)
    result = job.wait(10)
    assert result.code == 130 and "dtrain: ended by SIGINT" in result.err, result


def test_a_time_limit_between_attempts(cluster):
    result = cluster.launch([*FLAGS, "--max-restarts", 5, "--backoff", "1h:1h", "--timeout", "4s",
                             *cluster.hosts_flag(1), "--", "false"])
    assert result.code == 209, result
    assert "dtrain: the time limit of 4 s (--timeout) was reached before a restart\n" in result.err, result


def test_the_job_says_that_it_restarts(cluster):
    job = cluster.start_launch([*FLAGS, "--max-restarts", 5, "--backoff", "1h:1h", *cluster.hosts_flag(1), "--", "false"])
    job.wait_for("dtrain: restart 1 of 5 in 3600 s", stream="err")
    told = json.loads(cluster.head.run([cluster.programs / "dtrain", "ps", "--json"]).stdout)["jobs"][0]
    assert told["state"] == "restarting" and told["phase"] == "restart", told
    restarts = told["restarts"]
    assert (restarts["attempt"], restarts["restarts"], restarts["max_restarts"]) == (1, 1, 5), restarts
    assert 3000 < restarts["next_in_s"] <= 3600, restarts
    assert [each["exit_code"] for each in restarts["ended"]] == [1], restarts
    job.signal(signal.SIGTERM)
    assert job.wait(10).code == 143


# What the first attempt did not take of dtrain's input is there for the second.
def test_input_goes_on(cluster):
    read, write = os.pipe()
    job = cluster.start_launch([*FLAGS, "--max-restarts", 1, "--backoff", "10ms", *cluster.hosts_flag(1), "--", "sh", "-c",
                                '[ "$RANK" = 0 ] || exec sleep 600; read line; echo "$DTRAIN_ATTEMPT got $line"; '
                                '[ "$DTRAIN_ATTEMPT" = 0 ] && exit 7; kill -TERM $PPID'], stdin=read)
    os.close(read)
    os.write(write, b"one\n")
    job.wait_for("0 got one")
    job.wait_for("dtrain: restart 1 of 1", stream="err")
    os.write(write, b"two\n")
    job.wait_for("1 got two", timeout=30)
    os.close(write)
    job.signal(signal.SIGINT)
    job.wait(20)


def test_more_spares_than_hosts(cluster):
    for flags, said in [
            (["--spare", 4], "--spare 4 needs at least 5 hosts, and the host list has 4"),
            (["--spare", 1, "-N", 4], "--spare 1 with -N 4 needs at least 5 hosts, and the host list has 4")]:
        result = cluster.launch([*flags, *cluster.hosts_flag(1), "--", "true"])
        assert result.code == 2 and said in result.err, (flags, result)
