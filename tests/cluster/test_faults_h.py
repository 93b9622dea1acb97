# SPDX-License-Identifier: Apache-2.0
"""Faults of group H: what runs out, what is missing, and what is full. H3 is in test_memory.py, H6's
disks that fail in test_faulty_disk.py, H7 in test_footprint.py, H12 in test_reservations.py."""
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

import hosts
import leftovers
import residents
from certificates import Authority
from launching import SANITIZER_OPTIONS, Launch, wait_until
from test_faults_d import ESCAPED, python
from test_identity import node  # noqa: F401 - a fixture
from test_tcp import tcp  # noqa: F401 - a fixture

SANITIZED = hosts.is_sanitized()


def limit_files(number):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


# H1
def test_h1_too_few_open_files_on_a_host(make_cluster):
    cluster = make_cluster(2)
    cluster.nodes[1].restart_sshd(before_exec=limit_files(64))
    result = cluster.launch(["-H", "node0:40,node1:40", "--oversubscribe", "--", "sh", "-c",
                             "echo started"])
    assert result.code == 200, result
    assert "node1" in result.err and "open files" in result.err.lower(), result
    assert "started" not in result.out
    leftovers.wait_for_no_processes(cluster, 10)
    # What does fit still runs there.
    result = cluster.launch(["-H", "node0:1,node1:1", "--", "true"])
    assert result.code == 0, result


# H1: the launcher itself. Not with sanitizers: UBSan makes a pipe for each check of a vptr, and
# reports an error of its own where it cannot.
if not SANITIZED:
    def test_h1_too_few_open_files_for_the_launcher(cluster):
        for number in (10, 14, 24, 40, 55):
            result = cluster.start_launch([*cluster.hosts_flag(1), "--", "sh", "-c", "echo started"],
                                          before_exec=limit_files(number)).wait(30)
            assert result.code in (200, 202, 207), (number, result)
            assert "open files" in result.err.lower(), (number, result)


# H9
def test_h9_without_cgroups_it_still_leaves_nothing(make_cluster):
    for layout in ("none", "readonly"):
        cluster = make_cluster(2, cgroup=layout)
        result = cluster.launch(["--grace", "2s", *cluster.hosts_flag(2), "--", *python(ESCAPED)])
        assert result.code == 0 and "cgroup" not in result.err, result
        leftovers.wait_for_no_processes(cluster, 3)
        result = cluster.launch(["-v", *cluster.hosts_flag(2), "--", "true"])
        assert result.code == 0 and "node0, node1: workers get no cgroup" in result.err, result


# H9
def test_h9_require_cgroup_refuses(make_cluster):
    cluster = make_cluster(1, cgroup="none")
    result = cluster.launch(["--require-cgroup", "-H", "node0:1", "--", "sh", "-c", "echo started"])
    assert result.code == 200 and "node0" in result.err and "cgroup" in result.err, result
    assert "started" not in result.out


# ---- of a resident agent -------------------------------------------------------------------------


@pytest.fixture
def agent(make_cluster):
    """A node with an agent whose state directory is a small file system of its own."""
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    node.cluster = cluster
    node.path(residents.STATE).mkdir()
    node.run(["mount", "-t", "tmpfs", "-o", "mode=755,size=256k,nr_inodes=40", "tmpfs",
              residents.STATE])
    made = residents.Resident(node).start()
    yield made
    made.stop()  # and takes away the folder, but for the mount, which goes with the host


def launch(agent, *command, np=1, **options):
    return agent.host.cluster.launch(["--bind", "none", "--oversubscribe", "-H", f"node0:{np}", "--",
                                      *command], **options)


@contextlib.contextmanager
def running_job(agent):
    """A job that must come to its end whatever is done meanwhile, every line of it. It needs no more
    processes, which some leave none of."""
    node = agent.host
    job = node.cluster.start_launch(["-H", "node0:1", "--bind", "none", "--", *python(
        "import os, time\ni = 0\nwhile not os.path.exists('/run/go'):\n"
        "  print('line', i, flush=True)\n  i += 1\n  time.sleep(0.02)\nprint('last', i)")])
    job.wait_for("line 3\n")
    try:
        yield job
        node.path("/run/go").touch()
        result = job.wait(30)
    finally:
        job.kill()
        node.path("/run/go").unlink(missing_ok=True)
    assert result.code == 0, result
    count = int(result.lines[-1].split()[-1])
    assert result.lines == [*(f"line {i}" for i in range(count)), f"last {count}"], result


