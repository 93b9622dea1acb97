# SPDX-License-Identifier: Apache-2.0
"""Workers begin alike, whatever has started their agents: as if the launching shell had started each of them."""
import contextlib
import os
import re
import shlex
import shutil
import signal

import pytest

import hosts
import leftovers
from detached import Job, launch, launchers, minders, stop_all
from faulty_disk import FaultyDisk
from launching import Launch, wait_until
from residents import Resident

# Of each rank: umask, nice, open files, and an exported function of bash's.
REPORT = ["bash", "-c", 'echo "at $(umask) $(nice) $(ulimit -Sn) $(mine)"']
FUNCTION = {"BASH_FUNC_mine%%": "() {  echo of-the-shell; }"}
CACHES = "var/tmp/dtrain-0"


def launch_from(cluster, shell, args):
    """`dtrain launch` in a shell of which `shell` was typed before."""
    line = f"{shell}; exec {shlex.join([str(cluster.programs / 'dtrain'), 'launch', *args])}"
    return Launch(cluster.head, ["bash", "-c", line], env=FUNCTION).wait()


def nice_of(cluster, more):
    return int(cluster.head.run(["nice"]).stdout) + more


def private_agents(hosts_of_it):
    return [pid for host in hosts_of_it for pid, state, line in leftovers.processes(host)
            if "dtrain-agent keep" in line and state != "Z"]


@pytest.fixture
def detached(cluster):
    """Launchers and private agents of a job without a terminal go with its test."""
    yield
    everywhere = [cluster.head, *cluster.nodes]
    stop_all(cluster.head)
    wait_until(lambda: not launchers(cluster.head) and not minders(cluster.head), 60, "a launcher stays")
    # An agent removes what shepherds leave when it has seen their end.
    wait_until(lambda: not any(path.name.startswith("dtrain-") for host in everywhere for path in host.cgroup_dir.iterdir()),
               20, "a cgroup stays")
    for pid in private_agents(everywhere):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not private_agents(everywhere), 20, "a private agent stays")
    for host in everywhere:
        for folder in (host.base / "root/.cache/dtrain").glob("run-*"):
            shutil.rmtree(folder)
        shutil.rmtree(host.base / "root/.local", ignore_errors=True)


@pytest.mark.parametrize("way", [[], ["--rsh", "ssh {host}"]], ids=["ssh", "rsh"])
@pytest.mark.parametrize("mask", ["077", "002"])
def test_a_rank_here_and_one_elsewhere(cluster, way, mask):
    where = ["node0:1,node1:1"] if way else ["localhost:1,node0:1"]
    nice = nice_of(cluster, 3)
    result = launch_from(cluster, f"umask {mask}; ulimit -n 2500; renice {nice} $$ >/dev/null",
                         [*way, "-H", *where, "--tag-output", "none", "--", *REPORT])
    assert result.code == 0 and result.lines == [f"at 0{mask} {nice} 2500 of-the-shell"] * 2, result
    assert "nice" not in result.err, result


def test_without_a_terminal_over_resident_and_private_agents(cluster, detached):
    nice = nice_of(cluster, 2)
    for residents in (False, True):
        with contextlib.ExitStack() as agents:
            if residents:
                for host in [cluster.head, cluster.nodes[0]]:
                    agents.callback(Resident(host).start().stop)
            result = launch_from(cluster, f"umask 027; ulimit -Sn 600; renice {nice} $$ >/dev/null",
                                 ["-d", "-H", "localhost:1,node0:1", "--", *REPORT])
            assert result.code == 0, result
            job = Job(cluster, result.out.strip())
            cluster.head.run([hosts.bin_dir() / "dtrain", "wait", job.id])
            for rank in range(2):
                assert job.output(rank) == f"at 0027 {nice} 600 of-the-shell\n".encode(), residents
            wait_until(lambda: not launchers(cluster.head), 60, "a launcher stays")


def test_a_job_of_one_rank_leaves_room_for_another_and_a_full_node_is_told_whose_it_is(cluster, detached):
    cores = len(os.sched_getaffinity(0))
    first = launch(cluster, ["-np", "1", "--", "sleep", "300"])
    second = launch(cluster, ["-np", "1", "--", "sh", "-c", "exit 3"])
    assert cluster.head.run([hosts.bin_dir() / "dtrain", "wait", second.id], check=False).returncode == 3
    full = cluster.launch(["-d", "-np", str(cores), "--", "true"])
    assert full.code == 200 and f"cores 0: held by your own job {first.id}" in full.err, full
    assert first.stop().returncode == 0
    first.wait()


def test_dtrain_env_shows_how_a_rank_begins(cluster):
    line = f"umask 027; exec nice -n 4 {cluster.programs / 'dtrain'} env -H node0:1"
    result = Launch(cluster.head, ["bash", "-c", line], env=FUNCTION).wait()
    assert result.code == 0, result
    assert f"# as this shell, on all hosts\n# nice {nice_of(cluster, 4)}, umask 0027\n" in result.out, result
    assert "open files" in result.out and "# its CPUs" in result.out, result
    assert "\nBASH_FUNC_mine%%=" in result.out, result


