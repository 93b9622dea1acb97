# SPDX-License-Identifier: Apache-2.0
"""Faults of group I at a real agent: who is let in, and what for. More of it: I2 in test_nodes.py and
test_node_http.py, I6, I7, I9, I12 and I13 in test_abuse.py, I11, I14, I15 and I16 in test_node_http.py,
I9 to I11 in test_http_abuse.py; I3 is a unit test (auth/methods_test.cc), I4 that of the join tokens
(component/pki)."""
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess

import pytest

import hosts
import launching
import leftovers
import residents
from certificates import pki
from launching import wait_until
from test_identity import UID, as_alice, node  # noqa: F401 - a fixture
from test_node_http import SOCKET, connect
from test_nodes import LIVE
from test_status import ask, spec
from test_tcp import PORT, Tcp, tcp  # noqa: F401 - a fixture

DTRAIN = hosts.bin_dir() / "dtrain"
TLS = "/root/work/tls"
OWN = {"cert": f"{TLS}/user.crt", "key": f"{TLS}/user.key"}
STRANGERS = hosts.SOURCE_DIR / "tests/cluster/strangers.py"


def methods_of_proto():
    text = (hosts.SOURCE_DIR / "proto/dtrain/v1/agent.proto").read_text()
    return [f"/dtrain.v1.Agent/{name}" for name in re.findall(r"^  rpc (\w+)\(", text, re.M)]


def routes():
    """Those that an agent has."""
    return [path.replace("{id}", "dtrain-1").replace("{rank}", "0") for path, item in spec()["paths"].items()
            if item["get"].get("x-only", "agent") == "agent"]


def stranger(tcp, *methods, cert="-", key="-", version="any"):  # noqa: F811
    told = tcp.node.cluster.head.run(
        ["/usr/bin/python3", STRANGERS, tcp.node.address, PORT, f"{TLS}/ca.crt", cert, key, version,
         *methods], timeout=60)
    return told.stdout.split("\n")[:-1]


# I1: nothing is answered before it is known who asks, whatever they say.
def test_i1_no_method_answers_without_a_certificate(tcp):  # noqa: F811
    methods = [*methods_of_proto(), *(f"GET {path}" for path in routes())]
    assert len(methods) >= 5 + 8, methods
    assert stranger(tcp, *methods) == ["closed"] * len(methods)
    assert "it presented no certificate" in tcp.agent.log, tcp.agent.log
    assert "audit: allowed" not in tcp.agent.log, tcp.agent.log


# I1, I15, I16, I23: the same of HTTP on a loopback port, whose key is a token.
def test_i1_i15_i16_i23_no_route_answers_without_the_token(cluster):
    agent = residents.Resident(cluster.nodes[0], flags=["--status-listen", "8123"]).start()
    token = agent.host.path("/run/dtrain-agent/http.token").read_text().strip()
    assert len(bytes.fromhex(token)) * 8 == 256
    script = """
import http.client, json, sys, time
told = []
for method, path, headers in json.loads(sys.argv[1]):
    connection = http.client.HTTPConnection("127.0.0.1", 8123, timeout=20)
    began = time.monotonic()
    connection.request(method, path, headers=headers)
    told.append([connection.getresponse().status, time.monotonic() - began])
print(json.dumps(told))
"""

    def statuses(*requests):
        told = agent.host.run(["/usr/bin/python3", "-c", script, json.dumps(requests)], timeout=60)
        return json.loads(told.stdout)

    plain = statuses(*(("GET", path, {}) for path in routes()))
    assert [status for status, _ in plain] == [200 if path == "/healthz" else 401 for path in routes()]
    good = {"Authorization": f"Bearer {token}"}
    wrong = {"Authorization": "Bearer " + token[:-1] + ("0" if token[-1] != "0" else "1")}
    [first, second] = statuses(("GET", "/v1/node", wrong), ("GET", "/v1/node", good))
    assert first[0] == 401 and second[0] == 200
    # Who guesses waits, which is what can be told of it: the others do not.
    assert first[1] >= 1.0, first
    wait_until(lambda: "a wrong token" in agent.log, 10, lambda: agent.log)
    web = statuses(("GET", "/v1/node", {**good, "Host": "evil.example"}),
                   ("POST", "/v1/jobs", {**good, "Origin": "http://evil.example"}),
                   ("DELETE", "/v1/jobs/x", {**good, "Origin": "http://evil.example"}),
                   ("GET", "/v1/node", {**good, "Connection": "Upgrade", "Upgrade": "websocket"}),
                   ("PUT", "/v1/jobs", good))
    assert [status for status, _ in web] == [403, 403, 403, 403, 405]
    agent.stop()


