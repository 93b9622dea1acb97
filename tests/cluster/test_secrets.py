# SPDX-License-Identifier: Apache-2.0
"""B14, O5: where secrets are not: the user's, which a job forwards, and ours, the tokens of HTTP ports. That
is command lines, environments, files, logs, answers and core dumps. (Over TLS: test_faults_tls.py.)"""
import os
import re
import resource
import signal
from pathlib import Path

import pytest

import hosts
import leftovers
import residents
from launching import wait_until
from test_status import LIVE

DTRAIN = hosts.bin_dir() / "dtrain"
SECRET = "s3cr3t-4711-token-of-the-user"


def with_secret(host, needle, *allowed):
    """Files of the host that hold these bytes, but for the allowed ones."""
    found = []
    for path in leftovers.files(host) | {f"/root/work/{name}" for name in (
            path.name for path in host.path("/root/work").glob("*"))}:
        try:
            if path not in allowed and needle in host.path(path).read_bytes():
                found.append(f"{host.name}: {path}")
        except OSError:  # a folder or a socket
            continue
    return found


def command_lines(cluster, needle):
    return [f"{host.name}: {line[:200]}" for host in cluster.hosts
            for pid, _, line in leftovers.processes(host) if needle.decode() in line]


def environments(cluster, needle):
    """(host, command line) of all processes that have it."""
    return [(host.name, line) for host in cluster.hosts for pid, _, line in leftovers.processes(host)
            if needle in leftovers.environment_of(pid)]


# The user's own, over ssh and with resident agents: only the workers have it, and the launcher from its user.
@pytest.mark.parametrize("way", ["ssh", "resident", "rsh"])
def test_b14_what_a_job_forwards(cluster, way):
    agents = [residents.Resident(host).start() for host in cluster.nodes[:2]] if way == "resident" else []
    needle = SECRET.encode()
    flags = ["--rsh", "ssh {host}"] if way == "rsh" else []
    for host in cluster.hosts:
        cluster.work(host)
    launch = cluster.start_launch(
        ["-v", *flags, "-x", "API_TOKEN", "--grace", "1s", "--status-listen", "0",
         "--log-dir", "/root/work/logs", "--result-json", "/root/work/result.json", "--timeline", "/root/work/timeline.json",
         *cluster.hosts_flag(1, cluster.nodes[:2]), "--", "sh", "-c",
         'test -n "$API_TOKEN" && echo up; until [ -e /run/go ]; do sleep 0.05; done; exit 3'],
        env={"API_TOKEN": SECRET})
    launch.wait_for("up", count=2)
    said = b""
    for words in (["ps"], ["status"], ["nodes"], ["ps", "--json"], ["status", "--json"],
                  ["logs", "--rank", "1"]):
        told = cluster.head.run([DTRAIN, *words], check=False)
        said += (told.stdout + told.stderr).encode()
    [socket] = cluster.head.path("/run/dtrain").glob("*.sock")
    for path in ("/metrics", "/v1/nodes", f"/v1/jobs/{socket.stem}", f"/v1/jobs/{socket.stem}/ranks"):
        said += cluster.head.run(["curl", "-sS", "--unix-socket", f"/run/dtrain/{socket.name}",
                                  f"http://localhost{path}"]).stdout.encode()
    assert len(said) > 1000 and needle not in said
    assert not command_lines(cluster, needle)
    for host, line in environments(cluster, needle):
        # What the launcher starts on its own machine is the user's, too.
        assert host == "head" or line.startswith(("sh -c test", "sleep 0.05")), (host, line)
        assert not line.endswith((" bridge", " shepherd", " serve")), (host, line)
    for host in cluster.hosts:
        assert not with_secret(host, needle)
        assert not host.sshd or needle not in (host.base / "sshd.log").read_bytes()
    for host in cluster.nodes[:2]:
        host.path("/run/go").touch()
    result = launch.wait(20)
    for host in cluster.nodes[:2]:
        host.path("/run/go").unlink()
    assert result.code == 3, result
    assert needle not in result.raw_out + result.raw_err, result
    assert (cluster.work() / "timeline.json").exists() and (cluster.work() / "result.json").exists()
    for host in cluster.hosts:
        assert not with_secret(host, needle)
    for agent in agents:
        assert SECRET not in agent.log, agent.log
        agent.stop()


