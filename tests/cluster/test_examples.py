# SPDX-License-Identifier: Apache-2.0
"""The MPI programs of examples/, on one host and on four."""
import subprocess

import pytest

import hosts

EXAMPLES = hosts.SOURCE_DIR / "examples"


@pytest.fixture(scope="module")
def mpi_hello(shared_cluster):
    def build(compiler):
        binary = shared_cluster.base / f"hello-{compiler}"
        if not binary.exists():
            subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-o", binary, EXAMPLES / "mpi_hello.c"],
                           check=True, timeout=60)
        return binary
    return build


# MPICH on one host only: programs/mpi_end.h tells why.
@pytest.mark.parametrize("compiler, where", [("mpicc.mpich", "node0:4"), ("mpicc.openmpi", "node0:4"),
                                             ("mpicc.openmpi", "node0:1,node1:1,node2:1,node3:1")])
def test_mpi_hello(cluster, mpi_hello, compiler, where):
    library = subprocess.run("ldd /usr/lib/*/libmpich.so", shell=True, stdout=subprocess.PIPE).stdout
    if compiler == "mpicc.mpich" and b"libpmix" in library:  # Ubuntu 24.04
        pytest.skip("this release's MPICH speaks PMIx only")
    result = cluster.launch(["--oversubscribe", "-H", where, "--", mpi_hello(compiler)])
    assert result.code == 0, result
    for rank in range(4):
        assert f"rank {rank} of 4 on " in result.out, result
    assert result.out.count("sum of all ranks 6") == 4, result


def test_mpi4py(cluster):
    result = cluster.launch([*cluster.hosts_flag(1), EXAMPLES / "mpi4py_sum.py"])
    assert result.code == 0 and "ranks 4 on 4 hosts, sum 6" in result.out, result
