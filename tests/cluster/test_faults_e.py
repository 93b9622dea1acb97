# SPDX-License-Identifier: Apache-2.0
"""Faults of group E that test_resident.py has not: an agent that crashes (E6), a launcher or agent of
another release (E9), and a machine that is started anew under a job (E12)."""
import os
import re
import resource
import shutil
import signal
import uuid

import pytest

import hosts
import launching
import residents
from launching import wait_until
from test_resident import agents  # noqa: F401 - a fixture
from test_resident import LIVE, go, ranks, shepherds, start_counting, workers

DTRAIN = hosts.bin_dir() / "dtrain"
SANITIZED = hosts.is_sanitized()
# Ours comes first; after it a sanitizer's would make a report of it.
OWN_HANDLER = {"ASAN_OPTIONS": launching.SANITIZER_OPTIONS["ASAN_OPTIONS"] + ":handle_segv=0",
               "DTRAIN_CORE_DUMPS": "1"}


def with_core():
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.fixture
def crashing(cluster):
    """An agent on each node that may leave a core, in /root/work."""
    made = []
    for host in cluster.nodes:
        cluster.work(host)
        made.append(residents.Resident(host, env=OWN_HANDLER, cwd="/root/work",
                                       before_exec=None if SANITIZED else with_core).start())
    yield made
    for host in cluster.nodes:
        host.path("/run/go").unlink(missing_ok=True)
        shutil.rmtree(host.path("/root/work"))
    for agent in made:
        agent.stop()


def crash(agent):
    """Ends it as a fault does; returns what it has recorded."""
    agent.signal(signal.SIGSEGV)
    ended = os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
    assert ended.si_status == signal.SIGSEGV, ended
    # Under a sanitizer a core would be of terabytes.
    assert SANITIZED or ended.si_code == os.CLD_DUMPED, ended
    agent.process.wait(10)
    return agent.host.path(f"{residents.STATE}/last_crash").read_text()


# E6: its job lives, and what it was at is kept: by itself, in its log and by the agent after it.
def test_e6_an_agent_that_crashes(cluster, crashing):
    launch = start_counting(cluster)
    victim = crashing[1]
    before = ranks(victim.host)
    job = victim.jobs()[0].partition(".")[0]
    told = crash(victim)
    assert re.fullmatch(r"dtrain-agent, process \d+, died of SIGSEGV; its last request was "
                        rf"(dtrain\.v1\.SessionRequest\.\w+|/dtrain\.v1\.Agent/\w+) of job {job} for root\n", told), told
    assert told in victim.log
    victim.start()
    assert f"there was a crash: {told.strip()}" in victim.log, victim.log
    assert "taken over" in victim.log and ranks(victim.host) == before
    # It is told once.
    victim.restart()
    assert victim.log.count("there was a crash") == 1, victim.log
    go(cluster)
    result = launch.wait(30)
    assert result.code in range(3, 7) and "exited with code" in result.err, result
    assert not result.tells_of_loss, result
    check_lines(result, cluster.size)


def check_lines(result, count):
    """The first rank to end decides; the others' lines go on until they are stopped."""
    for rank in range(count):
        lines = [line.split("] ", 1)[1] for line in result.lines if line.startswith(f"[{rank}] ")]
        numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
        assert numbers == list(range(len(numbers))), (rank, lines[-3:])


# E6: an RPC is told as well as a message of a launcher's.
def test_e6_the_last_rpc_is_told(cluster, crashing):
    victim = crashing[0]
    assert " ok " in victim.host.run([DTRAIN, "nodes"]).stdout
    told = crash(victim)
    assert "last request was /dtrain.v1.Agent/NodeStatus for " in told, told
    victim.start()


HELLO = b"\x08\x07\x12\x050.1.0"  # protocol 7, a build of five characters


OTHER = b"\x08\x02\x12\x050.1.0"


# E9: refused before anything starts, both named; nothing else is disturbed.
@pytest.mark.parametrize("what, other", [("build 0.0.9", b"\x08\x04\x12\x050.0.9"),
                                         ("protocol 2", OTHER)])
def test_e9_a_launcher_of_another_release(cluster, agents, what, other):  # noqa: F811
    running = start_counting(cluster)
    work = cluster.work()
    shutil.copy(hosts.SOURCE_DIR / "tests/cluster/older.py", work)
    (work / "older").write_text(f"{HELLO.hex()} {other.hex()}")
    result = cluster.launch(["--rsh", "/usr/bin/python3 /root/work/older.py {host}", "--bind", "none",
                             *cluster.hosts_flag(1), "--", "echo", "started"])
    assert result.code == 200, result
    for words in ("this agent is build 0.1.0 with protocol 7", what, "same release", "node"):
        assert words in result.err, result
    assert "started" not in result.out, result
    go(cluster)
    ended = running.wait(30)
    assert ended.code in range(3, 7), ended
    check_lines(ended, cluster.size)


# E9: an upgrade across protocols under a job, as the agent sees it. Its release notes warn of it.
def test_e9_an_agent_that_was_upgraded_to_another_protocol(cluster, agents):  # noqa: F811
    work = cluster.work()
    shutil.copy(hosts.SOURCE_DIR / "tests/cluster/older.py", work)
    (work / "older").write_text(f"{HELLO.hex()} {HELLO.hex()}")
    running = start_counting(cluster, "--rsh", "/usr/bin/python3 /root/work/older.py {host}",
                             "--lease", "5s", "--bind", "none")
    agents[1].kill()
    (work / "older").write_text(f"{HELLO.hex()} {OTHER.hex()}")
    agents[1].start()
    result = running.wait(30)
    assert result.code == 203, result
    for words in ("node1: ", "this agent speaks protocol 7, the launcher protocol 2", "upgraded"):
        assert words in result.err, result
    wait_until(lambda: not agents[1].jobs(), 20, lambda: agents[1].log)
    assert not workers(agents[1].host)