def fill_blocks(node):
    """Returns what makes room again."""
    filler = node.path(f"{residents.STATE}/filler")
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler.unlink


def fill_inodes(node):
    folder = node.path(f"{residents.STATE}/filler")
    folder.mkdir()
    with contextlib.suppress(OSError):
        for number in range(1000):
            (folder / str(number)).touch()
    return lambda: shutil.rmtree(folder)


def make_read_only(node):
    jobs = f"{residents.STATE}/jobs"
    node.run(["mount", "--bind", jobs, jobs])
    node.run(["mount", "-o", "remount,bind,ro", jobs])
    return lambda: node.run(["umount", jobs])


# H4, H6: the running job goes on, new ones are refused; with room again all is as before.
@pytest.mark.parametrize("harm", [fill_blocks, fill_inodes, make_read_only])
def test_h4_h6_state_directory_without_room(agent, harm):
    refuses_until_healed(agent, lambda: harm(agent.host))


def refuses_until_healed(agent, harm, code=207):
    with running_job(agent) as job:
        heal = harm()
        seen = job.out.count("line")
        refused = launch(agent, "echo", "started")
        assert refused.code == code and "node0" in refused.err, refused
        assert residents.STATE in refused.err and "started" not in refused.out, refused
        job.wait_for("line", count=seen + 5)
        heal()
        result = launch(agent, "echo", "started")
        assert result.code == 0 and "started" in result.out, result
    return refused.err


# H4: a job that ends meanwhile leaves nothing for the next agent to stumble over.
def test_h6_a_job_that_ends_while_its_folder_cannot_be_removed(agent):
    with running_job(agent):
        heal = make_read_only(agent.host)
    heal()
    assert launch(agent, "true").code == 0
    wait_until(lambda: not agent.jobs(), 10, agent.jobs)


# H5: where the output is kept. Nothing is lost: the next place takes it.
def test_h5_log_disk_full(agent):
    node = agent.host
    node.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=1777", "tmpfs", "/tmp"])
    try:
        node.path("/tmp/filler").write_bytes(bytes(7 << 20))
        result = node.cluster.launch(
            ["-H", "node0:1", "--tag-output", "none", "--", *python(
                "import sys\nfor i in range(200000):\n    print('%099d' % i)\n")])
        assert result.code == 0 and "waits" not in result.err, result.err
        assert result.out == "".join(f"{i:099d}\n" for i in range(200000))
    finally:
        node.run(["umount", "-l", "/tmp"])


def limit_agent(agent, what, value):
    """Returns what undoes it."""
    before = resource.prlimit(agent.pid, what)
    resource.prlimit(agent.pid, what, (value, before[1]))
    return lambda: resource.prlimit(agent.pid, what, before)


@contextlib.contextmanager
def restarted(agent):
    """Whenever it ends, as systemd does it."""
    over = threading.Event()

    def watch():
        last = False
        while not last:
            last = over.wait(0.05)
            if agent.ended():
                agent.start()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        assert not agent.ended(), agent.log


