# SPDX-License-Identifier: Apache-2.0
"""The Python package over several hosts that share no files of the job's: dtrain.run() and the
examples."""
import importlib.util
import re
import shutil
import signal
import subprocess

import pytest

import hosts

PYTHON = "/usr/bin/python3"
NEEDS_NUMPY = pytest.mark.skipif(
    not importlib.util.find_spec("numpy") or not importlib.util.find_spec("sklearn"),
    reason="there is no python3-numpy or python3-sklearn")


def library():
    return hosts.bin_dir().parent / "lib/libdtrain.so.0"


def environment():
    """Of a Python that loads libdtrain, also one that was built with a sanitizer."""
    variables = {"PYTHONPATH": str(hosts.SOURCE_DIR / "runtime/python"),
                 "PYTHONDONTWRITEBYTECODE": "1", "DTRAIN_LIBRARY": str(library())}
    linked = subprocess.run(["ldd", library()], capture_output=True, text=True).stdout
    preload = re.findall(r"=> (\S*lib(?:asan|ubsan|stdc\+\+)\.\S*)", linked)
    if any("libasan" in path for path in preload):
        # Python itself frees little at its end.
        variables |= {"LD_PRELOAD": " ".join(preload), "ASAN_OPTIONS": "detect_leaks=0"}
    return variables


def as_flags(variables):
    return [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]


def program(cluster, text):
    """`text` as a program on the head only, which starts jobs on all four hosts."""
    where = ",".join(f"{node.name}:1" for node in cluster.nodes)
    path = cluster.work() / "program.py"
    head = f"import sys\nimport dtrain\nHOSTS = {where!r}\nENV = {environment()!r}\n"
    path.write_text(head + text)
    return [PYTHON, "/root/work/program.py"]


def for_the_head(cluster):
    # What the workers preload is not for the program that starts them: it loads no libdtrain.
    return cluster.environment({"PYTHONPATH": str(hosts.SOURCE_DIR / "runtime/python"),
                                "PYTHONDONTWRITEBYTECODE": "1",
                                "DTRAIN_BIN": str(hosts.bin_dir() / "dtrain")})


FUNCTION = """
def where(word):
    import socket
    dtrain.init()
    names = dtrain.allgather_object(socket.gethostname())
    print("hello from", names[dtrain.rank()])
    return dtrain.rank(), names, word, "x" * 100000
results = dtrain.run(where, "a word", np=4, hosts=HOSTS, env=ENV)
names = ["node0", "node1", "node2", "node3"]
assert results == [(r, names, "a word", "x" * 100000) for r in range(4)], results
print("all results are right")
"""


def test_run_on_hosts_that_share_nothing(cluster):
    done = cluster.head.run(program(cluster, FUNCTION), env=for_the_head(cluster), timeout=60)
    assert "all results are right" in done.stdout
    for rank in range(4):
        assert f"[{rank}] hello from node{rank}\n" in done.stdout


BARE = """
def where():
    import os
    dtrain.init()
    return dtrain.allgather_object(os.environ["DTRAIN_HOST"]), dtrain.__file__, os.getcwd()
for hosts in (HOSTS, "node0:1,node3:1"):
    for names, file, folder in dtrain.run(where, hosts=hosts):
        print(*names, file, folder)
"""