def test_a_shell_that_is_confined_to_a_cpu_is_told_for_which_ranks_that_holds(cluster):
    line = f"taskset -c 0 {cluster.programs / 'dtrain'} launch -H localhost:1,node0:1 -- true"
    result = Launch(cluster.head, ["bash", "-c", line]).wait()
    assert result.code == 0, result
    assert "localhost: this shell is confined to CPUs 0, and so are the ranks there" in result.err, result
    # Nothing to say where all ranks are here.
    line = f"ulimit -t 500; taskset -c 0 {cluster.programs / 'dtrain'} launch -np 1 -- true"
    result = Launch(cluster.head, ["bash", "-c", line]).wait()
    assert result.code == 0 and not result.err, result


@pytest.fixture
def network_home(cluster):
    """node0, where the user's home is on a file system that others may share, and /var/tmp is its own: hosts have that
    of this machine, with the cluster's files."""
    node, base, kept = cluster.nodes[0], cluster.base, "/root/work/base"
    for name in ("home", "base"):
        (cluster.work(node) / name).mkdir()
    node.run(["sh", "-ec", f"mount --bind {base} {kept}; mount -t tmpfs -o mode=1777 tmpfs /var/tmp; mkdir -p {base}; "
                           f"mount --bind {kept} {base}"])
    with FaultyDisk(node, "/root/work/home"):
        node.restart_sshd(setenv={"HOME": "/root/work/home", "XDG_CACHE_HOME": "/root/.cache"})
        yield node
        node.restart_sshd()
    node.run(["sh", "-ec", f"umount -l {base}; umount -l /var/tmp; umount -l {kept}"])
    for name in ("home", "base"):
        (cluster.work(node) / name).rmdir()


SHOW = ["sh", "-c", "echo triton=$TRITON_CACHE_DIR cuda=$CUDA_CACHE_PATH inductor=$TORCHINDUCTOR_CACHE_DIR "
                    "extensions=$TORCH_EXTENSIONS_DIR; [ -z \"$TRITON_CACHE_DIR\" ] || ls -A $TRITON_CACHE_DIR; "
                    "[ -z \"$TRITON_CACHE_DIR\" ] || echo x >$TRITON_CACHE_DIR/kernel"]


def launch_there(cluster, *flags, command=SHOW):
    return cluster.launch(["--wdir", "/", *flags, "-H", "node0:1", "--tag-output", "none", "--", *command])


def test_caches_leave_a_home_on_the_network_and_stay_for_the_next_job(cluster, network_home):
    first = launch_there(cluster, "-v")
    folder = "/var/tmp/dtrain-0/caches"
    assert first.code == 0 and first.lines[0] == (
        f"triton={folder}/triton cuda={folder}/cuda inductor={folder}/inductor "
        f"extensions={folder}/torch_extensions"), first
    assert "/root/work/home is on fuse" in first.err, first
    again = launch_there(cluster)
    assert again.lines[1:] == ["kernel"] and not again.err, again
    off = launch_there(cluster, "--node-caches", "off")
    assert off.lines == ["triton= cuda= inductor= extensions="], off
    mine = launch_there(cluster, "-x", "TRITON_CACHE_DIR=/root/work")
    assert mine.lines[0].startswith("triton=/root/work cuda=/var/tmp"), mine
    shown = Launch(cluster.head, [cluster.programs / "dtrain", "env", "--wdir", "/", "-H", "node0:1"]).wait()
    assert re.search(r"# on the node's own disk.*--node-caches\)\nCUDA_CACHE_PATH=/var/tmp", shown.out), shown


def test_caches_on_request_and_a_place_that_is_full(cluster, network_home):
    # The other hosts' homes are local.
    local = cluster.launch(["-H", "node1:1", "--tag-output", "none", "--", *SHOW])
    assert local.lines == ["triton= cuda= inductor= extensions="], local
    network_home.run(["sh", "-c", "mount -o remount,size=64k /var/tmp; head -c 100000 /dev/zero >/var/tmp/filler; true"])
    with FaultyDisk(network_home, "/tmp"):
        result = launch_there(cluster)
    assert result.code == 0 and result.lines == ["triton= cuda= inductor= extensions="], result
    assert "write to /var/tmp/dtrain-0/caches: No space left on device; /tmp is on fuse" in result.err, result
    assert "--node-caches off" in result.err, result


def test_a_folder_that_somebody_else_has_prepared_is_not_used(cluster, network_home):
    for prepare in ("mkdir -m 777 {0}; chown 65534 {0}", "mkdir -m 777 /var/tmp/theirs; ln -s theirs {0}; chown -h 65534 {0} "
                                                         "/var/tmp/theirs"):
        network_home.run(["sh", "-c", prepare.format(f"/{CACHES}")])
        result = launch_there(cluster)
        assert result.code == 0, result
        assert re.match(rf"triton=/{CACHES}\.\w{{6}}/caches/triton ", result.lines[0]), result
        network_home.run(["sh", "-c", "rm -rf /var/tmp/dtrain-0* /var/tmp/theirs"])