# E9: a resident agent of another build is left alone: launches by ssh bring their own.
def test_e9_a_resident_agent_of_another_build(cluster, agents):  # noqa: F811
    build = agents[0].host.path(f"{residents.STATE}/build")
    own = build.read_text()
    build.write_text("0.0.9 0000\n")
    result = cluster.launch([*cluster.hosts_flag(1), "--", "sh", "-c", "echo ran"])
    build.write_text(own)
    assert result.code == 0 and result.out.count("ran") == cluster.size, result
    warnings = [line for line in result.err.splitlines() if "resident agent" in line]
    assert len(warnings) == 1 and "node0: " in warnings[0] and "0.0.9 (0000)" in warnings[0], result
    assert "reserved" in warnings[0], result
    assert "audit" not in agents[0].log and "audit" in agents[1].log, agents[0].log


# E9: as while it is restarted. One that was stopped in order, and had no jobs, is nobody's concern.
def test_e9_a_resident_agent_that_does_not_answer(cluster, agents):  # noqa: F811
    agents[0].kill()
    agents[1].signal(signal.SIGTERM)
    assert agents[1].process.wait(10) == 0, agents[1].log
    result = cluster.launch([*cluster.hosts_flag(1), "--", "sh", "-c", "echo ran"])
    for agent in agents[:2]:
        agent.start()
    assert result.code == 0 and result.out.count("ran") == cluster.size, result
    warnings = [line for line in result.err.splitlines() if "resident agent" in line]
    assert len(warnings) == 1 and "node0: " in warnings[0], result
    assert "does not answer" in warnings[0] and "refused" in warnings[0], result
    assert "reserved" in warnings[0], result


def another_build(path):
    """Our agent with another build id, as a package with any change in it has."""
    program = (hosts.bin_dir() / "dtrain-agent").read_bytes()
    at = program.index(b"\x03\0\0\0GNU\0") + 8  # of NT_GNU_BUILD_ID
    path.write_bytes(program[:at] + bytes([program[at] ^ 0xFF]) + program[at + 1:])
    path.chmod(0o755)
    return path


# E9, E7: jobs that were launched by ssh with the old build come back to the new one; and who launches
# with the old build afterwards does so without it.
@pytest.mark.parametrize("way", ["ssh", "command"])
def test_e9_an_upgrade_to_another_build_with_jobs(cluster, agents, way):  # noqa: F811
    flags = [] if way == "ssh" else ["--rsh", "ssh {host}"]
    launch = start_counting(cluster, *flags)
    before = [ranks(host) for host in cluster.nodes]
    for agent in agents:
        agent.signal(signal.SIGTERM)
        assert agent.process.wait(10) == 0, agent.log
        agent.program = another_build(cluster.work(agent.host) / "dtrain-agent-2")
        agent.start()
        wait_until(lambda a=agent: a.log.count("/dtrain.v1.Agent/Session") >= 2, 20,
                   lambda a=agent: a.log)
    assert [ranks(host) for host in cluster.nodes] == before
    result = cluster.launch([*cluster.hosts_flag(1), "--", "sh", "-c", "echo ran"])
    assert result.code == 0 and result.out.count("ran") == cluster.size, result
    # A launcher that gets no answer for a moment may come to its agent more than once: one job, however.
    for agent in agents:
        assert len(set(re.findall(r'Agent/Session" job="(\S+)"', agent.log))) == 1, agent.log
    go(cluster)
    ended = launch.wait(30)
    assert ended.code in range(3, 7) and not ended.tells_of_loss, ended
    check_lines(ended, cluster.size)


def reboot(agent, keeps_state):
    """All processes of the machine end at once, and its boot id is another."""
    host = agent.host
    agent.kill()
    for pid in [*shepherds(host), *(pid for pid, _ in workers(host))]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # with its shepherd
    wait_until(lambda: not workers(host) and not shepherds(host), 10, "its processes")
    if not keeps_state:
        shutil.rmtree(host.path(residents.STATE))
    (host.base / "boot_id").write_text(f"{uuid.uuid4()}\n")
    host.run(["mount", "--bind", host.base / "boot_id", "/proc/sys/kernel/random/boot_id"])


# E12: back within the lease, so that silence does not tell. `disk`: a state directory there.
@pytest.mark.parametrize("state", ["memory", "disk"])
def test_e12_a_machine_that_is_started_anew(cluster, agents, state):  # noqa: F811
    launch = cluster.start_launch(["--grace", "1s", *cluster.hosts_flag(1), "--", *LIVE])
    launch.wait_for("up", count=cluster.size)
    victim = agents[2]
    job = victim.jobs()[0].partition(".")[0]
    reboot(victim, keeps_state=state == "disk")
    try:
        victim.start()
        result = launch.wait(20)
        assert result.code == 202, result
        assert "node2" in result.err and "rebooted" in result.err, result
        assert "taken over" not in victim.log and not workers(victim.host), victim.log
        if state == "disk":
            assert f"job {job}: the machine was rebooted since" in victim.log, victim.log
        assert victim.jobs() == []
    finally:
        victim.host.run(["umount", "/proc/sys/kernel/random/boot_id"])
