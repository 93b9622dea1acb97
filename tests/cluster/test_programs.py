# SPDX-License-Identifier: Apache-2.0
"""Real programs, unchanged: PyTorch DDP, MPICH, Slurm's PMI-2 client, and libdtrain's own worker,
also under Hydra."""
import importlib.util
import os
import re
import subprocess

import pytest

import hosts

PYTHON = "/usr/bin/python3"
EXAMPLE = hosts.SOURCE_DIR / "examples/ddp_digits.py"


@pytest.fixture(scope="module")
def mpi(shared_cluster):
    """Compiles programs/NAME.c with MPICH to where every host sees it."""
    library = subprocess.run("ldd /usr/lib/*/libmpich.so", shell=True, stdout=subprocess.PIPE)
    if b"libpmix" in library.stdout:  # Ubuntu 24.04
        pytest.skip("this release's MPICH speaks PMIx only")

    def build(name):
        binary = shared_cluster.base / name
        if not binary.exists():
            subprocess.run(["mpicc.mpich", "-O1", "-o", binary,
                            hosts.HERE / f"programs/{name}.c"], check=True)
        return binary
    return build


@pytest.fixture(scope="module")
def pmi2_exchange(shared_cluster):
    """programs/pmi2_exchange.c with Slurm's client library, where every host sees it."""
    binary = shared_cluster.base / "pmi2_exchange"
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", binary,
                    hosts.HERE / "programs/pmi2_exchange.c", "-lpmi2"], check=True)
    return binary


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="there is no python3-torch")
def test_pytorch_ddp_trains_on_four_hosts(cluster):
    mark = f"PYTHONFAULTHANDLER=test-{os.getpid()}"
    launch = cluster.start_launch(["-x", mark, *cluster.hosts_flag(1), "--", PYTHON, EXAMPLE])
    launch.mark = mark.encode()
    result = launch.wait(240)
    assert result.code == 0, result
    accuracy = re.search(r"accuracy[^0-9]*([0-9.]+)", result.out)
    assert accuracy, result
    value = float(accuracy.group(1))
    assert (value / 100 if value > 1 else value) > 0.85, result


# programs/mpi_end.h tells why ranks on several hosts skip MPI_Finalize.
SKIP_FINALIZE = ["-x", "SKIP_FINALIZE=1"]


@pytest.mark.parametrize("where", ["node0:4", "node3:3"])
def test_mpich_from_init_to_finalize(cluster, mpi, where):
    result = cluster.launch(["-H", where, "--", mpi("mpi_hello")])
    ranks = int(where[-1])
    assert result.code == 0, result
    assert f"heard {ranks - 1}" in result.out


def test_mpich_hello_over_pmi1(cluster, mpi):
    result = cluster.launch([*cluster.hosts_flag(2), *SKIP_FINALIZE, "--", mpi("mpi_hello")])
    assert result.code == 0, result
    assert "heard 7" in result.out
    for rank in range(8):
        assert re.search(rf"hello from {rank} of 8 on node{rank // 2}\b", result.out), result


def test_mpich_allreduce_over_pmi1(cluster, mpi):
    result = cluster.launch(["-np", 8, *cluster.hosts_flag(2), *SKIP_FINALIZE, "--",
                             mpi("mpi_allreduce")])
    assert result.code == 0 and result.out.count("all sums are right") == 1, result


def test_mpich_allreduce_with_ranks_dealt_round_robin(cluster, mpi):
    result = cluster.launch(["-np", 6, "--map-by", "node", *cluster.hosts_flag(2), *SKIP_FINALIZE, "--",
                             mpi("mpi_allreduce")])
    assert result.code == 0 and result.out.count("all sums are right") == 1, result


def test_mpich_abort_code_is_the_jobs(cluster, mpi):
    result = cluster.launch([*cluster.hosts_flag(1), "--", mpi("mpi_abort")])
    assert result.code == 42, result


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_slurms_pmi2_client_finds_all_that_pmi2_offers(cluster, pmi2_exchange, nodes):
    ranks, rounds = 2 * nodes, 5
    result = cluster.launch([*cluster.hosts_flag(2, cluster.nodes[:nodes]), "--", pmi2_exchange])
    assert result.code == 0, result
    for rank in range(ranks):
        line = (f"rank {rank} of {ranks} got {rounds * (ranks - 1)} values, "
                f"mapping (vector,(0,{nodes},2))")
        assert result.out.count(line) == 1, result
    assert "cut off from PMI" not in result.err, result


def test_pmi2_abort_code_is_the_jobs(cluster, pmi2_exchange):
    result = cluster.launch([*cluster.hosts_flag(1), "--", pmi2_exchange, "abort", "42"])
    assert result.code == 42, result
    assert "rank 1" in result.err and "called abort with code 42" in result.err, result


def test_dtrain_allreduce_sixteen_ranks_on_four_hosts(cluster):
    result = cluster.launch([*cluster.hosts_flag(4), "--", hosts.bin_dir() / "dtrain-allreduce"],
                            timeout=180)
    assert result.code == 0, result
    assert re.search(r"size|bytes", result.out, re.IGNORECASE), result


def test_dtrain_allreduce_under_hydra_on_one_host(cluster):
    cluster.head.run(["mpiexec.hydra", "-n", "4", hosts.bin_dir() / "dtrain-allreduce"],
                     timeout=120)


def test_dtrain_allreduce_under_hydra_on_four_hosts(cluster):
    names = ",".join(node.name for node in cluster.nodes)
    cluster.head.run(["mpiexec.hydra", "-launcher", "ssh", "-localhost", cluster.head.address,
                      "-hosts", names, "-n", "4", "-ppn", "1",
                      hosts.bin_dir() / "dtrain-allreduce"], timeout=120)
