# SPDX-License-Identifier: Apache-2.0
"""Open MPI's programs, unchanged: by PMIx, which dtrain's agent serves with the node's libpmix."""
import os
import re
import signal
import subprocess

import pytest

import hosts
import residents

# Between hosts that have TCP only, Open MPI 4.1 makes no windows by itself, under mpirun neither.
WINDOWS = ["-x", "OMPI_MCA_osc=sm,pt2pt"]
NOBODY = 65534

# Connects to each port and says something; prints how many answered, and how many were not closed.
KNOCK = r"""
import socket, sys
answered = held = 0
for port in sys.argv[2:]:
    for words in (b"", b"\0" * 64, b"GET / HTTP/1.0\r\n\r\n", bytes.fromhex(sys.argv[1])):
        try:
            with socket.create_connection(("127.0.0.1", int(port)), 1) as connection:
                if words:
                    connection.sendall(words)
                answered += connection.recv(1000) != b""
        except (ConnectionError, TimeoutError) as error:
            held += isinstance(error, TimeoutError)
print("answered", answered, "held", held)
"""


@pytest.fixture(scope="module")
def program(shared_cluster):
    def build(name):
        binary = shared_cluster.base / f"open-{name}"
        if not binary.exists():
            subprocess.run(["mpicc.openmpi", "-O1", "-o", binary,
                            hosts.HERE / f"programs/{name}.c"], check=True)
        return binary
    return build


@pytest.fixture
def meet(cluster, program):
    """A job whose ranks are in their world, and wait until it is let go."""
    gate = cluster.base / "meet-gate"

    class Meeting:
        def start(self, *flags, count, before=()):
            self.launch = cluster.start_launch(["--oversubscribe", *flags, "--", *before,
                                                program("mpi_meet"), gate])
            self.launch.wait_for("in\n", count=count)
            return self.launch

        def go(self):
            gate.touch()

    yield Meeting()
    gate.unlink(missing_ok=True)


def pmix_servers(node):
    return [int(line.split()[0]) for line in node.run(["ps", "-e", "-o", "pid=,comm="]).stdout.splitlines()
            if line.split()[1] == "dtrain-pmix"]


def loopback_ports(node):
    rows = node.run(["cat", "/proc/net/tcp"]).stdout.splitlines()[1:]
    return [str(int(row.split()[1].split(":")[1], 16)) for row in rows
            if row.split()[1].startswith("0100007F:") and row.split()[3] == "0A"]


def knock(node, uid, words=b"\0"):
    """Also what a client would say first, of a rank that is another's."""
    ports = loopback_ports(node)
    assert ports
    process = node.popen(["/usr/bin/python3", "-I", "-c", KNOCK, words.hex(), *ports], cwd="/",
                         before_exec=lambda: os.setuid(uid), stdout=subprocess.PIPE, text=True)
    return process.communicate(timeout=hosts.patient(60))[0]


def nothing_in_memory(cluster):
    return all(not os.listdir(node.path("/dev/shm")) for node in cluster.nodes)


@pytest.mark.parametrize("where, ranks, on", [
    ("node0:2", 2, 1), ("node0:5", 5, 1), ("node0:1,node1:1", 2, 2), ("node1:3,node0:1", 4, 2),
    ("node0:1,node1:1,node2:1,node3:1", 4, 4), ("node0:1,node1:4,node2:2,node3:3", 10, 4)])
def test_the_world_is_whole(cluster, program, where, ranks, on):
    result = cluster.launch(["--oversubscribe", "-H", where, *WINDOWS, "--", program("mpi_world"), ranks])
    assert result.code == 0, result
    assert f"world {ranks} is right, on {on} hosts" in result.out, result
    slots = sorted(int(part.split(":")[1]) for part in where.split(","))
    assert sorted(map(int, re.findall(r"(\d+) ranks here", result.out))) == slots, result
    assert nothing_in_memory(cluster)


def test_ranks_dealt_round_robin(cluster, program):
    result = cluster.launch(["-np", 6, "--map-by", "node", *cluster.hosts_flag(2), *WINDOWS, "--",
                             program("mpi_world"), 6])
    assert result.code == 0 and "world 6 is right, on 4 hosts" in result.out, result


def test_sums_of_all_sizes(cluster, program):
    result = cluster.launch([*cluster.hosts_flag(2), "--", program("mpi_allreduce")])
    assert result.code == 0 and result.out.count("all sums are right") == 1, result


def test_data_on_demand(cluster, program):
    """Nothing is exchanged at first: each rank asks for what it needs, across nodes."""
    result = cluster.launch([*cluster.hosts_flag(2), "-x", "OMPI_MCA_pmix_base_async_modex=1", "-x",
                             "OMPI_MCA_pmix_base_collect_data=0", "--", program("mpi_allreduce")])
    assert result.code == 0 and result.out.count("all sums are right") == 1, result


@pytest.mark.parametrize("where, ranks", [("node0:3", 3), ("node0:2,node1:2", 4),
                                          ("node0:1,node1:2,node2:1,node3:2", 6)])
