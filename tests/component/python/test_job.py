# SPDX-License-Identifier: Apache-2.0
"""Joining and leaving, how a program may end, where the library is found. Needs no numpy."""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dtrain


def cycles():
    import os

    import dtrain

    def held():
        mapped = {line.split(None, 5)[-1] for line in open("/proc/self/maps")}
        return len(os.listdir("/proc/self/fd")), len(mapped)

    me = dtrain.rank()
    seen = []
    for _ in range(10):
        assert dtrain.is_initialized() and dtrain.allgather_object(me) == [0, 1]
        both = dtrain.split(0)
        assert dtrain.metric_average(me, process_set=both) == 0.5
        dtrain.shutdown()
        dtrain.shutdown()
        assert not dtrain.is_initialized()
        try:
            dtrain.rank()
            raise AssertionError("there was a rank without a job")
        except dtrain.StateError as error:
            assert "dtrain.init()" in str(error)
        seen.append(held())
        dtrain.init()
        dtrain.init()
    return seen


def test_ten_times_init_and_shutdown_leave_nothing(on_ranks):
    for seen in on_ranks(2, cycles):
        assert seen[1:] == [seen[1]] * 9, seen


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text("import sys, dtrain\ndtrain.init()\nr = dtrain.rank()\n" + text)
    return path


def test_a_program_need_not_shut_down(launch, tmp_path):
    code, out, err = launch(3, script(tmp_path, "dtrain.barrier()\nprint('done')\n"))
    assert code == 0 and out.count("done") == 3, err


@pytest.mark.parametrize("end,expected", [
    ("raise ValueError('wrong here')", 1), ("sys.exit(7)", 7), ("sys.exit('sorry')", 1)])
def test_a_rank_that_fails_does_not_wait_for_the_others(launch, tmp_path, end, expected):
    """They wait in a barrier for it, and would for half an hour."""
    started = time.monotonic()
    code, _, err = launch(2, script(tmp_path, f"if r == 1:\n    {end}\ndtrain.barrier()\n"))
    assert code == expected, err
    assert "rank 1 on" in err and time.monotonic() - started < 60


def test_a_rank_that_ends_well_and_early_waits_for_the_others(launch, tmp_path):
    text = "if r == 0:\n    import time; time.sleep(0.5); print('last')\nsys.exit(0)\n"
    code, out, err = launch(2, script(tmp_path, text))
    assert code == 0 and "last" in out, err


def test_a_rank_that_ends_well_waits_without_a_timeout(launch, tmp_path):
    text = "if r == 0:\n    import time; time.sleep(5); print('last')\n"
    code, out, err = launch(2, script(tmp_path, text), flags=["-xDTRAIN_TIMEOUT_SECONDS=3"])
    assert code == 0 and "last" in out and "leaving the job failed" not in err, err


def test_a_rank_that_dies_ends_the_wait_of_one_that_has_ended_well(launch, tmp_path):
    started = time.monotonic()
    text = "if r == 0:\n    import os, time; time.sleep(0.5); os.kill(os.getpid(), 9)\n"
    code, _, err = launch(2, script(tmp_path, text))
    assert code != 0 and "rank 0" in err and time.monotonic() - started < 60, err


def test_a_rank_that_ends_well_while_others_need_it_is_named_at_once(launch, tmp_path):
    """They wait in a collective for it, and it waits for them to leave."""
    started = time.monotonic()
    text = "if r == 1:\n    sys.exit(0)\ndtrain.allreduce(1.0, name='loss')\n"
    code, _, err = launch(3, script(tmp_path, text))
    assert code == 1, err
    assert "rank 1 is leaving the job (it has called dtrain_finalize, or its program has" in err
    assert "\"loss\"" in err and time.monotonic() - started < 60, err
    assert re.search(r"^dtrain: rank 1 (had finished \(exit 0\)|was leaving the job) while 2 ranks waited for it in "
                     r"all-reduce: did one rank get less data\? Then it must call join\(\) when it has no more$", err,
                     re.M), err


def test_a_forked_child_knows_its_rank_and_leaves_the_job_alone(launch, tmp_path):
    text = """
import os
child = os.fork()
if child == 0:
    sys.exit(0 if dtrain.is_initialized() and dtrain.rank() == r else 1)
assert os.waitpid(child, 0)[1] == 0
dtrain.barrier()
"""
    code, _, err = launch(2, script(tmp_path, text))
    assert code == 0, err


def test_without_a_launcher_it_is_a_job_of_one(tmp_path):
    text = "assert dtrain.size() == 1 and dtrain.broadcast_object(r) == 0\nprint(dtrain.backend())\n"
    path = script(tmp_path, text)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60,
                          env=python_environment())
    assert done.returncode == 0 and done.stdout.strip() in ("cpu", "nccl"), done.stderr


def python_environment(**more):
    return {**os.environ, **more}


def test_a_job_that_others_are_in_is_not_joined_alone(tmp_path):
    """Started by something that libdtrain does not know how to meet the others through."""
    done = subprocess.run([sys.executable, script(tmp_path, "")], capture_output=True, text=True,
                          timeout=60, env=python_environment(WORLD_SIZE="4"))
    assert done.returncode == 1 and "dtrain.JobEnvironmentError" in done.stderr, done.stderr


def test_a_library_that_is_not_there_is_named(tmp_path):
    done = subprocess.run([sys.executable, script(tmp_path, "")], capture_output=True, text=True,
                          timeout=60, env={**os.environ, "DTRAIN_LIBRARY": "/nonexistent.so"})
    assert done.returncode == 1
    assert "dtrain.LibraryError: libdtrain cannot be loaded; set DTRAIN_LIBRARY" in done.stderr
    assert "/nonexistent.so" in done.stderr