class Odd:
    """Certificates that dtrain-pki does not make."""

    def __init__(self, authority, name, role, start, end, usage="clientAuth"):
        folder = authority.folder / "odd"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.folder = folder
        (folder / "ext").write_text(f"basicConstraints=critical,CA:FALSE\nextendedKeyUsage={usage}\n"
                                    f"subjectAltName=URI:dtrain:{role}:{name}\n")
        run = {"check": True, "capture_output": True, "cwd": authority.folder}
        subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-keyout", folder / "user.key", "-out",
                        folder / "csr", "-subj", f"/CN={name}"], **run)
        subprocess.run(["openssl", "ca", "-batch", "-notext", "-config", "ca.cnf", "-in",
                        folder / "csr", "-out", folder / "user.crt", "-startdate", start, "-enddate", end,
                        "-extfile", folder / "ext", "-subj", f"/O=test/OU={role}/CN={name}"], **run)

    def put(self, folder):
        """In place of the user's own."""
        for name in ("user.crt", "user.key"):
            shutil.copy(self.folder / name, folder / name)
        (folder / "user.key").chmod(0o600)


PAST, FUTURE = ("20200101000000Z", "20210101000000Z"), ("20900101000000Z", "20910101000000Z")
NOW = (PAST[0], FUTURE[0])


# I5, I17: three distinct errors, at both ends: the launcher does not begin with it, and the agent
# does not take it from one who does. C10: a certificate from the future is a matter of clocks.
@pytest.mark.parametrize("when,role,usage,words", [
    (PAST, "user", "clientAuth", "expired on 2021-01-01"),
    (FUTURE, "user", "clientAuth", "is valid only from 2090-01-01"),
    (NOW, "user", "serverAuth", "has the wrong role")])
def test_i5_i17_certificates_of_another_time_or_purpose(tcp, when, role, usage, words):  # noqa: F811
    Odd(tcp.authority, "alice", role, *when, usage).put(tcp.node.cluster.head.path(TLS))
    assert stranger(tcp, "/dtrain.v1.Agent/NodeStatus", **OWN) == ["closed"]
    wait_until(lambda: words in tcp.agent.log, 10, lambda: tcp.agent.log)
    if when == FUTURE:
        assert "set the clocks" in tcp.agent.log, tcp.agent.log
    result = tcp.launch("echo", "ran")
    assert result.code == 206 and words in result.err and not result.out, result


# I17
def test_i17_old_versions_of_tls(tcp):  # noqa: F811
    method = "/dtrain.v1.Agent/NodeStatus"
    for version in ("TLSv1", "TLSv1_1"):
        assert stranger(tcp, method, version=version, **OWN) == ["closed"]
    wait_until(lambda: "versions of TLS before 1.2" in tcp.agent.log, 10, lambda: tcp.agent.log)
    # HTTP: a gRPC call with so long a message may have its connection closed before the agent has said a word.
    [answer] = stranger(tcp, "GET /healthz", version="TLSv1_3", **OWN)
    assert answer.startswith("b'HTTP/1.1 200 "), answer + "\n" + tcp.agent.log


# I17, I22: an agent with the certificate of another host, or with a user's, is no agent of that host.
def test_i17_i22_an_agent_that_poses_as_another_host(tcp):  # noqa: F811
    tcp.authority.user("mallory")
    wrong = type("Host", (), {"name": "node7", "address": "10.77.0.77"})
    hosts_own = tcp.node_tls
    pki("node", tcp.authority.folder, wrong.name, "--ip", wrong.address)
    shutil.rmtree(hosts_own)
    tcp.authority.bundle("node:node7", hosts_own)
    tcp.agent.restart()
    result = tcp.launch("echo", "ran")
    assert result.code == 206 and not result.out, result
    assert "node7" in result.err and f'not for "{tcp.node.address}"' in result.err, result
    told = tcp.node.cluster.head.run([DTRAIN, "nodes", "--agent", "tcp", "--tls-dir", TLS, "-H",
                                      tcp.node.address, "--json"], check=False)
    assert told.returncode == 200 and "node7" in told.stdout, told


