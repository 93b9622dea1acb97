# SPDX-License-Identifier: Apache-2.0
"""A driver of NVIDIA's that hangs (NVML does not return): a node is used without its GPUs."""
import pytest

import hosts

LIBRARY = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"


@pytest.fixture
def hung(make_cluster):
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    (cluster.work(node) / "nvml").write_text(
        "slow nvmlInit_v2 3600000\ngpu uuid=GPU-0 pci=00000000:3B:00.0\n")
    node.restart_sshd(setenv={"FAKE_NVML": "/root/work/nvml", "DTRAIN_NVML_LIBRARY": str(LIBRARY)})
    return cluster


def test_a_launch_goes_on_without_the_gpus_and_says_so(hung):
    result = hung.launch(["-H", "node0:1", "--", "echo", "ran"], timeout=100)
    assert result.code == 0 and result.out == "ran\n", result
    (line,) = [line for line in result.err.splitlines() if "NVML" in line]
    assert "node0: GPUs: NVIDIA's driver (NVML) did not answer within 20 s" in line, result
    assert "nvidia-smi" in line, result
    assert result.seconds > 19


def test_a_launch_that_uses_no_gpus_does_not_wait_for_it(hung):
    result = hung.launch(["--gpu-bind", "none", "--start-timeout", "15s", "-H", "node0:1", "--",
                          "echo", "ran"])
    assert result.code == 0 and result.out == "ran\n", result
    assert "NVML" not in result.err and result.seconds < 19, result


# A node whose slots are its GPUs has none to offer, but is not taken for one of many cores.
def test_slots_that_would_be_gpus_are_refused(hung):
    result = hung.launch(["-H", "node0", "--", "echo", "ran"], timeout=100)
    assert result.code == 2 and result.out == "", result
    assert "none of its GPUs can be used" in result.err and "NVML" in result.err, result
