# SPDX-License-Identifier: Apache-2.0
"""MPI programs that cannot find the others because their environment was emptied."""
import os
import shutil
import subprocess

import pytest

import hosts

PYTHON = "/usr/bin/python3"
EMPTIED = ["env", "-i", f"PATH={os.environ['PATH']}", "HOME=/root"]
TWO = ["-H", "node0:1,node1:1"]
LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"}
# Maps the library, as `import mpi4py` does with mpi4py.rc.initialize = False, and calls nothing. It
# lives through the looks at 0.1, 0.3 and 1 s, which nobody can see from outside.
IMPORTER = """
import ctypes, sys, time
ctypes.CDLL(sys.argv[1])
time.sleep(1.5)
"""


@pytest.fixture(params=sorted(LIBRARIES))
def mpi(request):
    library = subprocess.run(f"ldd /usr/lib/*/{LIBRARIES['mpich']}", shell=True,
                             stdout=subprocess.PIPE)
    if request.param == "mpich" and b"libucp" not in library.stdout:
        pytest.skip("this release's MPICH has another transport, whose use cannot be seen")
    return request.param


@pytest.fixture
def meet(cluster, mpi):
    """programs/mpi_meet.c, and the file whose presence lets it go on."""
    binary = cluster.base / f"{mpi}-meet"
    if not binary.exists():
        subprocess.run([f"mpicc.{mpi}", "-O1", "-o", binary,
                        hosts.HERE / "programs/mpi_meet.c"], check=True)
    gate = cluster.base / "worlds-gate"
    yield [binary, gate]
    gate.unlink(missing_ok=True)
    for node in cluster.nodes:  # of the daemon that Open MPI starts for a process that is alone
        for folder in node.path("/tmp").glob("ompi.*"):
            shutil.rmtree(folder)


def test_ranks_whose_environment_was_emptied_fail_the_job(cluster, mpi, meet):
    launch = cluster.start_launch([*TWO, "--", *EMPTIED, *meet])
    for rank in range(2):
        launch.wait_for(f"node{rank}: rank {rank} is alone in an MPI world of its own "
                        f"({LIBRARIES[mpi]})", stream="err")
    meet[1].touch()
    result = launch.wait(60)
    assert result.code == 201, result
    assert "ended with 0, but in an MPI world of its own" in result.err, result
    assert "apptainer exec" in result.err, result


def test_below_a_script_too(cluster, mpi, meet):
    command = " ".join(map(str, [*EMPTIED, *meet]))
    launch = cluster.start_launch([*TWO, "--", "sh", "-c", f"{command}; exit 0"])
    launch.wait_for("rank 1 is alone in an MPI world of its own", stream="err")
    meet[1].touch()
    assert launch.wait(60).code == 201


def test_who_wants_singletons_gets_them(cluster, mpi, meet):
    launch = cluster.start_launch([*TWO, "-x", "DTRAIN_SINGLETONS=1", "--", *EMPTIED, *meet])
    launch.wait_for("in\n", count=2)
    meet[1].touch()
    result = launch.wait(60)
    assert result.code == 0 and "world of its own" not in result.err, result


def test_a_world_of_all_ranks_gets_no_warning(cluster, mpi, meet):
    # Over TCP alone, MPICH's MPI_Finalize may take long: not its business here.
    launch = cluster.start_launch(["-H", "node0:2", "--", *meet])
    launch.wait_for("in\n", count=2)
    meet[1].touch()
    result = launch.wait(60)
    assert result.code == 0 and "warning" not in result.err, result


@pytest.mark.parametrize("before, warned", [([], False), (EMPTIED, True)])
def test_who_loads_mpi_without_using_it_passes(cluster, mpi, before, warned):
    result = cluster.launch([*TWO, "--", *before, PYTHON, "-c", IMPORTER, LIBRARIES[mpi]])
    assert result.code == 0, result
    loaded = f"rank 1 loaded an MPI library ({LIBRARIES[mpi]}) and did not join"
    assert (loaded in result.err) == warned, result