# I22: and a node asks for nothing.
def test_i22_a_node_does_not_launch(tcp):  # noqa: F811
    folder = tcp.node.cluster.head.path(TLS)
    for name in ("crt", "key"):
        shutil.copy(tcp.node_tls / f"node.{name}", folder / f"user.{name}")
    result = tcp.launch("echo", "ran")
    assert result.code == 206 and "certificate of the node node0" in result.err, result
    # Nor does the agent listen to one whose launcher does not mind.
    assert stranger(tcp, "/dtrain.v1.Agent/StopJob", **OWN) == ["closed"]
    wait_until(lambda: "refused" in tcp.agent.log, 10, lambda: tcp.agent.log)
    assert "audit: allowed" not in tcp.agent.log, tcp.agent.log


# D20, I22: who runs the workers is who the certificate names. The job cannot ask for another user.
@pytest.mark.parametrize("user", ["root", "bob"])
def test_d20_another_user_than_the_certificate_names(tcp, user):  # noqa: F811
    flags = tcp.flags()
    flags[flags.index("-H") + 1] = f"{user}@{tcp.node.address}:2"
    result = tcp.node.cluster.launch([*flags, "id", "-un"])
    assert result.code == 206 and not result.out, result
    assert f"the certificate is alice's, and not user {user}'s" in result.err, result
    flags[flags.index("-H") + 1] = f"alice@{tcp.node.address}:2"
    result = tcp.node.cluster.launch([*flags, "id", "-u"])
    assert result.code == 0 and result.lines == [str(UID)] * 2, result


# D20: an admin ends and sees all jobs, and launches as the account of that name only.
def test_d20_an_admin_runs_nothing_as_somebody_else(tcp):  # noqa: F811
    tcp.authority.user("root", "--admin")
    tcp.become("user:root")
    result = tcp.launch("id", "-un")
    assert result.code == 206 and "root" in result.err and not result.out, result
    wait_until(lambda: 'audit: denied who="admin:root"' in tcp.agent.log, 10, lambda: tcp.agent.log)


# I18: an agent that is not root is its user's alone.
def test_i18_another_user_at_the_socket_of_a_users_agent(node):  # noqa: F811
    node.path("/run/user").mkdir(exist_ok=True)
    runtime = node.path(f"/run/user/{UID}")
    runtime.mkdir()
    os.chown(runtime, UID, UID)
    env = {"HOME": "/home/alice", "USER": "alice", "XDG_RUNTIME_DIR": f"/run/user/{UID}"}
    agent = launching.Launch(node, [hosts.bin_dir() / "dtrain-agent", "serve"], cwd="/", env=env,
                             before_exec=as_alice)
    agent.wait_for("serving on", stream="err")

    def bob():
        os.setgroups([])
        os.setresgid(4321, 4321, 4321)
        os.setresuid(4321, 4321, 4321)

    # As if she had opened the folder to all.
    for path in (runtime, runtime / "dtrain-agent"):
        path.chmod(0o755)
    for name in ("agent.sock", "http.sock"):
        (runtime / "dtrain-agent" / name).chmod(0o666)
        code = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(20); "
                f"s.connect('/run/user/{UID}/dtrain-agent/{name}'); "
                "s.sendall(b'GET /v1/node HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n'); "
                "print(s.recv(100))")
        told = launching.Launch(node, ["/usr/bin/python3", "-I", "-c", code], cwd="/",
                                before_exec=bob).wait(30)
        assert told.out == "b''\n" or "Reset" in told.err or "Broken pipe" in told.err, told
    assert "4321" in agent.err, agent.err
    agent.signal(signal.SIGTERM)
    assert agent.wait(20).code == 0
    shutil.rmtree(node.path("/run/user"))


ANYBODY = 4321


class Harms:
    """What makes a file somebody else's. Each returns what is named when it is refused."""

    @staticmethod
    def readable(path):
        path.chmod(0o640)

    @staticmethod
    def writable(path):
        path.chmod(0o664 if path.is_file() else 0o775)

    @staticmethod
    def foreign(path):
        os.chown(path, ANYBODY, 0)

    @staticmethod
    def link(path):
        path.rename(path.parent / "elsewhere")
        path.symlink_to("elsewhere")

    @staticmethod
    def foreign_link(path):
        Harms.link(path)
        os.lchown(path, ANYBODY, 0)

    @staticmethod
    def in_open_folder(path):
        path.parent.chmod(0o777)
        return path.parent

    @staticmethod
    def below_open_folder(path):
        path.parent.parent.chmod(0o777)
        return path.parent.parent


