# SPDX-License-Identifier: Apache-2.0
"""D14: memory of a job's GPUs that is still in use when its workers are gone. The GPU is that of
the fake NVML, loaded by the agent's own code; workers say in its description what they "hold"."""
import json

import pytest

import hosts
import launching
import residents

FREE = "driver 535.1\nreads /root/work/reads\ngpu uuid=GPU-5d1c pci=00000000:3B:00.0 used=1048576\n"
GIB = 1 << 30


@pytest.fixture
def gpu_cluster(make_cluster):
    cluster = make_cluster(1)
    cluster.work()
    describe(cluster, FREE)
    library = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
    cluster.nodes[0].restart_sshd(setenv={"FAKE_NVML": "/root/work/nvml",
                                          "DTRAIN_NVML_LIBRARY": str(library)})
    return cluster


def describe(cluster, text):
    work = cluster.work(cluster.nodes[0])
    (work / "new").write_text(text)
    (work / "new").rename(work / "nvml")


def reads(cluster):
    path = cluster.work(cluster.nodes[0]) / "reads"
    return path.stat().st_size if path.exists() else 0


def holding(line, code=0):
    """A worker that leaves its GPU with 3 GiB in use; `line`: by whom."""
    used = FREE.replace("used=1048576", f"used={3 * GIB}").strip()
    return ["sh", "-c", f'printf "%s\\n" "{used}" "{line}" >/root/work/new && '
                        f"mv /root/work/new /root/work/nvml && exit {code}"]


def result_of(cluster):
    return json.loads((cluster.work() / "result.json").read_text())


LAUNCH = ["--result-json", "/root/work/result.json", "-H", "node0:1", "--"]


def test_d14_memory_that_is_freed_in_time_is_waited_for(gpu_cluster):
    launch = gpu_cluster.start_launch([*LAUNCH, *holding(f"process $$ {3 * GIB}")])
    # The inventory, and then several looks while the memory is held.
    launching.wait_until(lambda: reads(gpu_cluster) >= 4, 10, "the GPU was not looked at again")
    assert launch.process.poll() is None
    describe(gpu_cluster, FREE)
    result = launch.wait(10)
    assert result.code == 0, result
    assert "GPU" not in result.err, result
    assert result_of(gpu_cluster)["warnings"] == []


# E7: its launcher has heard of the workers' end from one agent, and hears the rest from the next.
def test_d14_an_agent_that_is_restarted_meanwhile_goes_on_looking(gpu_cluster):
    library = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
    agent = residents.Resident(gpu_cluster.nodes[0], env={
        "FAKE_NVML": "/root/work/nvml", "DTRAIN_NVML_LIBRARY": str(library)}).start()
    try:
        launch = gpu_cluster.start_launch([*LAUNCH, *holding(f"process $$ {3 * GIB}")])
        launching.wait_until(lambda: reads(gpu_cluster) >= 4, 10, "the GPU was not looked at again")
        agent.kill()
        agent.start()
        assert "taken over" in agent.log, agent.log
        seen = reads(gpu_cluster)
        launching.wait_until(lambda: reads(gpu_cluster) > seen, 10, agent.log)
        assert launch.process.poll() is None
        describe(gpu_cluster, FREE)
        result = launch.wait(20)
        assert result.code == 0 and "GPU" not in result.err, (result, agent.log)
    finally:
        agent.stop()


def test_d14_memory_held_by_a_worker_is_a_failed_cleanup(gpu_cluster):
    result = gpu_cluster.launch([*LAUNCH, *holding(f"process $$ {3 * GIB}")], timeout=30)
    assert result.code == 204, result
    lines = [line for line in result.err.splitlines() if "GPU-5d1c" in line]
    assert len(lines) == 1, result
    for word in ("node0", "GPU 0", "3072 MiB", "pid ", "has ended", "--gpu-reset -i 0"):
        assert word in lines[0], result
    told = result_of(gpu_cluster)
    assert told["exit_code"] == 204 and "GPU-5d1c" in told["verdict"]["message"]
    assert f"pid {told['ranks'][0]['pid']}" in told["verdict"]["message"]
    # It ended after ten seconds, no later.
    assert told["phases"][-1]["seconds"] < 12


@pytest.mark.parametrize("code", [0, 3])
def test_d14_memory_held_by_nobody_is_a_warning_now_and_for_the_next_job(gpu_cluster, code):
    result = gpu_cluster.launch([*LAUNCH, *holding("", code)], timeout=30)
    assert result.code == code, result
    lines = [line for line in result.err.splitlines() if "GPU-5d1c" in line]
    assert len(lines) == 1, result
    for word in ("node0", "GPU 0", "3071 MiB", "--gpu-reset -i 0"):
        assert word in lines[0], result
    assert any("GPU-5d1c" in warning for warning in result_of(gpu_cluster)["warnings"])

    before = reads(gpu_cluster)
    result = gpu_cluster.launch([*LAUNCH, "true"], timeout=30)
    assert result.code == 0, result
    assert "node0: GPU 0" in result.err and "3.0 GiB in use" in result.err, result
    assert reads(gpu_cluster) == before + 2, "what was held before the job is not waited for"


def test_d14_what_others_use_is_not_waited_for(gpu_cluster):
    result = gpu_cluster.launch([*LAUNCH, *holding(f"process 1 {3 * GIB}", 5)], timeout=30)
    assert result.code == 5, result
    assert "GPU" not in result.err, result
    assert reads(gpu_cluster) == 2


# D13: before anything starts.
def test_d13_a_gpu_that_somebody_computes_on_is_refused(gpu_cluster):
    describe(gpu_cluster, FREE.replace("used=1048576", f"used={3 * GIB}").strip()
             + f"\nprocess 1 {3 * GIB}\n")
    result = gpu_cluster.launch([*LAUNCH, "echo", "ran"], timeout=30)
    assert result.code == 2 and "ran" not in result.out, result
    for word in ("node0: GPU 0", "(pid 1, 3.0 GiB)", "--oversubscribe"):
        assert word in result.err, result
    result = gpu_cluster.launch(["--oversubscribe", *LAUNCH, "echo", "ran"], timeout=30)
    assert result.code == 0 and "ran" in result.out and "(pid 1, 3.0 GiB)" in result.err, result


def test_d14_a_cancelled_job_reports_it_too(gpu_cluster):
    held = " ".join(holding(f"process $$ {3 * GIB}")[2:]).removesuffix("exit 0")
    launch = gpu_cluster.start_launch([*LAUNCH, "sh", "-c",
                                       f"{held} trap 'exit 9' TERM; echo up; sleep 600 & wait"])
    launch.wait_for("up")
    launch.signal(2)
    result = launch.wait(30)
    assert result.code == 204, result
    assert "GPU-5d1c" in result.err and "not reported" not in result.err, result
