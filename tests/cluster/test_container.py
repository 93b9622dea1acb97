# SPDX-License-Identifier: Apache-2.0
"""`--container` with a real podman: each of two hosts has its own store, with one image."""
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess

import pytest

import conftest
import hosts
import launching
import leftovers
import podman
from launching import wait_until
from test_stage import forget, trees

WHY_NOT = podman.missing()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
DTRAIN = hosts.bin_dir() / "dtrain"
AGENT = hosts.bin_dir() / "dtrain-agent"
HOSTS = ["-H", "node0:2,node1:2", "--wdir", "/root/work"]
IN = ["--container", podman.IMAGE]


@pytest.fixture(scope="module")
def podmen():
    with hosts.Cluster(2) as made:
        for host in made.nodes:
            podman.set_up(host)
        yield made


@pytest.fixture
def cluster(podmen, request):
    """Its nodes have podman; after each test neither a process nor a record is left."""
    for host in podmen.hosts:
        podmen.work(host)
    yield from conftest.checked(podmen, request)
    for host in podmen.nodes:
        inside = in_containers(host)
        assert not inside, f"{host.name}: {[words_of(pid) for pid in inside]}"
        left = podman.containers(host)
        if left:
            podman.podman(host, "rm", "--force", "--all")
        assert not left, f"{host.name}: containers left: {left}"


def run(cluster, *words, **options):
    return cluster.launch([*HOSTS, *IN, *words], **options)


def run_ok(cluster, *words, **options):
    result = run(cluster, *words, **options)
    assert result.code == 0, result
    return result


def start_sleepers(cluster, *words):
    """Ranks that write a line each and stay, whatever they are told."""
    grace = [] if "--grace" in words else ["--grace", "3s"]
    launch = cluster.start_launch([*grace, *HOSTS, *IN, *words, "--", "sh", "-c", "trap '' TERM; echo up; sleep 1000"])
    launch.wait_for("] up", count=4)
    return launch


def pids_of(host, words):
    return [pid for pid, _, line in leftovers.processes(host) if words in line]


def words_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def members(folder):
    """Of a cgroup and of those below it."""
    pids = []
    for below, _, _ in os.walk(folder):
        with contextlib.suppress(OSError), open(f"{below}/cgroup.procs", encoding="ascii") as file:
            pids += map(int, file.read().split())
    return pids


def is_of(host, pid):
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino == host.pid_namespace
    except OSError:
        return True  # it has ended


def in_containers(host):
    """What Leftovers does not see: it looks at the host's own PID namespace alone."""
    return [pid for pid in members(host.cgroup_dir) if not is_of(host, pid)]


# ---- what is in there

def test_each_rank_is_in_a_container_of_the_image_and_knows_its_world(cluster):
    result = run_ok(cluster, "--", "sh", "-c",
                    'cat /of-the-image; echo "$RANK of $WORLD_SIZE, local $LOCAL_RANK, on $(hostname) in $(pwd)"; '
                    'ls -d /var/lib/dpkg; true')
    assert result.out.count("I am the image") == 4, result
    for rank in range(4):
        line = f"[{rank}] {rank} of 4, local {rank % 2}, on node{rank // 2} in /root/work\n"
        assert line in result.out, result
    assert result.err.count("/var/lib/dpkg: No such file or directory") == 4, result


def test_first_process_is_an_init_and_the_cgroup_is_the_jobs(cluster):
    result = run_ok(cluster, "--", "sh", "-c", "cat /proc/1/comm; ls -d /proc/[0-9]*")
    assert result.out.count("podman-init\n") + result.out.count("catatonit\n") == 4, result
    assert "/proc/9" not in result.out, result
    launch = start_sleepers(cluster)
    for node in cluster.nodes:
        (group,) = leftovers.cgroups(node)
        inside = in_containers(node)  # an init and a shell each, at least
        assert len(inside) >= 4 and set(inside) <= set(members(node.cgroup_dir / group.strip("/"))), inside
    launch.signal(signal.SIGINT)
    launch.signal(signal.SIGINT)
    assert launch.wait(30).code == 130


