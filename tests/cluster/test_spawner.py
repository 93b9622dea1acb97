# SPDX-License-Identifier: Apache-2.0
"""A resident agent without privilege, whose jobs dtrain-spawner starts (ADR 30). It is under the system call filter of
its unit, as an agent of the packages is."""
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import leftovers
import spawners
from attacks import sealed
from certificates import PKI, Authority, agent_flags
from launching import wait_until
from test_resident import shepherds, workers

UID = spawners.USERS["alice"]
PORT = 9797
LIVE = ["sh", "-c", "echo up; exec sleep 600"]
WHO = ["sh", "-c", "echo $(id -u) $(id -g) $HOME; head -c 300000 /dev/zero | tr '\\0' x; echo"]
COUNT = ["sh", "-c", "i=0; until [ -e /tmp/go ]; do echo line $i; i=$((i + 1)); sleep 0.01; done; echo last $i; exit 7"]


@pytest.fixture
def cluster(make_cluster, tmp_path):
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    spawners.add_users(node)
    authority = Authority(tmp_path, cluster.nodes)
    authority.bundle(f"node:{node.name}", node.path("/home/dtrain/tls"))
    node.run(["chown", "-R", str(spawners.USERS["dtrain"]), "/home/dtrain/tls"])
    for user in ("alice", "bob"):
        authority.user(user)
        authority.bundle(f"user:{user}", cluster.head.path(f"/root/work/{user}"))
    cluster.spawner = spawners.Spawner(node, ["--patience", "5"]).start()
    cluster.agent = sealed.seal(spawners.make_agent(node, agent_flags(PORT, "/home/dtrain/tls"))).start()
    yield cluster
    node.path("/tmp/go").unlink(missing_ok=True)
    cluster.agent.stop()
    cluster.spawner.stop()
    node.run(["umount", "/home"])


def by(way, user="alice"):
    if way == "unix":
        return ["--wdir", "/", "-H", f"{user}@node0:2"]
    return ["--agent", "tcp", "--tls-dir", f"/root/work/{user}", "--wdir", "/", "--bind", "none", "-H", "10.77.0.1:2"]


def wait_for_nothing(cluster):
    node = cluster.nodes[0]
    wait_until(lambda: not workers(node) and not shepherds(node), 10, lambda: leftovers.processes(node))
    wait_until(lambda: not cluster.spawner.jobs() and not cluster.agent.jobs(), 10, lambda: cluster.spawner.log)