def test_a_chainermn_style_program_on_mpi4py(cluster, where, ranks):
    result = cluster.launch(["--oversubscribe", "-H", where, "--", "/usr/bin/python3", "-B",
                             hosts.HERE / "programs/chainermn_style.py", ranks])
    assert result.code == 0 and f"trained on {ranks} ranks" in result.out, result


@pytest.mark.parametrize("where, ranks", [("node0:2", 2), ("node0:2,node1:2", 4)])
def test_a_group_is_refused_to_every_rank(cluster, where, ranks):
    """By itself libpmix 5 leaves all but the last rank of a node without an answer; 4 does not."""
    binary = cluster.base / "pmix-group"
    if not binary.exists():
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "pmix"], check=True,
                               stdout=subprocess.PIPE, text=True).stdout.split()
        subprocess.run(["gcc", "-O1", "-o", binary, hosts.HERE / "programs/pmix_group.c", *flags],
                       check=True)
    result = cluster.launch(["-H", where, "--", binary], timeout=30)
    assert result.code == 0, result
    assert result.out.count("refused\n") == ranks and result.out.count("met\n") == ranks, result


def test_one_rank_alone(cluster, program):
    """Served as well: by itself it would start a daemon of Open MPI's, and leave its files."""
    result = cluster.launch(["-np", 1, "-H", "node0:1", *WINDOWS, "--", program("mpi_world"), 1])
    assert result.code == 0 and "world 1 is right" in result.out, result


def test_an_mpirun_within_the_job_has_its_own_world(cluster, program):
    result = cluster.launch(["-np", 1, "-H", "node1:1", "--", "mpirun.openmpi", "--allow-run-as-root",
                             "--oversubscribe", "-np", 3, program("mpi_allreduce")])
    assert result.code == 0 and result.out.count("all sums are right") == 1, result


def test_hosts_named_by_their_addresses(cluster, program):
    where = ",".join(f"{node.address}:1" for node in cluster.nodes)
    result = cluster.launch(["-H", where, *WINDOWS, "--", program("mpi_world"), 4])
    assert result.code == 0 and "world 4 is right, on 4 hosts" in result.out, result


def test_the_abort_code_is_the_jobs(cluster, program):
    result = cluster.launch([*cluster.hosts_flag(1), "--", program("mpi_abort")])
    assert result.code == 42 and "rank 1 on node1" in result.err, result
    assert "called abort with code 42" in result.err, result


def test_a_rank_that_is_killed_ends_the_job(cluster, meet):
    launch = meet.start(*cluster.hosts_flag(2), count=8)
    ps = cluster.nodes[1].run(["ps", "-e", "-o", "pid=,comm="]).stdout
    cluster.nodes[1].run(["kill", "-9", re.search(r"(\d+) open-mpi_meet", ps).group(1)])
    result = launch.wait(20)
    assert result.code == 128 + signal.SIGKILL and "on node1" in result.err, result
    assert nothing_in_memory(cluster)
    assert not any(pmix_servers(node) for node in cluster.nodes)


def test_a_launcher_that_is_killed_leaves_nothing(cluster, meet):
    launch = meet.start(*cluster.hosts_flag(2), count=8)
    launch.signal(signal.SIGINT)
    assert launch.wait(20).code == 130
    assert nothing_in_memory(cluster)


def test_a_server_that_is_killed_ends_the_job_with_its_name(cluster, meet):
    launch = meet.start(*cluster.hosts_flag(2), count=8)
    [server] = pmix_servers(cluster.nodes[2])
    cluster.nodes[2].run(["kill", "-9", server])
    result = launch.wait(20)
    assert result.code == 203, result
    assert "node2: its PMIx server (dtrain-agent pmix) was killed by signal 9" in result.err, result
    for name in os.listdir(cluster.nodes[2].path("/dev/shm")):  # which it would have removed
        assert name.startswith("vader_segment.node2.")
        cluster.nodes[2].path(f"/dev/shm/{name}").unlink()
    assert nothing_in_memory(cluster)


def test_an_mpi_job_outlives_its_agents(cluster, meet):
    agents = [residents.Resident(host).start() for host in cluster.nodes]
    try:
        launch = meet.start(*cluster.hosts_flag(2), count=8)
        for agent in agents:
            agent.kill()
            agent.start()
        meet.go()
        result = launch.wait(40)
        assert result.code == 0 and result.out.count("met") == 8, result
    finally:
        for agent in agents:
            agent.stop()


def test_a_stranger_gets_nothing_and_takes_nothing(cluster, meet):
    launch = meet.start(*cluster.hosts_flag(1), count=4)
    assert knock(cluster.nodes[0], NOBODY) == "answered 0 held 0\n"
    meet.go()
    result = launch.wait(20)
    assert result.code == 0 and result.out.count("met") == 4, result