SECRET_HARMS = ["readable", "foreign", "link", "in_open_folder", "below_open_folder"]
# What the agent believes may be read by all, and a link of root's, as of what manages configurations,
# is followed.
TRUST_HARMS = ["writable", "foreign", "foreign_link", "in_open_folder", "below_open_folder"]
TRUSTED = {"ca.crt": "the authority", "node.crt": "the certificate", "crl.pem": "what is revoked",
           "accounts": "--account-map", "agent.conf": "--config"}


# I19: for each file that proves who we are, and that says whom we believe, everything that makes it
# somebody else's.
@pytest.mark.parametrize("harm", SECRET_HARMS)
@pytest.mark.parametrize("end", ["agent", "launcher"])
def test_i19_keys_that_are_not_only_ours(tcp, end, harm):  # noqa: F811
    folder = tcp.node_tls if end == "agent" else tcp.node.cluster.head.path(TLS)
    key = folder / ("node.key" if end == "agent" else "user.key")
    named = (getattr(Harms, harm)(key) or key).name
    if end == "launcher":
        result = tcp.launch("echo", "ran")
        assert result.code == 206 and named in result.err and not result.out, result
        folder.parent.chmod(0o755)
        return
    old_stays(tcp.agent, named)
    refuses_to_start(tcp.agent, named)
    folder.parent.chmod(0o755)


@pytest.mark.parametrize("harm", TRUST_HARMS)
def test_i19_a_launchers_authority_that_others_can_change(tcp, harm):  # noqa: F811
    ca = tcp.node.cluster.head.path(TLS) / "ca.crt"
    named = (getattr(Harms, harm)(ca) or ca).name
    result = tcp.launch("echo", "ran")
    assert result.code == 206 and named in result.err and "fix it" in result.err, result
    ca.parent.parent.chmod(0o755)


def refuses_to_start(agent, named, flags=()):
    agent.stop()
    told = agent.host.run([hosts.bin_dir() / "dtrain-agent", "serve", *agent.flags, *flags], check=False)
    assert told.returncode == 206 and named in told.stderr, told
    assert "; fix it with: " in told.stderr or "name the file itself" in told.stderr, told


def old_stays(agent, named):
    agent.signal(signal.SIGHUP)
    wait_until(lambda: "keeping the old configuration" in agent.log, 20, lambda: agent.log)
    assert named in agent.log.partition("keeping the old configuration")[2], agent.log


@pytest.mark.parametrize("harm", TRUST_HARMS)
@pytest.mark.parametrize("name", TRUSTED)
def test_i19_what_the_agent_believes_that_others_can_change(node, tmp_path, name, harm):  # noqa: F811
    with_files = believing(node, tmp_path)
    agent = with_files.agent.start()
    assert with_files.launch("true", flags=("--bind", "none")).code == 0
    path = (node.path("/root/work/etc") if name in ("accounts", "agent.conf") else with_files.node_tls) / name
    named = (getattr(Harms, harm)(path) or path).name
    old_stays(agent, named)
    # And serves.
    assert with_files.launch("true", flags=("--bind", "none")).code == 0
    refuses_to_start(agent, named)
    path.parent.parent.chmod(0o755)


def believing(node, folder):  # noqa: F811
    """An agent that reads one of each."""
    made = Tcp(node, folder)
    shutil.copy(made.authority.folder / "crl.pem", made.node_tls / "crl.pem")
    etc = node.path("/root/work/etc")
    shutil.rmtree(etc, ignore_errors=True)
    etc.mkdir()
    (etc / "accounts").write_text("alice.smith = alice\n")
    (etc / "agent.conf").write_text('account-map = "/root/work/etc/accounts"\n')
    made.agent.flags += ["--config", "/root/work/etc/agent.conf"]
    return made


def test_i19_links_of_root_are_followed_to_what_the_agent_believes(node, tmp_path):  # noqa: F811
    with_files = believing(node, tmp_path)
    for folder in (node.path("/root/work/etc"), with_files.node_tls):
        for path in list(folder.iterdir()):
            if path.name in TRUSTED:
                path.rename(folder / f"real-{path.name}")
                path.symlink_to(f"real-{path.name}")
    with_files.agent.start()
    assert with_files.launch("true", flags=("--bind", "none")).code == 0
    with_files.agent.stop()