# Not with sanitizers, which need descriptors and memory themselves.
if not SANITIZED:
    # H1: of the agent itself.
    def test_h1_too_few_open_files_for_the_agent(agent):
        assert launch(agent, "true").code == 0
        with running_job(agent):
            in_use = len(os.listdir(f"/proc/{agent.pid}/fd"))
            heal = limit_agent(agent, resource.RLIMIT_NOFILE, in_use + 2)
            refused = launch(agent, "echo", "started")
            assert refused.code in (200, 202) and "node0" in refused.err, refused
            assert "started" not in refused.out, refused
            heal()
            result = launch(agent, "echo", "started")
            assert result.code == 0 and "started" in result.out, result
        assert not agent.ended()


    # H10: of memory there is none for a new job, larger than any that the agent's heap has ever had
    # room for. That fails; or the agent ends, as libraries of it do (absl aborts, gRPC writes to memory
    # that it did not get), and is started again, as systemd does: then the job may have come to the next
    # one. No other job notices.
    def test_h10_no_memory_for_the_agent(agent):
        large = {f"LARGE_{i}": 100000 * "x" for i in range(15)}
        assert launch(agent, "true").code == 0
        with running_job(agent):
            first = agent.process
            status = Path(f"/proc/{agent.pid}/status").read_text()
            # Counts what is written to: also what an arena of malloc has only reserved so far.
            heal = limit_agent(agent, resource.RLIMIT_DATA,
                               int(re.search(r"VmData:\s*(\d+) kB", status)[1]) * 1024)
            with restarted(agent):
                tried = launch(agent, "echo", "started", env=large)
            if tried.code == 0:
                assert agent.process is not first and tried.lines == ["started"], tried
            else:
                assert tried.code in (200, 202, 203) and "node0" in tried.err, tried
                assert "started" not in tried.out, tried
            if agent.process is first:
                heal()
            else:
                assert "died of SIGABRT" in agent.log or "died of SIGSEGV" in agent.log, agent.log
            result = launch(agent, "echo", "started", env=large)
            assert result.code == 0 and "started" in result.out, result


def serve(node, *flags):
    """What an agent says that cannot start."""
    process = node.popen([hosts.bin_dir() / "dtrain-agent", "serve", *map(str, flags)],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=20)
    return process.returncode, out.decode()


# H8
def test_h8_port_in_use(make_cluster):
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    code, out = serve(node, "--status-listen", "127.0.0.1:22")
    assert code == 207 and "127.0.0.1:22" in out and "in use" in out, out
    shutil.rmtree(node.path(residents.STATE))


# H8: no port is left for the job's own.
def test_h8_ephemeral_ports_used_up(agent):
    node = agent.host
    ports = Path("/proc/sys/net/ipv4/ip_local_port_range")
    before = node.run(["cat", ports]).stdout.split()
    with running_job(agent):
        node.run(["sh", "-c", f"echo 40000 40000 >{ports}"])
        try:
            refused = launch(agent, "echo", "started")
        finally:
            node.run(["sh", "-c", f"echo {' '.join(before)} >{ports}"])
        assert refused.code == 200 and "node0" in refused.err, refused
        assert "port" in refused.err and "started" not in refused.out, refused
        assert launch(agent, "true").code == 0


# H11
def test_h11_state_directory_with_a_long_path(make_cluster):
    node = make_cluster(1).nodes[0]
    folder = "/run/" + "d" * 120
    code, out = serve(node, "--state-dir", folder)
    assert code == 2 and "107 bytes" in out and folder in out, out
    shutil.rmtree(node.path(folder))


# H2: the limit of a user's processes, which an admin gives the agent's unit.
def test_h2_too_few_processes_for_a_user(node):  # noqa: F811
    limit = resource.RLIMIT_NPROC
    agent = residents.Resident(node, before_exec=lambda: resource.setrlimit(limit, (12, 12))).start()
    running = node.cluster.start_launch(alice(1, "sh", "-c", "echo up; read line; echo went on $line"),
                                        stdin=subprocess.PIPE)
    running.wait_for("up")
    for np, why in ((40, "limit of 12 processes"), (9, "limit of processes is reached")):
        refused = node.cluster.launch(alice(np, "echo", "started"))
        assert refused.code == 200 and "node0" in refused.err, refused
        assert why in refused.err and "started" not in refused.out, refused
    result = node.cluster.launch(alice(2, "echo", "started"))
    assert result.code == 0 and result.out.count("started") == 2, result
    running.process.stdin.write(b"then\n")
    running.process.stdin.close()
    result = running.wait(30)
    assert result.code == 0 and "went on then" in result.out, result
    agent.stop()


def alice(np, *command):
    return ["--wdir", "/", "--bind", "none", "--oversubscribe", "--stdin", "0", "-H",
            f"alice@node0:{np}", "--", *command]


