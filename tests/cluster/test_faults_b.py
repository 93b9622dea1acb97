# SPDX-License-Identifier: Apache-2.0
"""Faults of group B: ssh and the way to a running agent. More of B14 in test_secrets.py; B18 in
test_login_sessions.py."""
import contextlib
import os
import shutil
import signal
import socket
import subprocess

import pytest

import hosts
import launching
import leftovers
from launching import wait_until
from test_faults_c import slow_rsh
from test_faults_j import peak_kib, written

HELLO = ["--", "sh", "-c", "echo on $(hostname)"]


def fails(cluster, args, *words, code=200, timeout=30, **options):
    result = cluster.launch(args, timeout=timeout, **options)
    assert result.code == code, result
    for word in words:
        assert word.lower() in result.err.lower(), f"no {word!r} in {result}"
    assert "on node" not in result.out, "nothing may start"
    return result


def works(cluster, args, **options):
    result = cluster.launch(args, **options)
    assert result.code == 0, result
    return result


def known_hosts(cluster):
    return cluster.head.base / "root/.ssh/known_hosts"


@pytest.fixture
def kept_ssh_files(cluster):
    """The head's ssh files, put back after the test."""
    folder = cluster.head.base / "root/.ssh"
    kept = folder.with_name("ssh-kept")
    shutil.copytree(folder, kept)
    yield folder
    shutil.rmtree(folder)
    kept.rename(folder)


# B1
def test_b1_unknown_host_key(cluster, kept_ssh_files):
    known = known_hosts(cluster)
    lines = known.read_text().splitlines(keepends=True)
    known.write_text("".join(line for line in lines if "node1" not in line))
    before = known.read_text()
    fails(cluster, [*cluster.hosts_flag(1), *HELLO], "node1", "host key")
    assert known.read_text() == before, "a key was accepted"


# B1
def test_b1_changed_host_key(cluster, kept_ssh_files):
    known = known_hosts(cluster)
    lines = known.read_text().splitlines()
    other = lines[0].split()[2]
    known.write_text("".join(f"{line.split()[0]} ssh-ed25519 {other}\n" for line in lines))
    fails(cluster, ["-H", "node2:1", *HELLO], "node2", "host key", "changed")


# B2
def test_b2_key_refused_everywhere_lists_all_hosts(cluster, kept_ssh_files):
    (kept_ssh_files / "id_ed25519").unlink()
    (kept_ssh_files / "id_ed25519.pub").unlink()
    hosts.make_key(kept_ssh_files / "id_ed25519")
    fails(cluster, [*cluster.hosts_flag(1), *HELLO], "node0", "node1", "node2", "node3", timeout=15)


# B2: nobody is asked for a passphrase, also not on a terminal.
def test_b2_key_with_a_passphrase(cluster, kept_ssh_files):
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret words", "-f",
                    kept_ssh_files / "id_ed25519"], check=True, stdout=subprocess.DEVNULL)
    main, terminal = os.openpty()
    try:
        fails(cluster, ["-H", "node0:1", *HELLO], "node0", timeout=15, stdin=terminal)
    finally:
        os.close(main)
        os.close(terminal)


# B2
def test_b2_expired_account(cluster):
    shadow = cluster.nodes[3].base / "shadow"
    before = shadow.read_text()
    shadow.write_text(before.replace("root:*:19000:0:99999:7:::", "root:*:19000:0:99999:7::1:"))
    try:
        fails(cluster, [*cluster.hosts_flag(1), *HELLO], "node3", timeout=15)
    finally:
        shadow.write_text(before)


# B3
def test_b3_black_holed_host(cluster):
    cluster.cut(cluster.nodes[2])
    try:
        result = fails(cluster, [*cluster.hosts_flag(1), *HELLO], "node2", timeout=30)
        assert result.seconds < 20
    finally:
        cluster.heal(cluster.nodes[2])


# A node that goes while its agent is being started, and closes nothing.
def test_b3_a_host_that_vanishes_after_the_login(cluster):
    node = cluster.nodes[1]
    rc, waits = node.base / "root/.bashrc", node.path("/run/login-waits")
    rc.write_text("touch /run/login-waits; exec sleep 600\n")
    try:
        launch = cluster.start_launch([*cluster.hosts_flag(1), *HELLO])
        wait_until(waits.exists, 30, lambda: launch.err)
        cluster.cut(node)
        result = launch.wait(60)  # --start-timeout is longer
        assert result.code == 200 and "node1" in result.err and "timed out" in result.err, result
    finally:
        cluster.heal(node)
        rc.unlink()
        waits.unlink(missing_ok=True)
        for pid, _, line in leftovers.processes(node):
            if line == "sleep 600":  # which sshd knows nothing of
                os.kill(pid, signal.SIGKILL)
    leftovers.wait_for_no_processes(cluster, 30)