@pytest.mark.parametrize("way", ["unix", "tls"])
def test_workers_are_the_users_and_all_they_say_arrives(cluster, way):
    result = cluster.launch([*by(way), "--tag-output", "none", "--", *WHO])
    assert result.code == 0, result
    assert result.lines.count(f"{UID} {UID} /home/alice") == 2, result
    assert result.out.count("x") == 600000
    assert cluster.launch([*by(way), "--", "sh", "-c", "exit $((41 * RANK))"]).code == 41
    wait_for_nothing(cluster)
    status = Path(f"/proc/{cluster.agent.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status and "CapPrm:\t0000000000000000" in status, status
    bob = cluster.launch([*by(way, "bob"), "--tag-output", "none", "--", "id", "-u"])
    assert bob.code == 0 and bob.lines == [str(spawners.USERS["bob"])] * 2, bob


def test_a_launch_on_the_node_itself(cluster):
    node = cluster.nodes[0]
    process = node.popen([cluster.programs / "dtrain", "launch", "-n", "2", "--tag-output", "none", "--", *WHO],
                         env={"HOME": "/home/alice", "USER": "alice"}, cwd="/", stdin=subprocess.DEVNULL,
                         before_exec=spawners.become("alice"), text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, start_new_session=True)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0 and out.count(f"{UID} {UID} /home/alice") == 2, (out, err)
    assert cluster.spawner.log.count(f"of uid {UID}: runs") == 1, cluster.spawner.log


def test_workers_have_a_cgroup_and_what_they_left_ends_with_them(cluster):
    result = cluster.launch([*by("unix"), "--require-cgroup", "--tag-output", "none", "--", "sh", "-c",
                             "setsid sleep 600 & cat /proc/self/cgroup"])
    assert result.code == 0 and result.out.count("/workers/dtrain-") == 2, result
    wait_for_nothing(cluster)


def stores(node):
    return [pid for pid, _, _ in leftovers.processes(node)
            if Path(f"/proc/{pid}/comm").read_text().strip() == "dtrain-tcpstore"]


# The shepherd's program, which its user cannot read, is also that of what serves ranks.
def test_what_serves_ranks_runs_as_their_user(cluster):
    node = cluster.nodes[0]
    script = ("import os, socket, time; s = socket.create_connection((os.environ['MASTER_ADDR'], "
              "int(os.environ['MASTER_PORT']))); print('up', flush=True); time.sleep(600)")
    launch = cluster.start_launch([*by("unix"), "--agent-store", "--", "/usr/bin/python3", "-c", script])
    launch.wait_for("up", count=2)
    [store] = wait_until(lambda: stores(node), 10, lambda: leftovers.processes(node))
    assert f"Uid:\t{UID}\t{UID}\t{UID}" in Path(f"/proc/{store}/status").read_text()
    launch.signal(signal.SIGTERM)
    assert launch.wait(20).code == 143
    wait_for_nothing(cluster)


def wait_for_nothing_after_a_kill(cluster):
    """A shepherd that is killed leaves its folder for scratch to the next one of its user."""
    wait_for_nothing(cluster)
    assert len(list(cluster.nodes[0].path("/tmp").glob("dtrain-*"))) == 1
    assert cluster.launch([*by("unix"), "--", "true"]).code == 0
    wait_for_nothing(cluster)


@pytest.mark.parametrize("way,number", [("unix", signal.SIGINT), ("tls", signal.SIGTERM)])
def test_a_signal_leaves_nothing(cluster, way, number):
    launch = cluster.start_launch([*by(way), "--", *LIVE])
    launch.wait_for("up", count=2)
    launch.signal(number)
    assert launch.wait(20).code == 128 + number
    wait_for_nothing(cluster)


@pytest.mark.parametrize("way", ["unix", "tls"])
def test_a_job_outlives_an_agent_that_is_killed(cluster, way):
    node = cluster.nodes[0]
    launch = cluster.start_launch([*by(way), "--", *COUNT])
    launch.wait_for("] line 5\n", count=2)
    before = workers(node)
    cluster.agent.kill()
    cluster.agent.start()
    assert "taken over from the previous agent" in cluster.agent.log
    assert {pid for pid, _ in before} & {pid for pid, _ in workers(node)}
    launch.wait_for("] line 100\n", count=2)
    node.path("/tmp/go").touch()
    result = launch.wait(30)
    assert result.code == 7 and not result.tells_of_loss, result
    check_lines_of_some(result)


def check_lines_of_some(result):
    """Of each rank all lines up to its last one: one of them may have been ended first."""
    for rank in range(2):
        lines = [line.split("] ", 1)[1] for line in result.lines if line.startswith(f"[{rank}] line")]
        assert lines == [f"line {i}" for i in range(len(lines))] and len(lines) > 100, rank


def test_a_job_outlives_a_spawner_that_is_killed(cluster):
    node = cluster.nodes[0]
    launch = cluster.start_launch([*by("unix"), "--", *COUNT])
    launch.wait_for("] line 5\n", count=2)
    before = shepherds(node)
    cluster.spawner.kill()
    wait_until(lambda: "dtrain-spawner does not serve on" in cluster.agent.log, 10, lambda: cluster.agent.log)
    # One that is started now waits for the next.
    second = cluster.start_launch([*by("tls"), "--tag-output", "none", "--", *WHO])
    wait_until(lambda: node.run(["ss", "-Htn", "state", "established", f"( sport = :{PORT} )"]).stdout, 10,
               lambda: cluster.agent.log)
    cluster.spawner.start()
    assert second.wait(30).code == 0
    assert shepherds(node) == before
    node.path("/tmp/go").touch()
    result = launch.wait(30)
    assert result.code == 7 and not result.tells_of_loss, result
    wait_for_nothing(cluster)


def test_without_a_spawner_a_launch_is_told_what_to_do(cluster):
    cluster.spawner.kill()
    result = cluster.launch([*by("tls"), "--", "true"])
    assert result.code == 200 and "systemctl status dtrain-spawner" in result.err, result
    assert 4 < result.seconds < 12, result
    cluster.spawner.start()
    wait_until(lambda: cluster.agent.log.count("dtrain-spawner serves on") == 2, 10, lambda: cluster.agent.log)
    assert cluster.launch([*by("tls"), "--", "true"]).code == 0


# A shepherd is its user's: it may stand still.
def test_a_stopped_shepherd_is_killed_at_its_deadline(cluster):
    node = cluster.nodes[0]
    launch = cluster.start_launch([*by("unix"), "--grace", "1s", "--", *LIVE])
    launch.wait_for("up", count=2)
    [shepherd] = shepherds(node)
    os.kill(shepherd, signal.SIGSTOP)
    launch.signal(signal.SIGTERM)
    launch.wait(30)
    wait_until(lambda: not workers(node) and not shepherds(node), 15, lambda: leftovers.processes(node))
    wait_for_nothing_after_a_kill(cluster)


def test_with_no_agent_the_spawner_kills_a_stopped_shepherd(cluster):
    node = cluster.nodes[0]
    launch = cluster.start_launch([*by("unix"), "--lease", "1s", "--grace", "1s", "--", *LIVE])
    launch.wait_for("up", count=2)
    [shepherd] = shepherds(node)
    os.kill(shepherd, signal.SIGSTOP)
    cluster.agent.kill()
    assert launch.wait(30).code == 202
    wait_until(lambda: not workers(node) and not shepherds(node), 15, lambda: leftovers.processes(node))
    cluster.agent.start()
    wait_for_nothing_after_a_kill(cluster)


def test_a_shepherd_that_is_killed_takes_its_job_along(cluster):
    node = cluster.nodes[0]
    launch = cluster.start_launch([*by("unix"), "--", "sh", "-c", "setsid sleep 600 & echo up; exec sleep 600"])
    launch.wait_for("up", count=2)
    [shepherd] = shepherds(node)
    os.kill(shepherd, signal.SIGKILL)
    result = launch.wait(30)
    assert result.code == 203 and "killed by signal 9" in result.err, result
    wait_for_nothing_after_a_kill(cluster)


def test_who_may_not_is_told_so(cluster):
    node = cluster.nodes[0]
    node.path("/run/spawner.conf").write_text("deny-users = bob\n")
    cluster.spawner.kill()
    cluster.spawner.flags += ["--config", "/run/spawner.conf"]
    cluster.spawner.start()
    wait_until(lambda: cluster.agent.log.count("dtrain-spawner serves on") == 2, 10, lambda: cluster.agent.log)
    for way in ("unix", "tls"):
        result = cluster.launch([*by(way, "bob"), "--", "true"])
        assert result.code == 206 and "deny-users" in result.err, result
    assert cluster.launch([*by("unix"), "--", "true"]).code == 0
    node.path("/run/spawner.conf").unlink()


def test_what_a_shepherd_says_on_stderr_is_named_in_the_agents_log(cluster):
    node = cluster.nodes[0]
    launch = cluster.start_launch([*by("unix"), "--", *LIVE])
    launch.wait_for("up", count=2)
    [shepherd] = shepherds(node)
    with open(f"/proc/{shepherd}/fd/2", "wb", buffering=0) as words:
        words.write(b"E0000 forged\x1b[2J\n" * 30)
    wait_until(lambda: "forged" in cluster.agent.log, 10, lambda: cluster.agent.log)
    launch.signal(signal.SIGTERM)
    launch.wait(20)
    wait_until(lambda: "of alice: (10 lines more)" in cluster.agent.log, 10, lambda: cluster.agent.log)
    assert cluster.agent.log.count("of alice: E0000 forged\\x1b[2J") == 20, cluster.agent.log


def test_the_key_of_a_node_is_for_its_agent_alone(cluster):
    node = cluster.nodes[0]
    assert "REQUEST" in node.run([PKI, "csr", "/run/tls", "node0"]).stdout
    stat = ["stat", "-c", "%u %g %a", "/run/tls/node.key", "/run/tls"]
    uid = spawners.USERS["dtrain"]
    assert node.run(stat).stdout == f"{uid} {uid} 400\n0 {uid} 710\n"
    shutil.rmtree(node.path("/run/tls"))


def test_an_agent_of_root_has_no_use_for_it(cluster):
    result = cluster.nodes[0].run([cluster.programs / "dtrain-agent", "serve", "--spawner", "/run/x"], check=False)
    assert result.returncode == 2 and "run it as the user that dtrain-spawner serves" in result.stderr, result


def test_an_agent_that_finds_no_spawner_does_not_start(cluster):
    agent = spawners.make_agent(cluster.nodes[0], ["--state-dir", "/home/dtrain/state"])
    agent.flags[1] = "/run/none.sock"
    with pytest.raises(AssertionError, match="systemctl status dtrain-spawner"):
        agent.start()
    assert agent.process.wait(5) not in (None, 0)
