# SPDX-License-Identifier: Apache-2.0
"""MPI ranks that end with 0 after MPI_Init, but without MPI_Finalize."""
import subprocess

import pytest

import hosts

TWO = ["-H", "node0:1,node1:1"]
THREE_HERE = ["--oversubscribe", "-H", "node0:3"]
WORDS = "ended with 0 after MPI_Init but without MPI_Finalize"


@pytest.fixture(params=["mpich", "openmpi"])
def program(request, cluster):
    """Compiles programs/NAME.c."""
    library = subprocess.run("ldd /usr/lib/*/libmpich.so", shell=True, stdout=subprocess.PIPE)
    if request.param == "mpich" and b"libpmix" in library.stdout:  # Ubuntu 24.04
        pytest.skip("this release's MPICH speaks PMIx only, as Open MPI does")

    def build(name="mpi_unfinished"):
        binary = cluster.base / f"{request.param}-{name}"
        if not binary.exists():
            subprocess.run([f"mpicc.{request.param}", "-O1", "-o", binary,
                            hosts.HERE / f"programs/{name}.c"], check=True)
        return binary
    return build


@pytest.mark.parametrize("where", [TWO, THREE_HERE])
@pytest.mark.parametrize("others", ["barrier", "finalize"])
def test_one_rank_ends_the_job_within_seconds(cluster, program, others, where):
    result = cluster.launch([*where, "--", program(), others], timeout=30)
    host = "node1" if where is TWO else "node0"
    assert result.code == 205 and f"rank 1 on {host} {WORDS}" in result.err, result
    assert result.seconds < hosts.patient(20), result


def test_the_time_for_it_is_the_users(cluster, program):
    """Longer than dtrain's own, and than MPICH tries to connect."""
    result = cluster.launch([*TWO, "--exit-timeout", "5s", "--", program(), "wait"], timeout=30)
    assert result.code == 205 and f"rank 1 on node1 {WORDS}" in result.err, result
    assert result.seconds > 5, result


def test_all_ranks_may_do_so_and_are_told(cluster, program):
    result = cluster.launch([*TWO, "--", program(), "too"])
    assert result.code == 0, result
    assert f"rank 0 on node0, rank 1 on node1 {WORDS}: whether" in result.err, result


@pytest.mark.parametrize("how, code", [(["barrier", "3"], 3), (["fail"], 7)])
def test_a_ranks_own_code_wins(cluster, program, how, code):
    result = cluster.launch([*TWO, "--", program(), *how], timeout=30)
    assert result.code == code and WORDS not in result.err, result


def test_what_a_script_has_run_counts(cluster, program):
    sums = program("mpi_allreduce")
    result = cluster.launch(["-H", "node0:2", "--", "sh", "-c", f"{sums}; exit 0"])
    assert result.code == 0 and WORDS not in result.err, result
    unfinished = program()
    result = cluster.launch(["-H", "node0:2", "--", "sh", "-c", f"{unfinished} finalize; exit 0"],
                            timeout=30)
    assert result.code == 205 and f"rank 1 on node0 {WORDS}" in result.err, result
