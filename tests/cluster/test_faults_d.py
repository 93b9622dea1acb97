# SPDX-License-Identifier: Apache-2.0
"""Faults of group D: how workers start, fail and end. D7 is in test_unkillable.py, D14 in
test_gpus_held.py and test_reservations.py, D15 in test_memory.py, D16 in test_identity.py, D20 in
test_faults_i.py; D11, D12, and D1, D4 and D5 with resident agents in test_faults_tls.py; more of D6 in
test_fork_bombs.py."""
import contextlib
import importlib.util
import os
import resource
import signal
import subprocess

import pytest

import hosts
import launching
import leftovers

# Leaves the process group and session, closes everything, survives its parent.
ESCAPED = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 256)
        time.sleep(600)
    os._exit(0)
os.wait()
"""
# Twenty processes, each of which lives on only in a child it has just made.
RESPAWN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
end = time.monotonic() + 120
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        while time.monotonic() < end:
            if os.fork() != 0:
                os._exit(0)
        os._exit(0)
print("up", flush=True)
time.sleep(600)
"""


def python(script):
    return ["/usr/bin/python3", "-I", "-c", script]


def failing(rank, how, others="sleep 600"):
    return ["sh", "-c", f'if [ "$RANK" = {rank} ]; then {how}; else {others}; fi']


# D1
def test_d1_one_rank_fails_and_the_job_ends_with_its_code(cluster):
    result = cluster.launch([*cluster.hosts_flag(4), "--", *failing(
        6, "for i in $(seq 1 30); do echo line $i >&2; done; exit 7")], timeout=20)
    assert result.code == 7, result
    assert "rank 6" in result.err and "node1" in result.err, result
    leftovers.wait_for_no_processes(cluster, 2)
    # The report repeats the last 20 lines of its stderr.
    assert result.err.count("line 30") == 2 and result.err.count("line 11") == 2, result
    assert result.err.count("line 10\n") == 1, result


# D1: failures that follow from the first one are counted, not listed.
def test_d1_secondary_deaths_are_one_line(cluster):
    result = cluster.launch(
        ["--grace", "2s", *cluster.hosts_flag(2), "--",
         *failing(3, "sleep 0.5; exit 9", "trap 'exit 5' TERM; while :; do sleep 0.05; done")],
        timeout=20)
    assert result.code == 9, result
    assert "rank 3" in result.err and "7" in result.err, result
    assert not any(f"rank {rank} " in result.err for rank in (0, 1, 2, 4, 5, 6, 7)), result


# D2
@pytest.mark.parametrize("number,code", [(signal.SIGSEGV, 139), (signal.SIGKILL, 137),
                                         (signal.SIGABRT, 134)])
def test_d2_signal_is_named(cluster, number, code):
    result = cluster.launch([*cluster.hosts_flag(1), "--",
                             *failing(2, f"kill -{int(number)} $$; sleep 5")], timeout=20)
    assert result.code == code, result
    assert number.name in result.err and "node2" in result.err and "rank 2" in result.err, result


# D2: another rank hears of it first, and leaves. It is not the cause.
VICTIM = """
import atexit, os, socket, sys, time
address = sys.argv[1]
if os.environ['RANK'] == '0':
    while True:
        try:
            peer = socket.create_connection((address, 7999))
            break
        except OSError:
            time.sleep(0.01)
    peer.recv(1)
    while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    raise ConnectionResetError('Connection closed by peer')
peer, _ = socket.create_server(('', 7999)).accept()
"""
CAUSES = {
    "abort": ("big = bytearray(b'x') * (300 << 20); os.abort()", 134, "was killed by signal 6 (SIGABRT)"),
    # Its sockets close once the traceback is written.
    "teardown": ("atexit.register(lambda: [peer.close(), time.sleep(0.5)]); raise ValueError('it')", 1,
                 "raised an exception"),
    "hangs": ("atexit.register(lambda: [peer.close(), time.sleep(600)]); raise ValueError('it')", 1,
              "raised an exception"),
    "wrapper": ("os.kill(os.getpid(), 11)", 134, "crashed"),
    "wrapper of a killed program": ("os.kill(os.getpid(), 9)", 137, "saw its program killed"),
    "terminate": ("print('terminate called after throwing an instance of x', file=sys.stderr); peer.close(); "
                  "time.sleep(600)", 134, "crashed"),
}