# B4: sshd that drops connections. Its one place for callers is taken when we call first.
def test_b4_dropped_connection_is_tried_again(make_cluster):
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    node.restart_sshd("MaxStartups 1\nLogLevel DEBUG\n")
    with hosts.socket_in_namespace(cluster.head.namespace("net")) as busy:
        busy.connect((node.address, 22))
        busy.recv(64, socket.MSG_PEEK)
        launch = cluster.start_launch(["-H", "node0:1", *HELLO])
        log = node.base / "sshd.log"
        wait_until(lambda: "drop connection" in log.read_text() or launch.process.poll() is not None,
                   10, log.read_text)
    result = launch.wait(30)
    assert result.code == 0 and "on node0" in result.out, result


RC_FILES = {
    "prints": "echo Welcome to this machine; echo; echo more >&2; printf 'no newline'",
    "prints a lot": "head -c 60000 /dev/zero | tr '\\0' x; echo",
    "asks": "read answer; echo you said $answer",
    "binary": "head -c 3000 /dev/urandom",
    "like us": "echo 'see DTRAIN-AGENT/1 ready'; echo DTRAIN-AGENT; echo -n DTRAIN-",
    "execs": "exec sh -c \"$BASH_EXECUTION_STRING\"",
}


# B5
@pytest.mark.parametrize("kind", RC_FILES)
def test_b5_start_up_files_that_talk(cluster, kind):
    rc = cluster.nodes[1].base / "root/.bashrc"
    rc.write_text(RC_FILES[kind] + "\n")
    try:
        result = works(cluster, ["-H", "node1:1", *HELLO], timeout=30)
        assert result.out == "on node1\n"
    finally:
        rc.unlink()


# B5
@pytest.mark.parametrize("text,shown", [("echo Go away; exit 3", "Go away"),
                                        ("while :; do echo endless noise; done", "endless noise"),
                                        ("echo to stderr >&2; exit 0", "to stderr")])
def test_b5_start_up_files_that_end_or_never_end(cluster, text, shown):
    rc = cluster.nodes[1].base / "root/.bashrc"
    rc.write_text(text + "\n")
    try:
        fails(cluster, [*cluster.hosts_flag(1), *HELLO], "node1", shown)
    finally:
        rc.unlink()


# B5
@pytest.mark.parametrize("shell", ["/usr/bin/tcsh", "/usr/bin/fish", "/bin/sh"])
def test_b5_other_login_shells(make_cluster, shell):
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    (node.base / "passwd").write_text(f"root:x:0:0:root:/root:{shell}\n"
                                      "sshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n")
    node.run(["mount", "--bind", node.base / "passwd", "/etc/passwd"])
    for _ in range(2):  # with the agent pushed, and from the cache
        assert works(cluster, ["-H", "node0:1", *HELLO]).out == "on node0\n"
    for left in ("root/.local", "root/.config", "root/.cache/fish"):
        shutil.rmtree(node.base / left, ignore_errors=True)


# B6
def test_b6_arguments_arrive_byte_for_byte(cluster):
    odd = [b"a b", b"", b"'", b'"', b"$HOME", b"`id`", b"\n", b"\\", b"*", b"\xff\xfe", b"--", b"-x",
           b"a\tb", "é".encode(), b"$(id)", b"!!", b"{host}", b"%s"]
    script = "import os, sys; print([os.fsencode(a) for a in sys.argv[1:]])"
    for flags in ([], ["--rsh", "ssh {host}"]):
        launch = cluster.start_launch([*flags, "-H", "node1:1", "--", "/usr/bin/python3", "-I", "-c",
                                       script, *map(os.fsdecode, odd)])
        result = launch.wait(30)
        assert result.code == 0 and result.out == f"{odd}\n", result


def copy_of_programs(cluster):
    """dtrain and its agent where a test may spoil them, seen by all hosts."""
    folder = cluster.base / "bin"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("dtrain", "dtrain-agent"):
        shutil.copy(hosts.bin_dir() / name, folder / name)
    return folder