def test_a_library_that_is_too_old_is_told(tmp_path):
    empty = tmp_path / "libdtrain.so.0"
    subprocess.run(["cc", "-shared", "-o", empty, "-x", "c", "/dev/null"], check=True, timeout=60)
    done = subprocess.run([sys.executable, script(tmp_path, "")], capture_output=True, text=True,
                          timeout=60, env={**os.environ, "DTRAIN_LIBRARY": str(empty)})
    assert "has no dtrain_init: it is older than this Python package" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["dtrain/libdtrain.so.0", "dtrain/lib/libdtrain.so.0",
                                  "lib/libdtrain.so.0"])
def test_the_library_is_found_beside_the_package_and_beside_dtrain(tmp_path, name):
    package = Path(dtrain.__file__).parent
    target = tmp_path / "site/dtrain"
    target.mkdir(parents=True)
    for file in package.glob("*.py"):
        (target / file.name).write_bytes(file.read_bytes())
    library = (tmp_path / "site" / name) if name.startswith("dtrain") else tmp_path / name
    library.parent.mkdir(exist_ok=True)
    library.symlink_to(Path(os.environ["DTRAIN_LIBRARY"]).resolve())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dtrain").touch(mode=0o755)
    environment = python_environment(PYTHONPATH=str(tmp_path / "site"),
                                     PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for variable in ("DTRAIN_LIBRARY", "DTRAIN_BIN"):
        environment.pop(variable)
    done = subprocess.run(
        [sys.executable, "-c", "import dtrain; print(dtrain._library.library().path)"],
        capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.strip() == str(library), done.stderr


def shared_object(path, number):
    """A library with a function that returns `number`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, "-x", "c", "-"], check=True,
                   input=f"int number(void) {{ return {number}; }}", text=True, timeout=60)
    return path


NCCL_USED = """
import ctypes, os, sys
if len(sys.argv) > 1:
    ctypes.CDLL(sys.argv[1])
import dtrain
dtrain.init()
try:
    print(ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD).number())
except OSError:
    print("none")
"""


@pytest.mark.parametrize("case,used", [
    ("dtrain is first", "1"), ("the program is first", "2"), ("DTRAIN_NCCL_LIBRARY", "none"),
    ("DTRAIN_BACKEND", "none"), ("no driver", "none")])
def test_the_nccl_of_pips_torch_is_used_where_the_loader_does_not_look(tmp_path, case, used):
    shared_object(tmp_path / "site-packages/nvidia/nccl/lib/libnccl.so.2", 1)
    others = shared_object(tmp_path / "other/libnccl.so.2", 2)
    # Without the functions of one, so that libdtrain, which does load it, runs on CPUs.
    driver = shared_object(tmp_path / "libcuda.so.1", 3)
    environment = python_environment(PYTHONPATH=f"{os.environ['PYTHONPATH']}:{tmp_path / 'site-packages'}",
                                     DTRAIN_CUDA_LIBRARY=str("/nowhere" if case == "no driver" else driver))
    environment.pop("DTRAIN_BACKEND", None)
    if case == "DTRAIN_NCCL_LIBRARY":
        environment[case] = "/nowhere"
    if case == "DTRAIN_BACKEND":
        environment[case] = "cpu"
    program = [others] if case == "the program is first" else []
    done = subprocess.run([sys.executable, "-c", NCCL_USED, *program], capture_output=True, text=True, timeout=60,
                          env=environment)
    assert done.stdout == f"{used}\n", done.stdout + done.stderr


def test_the_wheel_has_the_package(tmp_path):
    pytest.importorskip("setuptools", reason="there is no Python package setuptools")
    pytest.importorskip("wheel", reason="there is no Python package wheel")
    import shutil
    import zipfile

    source = tmp_path / "source"
    shutil.copytree(Path(dtrain.__file__).parents[1], source,
                    ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta as b; print(b.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True,
                          text=True, timeout=120)
    wheel = source / done.stdout.splitlines()[-1]
    assert wheel.name == "dtrain-0.1.0-py3-none-any.whl", done.stdout + done.stderr
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {str(path.relative_to(source)) for path in source.glob("dtrain/**/*.py")}
    assert ours <= names
    done = subprocess.run([sys.executable, "-c", "import dtrain; print(dtrain.__file__)"],
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(wheel)})
    assert str(wheel) in done.stdout, done.stderr


def sampled(length, ranks, **options):
    shares = []
    for rank in range(ranks):
        sampler = dtrain.DistributedSampler(length, ranks, rank, **options)
        sampler.set_epoch(options.get("epoch", 0))
        shares.append(list(sampler))
        assert len(shares[-1]) == len(sampler)
    return shares


@pytest.mark.parametrize("length,ranks", [(10, 3), (9, 3), (2, 5), (1, 4), (0, 2), (100, 1)])
def test_the_sampler_deals_out_everything_in_equal_shares(length, ranks):
    for shuffle in (False, True):
        shares = sampled(length, ranks, shuffle=shuffle)
        assert len({len(share) for share in shares}) == 1
        assert set(sum(shares, [])) == set(range(length))
        assert sum(map(len, shares)) - length < max(ranks, 1)
        dropped = sampled(length, ranks, shuffle=shuffle, drop_last=True)
        used = sum(dropped, [])
        assert len(used) == len(set(used)) == length // ranks * ranks


def test_the_sampler_has_an_order_for_each_epoch_and_seed():
    orders = []
    for seed, epoch in [(0, 0), (0, 1), (1, 0)]:
        sampler = dtrain.DistributedSampler(range(50), 2, 0, seed=seed)
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        assert list(sampler) == orders[-1]
    assert len(set(map(tuple, orders))) == 3
    with pytest.raises(ValueError):
        dtrain.DistributedSampler(5, 2, 2)