def test_limits_and_cores_of_the_rank_hold_inside(cluster):
    result = run_ok(cluster, "--bind", "none", "--", "sh", "-c", "grep -E 'open files|processes|core' /proc/self/limits; "
                    "grep Cpus_allowed_list /proc/self/status")
    inside = sorted({line.split("] ", 1)[1] for line in result.lines})
    plain = cluster.launch([*HOSTS, "--bind", "none", "--", "sh", "-c",
                            "grep -E 'open files|processes|core' /proc/self/limits; "
                            "grep Cpus_allowed_list /proc/self/status"])
    outside = sorted({line.split("] ", 1)[1] for line in plain.lines})

    def without_processes(lines):  # podman lowers them to pid_max
        return [line.split() for line in lines if "processes" not in line]
    assert without_processes(inside) == without_processes(outside), (inside, outside)


def test_variables_go_in_and_what_is_the_hosts_does_not(cluster):
    # Of all that an environment of the launcher's may have.
    result = run_ok(cluster, "-x", "PATH=/opt/of-x:/usr/bin", "-x", "LINES=a\nb", "--", "env",
                    env={"PYTHONPATH": "/nowhere", "LD_LIBRARY_PATH": "/nowhere", "HOME": "/root", "FORWARDED": "yes",
                         "CONDA_PREFIX": "/nowhere"})
    of_rank = [line.split("] ", 1)[1] for line in result.lines if line.startswith("[3] ")]
    for line in ("FORWARDED=yes", "PATH=/opt/of-x:/usr/bin", "RANK=3", "PMI_FD=3", "LINES=a", "DTRAIN_PAGE_FD=4"):
        assert line in of_rank, of_rank
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "CONDA_PREFIX", "CONTAINERS_STORAGE_CONF", "SSH_CONNECTION"):
        assert not any(line.startswith(f"{name}=") for line in of_rank), of_rank


def test_no_value_is_on_a_command_line(cluster):
    secret = "correct-horse-battery-staple"
    launch = start_sleepers(cluster, "-x", f"PATH=/{secret}:/usr/bin:/bin", "-x", f"TOKEN={secret}")
    lines = [line for node in cluster.nodes for _, _, line in leftovers.processes(node)]
    assert any("--env TOKEN" in line for line in lines), lines
    assert not [line for line in lines if secret in line]
    launch.signal(signal.SIGINT)
    launch.signal(signal.SIGINT)
    assert launch.wait(30).code == 130


def test_mounts(cluster):
    for node in cluster.nodes:
        (cluster.work(node) / "data").mkdir(exist_ok=True)
        (cluster.work(node) / "data/file").write_text("the data\n")
    result = run_ok(cluster, "--container-mount", "/root/work/data:/data:ro", "--", "sh", "-c",
                    "cat /data/file; echo new >/data/other; echo mine >made-by-$RANK; true")
    assert result.out.count("the data") == 4, result
    assert result.err.count("Read-only file system") == 4, result
    assert (cluster.work(cluster.nodes[1]) / "made-by-3").read_text() == "mine\n"
    result = run(cluster, "--container-mount", "/no/such/folder:/data", "--", "true")
    assert result.code == 200, result
    assert "node0, node1: cannot mount /no/such/folder into the container" in result.err, result