def launch_from(cluster, folder, args):
    return launching.Launch(cluster.head, [folder / "dtrain", "launch", *args]).wait(30)


# B7
def test_b7_agent_missing_here(cluster):
    folder = copy_of_programs(cluster)
    (folder / "dtrain-agent").unlink()
    result = launch_from(cluster, folder, ["-H", "node1:1", *HELLO])
    assert result.code == 200 and f"{folder}/dtrain-agent" in result.err, result


# B7
def test_b7_node_of_another_architecture(make_cluster):
    cluster = make_cluster(2)
    fake = cluster.nodes[1].base / "bin"
    fake.mkdir()
    (fake / "uname").write_text("#!/bin/sh\necho riscv64\n")
    (fake / "uname").chmod(0o755)
    cluster.nodes[1].restart_sshd(setenv={"PATH": f"{fake}:/usr/bin:/bin"})
    fails(cluster, [*cluster.hosts_flag(1), *HELLO], "node1", "riscv64")


# B7: an agent that the node cannot run, as with an older C library.
def test_b7_agent_that_does_not_run_there(cluster):
    folder = copy_of_programs(cluster)
    program = (folder / "dtrain-agent").read_bytes()
    spoiled = program.replace(b"/lib64/ld-linux-x86-64.so.2", b"/lib64/ld-linux-x86-64.so.9")
    assert spoiled != program
    (folder / "dtrain-agent").write_bytes(spoiled)
    result = launch_from(cluster, folder, ["-H", "node1:1", *HELLO])
    assert result.code == 200 and "node1" in result.err, result


# B7: content addressed, so another build is another agent, pushed beside the first.
def test_b7_agent_of_another_build_is_pushed(cluster):
    folder = copy_of_programs(cluster)
    with (folder / "dtrain-agent").open("ab") as agent:
        agent.write(os.urandom(16))
    result = launch_from(cluster, folder, ["-H", "node1:1", *HELLO])
    assert result.code == 0 and result.out == "on node1\n", result


# B8: one fails before the agent spoke, the other after.
def test_b8_ssh_that_fails_is_not_an_agent_that_fails(cluster):
    script = cluster.work() / "rsh"
    script.write_text("#!/bin/sh\necho cannot reach $1 >&2\nexit 255\n")
    script.chmod(0o755)
    fails(cluster, ["--rsh", "/root/work/rsh {host}", "-H", "node1:1", *HELLO], "node1", "255",
          "cannot reach node1")
    launch = cluster.start_launch(["--rsh", "ssh {host}", "-H", "node1:1", "--", "sh", "-c",
                                   "echo up; sleep 100"])
    launch.wait_for("up")
    cluster.nodes[1].run(["pkill", "-KILL", "-f", "dtrain-agent bridge"])
    result = launch.wait(30)
    assert result.code in (202, 203) and "node1" in result.err, result


# B11
def test_b11_one_host_of_four_fails(cluster):
    cluster.nodes[3].stop_sshd()
    try:
        result = fails(cluster, [*cluster.hosts_flag(2), *HELLO], "node3")
        assert "node1" not in result.err, result
        leftovers.wait_for_no_processes(cluster, 10)
    finally:
        cluster.nodes[3].restart_sshd()


# B13: also when both find no agent there and push it.
def test_b13_two_launchers_on_the_same_hosts(make_cluster):
    cluster = make_cluster(2)
    both = [cluster.start_launch(["--tag-output", "none", *cluster.hosts_flag(2), "--", "sh", "-c",
                                  f"sleep 0.3; echo {name} $MASTER_PORT"]) for name in "ab"]
    results = [launch.wait(60) for launch in both]
    ports = set()
    for name, result in zip("ab", results):
        assert result.code == 0 and len(result.lines) == 4, result
        assert {line.split()[0] for line in result.lines} == {name}
        ports |= {line.split()[1] for line in result.lines}
    assert len(ports) == 2, "each job has a port of its own"


# B14, O5: what the user forwards is in the workers' environment and nowhere else.
def test_b14_secrets_are_with_the_workers_only(cluster):
    secret = "s3cr3t-4711-token"
    launch = cluster.start_launch(["-v", "-x", "API_KEY", *cluster.hosts_flag(1), "--", "sh", "-c",
                                   "echo up; exec sleep 100"], env={"API_KEY": secret})
    launch.wait_for("up", count=4)
    places = [place for place in leftovers.secret_places(cluster, secret)
              if "sleep 100" not in place and not place.startswith("head: environment")]
    assert not places
    launch.signal(2)
    result = launch.wait(20)
    assert secret not in result.out + result.err
    for host in cluster.hosts:
        found = subprocess.run(["grep", "-rl", secret, host.base / "root", host.base / "tmp"],
                               capture_output=True, text=True, check=False).stdout
        assert not found