STATE = residents.STATE


# I19, "socket, state, log dirs": of the state directory, what lies in it, and what it lies in.
@pytest.mark.parametrize("what,harm", [
    *((STATE, harm) for harm in ("writable", "foreign", "link", "in_open_folder")),
    *((f"{STATE}/{name}", harm) for name in ("jobs", "lock", "withheld", "jobs/j.0/record")
      for harm in ("readable", "foreign", "link"))])
def test_i19_a_state_directory_that_is_not_only_ours(cluster, what, harm):
    node = cluster.nodes[0]
    if harm == "in_open_folder":
        node.path("/run/deep").mkdir()
        what = "/run/deep/state"
    agent = residents.Resident(node, flags=["--state-dir", what] if "deep" in what else [])
    if "deep" not in what:
        agent.start()
        agent.signal(signal.SIGTERM)
        assert agent.process.wait(10) == 0
        agent.process = None
        (node.path(STATE) / "jobs/j.0").mkdir()
        for name in ("withheld", "jobs/j.0/record"):
            (node.path(STATE) / name).write_bytes(b"")
            (node.path(STATE) / name).chmod(0o600)
    path = node.path(what)
    named = (getattr(Harms, harm)(path) or path).name
    told = node.run([hosts.bin_dir() / "dtrain-agent", "serve", *agent.flags], check=False)
    assert told.returncode == 206 and named in told.stderr, told
    assert "; fix it with: " in told.stderr or "name the file itself" in told.stderr, told
    if "deep" in what:
        assert not path.exists()
        path.parent.rmdir()
    elif path.is_symlink():
        path.unlink()
        shutil.rmtree(node.path("/run/elsewhere"), ignore_errors=True)
    agent.stop()


# I20: what changes programs as they start comes with the job, and is for the worker alone.
def test_i20_the_jobs_environment_is_the_workers_alone(tcp):  # noqa: F811
    work = tcp.node.path("/home/alice/evil")
    work.mkdir()
    os.chown(work, UID, UID)
    (work / "env.sh").write_text('echo "$(id -u) $DTRAIN_RANK" >>/home/alice/evil/ran\n')
    (work / "sh").write_text("#!/bin/bash\nexec /bin/bash \"$@\"\n")
    (work / "sh").chmod(0o755)
    started = tcp.node.cluster.start_launch(
        tcp.flags("-x", "LD_PRELOAD=/home/alice/evil/none.so", "-x", "LD_LIBRARY_PATH=/home/alice/evil",
                  "-x", "BASH_ENV=/home/alice/evil/env.sh", "-x",
                  "PATH=/home/alice/evil:/usr/bin:/bin", "--grace", "1s") +
        ["sh", "-c", "echo up; exec sleep 600"])
    started.wait_for("up", count=2)
    ours = [pid for pid, _, line in leftovers.processes(tcp.node)
            if "dtrain-agent" in line or line.endswith(" shepherd")]
    assert len(ours) == 2, "the agent and the shepherd"
    for pid in ours:
        environment = leftovers.environment_of(pid)
        assert b"/home/alice/evil" not in environment, environment
        assert "none.so" not in open(f"/proc/{pid}/maps", encoding="ascii").read()
    assert (work / "ran").read_text().split("\n")[:-1] == [f"{UID} 0", f"{UID} 1"] or \
        sorted(set((work / "ran").read_text().split("\n"))) == ["", f"{UID} 0", f"{UID} 1"]
    assert "none.so" not in tcp.agent.log, tcp.agent.log
    # The loader's complaint is the workers' own.
    assert "none.so" in started.err, started.err
    started.signal(signal.SIGTERM)
    assert started.wait(20).code == 143