def test_staged_code_is_there(cluster):
    code = cluster.head.base / "root/code"
    (code / "lib").mkdir(parents=True)
    (code / "train").write_text("the code\n")
    try:
        staged = ["-H", "node0:2,node1:2", *IN, "--stage", "/root/code"]
        result = cluster.launch([*staged, "--", "sh", "-c", "cat /of-the-image train; echo mine >made-by-$RANK; pwd"])
        assert result.code == 0 and result.out.count("the code\n") == result.out.count("I am the image\n") == 4, result
        assert len(set(re.findall(r"\] (/root/.cache/dtrain/stage/trees/.*)", result.out))) >= 1, result
        # All of it, wherever the program begins.
        (code / "lib/model").write_text("more\n")
        result = cluster.launch([*staged, "--wdir", "/root/code/lib", "--", "cat", "model", "../train"])
        assert result.code == 0 and result.out.count("more\n") == result.out.count("the code\n") == 4, result
        for node in cluster.nodes:
            assert trees(node) == [], node.name
    finally:
        shutil.rmtree(code)
        forget(cluster)


def test_a_directory_that_only_the_image_has(cluster):
    result = cluster.launch(["-H", "node0:1", "--wdir", "/var/tmp", *IN, "--", "pwd"])
    assert result.code == 0 and result.out == "/var/tmp\n", result
    result = cluster.launch(["-H", "node0:1", "--wdir", "/etc/ld.so.conf.d/../alternatives", *IN, "pwd"])
    assert result.code == 0, result


def test_input_reaches_rank_0(cluster):
    launch = cluster.start_launch([*HOSTS, *IN, "--", "cat"], stdin=subprocess.PIPE)
    launch.process.stdin.write(b"hello\n")
    launch.process.stdin.close()
    result = launch.wait(30)
    assert result.code == 0 and result.out == "[0] hello\n", result


def test_options_reach_podman(cluster):
    result = cluster.launch(["-H", "node0:1", *IN, "--container-option=--env=OF=podman", "--container-option",
                             "--hostname=else", "--container-option=--uts=private", "--", "sh", "-c", "echo $OF; hostname"])
    assert result.code == 0 and result.out == "podman\nelse\n", result


def test_programs_of_one_job_in_a_container_and_outside(cluster):
    result = cluster.launch(["-H", "node0:1,node1:1", "-np", 1, *IN, "cat", "/of-the-image", ":",
                             "-np", 1, "sh", "-c", "ls /of-the-image; true"])
    assert result.code == 0 and "[0] I am the image\n" in result.out, result
    assert "[1] ls: cannot access '/of-the-image'" in result.err, result


# ---- what the ranks do

def test_mpich_over_the_inherited_pmi_socket(cluster):
    binary = cluster.base / "mpi_hello"
    subprocess.run(["mpicc.mpich", "-O1", "-o", binary, hosts.HERE / "programs/mpi_hello.c"], check=True)
    if b"libpmix" in subprocess.run("ldd /usr/lib/*/libmpich.so", shell=True, stdout=subprocess.PIPE).stdout:
        pytest.skip("this release's MPICH speaks PMIx only")
    result = run_ok(cluster, *podman.MACHINE, "--container-mount", cluster.base, "-x", "SKIP_FINALIZE=1", "--", binary)
    assert "heard 3" in result.out, result
    for rank in range(4):
        assert re.search(rf"hello from {rank} of 4 on node{rank // 2}\b", result.out), result


def test_open_mpi_over_pmix(cluster):
    binary = cluster.base / "mpi_hello_of_open_mpi"
    subprocess.run(["mpicc.openmpi", "-O1", "-o", binary, hosts.HERE / "programs/mpi_hello.c"], check=True)
    result = run_ok(cluster, *podman.MACHINE, "--container-mount", "/etc/openmpi", "--container-mount", cluster.base,
                    "-x", "SKIP_FINALIZE=1", "--", binary)
    assert "heard 3" in result.out, result


def test_libdtrain_reduces_over_ranks_that_do_not_see_each_other(cluster):
    result = run_ok(cluster, *podman.MACHINE, "--", hosts.bin_dir() / "dtrain-allreduce", timeout=120)
    assert re.search(r"size|bytes", result.out, re.IGNORECASE), result


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="there is no python3-torch")
def test_pytorch_reduces_over_gloo(cluster):
    result = run_ok(cluster, *podman.MACHINE, "--", "/usr/bin/python3", hosts.HERE / "programs/torch_sum.py", "4",
                    timeout=180)
    assert len(re.findall(r"rank \d of 4 is right", result.out)) == 4, result


