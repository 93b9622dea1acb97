# SPDX-License-Identifier: Apache-2.0
"""tools/gpu-check on the stand-ins for CUDA and NCCL: every check runs to its end, or says why not."""
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

SOURCE_DIR = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE_DIR / "tools"))
from gpu_check import checks as one_gpu  # noqa: E402
from gpu_check import processes  # noqa: E402

GPU_CHECK = SOURCE_DIR / "tools/gpu-check"
ONE_GPU = list(range(1, 21))


def rehearse(results, *args, program=GPU_CHECK, env=None):
    """How it ended, and what it has found by check."""
    done = subprocess.run([program, "--rehearse", "--no-build", "--results", results, *args],
                          capture_output=True, text=True, env=env, timeout=580, check=False)
    checks = json.loads(results.read_text())["checks"]
    return done, {each["check"]: each for each in checks}


def test_every_check_runs_to_its_end_or_says_why_not(tmp_path):
    done, checks = rehearse(tmp_path / "results.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(checks) == ONE_GPU
    for check in checks.values():
        assert check["verdict"] in ("met", "could not run"), check
        assert check["verdict"] == "met" or check["why"], check
    # What needs nothing that the stand-ins lack.
    for number in (3, 4, 7, 10, 19, 20):
        assert checks[number]["verdict"] == "met", checks[number]
    for number in (1, 2, 5, 9, 11, 12):
        assert "the rest was met" in checks[number]["why"], checks[number]


def test_what_matters_most_comes_first_and_all_of_it_fits_into_ten_minutes():
    numbers = [number for number, _, _, _ in one_gpu.CHECKS]
    assert sorted(numbers) == ONE_GPU
    assert numbers[:6] == [1, 3, 17, 18, 19, 20]
    assert set(numbers[-9:]) == {2, 6, 8, 11, 12, 13, 14, 15, 16}, "of one rank"
    assert sum(seconds for _, _, seconds, _ in one_gpu.CHECKS) < 590


def test_a_broken_nccl_is_a_miss(tmp_path):
    env = {**os.environ, "FAKE_NCCL_ASYNC_ERROR": "0:2:2"}
    done, checks = rehearse(tmp_path / "results.json", "--only", "4", env=env)
    assert done.returncode == 1, done.stdout + done.stderr
    assert checks[4]["verdict"] == "missed"
    assert "missed" in done.stdout


def test_what_did_not_run_is_not_met(tmp_path):
    done, checks = rehearse(tmp_path / "results.json", env={**os.environ, "FAKE_CUDA_DEVICES": "0"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert {check["verdict"] for check in checks.values()} == {"could not run"}, done.stdout
    assert not any("the rest was met" in check["why"] for check in checks.values()), done.stdout


def test_with_several_gpus_there_are_more_checks(tmp_path):
    done, checks = rehearse(tmp_path / "results.json", "--only", "22,26,27",
                            env={**os.environ, "FAKE_CUDA_DEVICES": "2"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(checks) == [1, 22, 26, 27]
    assert checks[26]["verdict"] == "met", checks[26]
    assert any("ratio" in part for part in checks[22]["raw"]), checks[22]


def test_a_program_that_hangs_is_ended_with_all_that_it_started():
    # Neither TERM nor a session of its own helps it.
    script = "trap '' TERM; setsid sh -c \"trap '' TERM; while :; do sleep 1; done\" & wait; sleep 60"
    start = time.monotonic()
    ended = processes.run(["sh", "-c", script], dict(os.environ), 0.5)
    assert ended.timed_out and time.monotonic() - start < 20
    assert processes.pids_of_this_run() == []


def test_a_program_that_leaves_another_one_behind_does_not(tmp_path):
    ended = processes.run(["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo 'gpu-check {\"rank\": 0}'"],
                          dict(os.environ), 30)
    assert ended.code == 0 and ended.lines() == [{"rank": 0}]
    assert processes.pids_of_this_run() == []


def test_a_bundle_needs_nothing_of_ours(tmp_path):
    bundle = tmp_path / "bundle.tar.gz"
    subprocess.run([GPU_CHECK, "--no-build", "--bundle", bundle], check=True, capture_output=True)
    assert bundle.stat().st_size < 50_000_000
    with tarfile.open(bundle) as tar:
        tar.extractall(tmp_path)
    root = tmp_path / "dtrain-gpu-check"
    done, checks = rehearse(tmp_path / "results.json", "--only", "1,2,3,4,10",
                            program=root / "gpu-check", env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert [checks[n]["verdict"] for n in (3, 4, 10)] == ["met"] * 3, done.stdout
    for name in ("dtrain", "dtrain-agent", "dtrain-allreduce", "gpu_check"):
        found = subprocess.run(["ldd", root / "bin" / name], capture_output=True, text=True, check=True,
                               env={"LD_LIBRARY_PATH": str(root / "lib")}).stdout
        outside = [line.split()[0] for line in found.splitlines() if "=> /" in line and str(root) not in line]
        assert set(outside) <= {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1",
                                "libdl.so.2", "libpthread.so.0", "librt.so.1"}, outside