@contextlib.contextmanager
def pids_group(cluster, node):
    """A cgroup with a limit of processes and threads, by whichever controller there is: its folder, and
    what makes a process one of it."""
    v2 = hosts.cgroup2_mount()
    if v2 and "pids" in (v2 / "cgroup.controllers").read_text().split():
        for folder in (v2, cluster.cgroup_root):
            (folder / "cgroup.subtree_control").write_text("+pids")
        yield node.cgroup_dir, lambda: None
        return
    if not Path("/sys/fs/cgroup/pids").is_dir():
        pytest.skip("this kernel has no pids controller")
    cluster.work(node).joinpath("pids").mkdir()
    node.run(["mount", "-t", "cgroup", "-o", "pids", "cgroup", "/root/work/pids"])
    group = Path("/root/work/pids", cluster.base.name)
    node.path(group).mkdir()
    yield node.path(group), lambda: (group / "cgroup.procs").write_text("0")
    # The kernel takes some milliseconds for the last process of a launch that has ended.
    wait_until(lambda: not (node.path(group) / "cgroup.procs").read_text(), 10, "processes are left in the cgroup")
    node.path(group).rmdir()


# H2, H10: the agent itself can make no process, and no thread, at one moment or another of a launch.
def test_h2_h10_no_process_or_thread_for_the_agent(make_cluster):
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    node.cluster = cluster
    with pids_group(cluster, node) as (group, enter):
        agent = residents.Resident(node, before_exec=enter).start()
        errors = ""
        with running_job(agent):
            for more in range(4):
                (group / "pids.max").write_text(str(int((group / "pids.current").read_text()) + more))
                refused = launch(agent, "echo", "started", np=8)
                (group / "pids.max").write_text("max")
                assert not agent.ended(), agent.log
                assert refused.code == 200 and "node0" in refused.err, refused
                errors += refused.err
            assert "limit of processes is reached" in errors, errors
            result = launch(agent, "echo", "started", np=8)
            assert result.code == 0 and result.out.count("started") == 8, result
        agent.stop()


# A leak check needs a thread itself.
NO_LEAK_CHECK = {"ASAN_OPTIONS": SANITIZER_OPTIONS["ASAN_OPTIONS"] + ":detect_leaks=0"}


INPUT = b"0123456789\n" * 10000


# H10: the launcher can make no thread, at one moment or another: it says which limit that is, and ends (201 if it
# was gRPC that had none, which then waits). What it does start has all of its input, and its log files are whole.
@pytest.mark.parametrize("way", ["ssh", "rsh", "tcp", "log-dir", "stdin"])
def test_h10_no_thread_for_the_launcher(make_cluster, tmp_path, way):
    cluster = make_cluster(1)
    flags = ["-H", "node0:1"]
    if way == "rsh":
        flags += ["--rsh", "ssh {host}"]
    elif way == "tcp":
        authority = Authority(tmp_path, cluster.nodes)
        authority.user("root")
        authority.bundle("user:root", cluster.head.path("/root/work/tls"))
        flags = ["--agent", "tcp", "--tls-dir", "/root/work/tls", "-H", f"{cluster.nodes[0].address}:1"]
    elif way == "log-dir":
        flags += ["--log-dir", "/root/work/logs"]
    elif way == "stdin":
        flags += ["--stdin", "all"]
    logged = cluster.work() / "logs/rank-00000.out"
    given = cluster.work() / "input"
    given.write_bytes(INPUT)
    failed = 0
    with pids_group(cluster, cluster.head) as (group, enter):
        for most in range(1, 9):
            (group / "pids.max").write_text(str(int((group / "pids.current").read_text()) + most))
            with open(given, "rb") as stdin:
                result = cluster.start_launch(
                    ["--bind", "none", "--start-timeout", "10s", *flags, "--", "cat"], stdin=stdin,
                    before_exec=enter, env=NO_LEAK_CHECK).wait(40)
            (group / "pids.max").write_text("max")
            assert result.code in (0, 200, 201, 141), (most, result)
            if way == "tcp" and "Connection refused" in result.err:
                continue  # it had all threads that it takes to find no agent there
            if result.code != 0:
                failed += 1
                assert "pids.max (" in result.err, (most, result)
            else:
                assert result.out.encode() == INPUT, (most, result.err)
            if result.code == 0 and way == "log-dir":
                assert logged.read_bytes() == INPUT, most
            logged.unlink(missing_ok=True)
        assert failed > 0