def test_run_on_hosts_without_the_package(cluster):
    own = cluster.head.path("/root/own")
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(hosts.SOURCE_DIR / "runtime/python/dtrain", own / "dtrain", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(library(), own / "dtrain")
    # What the libraries of a sanitizer need is for the worker alone.
    env = {name: value for name, value in environment().items() if name in ("LD_PRELOAD", "ASAN_OPTIONS")}
    words = program(cluster, BARE.replace("hosts=hosts", f"hosts=hosts, env={env!r}"))
    try:
        done = cluster.head.run(words, timeout=120, cwd="/root/work",
                                env=cluster.environment({"PYTHONPATH": "/root/own", "DTRAIN_BIN": str(hosts.bin_dir() / "dtrain")}))
    finally:
        shutil.rmtree(own)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [names for *names, _, _ in lines] == [["node0", "node1", "node2", "node3"]] * 4 + [["node0", "node3"]] * 2
    for *_, file, folder in lines:
        assert file.startswith("/root/.cache/dtrain/stage/trees/") and folder == "/root", done
    assert done.stderr.count("/root/work: No such file or directory; the function runs in /root\n") == 6, done


FAILURE = """
def fails():
    dtrain.init()
    if dtrain.rank() == 2:
        raise KeyError("not on this host")
    dtrain.barrier()
try:
    dtrain.run(fails, np=4, hosts=HOSTS, env=ENV)
except dtrain.RemoteError as error:
    assert error.rank == 2 and "in fails" in error.traceback, error
    print("caught", repr(error.__cause__))
"""


def test_an_exception_on_another_host_comes_back(cluster):
    done = cluster.head.run(program(cluster, FAILURE), env=for_the_head(cluster), timeout=60)
    assert "caught KeyError('not on this host')" in done.stdout


RUNNER = """
def train(np):
    import os
    context = dtrain.barrier_context()
    print("not for the driver")
    addresses = [info.address for info in context.get_task_infos()]
    assert addresses[0] == os.environ["MASTER_ADDR"], addresses
    assert addresses[context.partition_id()] == os.environ["DTRAIN_ADDRESS"], addresses
    large = ("ä" * (1 << 20)) if context.partition_id() == np else ""
    assert context.all_gather(large) == ["", "", "", "ä" * (1 << 20)]
    hosts = context.all_gather(os.environ["DTRAIN_HOST"])
    context.barrier()
    dtrain.log_to_driver(f"epoch 1 on {hosts[context.partition_id()]}")
    return addresses, hosts
runner = dtrain.HorovodRunner(np=4, hosts="node0:2,node1:2", env=ENV)
addresses, hosts = runner.run(train, np=3)
assert hosts == ["node0", "node0", "node1", "node1"], hosts
print("addresses", *addresses)
"""


def test_horovod_runner_and_the_barrier_context_on_two_hosts(cluster):
    done = cluster.head.run(program(cluster, RUNNER), env=for_the_head(cluster), timeout=60)
    node0, node1 = (node.address for node in cluster.nodes[:2])
    lines = [f"[{rank}] epoch 1 on node{rank // 2}" for rank in range(4)]
    assert sorted(done.stdout.splitlines()) == [*lines, f"addresses {node0} {node0} {node1} {node1}"]


LOST = """
def train():
    import os, signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        context = dtrain.barrier_context()
        if context.partition_id() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        context.barrier()
    except dtrain.CollectiveError as error:
        dtrain.log_to_driver(f"lost: {error}")
        raise
try:
    dtrain.HorovodRunner(np=4, hosts="node0:2,node1:2", env=ENV).run(train)
except dtrain.JobError as error:
    print("driver:", error, error.exit_code)
"""


def test_a_rank_of_another_host_that_dies_in_a_barrier_is_named(cluster):
    done = cluster.head.run(program(cluster, LOST), env=for_the_head(cluster), timeout=60)
    for rank in range(3):
        said = re.search(rf"\[{rank}\] lost: (.*)", done.stdout)
        assert said and "rank 3" in said.group(1), done.stdout
    assert re.search(r"driver: .*rank 3 on node1 was killed by signal 9 \(SIGKILL\) 137", done.stdout), done.stdout


WAITING = """
def waits():
    import time
    dtrain.init()
    dtrain.barrier()
    print("running", flush=True)
    time.sleep(600)
dtrain.run(waits, np=4, hosts=HOSTS, env=ENV)
"""


@pytest.mark.bound(20)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_program_that_called_run(cluster, number):
    running = hosts.launching.Launch(cluster.head, program(cluster, WAITING),
                                     env=for_the_head(cluster))
    running.wait_for("running", count=4)
    running.signal(number)
    result = running.wait(30)
    assert result.code == -number or "KeyboardInterrupt" in result.err, result


@NEEDS_NUMPY
def test_the_numpy_example_on_four_hosts(cluster):
    result = cluster.launch([*cluster.hosts_flag(1), *as_flags(environment()), "--", PYTHON,
                             hosts.SOURCE_DIR / "examples/softmax_numpy.py"], timeout=120)
    assert result.code == 0, result
    assert float(re.search(r"ranks 4 accuracy ([0-9.]+)", result.out).group(1)) > 0.9, result