# B15: what talks without end beside the agent is read and forgotten, at no price; of its end the report of
# a failure has some lines.
@pytest.mark.parametrize("way", [[], ["--rsh", "ssh {host}"]], ids=["ssh", "rsh"])
def test_b15_stderr_of_a_connection_without_end(cluster, way):
    rc = cluster.nodes[1].base / "root/.bashrc"
    rc.write_text("yes a line of noise from the start-up file >&2 &\n")
    try:
        launch = cluster.start_launch([*way, "--grace", "1s", "-H", "node1:1", "--", "sh", "-c",
                                       "echo up; exec sleep 600"])
        launch.wait_for("up")
        noisy = []

        def talks():  # what the shell left in the background has become its program
            noisy[:] = [pid for pid, _, line in leftovers.processes(cluster.nodes[1]) if line.startswith("yes ")]
            return noisy
        wait_until(talks, 30, "nothing talks")
        (noise,) = noisy
        bridges = [pid for pid, _, line in leftovers.processes(cluster.nodes[1]) if "bridge" in line]
        ours = [launch.pid, *bridges]
        first = written(noise)
        wait_until(lambda: written(noise) > first + (20 << 20), 30, "it is not read")
        before = [peak_kib(pid) for pid in ours]
        wait_until(lambda: written(noise) > first + (300 << 20), 60, "it is not read")
        more = [peak_kib(pid) - was for pid, was in zip(ours, before)]
        assert hosts.is_sanitized() or max(more) < 4 << 10, more
        assert "noise" not in launch.err, launch
        for pid in bridges:
            os.kill(pid, signal.SIGKILL)
        result = launch.wait(30)
        assert result.code == 202 and "node1" in result.err, result
        assert len(result.raw_err) < 64 << 10, result
    finally:
        rc.unlink()
    leftovers.wait_for_no_processes(cluster, 30)


# B15: the last of it is what tells why there is no agent.
@pytest.mark.parametrize("way", [[], ["--rsh", "ssh {host}"]], ids=["ssh", "rsh"])
def test_b15_the_end_of_much_stderr_is_reported(cluster, way):
    rc = cluster.nodes[1].base / "root/.bashrc"
    rc.write_text("yes some noise | head -c 100000000 >&2; echo the reason is here >&2; exit 9\n")
    try:
        result = fails(cluster, [*way, "-H", "node1:1", *HELLO], "node1", "the reason is here")
        assert len(result.raw_err) < 4096, len(result.raw_err)
    finally:
        rc.unlink()


# B10: the connection of one host is killed: while the others are still waited for, and as they run. What runs there
# ends by itself, and the launch with it; before that nothing is lost.
@pytest.mark.parametrize("state", ["barrier", "run"])
@pytest.mark.parametrize("end", ["client", "server"])
def test_b10_ssh_is_killed(cluster, state, end):
    # So that no copy of the agent is on its way.
    assert cluster.launch([*cluster.hosts_flag(1), "--", "true"]).code == 0
    flags = slow_rsh(cluster, "node3")
    launch = cluster.start_launch([*flags, "--grace", "1s", *cluster.hosts_flag(1), "--", "sh", "-c",
                                   "echo up; exec sleep 600"])
    if state == "run":
        (cluster.work() / "go").touch()
        launch.wait_for("up", count=4)
    else:
        wait_until(lambda: any(line.endswith("bridge") for _, _, line in
                               leftovers.processes(cluster.nodes[1])), 20, "no agent")
    host, word = (cluster.head, "ssh node1") if end == "client" else (cluster.nodes[1], "sshd")
    victims = [pid for pid, _, line in leftovers.processes(host) if line.startswith(word)]
    assert victims, leftovers.processes(host)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    if state == "barrier":
        # As if it had never come: it is connected to once more.
        wait_until(lambda: any(line.endswith("bridge") for _, _, line in
                               leftovers.processes(cluster.nodes[1])), 20, lambda: launch.err)
        (cluster.work() / "go").touch()
        launch.wait_for("up", count=4)
        launch.signal(signal.SIGINT)
        assert launch.wait(30).code == 130
    else:
        result = launch.wait(30)
        assert result.code == 202 and "node1" in result.err, result
    leftovers.wait_for_no_processes(cluster, 30)