# H10: workers of a local job take every process that there may be; only then is the first line written.
def test_h10_log_files_when_workers_take_every_process(make_cluster):
    cluster = make_cluster(1)
    worker = ("import os, signal, sys\nopen('/root/work/up', 'w')\nsys.stdin.readline()\n"
              "children = []\ntry:\n"
              "  while True:\n    pid = os.fork()\n    if pid == 0: signal.pause()\n"
              "    children.append(pid)\nexcept OSError:\n  print('full', flush=True)\n"
              "sys.stdin.readline()\n"
              "for pid in children: os.kill(pid, 9)\n")
    with pids_group(cluster, cluster.head) as (group, enter):
        launch = cluster.start_launch(
            ["-np", "1", "--bind", "none", "--log-dir", "/root/work/logs", "--", *python(worker)],
            stdin=subprocess.PIPE, before_exec=enter, env=NO_LEAK_CHECK)
        wait_until((cluster.work() / "up").exists, 20, lambda: launch.err)
        (group / "pids.max").write_text(str(int((group / "pids.current").read_text()) + 10))
        launch.process.stdin.write(b"\n")
        launch.process.stdin.flush()
        launch.wait_for("full")
        logged = cluster.work() / "logs/rank-00000.out"
        wait_until(lambda: logged.exists() and logged.read_text() == "full\n", 10, launch.err)
        launch.process.stdin.close()
        result = launch.wait(30)
        (group / "pids.max").write_text("max")
    # gRPC may want one more meanwhile.
    lines = [line for line in result.err.splitlines() if "a library could not start a thread" not in line]
    assert result.code == 0 and "pids.max" not in "".join(lines), result