# ---- how it ends

def test_the_exit_code_is_the_programs(cluster):
    result = run(cluster, "--", "sh", "-c", "[ $RANK = 2 ] && { echo why >&2; exit 77; }; sleep 1000")
    assert result.code == 77, result
    assert "rank 2 on node1" in result.err and "exited with code 77" in result.err and "  | why" in result.err, result


def test_the_signal_is_the_programs(cluster):
    result = run(cluster, "--", "sh", "-c", "[ $RANK = 1 ] && kill -SEGV $$; sleep 1000")
    assert result.code == 139, result
    assert re.search(r"rank 1 on node0 .*was killed by signal 11 \(SIGSEGV\)", result.err), result


def test_term_reaches_the_program(cluster):
    launch = cluster.start_launch([*HOSTS, *IN, "--", "sh", "-c",
                                   "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"])
    launch.wait_for("] up", count=4)
    # A program runs before its client passes signals on, which it does once it has written down that it runs.
    for host in cluster.nodes:
        wait_until(lambda: [" Up " in line for line in podman.containers(host)] == [True, True], 30,  # noqa: B023
                   lambda: podman.containers(host))  # noqa: B023
    launch.signal(signal.SIGTERM)
    result = launch.wait(30)
    assert result.code == 143 and result.out.count("bye") == 4, result


def test_a_program_without_a_handler_ends_by_term(cluster):
    launch = cluster.start_launch([*HOSTS, *IN, "--grace", "60s", "--", "sh", "-c", "echo up; exec sleep 1000"])
    launch.wait_for("] up", count=4)
    launch.signal(signal.SIGTERM)
    assert launch.wait(30).code == 143


def test_a_killed_client_takes_its_container_with_it(cluster):
    launch = start_sleepers(cluster, "--grace", "500ms")
    pid = pids_of(cluster.nodes[0], "podman run")[0]
    os.kill(pid, signal.SIGKILL)
    result = launch.wait(40)
    assert result.code == 137 and "was killed by signal 9" in result.err, result


def test_a_stop_that_must_kill_leaves_nothing(cluster):
    launch = start_sleepers(cluster, "--grace", "300ms")
    launch.signal(signal.SIGTERM)
    assert launch.wait(40).code == 143


@pytest.mark.bound(30)
@pytest.mark.launcher_killed
def test_kill_9_of_the_launcher(cluster):
    launch = start_sleepers(cluster, "--grace", "300ms")
    launch.kill()
    leftovers.wait_for_no_processes(cluster, 30, cluster.nodes)


@pytest.mark.bound(30)
@pytest.mark.parametrize("program", ["podman run ", "/conmon ", "crun "])
def test_a_stop_while_a_container_is_set_up(cluster, program):
    for _ in range(3):
        launch = cluster.start_launch([*HOSTS, *IN, "--", "sleep", "1000"])
        wait_until(lambda: pids_of(cluster.nodes[0], program), 30, program)
        launch.signal(signal.SIGTERM)
        assert launch.wait(40).code == 143


@pytest.mark.bound(30)
def test_kill_9_of_an_agent(cluster):
    launch = start_sleepers(cluster, "--grace", "300ms")
    for pid in pids_of(cluster.nodes[1], "dtrain-agent bridge"):
        os.kill(pid, signal.SIGKILL)
    result = launch.wait(40)
    assert result.code in (202, 203), result


@pytest.mark.bound(30)
def test_kill_9_of_a_shepherd(cluster):
    launch = start_sleepers(cluster, "--grace", "300ms")
    (pid,) = pids_of(cluster.nodes[1], "/exe shepherd")
    os.kill(pid, signal.SIGKILL)
    result = launch.wait(40)
    assert result.code == 203 and "the shepherd" in result.err, result