# B16: one host leads to all the others, and dies.
@pytest.mark.parametrize("way", [[], ["--rsh", "ssh {host}"]])
def test_b16_the_jump_host_dies(cluster, kept_ssh_files, way):
    config = kept_ssh_files / "config"
    config.write_text("Host node1 node2 node3\n  ProxyJump node0\n" + config.read_text())
    launch = cluster.start_launch([*way, "--grace", "1s", "-H", "node1:1,node2:1,node3:1", "--", "sh",
                                   "-c", "echo up; exec sleep 600"])
    launch.wait_for("up", count=3, timeout=60)
    sshd = [pid for pid, _, line in leftovers.processes(cluster.nodes[0]) if "sshd" in line]
    # First none of them passes anything on: a node that is reached would end its part of the job.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in sshd:
            with contextlib.suppress(ProcessLookupError):  # one may go with the other
                os.kill(pid, number)
    result = launch.wait(30)
    assert result.code == 202, result
    if way:
        assert sum(f"node{n}" in result.err for n in (1, 2, 3)) == 3, result
        assert len(result.err.splitlines()) <= 6, result
    else:
        (line,) = [line for line in result.err.splitlines() if "node1, node2, node3: " in line]
        assert "is reached through node0 (ProxyJump)" in line, result
    leftovers.wait_for_no_processes(cluster, 30)


# B3 behind a jump host: that vanishes while the agent is being started, and closes nothing.
def test_b3_a_jump_host_that_vanishes_after_the_login(cluster, kept_ssh_files):
    jump, node = cluster.nodes[:2]
    config = kept_ssh_files / "config"
    config.write_text(f"Host {node.name}\n  ProxyJump {jump.name}\n" + config.read_text())
    rc, waits = node.base / "root/.bashrc", node.path("/run/login-waits")
    rc.write_text("touch /run/login-waits; exec sleep 600\n")
    try:
        launch = cluster.start_launch(["-H", f"{node.name}:1", *HELLO])
        wait_until(waits.exists, 30, lambda: launch.err)
        cluster.cut(jump)
        result = launch.wait(60)  # --start-timeout is longer
        assert result.code == 200 and node.name in result.err and jump.name in result.err, result
    finally:
        cluster.heal(jump)
        rc.unlink()
        waits.unlink(missing_ok=True)
        for pid, _, line in leftovers.processes(node):
            if line == "sleep 600":  # which sshd knows nothing of
                os.kill(pid, signal.SIGKILL)
    leftovers.wait_for_no_processes(cluster, 30)


def test_without_libssh_openssh_is_used(make_cluster):
    cluster = make_cluster(1)
    chosen = {"DTRAIN_LIBSSH": "/no/such/library"}
    fails(cluster, ["-H", "node0:1", *HELLO], "node0", "load libssh from /no/such/library", env=chosen)
    (library,) = {line.split()[-1] for line in cluster.head.run(["ldconfig", "-p"]).stdout.splitlines()
                  if line.split()[0] == "libssh.so.4"}
    cluster.head.run(["mount", "--bind", "/dev/null", os.path.realpath(library)])
    result = works(cluster, ["-H", "root@node0:1", *HELLO])
    (line,) = result.err.splitlines()
    assert "load libssh: " in line and "using OpenSSH's ssh instead" in line, result
    for words in (["--rsh", "ssh {host}", "-H", "node0:1"], ["-np", "2"]):
        assert "libssh" not in works(cluster, [*words, *HELLO]).err
    cluster.nodes[0].stop_sshd()
    fails(cluster, ["-H", "node0:1", *HELLO], "node0", "status 255", "Connection refused")
    works(cluster, ["-np", "2", *HELLO])


# B9: a host that the launcher reaches and the others do not: told with the address and port that were
# tried, and nothing starts.
def test_b9_hosts_that_do_not_reach_each_other(make_cluster):
    cluster = make_cluster(2)
    cluster.nodes[1].network(f"route add blackhole {cluster.nodes[0].address}/32\n")
    result = fails(cluster, ["-H", "node0:1,node1:1", *HELLO], "node1", cluster.nodes[0].address,
                   "port", code=201, timeout=40)
    assert result.seconds < 30, result
