# SPDX-License-Identifier: Apache-2.0
"""D16: whose rights workers have. They are those of the ssh user: nothing of dtrain changes user,
and an agent that got rights of two users starts nothing."""
import os
from pathlib import Path

import pytest

import hosts
import leftovers
import residents

# Of this run of tests alone: limits of processes count those of a number wherever they are.
UID = 100_000 + os.getpid()
GID, EXTRA = 1235, 1236
PR_CAPBSET_DROP, CAP_SETGID, CAP_SETUID = 24, 6, 7
CACHED = Path("/home/alice/.cache/dtrain")
# What it is, and what it can become.
REPORT = """
import os, time
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("ids", *(status[key].split() for key in ("Uid", "Gid", "Groups")), flush=True)
print("caps", *(int(status["Cap" + key], 16) for key in ("Inh", "Prm", "Eff", "Amb")), flush=True)
for call in (lambda: os.setuid(0), lambda: os.setresuid(-1, 0, -1), lambda: os.setresgid(0, 0, 0),
             lambda: os.setgroups([0]), lambda: os.initgroups("root", 0)):
    try:
        call()
        print("regained", flush=True)
    except PermissionError:
        pass
print("up", flush=True)
"""
IDS = f"ids {[str(UID)] * 4} {[str(GID)] * 4} {[str(GID), str(EXTRA)]}"


@pytest.fixture
def node(make_cluster):
    """A node where alice, who is not root, may log in."""
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    node.cluster = cluster
    for name, lines in (("passwd", f"alice:x:{UID}:{GID}::/home/alice:/bin/sh\n"),
                        ("group", f"alice:x:{GID}:\nextra:x:{EXTRA}:alice\n")):
        (node.base / name).write_text(Path(f"/etc/{name}").read_text() + lines)
        node.run(["mount", "--bind", node.base / name, f"/etc/{name}"])
    with open(node.base / "shadow", "a") as shadow:
        shadow.write("alice:*:19000:0:99999:7:::\n")
    node.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/home"])
    node.path("/home/alice").mkdir()
    os.chown(node.path("/home/alice"), UID, GID)
    return node


def launch(node, *command):
    return node.cluster.launch(["--wdir", "/", "-H", "alice@node0:2", "--tag-output", "none", "--",
                                *command], timeout=30)


def as_alice():
    os.setgroups([GID, EXTRA])
    os.setresgid(GID, GID, GID)
    os.setresuid(UID, UID, UID)


def no_file_but_the_agent(node):  # and the name of the home
    names = [path.name for path in node.path("/home/alice").rglob("*") if not path.is_dir()]
    assert set(names) <= {"dtrain-agent", "used", "home"}, names