@contextlib.contextmanager
def hanging(node, folder):
    server = node.popen(["/usr/bin/python3", hosts.SOURCE_DIR / "tests/cluster/hanging.py", folder],
                        stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"hangs\n"
    try:
        yield
    finally:
        server.kill()  # whoever waits gets an error
        server.wait()
        node.run(["umount", "-l", folder])


# H13: the agent does not look there, so that only who wants to be there waits.
def test_h13_a_home_that_hangs(tcp):  # noqa: F811
    node = tcp.node
    running = node.cluster.start_launch(
        [*tcp.flags("--lease", "5s"), "sh", "-c",
         "echo up; until [ -e /run/go ]; do sleep 0.05; done; echo end"])
    running.wait_for("up", count=2)
    with hanging(node, "/home/alice"):
        result = tcp.launch("echo", "fine", flags=("--bind", "none"))
        assert result.code == 0 and result.out.count("fine") == 2, result
        waits = tcp.node.cluster.start_launch(
            ["--agent", "tcp", "--tls-dir", "/root/work/tls", "--bind", "none", "--wdir",
             "/home/alice", "-H", f"{node.address}:1", "--", "echo", "started"])
        # Meanwhile others are served, and those that run end as they should.
        result = tcp.launch("echo", "fine", flags=("--bind", "none"))
        assert result.code == 0 and result.out.count("fine") == 2, result
        node.path("/run/go").touch()
        result = running.wait(30)
        assert result.code == 0 and result.out.count("end") == 2, result
        result = waits.wait(60)
        assert result.code == 200 and "/home/alice" in result.err, result
        assert "file server" in result.err and "started" not in result.out, result
    node.path("/run/go").unlink()


@contextlib.contextmanager
def accounts_that_hang(node):
    """As a directory service behind NSS that does not answer: whoever opens /etc/passwd waits."""
    fifo = node.path("/root/work/passwd")
    os.mkfifo(fifo)
    node.run(["mount", "--bind", "/root/work/passwd", "/etc/passwd"])
    try:
        yield
    finally:
        node.run(["umount", "-l", "/etc/passwd"])
        with contextlib.suppress(OSError):  # nobody waits
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


# As H13: those that run hear from their agent meanwhile, and whoever comes is told.
def test_h13_accounts_that_hang(tcp):  # noqa: F811
    node = tcp.node
    running = node.cluster.start_launch(
        [*tcp.flags("--lease", "4s"), "sh", "-c",
         "echo up; until [ -e /run/go ]; do sleep 0.05; done; echo end"])
    running.wait_for("up", count=2)
    with accounts_that_hang(node):
        result = tcp.launch("echo", "started", flags=("--bind", "none"))
        assert result.code == 206 and "started" not in result.out, result
        assert "databases of accounts" in result.err and "10 s" in result.err, result
        assert running.process.poll() is None, running.wait(1)
    result = tcp.launch("echo", "fine", flags=("--bind", "none"))
    assert result.code == 0 and result.out.count("fine") == 2, result
    node.path("/run/go").touch()
    result = running.wait(30)
    assert result.code == 0 and result.out.count("end") == 2, result
    node.path("/run/go").unlink()


# M12: before the start, with the limit's name.
def test_m12_little_shared_memory_is_told(make_cluster):
    cluster = make_cluster(2)
    cluster.nodes[1].run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"])
    result = cluster.launch([*cluster.hosts_flag(1), "--", "true"])
    assert result.code == 0, result
    (line,) = [line for line in result.err.splitlines() if "/dev/shm" in line]
    assert "node1: /dev/shm has only 64 MiB" in line and "node0" not in line, result


# H14
def limit_file_size(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_h14_output_beyond_the_limit_of_file_sizes(cluster):
    """The job ends with 207, as the worker would wait for ever; nobody dies of SIGXFSZ."""
    result = cluster.start_launch(
        ["-q", "-np", "-1", "--grace", "1s", "--", "sh", "-c", "head -c 3000000 /dev/zero; sleep 600"],
        before_exec=limit_file_size(1 << 20)).wait(20)
    assert result.code == 207 and "rank 0" in result.err and "ulimit -f" in result.err, result
    assert len(result.out) == 1 << 20, result


def test_h14_a_result_file_beyond_the_limit(cluster):
    """What it holds of so many ranks is longer."""
    result = cluster.start_launch(
        ["-np", "-64", "--oversubscribe", "--result-json", "/root/result.json", "--", "sh", "-c",
         "exit 3"], before_exec=limit_file_size(8 << 10)).wait(30)
    assert not cluster.head.path("/root/result.json").exists()
    assert result.code == 3 and "File too large" in result.err, result


def test_h14_log_files_beyond_the_limit(cluster):
    """What does not fit is missing there only."""
    lines = "".join(f"line {i}\n" for i in range(4096))
    (cluster.work(cluster.nodes[0]) / "lines").write_text(lines)
    job = cluster.start_launch(
        ["-H", "node0:1", "--log-dir", "/root/work/logs", "--tag-output", "none", "--", "sh", "-c",
         "cat /root/work/lines; exit 3"],
        before_exec=limit_file_size(16 << 10), stdout=subprocess.PIPE)
    out = job.process.stdout.read().decode()
    result = job.wait(30)
    assert result.code == 3 and out == lines, result
    # At once, and at the end.
    assert result.err.count("write the log file /root/work/logs/rank-00000.out: File too large") == 2, result
    kept = (cluster.work() / "logs/rank-00000.out").read_text()
    assert len(kept) <= 16 << 10 and lines.startswith(kept)


@pytest.mark.parametrize("flag", ["--timeline", "--result-json"])
def test_a_file_that_was_asked_for_and_cannot_be_written(cluster, flag):
    result = cluster.launch(["-q", "-H", "node0:1", flag, "/dev/full", "--", "true"])
    assert result.code == 207 and "/dev/full: No space left on device" in result.err, result


# As of `> log 2>&1`, where the program writes to its stderr only.
@pytest.mark.parametrize("where", ["2>/dev/full", ">/dev/full 2>&1"])
def test_stderr_that_cannot_be_written_is_not_success(cluster, where):
    answer = cluster.work() / "result.json"
    result = Launch(cluster.head, ["sh", "-c", f'"$0" launch -q -H node0:1 --result-json /root/work/result.json -- sh -c '
                                   f'"echo lost >&2" {where}', cluster.programs / "dtrain"]).wait(30)
    assert result.code == 207, result
    told = json.loads(answer.read_text())
    assert told["exit_code"] == 207, told
    assert any("No space left on device" in warning for warning in told["warnings"]), told


def test_h14_a_timeline_beyond_the_limit(cluster):
    result = cluster.start_launch(
        ["-H", "node0:64", "--timeline", "/root/work/trace.json", "--", "sh", "-c", "exit 3"],
        before_exec=limit_file_size(8 << 10)).wait(30)
    assert result.code == 3, result
    assert result.err.count("write the timeline /root/work/trace.json: File too large") == 1, result
    assert (cluster.work() / "trace.json").stat().st_size <= 8 << 10