def test_a_stranger_before_the_ranks(cluster, program):
    """No rank has connected yet: what a stranger starts is there for the ranks later."""
    gate = cluster.base / "early-gate"
    launch = cluster.start_launch([*cluster.hosts_flag(1), *WINDOWS, "--", "sh", "-c",
                                   f"echo here; until [ -e {gate} ]; do sleep 0.05; done; "
                                   f"exec {program('mpi_world')} 4"])
    launch.wait_for("here\n", count=4)
    assert not any(pmix_servers(node) for node in cluster.nodes)
    assert knock(cluster.nodes[0], NOBODY) == "answered 0 held 0\n"
    assert len(pmix_servers(cluster.nodes[0])) == 1
    cluster.nodes[0].run(["kill", "-9", pmix_servers(cluster.nodes[0])[0]])  # nobody needs it yet
    gate.touch()
    result = launch.wait(20)
    gate.unlink()
    assert result.code == 0 and "world 4 is right" in result.out, result


def test_words_of_the_same_user_that_are_no_pmix(cluster, meet):
    launch = meet.start(*cluster.hosts_flag(1), count=4)
    knock(cluster.nodes[0], 0, b"\xff" * 5000)
    meet.go()
    result = launch.wait(20)
    assert result.code == 0 and result.out.count("met") == 4, result


def some_ranks(program, others):
    return ["sh", "-c", f'if [ "$RANK" = 1 ]; then {others}; else exec {program("mpi_world")} 4; fi']


# Of a scheduler around the job, whose own launcher it would look for.
@pytest.mark.parametrize("variables", [
    ["SLURM_JOBID=1", "SLURM_NODELIST=node1"],
    ["SLURM_JOBID=1", "SLURM_NODELIST=node1", "SLURM_STEP_ID=0", "SLURM_PROCID=0"],
    ["PBS_JOBID=1.x", "PBS_ENVIRONMENT=PBS_BATCH", "PBS_NODEFILE=/nonexistent"],
    ["LSB_JOBID=1", "LSB_HOSTS=node1", "LSB_AFFINITY_HOSTFILE=/nonexistent", "JSM_NAMESPACE_RANK=0"],
    ["FLUX_JOB_ID=1", "FLUX_URI=local:///nonexistent", "FLUX_EXEC_PATH=/nonexistent"],
    ["JOB_ID=1", "PE_HOSTFILE=/nonexistent", "SGE_ROOT=/nonexistent", "ARC=x"],
    ["ALPS_APP_ID=3", "PALS_APID=x", "ALPS_APP_PE=0"]], ids=lambda given: given[0].split("_")[0])
def test_variables_of_a_scheduler_change_nothing(cluster, program, variables):
    flags = [word for entry in variables for word in ("-x", entry)]
    result = cluster.launch(["-H", "node0:1,node1:1", *flags, *WINDOWS, "--", program("mpi_world"), 2],
                            timeout=30)
    assert result.code == 0 and "world 2 is right, on 2 hosts" in result.out, result


def test_a_rank_that_never_calls_init_is_named(cluster, program):
    """It runs on: the others wait, as they would under mpirun, and the user hears for whom."""
    gate = cluster.base / "init-gate"
    launch = cluster.start_launch([*cluster.hosts_flag(2, cluster.nodes[:2]), "--",
                                   *some_ranks(program, f"until [ -e {gate} ]; do sleep 0.05; done;"
                                                     "exit 9")])
    launch.wait_for("3 of 4 ranks have called MPI_Init and wait for the others: rank 1 on node0. ",
                    stream="err")
    gate.touch()
    result = launch.wait(20)
    gate.unlink()
    assert result.code == 9, result


def test_a_rank_that_ends_without_init_ends_the_wait(cluster, program):
    result = cluster.launch([*cluster.hosts_flag(2, cluster.nodes[:2]), "--exit-timeout", "6s", "--",
                             *some_ranks(program, "exit 0")], timeout=30)
    assert result.code == 205, result
    assert "the others wait in MPI_Init for rank 1 on node0, ended with 0 without" in result.err, result


def test_without_the_library_the_job_fails_and_says_what_to_install(cluster, program):
    folder = cluster.base / "no-pmix"
    folder.mkdir(exist_ok=True)
    (folder / "libpmix.so.2").write_text("not a library")
    result = cluster.launch([*cluster.hosts_flag(2, cluster.nodes[:2]), "-x", f"LD_LIBRARY_PATH={folder}",
                             "--", "env", "-u", "LD_LIBRARY_PATH", program("mpi_world"), 4], timeout=30)
    assert result.code == 201, result
    assert re.search(r"node[01]: a rank uses PMIx, as Open MPI does, and this node cannot serve it: .*"
                     r"libpmix.so.2.*; install the library \(package libpmix2", result.err), result


def test_a_program_without_mpi_starts_no_server(cluster):
    result = cluster.launch([*cluster.hosts_flag(1), "--", "sh", "-c",
                             "ps -e -o comm= | grep -c dtrain-pmix; env | grep -c ^PMIX_"])
    assert sorted(set(re.sub(r"\[.\] ", "", result.out).split())) == ["0", "12"], result