def test_d16_workers_have_the_rights_of_the_ssh_user_and_no_more(node):
    started = node.cluster.start_launch(
        ["--wdir", "/", "-H", "alice@node0:2", "--tag-output", "none", "--",
         "/usr/bin/python3", "-I", "-c", REPORT + "time.sleep(600)"])
    started.wait_for("up", count=2)
    assert started.out.splitlines().count(IDS) == 2, started.out
    assert started.out.splitlines().count("caps 0 0 0 0") == 2, started.out
    assert "regained" not in started.out
    ours = [pid for pid, _, line in leftovers.processes(node) if "sshd" not in line]
    assert len(ours) >= 4, "an agent, a shepherd, two workers"
    for pid in ours:
        status = dict(line.split(":", 1)
                      for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert set(status["Uid"].split()) == {str(UID)}, status
        assert set(status["Gid"].split()) == {str(GID)}, status
    started.signal(2)
    assert started.wait(20).code == 130
    no_file_but_the_agent(node)


def cached_agent(node):
    assert launch(node, "true").code == 0
    (agent,) = node.path(CACHED).glob("agent-*/dtrain-agent")
    return agent


# The agent that lies ready on the node was given root's group: it starts nothing.
def test_d16_an_agent_with_another_groups_rights_refuses(node):
    agent = cached_agent(node)
    os.chown(agent, UID, 0)
    agent.chmod(0o2755)
    result = launch(node, "sh", "-c", "echo ran")
    assert result.code == 200, result
    assert "ran" not in result.out, result
    for word in ("node0", "group id", f"real {GID}, effective 0", "chmod u-s,g-s"):
        assert result.err.count(word) >= 1, result
    no_file_but_the_agent(node)


# One that belongs to root is not run at all, but replaced.
def test_d16_an_agent_of_another_user_is_not_run(node):
    agent = cached_agent(node)
    os.chown(agent, 0, 0)
    agent.chmod(0o4755)
    result = launch(node, "/usr/bin/python3", "-I", "-c", REPORT)
    assert result.code == 0 and result.lines.count(IDS) == 2, result
    assert agent.stat().st_uid == UID and not agent.stat().st_mode & 0o6000


# Without ssh, where the agent is the file beside the launcher.
@pytest.mark.parametrize("mode,word", [(0o4755, "user id"), (0o2755, "group id")])
def test_d16_a_local_agent_with_roots_rights_refuses(node, mode, word):
    folder = Path("/home/bin")
    node.path(folder).mkdir()
    for name in ("dtrain", "dtrain-agent"):
        node.run(["cp", hosts.bin_dir() / name, folder / name])
    command = [folder / "dtrain", "launch", "-np", "2", "--tag-output", "none", "--",
               "/usr/bin/python3", "-I", "-c", REPORT]
    env = {"HOME": "/home/alice", "USER": "alice"}

    def run():
        process = node.popen(command, env=env, cwd="/", before_exec=as_alice, text=True,
                             stdin=-3, stdout=-1, stderr=-1)
        out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    code, out, err = run()
    assert code == 0 and out.splitlines().count(IDS) == 2, (code, out, err)
    node.path(folder / "dtrain-agent").chmod(mode)
    code, out, err = run()
    assert code == 200 and "ids" not in out, (code, out, err)
    assert word in err and "chmod u-s,g-s" in err, err


def drop(capability):
    """For before_exec: whoever is executed then cannot have it, root neither."""
    def enter():
        if hosts.libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            os._exit(99)
    return enter


# A resident agent of root that cannot become alice, all or in part, starts nothing in her name.
@pytest.mark.parametrize("capability", [CAP_SETUID, CAP_SETGID])
def test_d16_a_resident_agent_that_cannot_change_user(node, capability):
    agent = residents.Resident(node, before_exec=drop(capability)).start()
    try:
        status = Path(f"/proc/{agent.pid}/status").read_text()
        assert not int(status.split("CapEff:")[1].split()[0], 16) >> capability & 1, status
        result = launch(node, "sh", "-c", "echo ran; touch /tmp/ran /home/alice/ran")
        assert result.code == 200 and "ran" not in result.out, result
        assert "node0" in result.err and "switch a new process to its user" in result.err, result
        assert "switch a new process to its user" in agent.log, agent.log
        assert not node.path("/tmp/ran").exists() and not node.path("/home/alice/ran").exists()
        rows = [line for pid, _, line in leftovers.processes(node)
                if pid != agent.pid and "sshd" not in line and not line.endswith(" bridge")]
        assert not rows and not agent.ended(), (rows, agent.log)
    finally:
        agent.stop()
        node.run(["rm", "-rf", CACHED.parent])


# The resident agent is root's; who asks is known by the kernel's word about the bridge's socket.
def test_a_resident_agent_runs_workers_as_who_asks(node):
    agent = residents.Resident(node).start()
    try:
        result = launch(node, "/usr/bin/python3", "-c", REPORT)
        assert result.code == 0, result
        assert result.lines.count(IDS) == 2 and result.lines.count("caps 0 0 0 0") == 2, result
        assert "regained" not in result.out, result
        none = launch(node, "sh", "-c", "grep NoNewPrivs: /proc/self/status; touch /run/mine; true")
        assert none.out.count("NoNewPrivs:\t1") == 2 and none.err.count("denied") == 2, none
        assert not agent.host.path("/run/mine").exists()
        empty = node.cluster.launch(["--env", "none", "--wdir", "/", "-H", "alice@node0:1", "--",
                                     "sh", "-c", "echo $HOME $USER $LOGNAME"])
        assert empty.out == "/home/alice alice alice\n", empty
    finally:
        agent.stop()
        node.run(["rm", "-rf", CACHED.parent])


def test_jobs_of_users_outlive_a_resident_agent(node):
    agent = residents.Resident(node).start()
    try:
        started = node.cluster.start_launch(
            ["--wdir", "/", "-H", "alice@node0:2", "--", "/usr/bin/python3", "-c",
             REPORT + "while not os.path.exists('/run/go'): time.sleep(0.01)\nos._exit(7)"])
        started.wait_for("up", count=2)
        agent.kill()
        agent.start()
        node.path("/run/go").touch()
        result = started.wait(30)
        assert result.code == 7 and not result.tells_of_loss, result
    finally:
        node.path("/run/go").unlink(missing_ok=True)
        agent.stop()
        node.run(["rm", "-rf", CACHED.parent])