@pytest.mark.bound(30)
def test_reap_ends_what_an_agent_and_its_shepherd_have_left(cluster):
    launch = start_sleepers(cluster, "--grace", "300ms")
    node = cluster.nodes[1]
    pids = pids_of(node, "dtrain-agent bridge") + pids_of(node, "/exe shepherd")
    assert len(pids) == 2
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    assert launch.wait(40).code in (202, 203)
    assert in_containers(node), "nothing to reap"
    reaped = node.run([AGENT, "reap"])
    assert reaped.stdout.count("ended pid") >= 2, reaped
    wait_until(lambda: not podman.containers(node), 20, "the containers' records are there")


# ---- what can be wrong

def test_an_image_that_is_nowhere(cluster):
    result = run(cluster, "--container", "localhost:1/no/such:image", "--", "true", timeout=120)
    assert result.code == 200, result
    assert "cannot fetch the image localhost:1/no/such:image: `podman pull" in result.err, result
    assert "connection refused" in result.err, result


def test_a_program_that_the_image_does_not_have(cluster):
    result = run(cluster, "--", "/usr/bin/python3", "x.py")
    assert result.code == 127, result
    assert f"cannot run /usr/bin/python3 in a container of the image {podman.IMAGE}: podman says:" in result.err, result
    assert "No such file or directory; the program is looked for in the image" in result.err, result
    result = run(cluster, "--", "sh", "-c", "no-such-command")
    assert result.code == 127 and "exited with code 127" in result.err, result


def test_options_that_podman_does_not_know(cluster):
    result = run(cluster, "--container-option=--no-such-option", "--", "true")
    assert result.code == 200 and "podman says: Error: unknown flag: --no-such-option" in result.err, result


def test_a_node_without_a_runtime(cluster):
    result = run(cluster, "--container-runtime", "enroot", "--", "true")
    assert result.code == 200, result
    assert "node0, node1: cannot run the image" in result.err and "this node has no enroot" in result.err, result


def test_flags_that_do_not_fit(cluster):
    for words, why in ((["--container-mount", "/x"], "--container-mount has no meaning without --container IMAGE"),
                       ([*IN, "--container-mount", "x:/y"], "with full paths"),
                       ([*IN, "--container-mount", "/x:/y:rx"], "may end in :ro or :rw"),
                       ([*IN, "--container-runtime", "lxc"], "is not auto, podman, docker, apptainer or enroot"),
                       (["--container", "-it"], "is not the name of an image")):
        result = cluster.launch(["-np", -1, *words, "--", "true"])
        assert result.code == 2 and why in result.err, result


# ---- before it starts

def fake_podman(cluster, host, script):
    """A podman that writes its words down before it does what the script says."""
    folder = cluster.work(host) / "fake"
    folder.mkdir(exist_ok=True)
    (folder / "podman").write_text(f'#!/bin/sh\necho "$@" >>/root/work/fake/calls\n{script}\n')
    (folder / "podman").chmod(0o755)
    (folder / "calls").unlink(missing_ok=True)
    return folder / "calls"


RUN_IT = f'[ "$1" = run ] || exit 0; while [ "$1" != {podman.IMAGE} ]; do shift; done; shift; exec "$@"'


@pytest.fixture
def faked(cluster):
    """Both nodes' agents find the fake podman; returns what sets it up."""
    def set_up(script, **variables):
        calls = [fake_podman(cluster, node, script) for node in cluster.nodes]
        for node in cluster.nodes:
            node.restart_sshd(setenv={"PATH": "/root/work/fake:/usr/bin:/bin", **variables})
        return calls
    yield set_up
    for node in cluster.nodes:
        node.restart_sshd(setenv={"CONTAINERS_STORAGE_CONF": f"{podman.FOLDER}/storage.conf"})