# I21: a worker has its account's rights and no others: not to other users' jobs, not to the agent's
# folder, and what it tells of itself is of its own rank.
def test_i21_a_worker_that_turns_against_its_agent(tcp):  # noqa: F811
    other = tcp.node.cluster.start_launch(["--grace", "1s", "--bind", "none", "-H", "node0:1", "--",
                                           *LIVE])
    other.wait_for("up")
    victim = json.loads(ask(connect(tcp.agent), "/v1/jobs")[2])["jobs"][0]["id"]
    script = f"""
cd /
{DTRAIN} stop {victim} 2>&1; echo stop $?
{DTRAIN} logs {victim} 2>&1; echo logs $?
for f in /run/dtrain-agent/jobs/*/record /run/dtrain-agent/http.token /run/dtrain-agent/lock; do
  if cat $f >/dev/null 2>&1; then echo read $f; fi
  if echo x 2>/dev/null >$f; then echo wrote $f; fi
done
for s in /run/dtrain-agent/jobs/{victim}*/shepherd.sock; do
  /usr/bin/python3 -c "import socket; socket.socket(socket.AF_UNIX).connect('$s'); print('reached')" 2>/dev/null
done
echo over
"""
    result = tcp.launch("sh", "-c", script, flags=("--bind", "none"))
    assert result.code == 0 and result.out.count("over") == 2, result
    assert result.out.count("stop 206") == 2 and result.out.count("logs 206") == 2, result
    assert not re.search("^(read|wrote|reached)", result.out, re.M), result
    assert other.process.poll() is None
    other.signal(signal.SIGTERM)
    assert other.wait(20).code == 143


# I21: another rank's number in what a worker says is no use: its socket is its rank.
def test_i21_a_worker_speaks_for_its_own_rank_only(tcp):  # noqa: F811
    script = """
import os, socket
rank = int(os.environ["PMI_RANK"])
s = socket.socket(fileno=int(os.environ["PMI_FD"]))
lines = s.makefile("rw")
def say(text):
    lines.write(text + "\\n"); lines.flush()
    return lines.readline().strip()
say("cmd=init pmi_version=1 pmi_subversion=1")
if rank == 1:
    print("abort", flush=True)
    lines.write("cmd=abort exitcode=9 rank=0\\n"); lines.flush()
import time; time.sleep(600)
"""
    result = tcp.launch("/usr/bin/python3", "-c", script, flags=("--bind", "none", "--grace", "1s"))
    assert result.code == 9 and "rank 1" in result.err, result
    assert "rank 0 " not in result.err, result


def hung_up(connection):
    """Whether the agent has closed it; what it has sent is still unread."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return any(what & (select.POLLHUP | select.POLLRDHUP) for _, what in poll.poll(0))


# I10, J10: a thousand who follow the output, of whom most never read. Those beyond the cap are closed
# as they come; the job does not notice, nor does the agent grow with them.
def test_i10_j10_a_thousand_readers_who_never_read(cluster):
    agent = residents.Resident(cluster.nodes[0]).start()
    launch = cluster.start_launch(["--lease", "10s", "-H", "node0:1", "--spool-limit", "32M", "--",
                                   "sh", "-c", "echo up; until [ -e /run/go ]; do seq 1000; sleep 0.01; done; echo last"],
                                  stdout=subprocess.DEVNULL)
    wait_until(lambda: ask(connect(agent), "/v1/jobs")[2].count(b"running") >= 1, 20, "no job")
    job = json.loads(ask(connect(agent), "/v1/jobs")[2])["jobs"][0]["id"]
    question = (f"GET /v1/jobs/{job}/ranks/0/log?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n"
                ).encode()
    held = []
    for _ in range(1000):
        each = socket.socket(socket.AF_UNIX)
        each.settimeout(20)
        try:
            each.connect(str(agent.host.path(SOCKET)))
            each.sendall(question)
            held.append(each)
        except OSError:
            each.close()
    # One user has room for so many; the rest is closed as it is seen.
    wait_until(lambda: sum(not hung_up(each) for each in held) <= 32, 20, "more may stay")
    open_ = [each for each in held if not hung_up(each)]
    assert open_, "nobody may stay"
    resident = int(re.search(r"VmRSS:\s*(\d+)", open(f"/proc/{agent.pid}/status",
                                                     encoding="ascii").read()).group(1))
    if not hosts.is_sanitized():
        assert resident < 64 << 10, f"{resident} KiB"
    # Who does not take a piece within 30 s is cut.
    wait_until(lambda: all(map(hung_up, open_)), 90, "they may stay")
    agent.host.path("/run/go").touch()
    assert launch.wait(60).code == 0
    agent.host.path("/run/go").unlink()
    for each in held:
        each.close()
    agent.stop()