# The kernel closes a killed program's sockets before its wrapper prints this. So the victim fails once dtrain has shown it.
WRAPPERS_WORDS = {"wrapper": "Segmentation fault", "wrapper of a killed program": "Killed"}


@pytest.mark.parametrize("how", CAUSES)
def test_d2_the_cause_is_named_and_not_its_victim(cluster, how):
    code, exit_code, said = CAUSES[how]
    command = [*python(VICTIM + code), cluster.nodes[1].address]
    told = cluster.work(cluster.nodes[0]) / f"told of the {how}"
    if how in WRAPPERS_WORDS:
        told.unlink(missing_ok=True)  # an earlier run's
        command = ["bash", "-c", '"$@"; code=$?; [ $RANK = 0 ] || sleep 600; exit $code', "bash", *command,
                   f"/root/work/{told.name}"]
    launch = cluster.start_launch(["--grace", "2s", *cluster.hosts_flag(1, cluster.nodes[:2]), "--", *command])
    if how in WRAPPERS_WORDS:
        launch.wait_for(WRAPPERS_WORDS[how], stream="err")
        told.touch()
    result = launch.wait(30)
    report = [line for line in result.err.splitlines() if line.startswith("dtrain: rank ")]
    assert result.code == exit_code and report, result
    assert report[0].startswith("dtrain: rank 1 on node1") and said in report[0], result


# D3: a rank that left with 0 while others wait in a fence for it ends the job, after a warning.
def test_d3_rank_that_leaves_early(cluster):
    result = cluster.launch(["--exit-timeout", "2s", *cluster.hosts_flag(1), "--",
                             *failing(1, "exit 0", "sleep 600")], timeout=20)
    assert "rank 1" in result.err and result.code not in (0, 2), result


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="there is no python3-torch")
@pytest.mark.parametrize("how, left", [("ddp", "had finished (exit 0)"), ("loop", "had finished (exit 0)"),
                                       ("tidies", "had closed its connections")])
def test_d3_a_rank_that_got_less_data_than_the_others(cluster, how, left):
    result = cluster.launch(["--grace", "2s", "-H", "node0:2,node1:2", "--", "/usr/bin/python3",
                             hosts.HERE / "programs/torch_uneven.py", how], timeout=120)
    assert result.code == 1, result
    assert (f"\ndtrain: rank 1 {left} while 3 ranks waited for it in all-reduce: did one rank get less data?\n"
            in result.err), result


# D4
def test_d4_ranks_that_ignore_term_are_killed_after_the_grace(cluster):
    launch = cluster.start_launch(
        ["--grace", "1s", *cluster.hosts_flag(2), "--",
         *failing(0, "sleep 1; exit 3", "trap '' TERM; echo up; while :; do sleep 1; done")])
    launch.wait_for("up", count=7)
    result = launch.wait(20)
    assert result.code == 3, result
    leftovers.wait_for_no_processes(cluster, 2)


# Saves for seven seconds when it is told to end, in pieces.
SAVES = """
import signal, sys, time
def save(*_):
    with open('/root/work/save', 'wb', 0) as file:
        for _ in range(35):
            file.write(bytes(2000000))
            time.sleep(0.2)
    print('saved', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
while True:
    time.sleep(600)
"""


# D4: a save is longer than the grace. Ctrl-C again ends it all the same.
@pytest.mark.parametrize("again", [False, True])
def test_d4_a_rank_that_saves_is_awaited(cluster, again):
    node = cluster.nodes[0]
    cluster.work(node)
    launch = cluster.start_launch(["--grace", "1s", "-H", "node0:1", "--", *python(SAVES)])
    launch.wait_for("up")
    launch.signal(signal.SIGINT)
    launch.wait_for("waiting for rank 0, ", stream="err")
    launch.wait_for("and still writes /root/work/save (", stream="err")
    if again:
        launch.signal(signal.SIGINT)
    result = launch.wait(20)
    assert result.code == 130 and ("saved" in result.out) == (not again), result
    assert result.err.count("waiting for") == 1, result