def test_gpus_of_the_ranks_are_named_by_uuid(cluster, faked):
    for node in cluster.nodes:
        (cluster.work(node) / "nvml").write_text("driver 535.1\ngpu uuid=GPU-a pci=00000000:3B:00.0\n"
                                                 "gpu uuid=GPU-b pci=00000000:5E:00.0\n")
    library = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
    calls = faked(RUN_IT, FAKE_NVML="/root/work/nvml", DTRAIN_NVML_LIBRARY=str(library))
    result = run_ok(cluster, "--gpu-bind", "rank", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert sorted(result.lines) == ["[0] GPU-a", "[1] GPU-b", "[2] GPU-a", "[3] GPU-b"], result
    runs = [line for line in calls[0].read_text().splitlines() if line.startswith("run ")]
    assert len(runs) == 2, runs
    named = sorted(re.findall(r"--device nvidia\.com/gpu=(\S+)", line) for line in runs)
    assert named == [["GPU-a"], ["GPU-b"]], runs


def test_a_slow_fetch_happens_once_per_node_and_is_no_slow_start(cluster, faked):
    calls = faked('[ "$1 $2" = "image exists" ] && exit 1\n'
                  'if [ "$1" = pull ]; then while ! [ -e /root/work/go ]; do sleep 0.05; done; exit 0; fi\n' + RUN_IT)
    launch = cluster.start_launch([*HOSTS, *IN, "--start-timeout", "2s", "--", "true"])
    wait_until(lambda: all(path.exists() and "pull" in path.read_text() for path in calls), 20, "no pull")
    started = launching.time.monotonic()
    while launching.time.monotonic() < started + 3:  # beyond the time limit
        assert launch.process.poll() is None, launch.wait(1)
        launching.time.sleep(0.05)
    for node in cluster.nodes:
        (cluster.work(node) / "go").write_text("")
    result = launch.wait(30)
    assert result.code == 0, result
    for path in calls:
        words = [line.split()[0] for line in path.read_text().splitlines()]
        assert words == ["image", "pull", "run", "run"], words
    for node in cluster.nodes:
        (cluster.work(node) / "go").unlink()


def test_a_fetch_is_ended_by_ctrl_c(cluster, faked):
    calls = faked('[ "$1 $2" = "image exists" ] && exit 1\n[ "$1" = pull ] && sleep 1000')
    launch = cluster.start_launch([*HOSTS, *IN, "--", "true"])
    wait_until(lambda: all(path.exists() and "pull" in path.read_text() for path in calls), 20, "no pull")
    launch.signal(signal.SIGINT)
    assert launch.wait(20).code == 130


def test_dry_run_and_env_tell_of_it(cluster):
    result = run_ok(cluster, "--dry-run", "--container-mount", "/data:/in:ro", "--", "true")
    assert result.out.endswith(f"container: {podman.IMAGE}, run by what the node has, mounts /data:/in:ro\n"), result
    # It runs a program of the image, which has no PATH of the host's.
    shown = cluster.head.run([DTRAIN, "env", *HOSTS, *IN, "--rank", "3"], timeout=60)
    assert re.search(r"^\s*RANK=3$", shown.stdout, re.MULTILINE), shown
    assert "container=podman" in shown.stdout and "SSH_CONNECTION" not in shown.stdout, shown


def test_what_an_attempt_keeps_is_there_for_the_next(cluster):
    result = run_ok(cluster, "-np", 1, "--max-restarts", 1, "--backoff", "10ms", "--", "sh", "-c",
                    'cd $DTRAIN_STATE_FOLDER || exit 9; echo "attempt $DTRAIN_ATTEMPT" >>state-1; '
                    'echo in ../*; cat state-1; [ $DTRAIN_ATTEMPT = 1 ] || exit 7')
    assert result.lines == ["in ../node0", "attempt 0", "in ../node0", "attempt 0", "attempt 1"], result
    assert not list(cluster.nodes[0].path("/root/.cache/dtrain/state").iterdir())