# Ours: the tokens of both HTTP ports are in one file each, that nobody else can read.
def test_b14_tokens_of_http(cluster):
    agent = residents.Resident(cluster.nodes[0], flags=["--status-listen", "8123"]).start()
    launch = cluster.start_launch(["-v", "--grace", "1s", "--status-listen", "0", "-H", "node0:2", "--", *LIVE])
    launch.wait_for("up", count=2)
    [file] = cluster.head.path("/run/dtrain").glob("*.token")
    tokens = {cluster.head: (f"/run/dtrain/{file.name}", file.read_bytes().strip()),
              agent.host: (f"{residents.STATE}/http.token",
                           agent.host.path(f"{residents.STATE}/http.token").read_bytes().strip())}
    said = b""
    for words in (["ps", "--json"], ["status", "--json"], ["nodes", "--json", "-H", "node0"]):
        told = cluster.head.run([DTRAIN, *words], check=False)
        said += (told.stdout + told.stderr).encode()
    for owner, (path, token) in tokens.items():
        assert len(token) == 64 and os.stat(owner.path(path)).st_mode & 0o777 == 0o600
        assert token not in said and token not in agent.log.encode()
        assert not command_lines(cluster, token) and not environments(cluster, token)
        for host in cluster.hosts:
            assert not with_secret(host, token, *([path] if host is owner else []))
    launch.signal(signal.SIGTERM)
    result = launch.wait(20)
    assert result.code == 143
    assert not any(token in result.raw_out + result.raw_err for _, token in tokens.values())
    agent.stop()


# A worker that dumps core: no file unless it was asked for, and then with the worker's own secrets only.
def test_b14_cores_of_workers(cluster):
    def unlimited():
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    node0 = cluster.nodes[0]
    node0.restart_sshd(before_exec=unlimited)
    agent = residents.Resident(node0, flags=["--status-listen", "8123"], before_exec=unlimited).start()
    token = agent.host.path(f"{residents.STATE}/http.token").read_bytes().strip()
    folder = cluster.work(node0)
    try:
        for flags in ([], ["--core-dumps"]):
            result = cluster.launch([*flags, "--wdir", "/root/work", "-x", "API_TOKEN", "-H", "node0:1", "--",
                                     "sh", "-c", "kill -ABRT $$"], env={"API_TOKEN": SECRET})
            assert result.code == 134, result
            cores = list(folder.glob("core*"))
            assert len(cores) == len(flags), cores
            for core in cores:
                data = core.read_bytes()
                core.unlink()
                assert SECRET.encode() in data and token not in data
    finally:
        node0.restart_sshd()
        agent.stop()


# A crash of ours leaves no core, which would hold what these processes have in memory, unless it was asked for.
@pytest.mark.launcher_killed
@pytest.mark.parametrize("wanted", [False, True])
def test_b14_cores_of_ours(cluster, wanted):
    def may_dump():
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def dumped(process):
        process.send_signal(signal.SIGSEGV)
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ended.si_status == signal.SIGSEGV, ended
        process.wait(10)
        return ended.si_code == os.CLD_DUMPED

    node0 = cluster.nodes[0]
    env = {"API_TOKEN": SECRET, **({"DTRAIN_CORE_DUMPS": "1"} if wanted else {})}
    folders = [cluster.work(host) for host in (node0, cluster.head)]
    agent = residents.Resident(node0, env=env, cwd="/root/work", before_exec=may_dump).start()
    launch = cluster.start_launch(["-x", "API_TOKEN", "--grace", "1s", "--lease", "2s", "-H", "node0:2", "--",
                                   *LIVE], env=env, cwd="/root/work", before_exec=may_dump)
    launch.wait_for("up", count=2)
    [shepherd] = [pid for pid, _, line in leftovers.processes(node0) if line.endswith(" shepherd")]
    limits = Path(f"/proc/{shepherd}/limits").read_text()
    assert re.search(r"Max core file size +0 +unlimited", limits), limits
    assert dumped(launch.process) == wanted
    wait_until(lambda: not agent.jobs(), 30, lambda: agent.log)
    assert dumped(agent.process) == wanted
    cores = [path for folder in folders for path in folder.glob("core*")]
    assert len(cores) == (2 if wanted else 0), cores
    assert not wanted or any(SECRET.encode() in path.read_bytes() for path in cores)
    for path in cores:
        path.unlink()
    agent.start().stop()  # it clears up behind the one that crashed


if hosts.is_sanitized():
    del test_b14_cores_of_ours  # they would have terabytes