# Rank 0 saves for six seconds, and rank 1, on another host, waits for it.
SAVES_FOR_BOTH = """
import os, signal, socket, sys, time
server = socket.create_server(('', 7999)) if os.environ['RANK'] == '1' else None
def save(*_):
    if server:
        server.accept()[0].send(b'x')
        sys.exit(0)
    with open('/root/work/save', 'wb', 0) as file:
        for _ in range(30):
            file.write(bytes(2000000))
            time.sleep(0.2)
    if socket.create_connection((sys.argv[1], 7999)).recv(1) == b'x':
        print('saved', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
while True:
    time.sleep(600)
"""


# D4: nor are those killed that wait, on other hosts, for the rank that saves.
def test_d4_ranks_that_wait_for_a_save_elsewhere_are_awaited(cluster):
    nodes = cluster.nodes[:2]
    cluster.work(nodes[0])
    launch = cluster.start_launch(["--grace", "2s", *cluster.hosts_flag(1, nodes), "--",
                                   *python(SAVES_FOR_BOTH), nodes[1].address])
    launch.wait_for("up", count=2)
    launch.signal(signal.SIGINT)
    result = launch.wait(30)
    assert result.code == 130 and "saved" in result.out, result
    assert "killed" not in result.err, result


# D5
@pytest.mark.parametrize("end", ["exit", "fail", "interrupt"])
def test_d5_escaped_grandchildren_are_ended(cluster, end):
    last = {"exit": "", "fail": "sys.exit(4)", "interrupt": "print('up', flush=True); time.sleep(600)"}
    launch = cluster.start_launch(["--grace", "2s", *cluster.hosts_flag(1), "--", *python(ESCAPED + last[end])])
    if end == "interrupt":
        launch.wait_for("up", count=4)
        launch.signal(signal.SIGINT)
    result = launch.wait(30)
    assert result.code == {"exit": 0, "fail": 4, "interrupt": 130}[end], result
    leftovers.wait_for_no_processes(cluster, 2)


# What a shell puts through `tee`, and a helper that saves, end by themselves after the rank.
@pytest.mark.parametrize("code", [0, 3])
def test_what_a_rank_has_started_may_finish(cluster, code):
    work = cluster.work(cluster.nodes[0])
    for name in ("tee.log", "ck.bin"):
        (work / name).unlink(missing_ok=True)
    script = ("cd /root/work; exec > >(tee tee.log) 2>&1; (sleep 1; echo ok >ck.bin; echo saved) & echo ERROR; "
              f"exit {code}")
    result = cluster.launch(["-H", "node0:1", "--", "bash", "-c", script], timeout=20)
    assert result.code == code and result.out == "ERROR\nsaved\n" and "SIG" not in result.err, result
    assert (work / "tee.log").read_text() == "ERROR\nsaved\n" and (work / "ck.bin").read_text() == "ok\n"


# D6
@pytest.mark.parametrize("cgroup", ["v2", "none"])
def test_d6_processes_that_multiply_while_they_are_killed(make_cluster, cgroup):
    cluster = make_cluster(1, cgroup=cgroup)
    launch = cluster.start_launch(["--grace", "1s", "-H", "node0:1", "--", *python(RESPAWN)])
    launch.wait_for("up")
    launch.signal(signal.SIGINT)
    result = launch.wait(40)
    assert result.code == 130, result
    leftovers.wait_for_no_processes(cluster, 2)


# D8
def test_d8_grandchild_that_keeps_stdout_open(cluster):
    result = cluster.launch([*cluster.hosts_flag(1), "--", "sh", "-c", "sleep 600 & echo done"],
                            timeout=30)
    assert result.code == 0 and result.out.count("done") == 4, result


# D9
def test_d9_workers_start_clean(cluster):
    report = ("import os; fds = sorted(set(map(int, os.listdir('/proc/self/fd'))));"
              "s = dict(l.split(':', 1) for l in open('/proc/self/status'));"
              "fds = [f for f in fds if os.path.exists(f'/proc/self/fd/{f}')];"
              "extra = set(fds) - {0, 1, 2, int(os.environ['PMI_FD']), int(os.environ['DTRAIN_PAGE_FD'])};"
              "print(extra, s['SigBlk'].strip(), s['SigIgn'].strip(), os.umask(0) == 0o22)")

    def spoil():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGCHLD})

    with open("/dev/null", "rb") as leak:
        for where in (["-np", "2"], cluster.hosts_flag(1)):
            # -S -E: Python itself ignores SIGPIPE and SIGXFSZ, bits 12 and 24.
            result = cluster.start_launch([*where, "--tag-output", "none", "--", *python(report)],
                                          before_exec=spoil, pass_fds=[leak.fileno()]).wait(30)
            assert result.code == 0, result
            assert set(result.lines) == {"set() 0000000000000000 0000000001001000 True"}, result


