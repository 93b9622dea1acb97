# SPDX-License-Identifier: Apache-2.0
"""Faults of groups C, D, J and K with resident agents that are reached over TLS, where that is other
code than by ssh: the agents stay, and with them what must not."""
import hashlib
import os
import signal
import time

import pytest

import hosts
import leftovers
from launching import wait_until
from test_faults_c import pester
from test_faults_d import ESCAPED, failing, python
from test_faults_j import LIMIT_KIB, peak_kib, written
from test_faults_k import QUIET, STUBBORN
from tls_cluster import PORT, TlsCluster


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with hosts.Cluster(3) as cluster:
        yield TlsCluster(cluster, tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls(made):
    left = leftovers.Leftovers(made.cluster)
    yield made
    try:
        made.check()
    finally:
        made.end_launches()  # of a test that failed, or all after it would fail, too
    found = left.wait_for_none(5)
    assert not found, found


def up(tls, *args, count=3):
    launch = tls.start(*args)
    launch.wait_for("up", count=count)
    return launch


# D1: the agents outlive it, the workers do not.
def test_d1_one_rank_fails_and_the_job_ends_with_its_code(tls):
    result = tls.start(*tls.flags(2), "--", *failing(3, "echo why >&2; exit 7")).wait(20)
    assert result.code == 7 and "rank 3" in result.err, result
    assert tls.nodes[1].address in result.err and "why" in result.err, result
    tls.wait_for_no_workers(2)


# D4
def test_d4_ranks_that_ignore_term_are_killed_after_the_grace(tls):
    launch = up(tls, "--grace", "1s", *tls.flags(2), "--",
                *failing(0, "sleep 1; exit 3", "trap '' TERM; echo up; while :; do sleep 1; done"),
                count=5)
    assert launch.wait(20).code == 3
    tls.wait_for_no_workers(2)


# D5: in the agent's own cgroups.
@pytest.mark.parametrize("end", ["fail", "interrupt"])
def test_d5_escaped_grandchildren_are_ended(tls, end):
    last = {"fail": "sys.exit(4)", "interrupt": "print('up', flush=True); time.sleep(600)"}
    launch = tls.start("--grace", "2s", *tls.flags(1), "--", *python(ESCAPED + last[end]))
    if end == "interrupt":
        launch.wait_for("up", count=3)
        launch.signal(signal.SIGINT)
    assert launch.wait(30).code == {"fail": 4, "interrupt": 130}[end]
    tls.wait_for_no_workers(2)


# D11, D12: who spawns workers is one thread, which lives as long as they, and knows no gRPC, whose locks
# a thread of the agent might hold: the agent itself only ever starts that process.
def test_d11_d12_workers_are_started_by_a_process_of_one_thread(tls):
    launch = up(tls, *tls.flags(2), "--", *QUIET, count=6)
    for node in tls.nodes:
        (shepherd,) = [pid for pid, _, line in leftovers.processes(node)
                       if line.endswith(" shepherd")]
        with open(f"/proc/{shepherd}/status", encoding="ascii", errors="replace") as status:
            assert "\nThreads:\t1\n" in status.read()

        def children(node=node):
            return [pid for pid, _, line in leftovers.processes(node) if line == "sleep 600"]

        wait_until(lambda: len(children()) == 2, 20, children)
        for pid in children():
            with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
                assert f"\nPPid:\t{shepherd}\n" in status.read()
    launch.signal(signal.SIGINT)
    assert launch.wait(20).code == 130


# J11, B14: what dtrain itself writes of a job has none of its environment, wherever it is written.
def test_j11_nothing_of_the_environment_is_in_what_dtrain_writes(tls):
    secret = "s3cr3t-hunter2-4711"
    work = tls.cluster.work()
    launch = tls.start("-v", "--result-json", "/root/work/result.json", "--timeline",
                       "/root/work/timeline", "-x", "API_TOKEN", *tls.flags(1), "--", "sh", "-c",
                       'test -n "$API_TOKEN" && echo up; sleep 1; exit 3', env={"API_TOKEN": secret})
    launch.wait_for("up", count=3)
    written_ = []
    for words in (["ps"], ["status"], ["nodes"], ["ps", "--json"], ["status", "--json"],
                  ["nodes", "--json"]):
        told = tls.head.run([hosts.bin_dir() / "dtrain", *words, *tls.reach()], check=False)
        written_ += [told.stdout, told.stderr]
    assert any("API_TOKEN" in text for text in written_), "the command is shown, as ps(1) does"
    result = launch.wait(20)
    assert result.code == 3, result
    written_ += [result.out, result.err, (work / "result.json").read_text(),
                 (work / "timeline").read_text(), *(agent.log for agent in tls.agents)]
    assert not [text for text in written_ if secret in text]


# J1: as fast as they can, through TLS, with a short lease that heartbeats have to keep.
def test_j1_flood(tls):
    with open(os.devnull, "w", encoding="ascii") as nowhere:
        launch = tls.start("--lease", "10s", "--spool-limit", "64M", *tls.flags(1), "--", "yes",
                           "a line of the flood that is some sixty bytes long, or so ...",
                           stdout=nowhere)
    wait_until(lambda: written(launch.pid) > 300 << 20, 60, "300 MiB of output")
    peaks = {agent.host.name: peak_kib(agent.pid) for agent in tls.agents}
    peaks["launcher"] = peak_kib(launch.pid)
    launch.signal(signal.SIGINT)
    result = launch.wait(30)
    assert result.code == 130, result
    if not hosts.is_sanitized():
        assert max(peaks.values()) < LIMIT_KIB, peaks


# J5: nobody reads what the launcher prints; the workers go on, and nothing is lost.
def test_j5_a_reader_that_stops_does_not_stall_the_workers(tls):
    size = 24 << 20
    readable, writable = os.pipe()
    launch = tls.start("--lease", "10s", "--spool-limit", "64M", "--tag-output", "none",
                       *tls.flags(1, tls.nodes[:1]), "--", "sh", "-c",
                       f"head -c {size} /dev/zero; touch /run/trained", stdout=writable)
    os.close(writable)
    done = tls.nodes[0].path("/run/trained")
    wait_until(done.exists, 30, "the worker waits for the reader")
    done.unlink()
    count = 0
    while piece := os.read(readable, 1 << 20):
        count += len(piece)
    os.close(readable)
    assert launch.wait(30).code == 0 and count == size


# J9
def test_j9_exit_right_after_a_burst(tls):
    script = ("import os, sys\nline = b'%099d\\n'\n"
              "out = b''.join(line % i for i in range(1000000))\n"
              "sys.stdout.buffer.write(out)\nsys.stdout.flush()\nos._exit(5)")
    result = tls.start("--tag-output", "none", *tls.flags(1, tls.nodes[:1]), "--",
                       *python(script)).wait(120)
    wanted = b"".join(b"%099d\n" % index for index in range(1000000))
    assert result.code == 5 and len(result.raw_out) == len(wanted), result.code
    assert hashlib.sha256(result.raw_out).digest() == hashlib.sha256(wanted).digest()


# K1
def test_k1_one_interrupt_is_graceful(tls):
    launch = up(tls, *tls.flags(1), "--", "sh", "-c",
                "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    launch.signal(signal.SIGINT)
    result = launch.wait(20)
    assert result.code == 130 and result.out.count("told") == 3, result


# K1
def test_k1_second_interrupt_kills_at_once(tls):
    launch = up(tls, "--grace", "60s", *tls.flags(1), "--", *STUBBORN)
    launch.signal(signal.SIGINT)
    time.sleep(0.3)  # two of a kind that come together are one to the kernel
    launch.signal(signal.SIGINT)
    assert launch.wait(20).code == 130
    tls.wait_for_no_workers(3)


# K2, K3
@pytest.mark.parametrize("number,code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_k2_k3_term_and_hangup_are_as_one_interrupt(tls, number, code):
    launch = up(tls, "--grace", "1s", *tls.flags(1), "--", *STUBBORN)
    launch.signal(number)
    assert launch.wait(20).code == code
    tls.wait_for_no_workers(3)


# K7
@pytest.mark.parametrize("first", [0.0, 0.03, 0.1, 0.3])
def test_k7_term_every_ten_milliseconds(tls, first):
    launch = tls.start("--grace", "1s", *tls.flags(2), "--", *STUBBORN)
    time.sleep(first)
    deadline = time.monotonic() + 20
    while launch.process.poll() is None and time.monotonic() < deadline:
        launch.signal(signal.SIGTERM)
        time.sleep(0.01)
    # -15: it came before the program had set up anything.
    assert launch.wait(1).code in (143, -15)
    tls.wait_for_no_workers(5)


# K8
@pytest.mark.parametrize("state", ["connect", "barrier", "start", "run", "stop"])
def test_k8_cancel_in_each_state(tls, state):
    quiet = [*tls.flags(1), "--", *QUIET]
    last = tls.agents[2]
    before = tls.agents[0].log.count("audit: allowed")
    if state == "connect":
        tls.cluster.cut(last.host)
        launch = tls.start(*quiet)
        wait_until(lambda: tls.agents[0].log.count("audit: allowed") > before, 10, "no session")
    elif state == "barrier":
        last.signal(signal.SIGSTOP)  # reached, and silent
        launch = tls.start(*quiet)
        wait_until(lambda: tls.agents[0].log.count("audit: allowed") > before, 10, "no session")
    elif state == "stop":
        launch = up(tls, "--grace", "2s", *tls.flags(1), "--", "sh", "-c",
                    '[ "$RANK" != 0 ] || { sleep 0.5; exit 8; }; '
                    "trap 'echo told' TERM; echo up; while :; do sleep 0.1; done", count=2)
        launch.wait_for("told")
    else:
        launch = up(tls, *quiet, count=1 if state == "start" else 3)
    launch.signal(signal.SIGINT)
    try:
        result = launch.wait(15)
    finally:
        last.signal(signal.SIGCONT)
        tls.cluster.heal(last.host)
    assert result.code == (8 if state == "stop" else 130), result
    tls.wait_for_no_workers(10)


# C5, C15: what is no launcher is at the agents' TLS port, and stays, while a job comes and goes.
def test_c5_c15_strangers_at_the_tls_port(tls):
    kept = []
    for node in tls.nodes:
        kept += pester(tls.head, node.address, PORT)
    launch = up(tls, *tls.flags(2), "--", "sh", "-c", "echo up; sleep 0.5; echo down", count=6)
    for node in tls.nodes:
        kept += pester(tls.head, node.address, PORT)
    result = launch.wait(30)
    assert result.code == 0 and result.out.count("down") == 6, result
    # They are not kept for ever.
    for connection in kept:
        try:
            connection.settimeout(40)
            while connection.recv(65536):
                pass
        except OSError as ended:
            assert not isinstance(ended, TimeoutError), "a silent stranger may stay"
        connection.close()