# Becomes process argv[1], which must be free, in a session of its own: a group that a signal to
# that number, or to minus it, would hit.
BYSTANDER = """
import os, sys, time
wanted = int(sys.argv[1])
end = time.monotonic() + 10
while time.monotonic() < end:
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(wanted - 1))
    child = os.fork()
    if child == 0:
        if os.getpid() != wanted:
            os._exit(0)
        os.setsid()
        print("standing by", flush=True)
        time.sleep(600)
    elif child == wanted:
        sys.exit(128 + os.WTERMSIG(os.waitpid(child, 0)[1]))
    os.waitpid(child, 0)
sys.exit(99)
"""


@contextlib.contextmanager
def stopped(node):
    """All processes of the host but its first and sshd stand still meanwhile."""
    still = set()
    while new := {pid for pid, _, _ in leftovers.processes(node)} - still:
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        still |= new
    try:
        yield
    finally:
        for pid in still:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# D10: a worker's pid comes to mean another process before the others are ended.
@pytest.mark.parametrize("cgroup", ["v2", "none"])
@pytest.mark.parametrize("end", ["interrupt", "fail", "shepherd killed", "agent killed"])
def test_d10_a_process_with_the_pid_of_a_dead_worker_is_not_signalled(make_cluster, cgroup, end):
    cluster = make_cluster(1, cgroup=cgroup)
    node = cluster.nodes[0]
    others = {"fail": "trap '' TERM; until [ -e /root/work/fail ]; do sleep 0.05; done; exit 3"}
    launch = cluster.start_launch(
        ["--grace", "1s", "-H", "node0:3", "--", "sh", "-c",
         f'[ $RANK != 0 ] || {{ echo pid=$$; exit 0; }}; '
         f'[ $RANK != 1 ] || {{ {others.get(end, "trap : TERM; while :; do sleep 1; done")}; }}; '
         "trap '' TERM; echo up; while :; do sleep 1; done"])
    launch.wait_for("up")
    launch.wait_for("pid=")
    pid = launch.out.partition("pid=")[2].split()[0]
    launching.wait_until(lambda: not node.path(f"/proc/{pid}").exists(), 10, "rank 0 is there")

    def stand_by():
        # Another process or thread that began now could get the number, and keep it.
        with stopped(node):
            if node.path(f"/proc/{pid}").exists():
                return None  # a worker's sleep has it, for a second
            process = node.popen(["/usr/bin/python3", "-I", "-c", BYSTANDER, pid], text=True,
                                 stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
            return process, process.stdout.readline()

    bystander, said = launching.wait_until(stand_by, 10, f"another has the number {pid}")
    try:
        assert said == "standing by\n", bystander.wait(5)
        if end == "interrupt":
            launch.signal(signal.SIGINT)
        elif end == "fail":
            (cluster.work(node) / "fail").touch()
        else:
            role = "shepherd" if end == "shepherd killed" else "bridge"
            (victim,) = [number for number, _, line in leftovers.processes(node)
                         if role in line.split()[1:2]]
            os.kill(victim, signal.SIGKILL)
        result = launch.wait(30)
        code = {"interrupt": 130, "fail": 3, "shepherd killed": 203, "agent killed": 202}[end]
        assert result.code == code, result
        # All of the job is gone, and the bystander, with its parent, is not.
        launching.wait_until(lambda: len(leftovers.processes(node)) <= 2, 5,
                             lambda: leftovers.processes(node))
        assert bystander.poll() is None and node.path(f"/proc/{pid}").exists(), "it was hit"
    finally:
        # It has the number indeed: this hits it.
        node.run(["kill", "-KILL", "--", f"-{pid}"], check=False)
        assert bystander.wait(10) == 137


# Its thread starts a program and ends; it waits for the program.
STARTER = """
import os, subprocess, sys, threading
started = []
thread = threading.Thread(target=lambda: started.append(subprocess.Popen(sys.argv[1:])))
thread.start()
thread.join()
while os.listdir("/proc/self/task") != [str(os.getpid())]:
    os.sched_yield()  # for Python it has ended; the kernel still has it
print("the thread has ended", flush=True)
sys.exit(started[0].wait())
"""


# D11: a notebook or a service launches from a thread, which ends. Nothing is bound to it.
@pytest.mark.parametrize("way", [["-np", "-4"], ["-H", "node0:2,node1:2"],
                                 ["--rsh", "ssh {host}", "-H", "node0:2,node1:2"]], ids=["local", "ssh", "rsh"])
def test_d11_the_thread_that_launches_ends(cluster, way):
    launch = launching.Launch(
        cluster.head, [*python(STARTER), hosts.bin_dir() / "dtrain", "launch", *way, "--", "sh", "-c",
                       "i=0; until [ -e /run/go ]; do echo line $i; i=$((i + 1)); sleep 0.02; done; exit 7"])
    launch.wait_for("the thread has ended")
    for rank in range(4):
        launch.wait_for(f"[{rank}] line 3\n")
    for rank in range(4):
        launch.wait_for(f"[{rank}] line 50\n")
    for host in cluster.hosts:
        host.path("/run/go").touch()
    result = launch.wait(20)
    for host in cluster.hosts:
        host.path("/run/go").unlink()
    assert result.code == 7 and "exited with code 7" in result.err, result


# D17
def test_d17_exec_failures_name_the_error_the_path_and_the_host(cluster):
    folder = cluster.base / "exec"
    folder.mkdir(exist_ok=True)
    (folder / "loop").unlink(missing_ok=True)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "script").write_text("#!/no/such/interpreter\n")
    (folder / "busy").write_bytes(open("/bin/true", "rb").read())
    for path in folder.iterdir():
        if path.name != "loop":
            path.chmod(0o755)
    with open(folder / "busy", "r+b"):
        for name, word, codes in (("loop", "symbolic link", (126, 127)),
                                  ("script", "interpreter", (126, 127)),
                                  ("busy", "busy", (126,))):
            result = cluster.launch([*cluster.hosts_flag(1), "--", folder / name], timeout=20)
            assert result.code in codes, result
            assert f"{folder}/{name}" in result.err and "node0" in result.err, result
            assert word in result.err, result


# D17
def test_d17_environment_too_long_for_the_node(make_cluster):
    cluster = make_cluster(1)
    small = 256 << 10  # a quarter of the stack limit is for arguments, but never under 128 KiB
    cluster.nodes[0].restart_sshd(
        before_exec=lambda: resource.setrlimit(resource.RLIMIT_STACK, (small, small)))
    env = {f"V{index}": "x" * 30000 for index in range(8)}
    result = cluster.launch(["-H", "node0:1", "--", "true"], env=env)
    assert result.code in (126, 200), result
    assert "node0" in result.err and "too long" in result.err, result


# D18: ranks that crash leave no files behind, unless one asks for them.
@pytest.mark.parametrize("flags,soft", [([], "0"), (["--core-dumps"], "unlimited")])
def test_d18_core_dumps_are_off_unless_asked_for(cluster, flags, soft):
    cluster.nodes[0].restart_sshd(before_exec=lambda: resource.setrlimit(
        resource.RLIMIT_CORE, (0, resource.RLIM_INFINITY)))
    folder = cluster.work(cluster.nodes[0])
    result = cluster.launch([*flags, "--wdir", "/root/work", "--oversubscribe", "--tag-output", "none",
                             "-H", "node0:8", "--", "sh", "-c", "ulimit -S -c; kill -ABRT $$"])
    assert result.code == 134 and result.lines[0] == soft, result
    cores = [path.name for path in folder.iterdir() if path.name.startswith("core")]
    assert flags or not cores, cores
    for name in cores:
        (folder / name).unlink()
    cluster.nodes[0].restart_sshd()


# D19
def test_d19_zombies_are_reaped(cluster):
    script = ("import os, time\nfor _ in range(200):\n    if os.fork() == 0: os._exit(0)\n"
              "os.fork() or os._exit(0)\nprint('up', flush=True)\ntime.sleep(600)")
    launch = cluster.start_launch([*cluster.hosts_flag(1), "--", *python(script)])
    launch.wait_for("up", count=4)

    launch.signal(signal.SIGINT)
    assert launch.wait(20).code in (0, 130)
    leftovers.wait_for_no_processes(cluster, 2)
