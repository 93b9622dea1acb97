# SPDX-License-Identifier: Apache-2.0
"""J12: the spool, where a worker's output waits for the launcher: of streams beyond 4 GiB, on file systems
that can do less, and where there is no room. (Full and faulty disks of a resident agent: test_faults_h.py and
test_faulty_disk.py.)"""
import json
import os
import signal
import subprocess

import pytest

import hosts
import leftovers
from faulty_disk import FaultyDisk
from launching import wait_until
from test_faults_d import python

DTRAIN = hosts.bin_dir() / "dtrain"
MIB = 1 << 20
LONG = (4 << 30) + 100 * MIB
LIMIT = 64 * MIB  # of --spool-limit
LINES = 30000
PRINTS = f"for i in range({LINES}): print('%099d' % i)"
PRINTED = "".join(f"{i:099d}\n" for i in range(LINES))


def spool_bytes(host):
    """The room that files without a name take, which the shepherds of this host have."""
    room = 0
    for pid, _, line in leftovers.processes(host):
        if not line.endswith(" shepherd"):
            continue
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                if "(deleted)" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                    room += os.stat(f"/proc/{pid}/fd/{fd}").st_blocks * 512
            except OSError:
                continue
    return room


# Offsets beyond 32 bits, and the room of what was delivered is given back.
def test_j12_more_than_four_gib_of_one_stream(cluster):
    line = "some line of the stream, 64 bytes long with its newline........"
    assert len(line) == 63
    stream = f"yes '{line}' | head -c {LONG}"
    script = (f'set -o pipefail; "$0" launch --spool-limit {LIMIT // MIB}M --tag-output none -np -1 -- '
              f'sh -c "{stream}" | cmp - <({stream}) && echo same')
    head = cluster.head
    job = head.popen(["bash", "-c", script, DTRAIN], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE, text=True, start_new_session=True)
    most = 0
    while job.poll() is None:
        try:
            job.wait(0.1)
        except subprocess.TimeoutExpired:
            most = max(most, spool_bytes(head))
    out, err = job.communicate()
    assert out == "same\n", (out, err)
    assert 0 < most < LIMIT + 16 * MIB, most / MIB


if hosts.is_sanitized():
    del test_j12_more_than_four_gib_of_one_stream  # it would take minutes


@pytest.fixture
def node(make_cluster):
    cluster = make_cluster(1)
    made = cluster.nodes[0]
    made.cluster = cluster
    return made


# FUSE knows neither O_TMPFILE nor holes: the file gets a name for a moment, and takes the room of all output.
def test_j12_a_file_system_without_unnamed_files_and_holes(node):
    pytest.importorskip("fusepy", reason="there is no python3-fusepy to make a file system with")
    with FaultyDisk(node, "/tmp"):
        probe = ("import os\ntry: os.open('/tmp', os.O_TMPFILE | os.O_RDWR)\n"
                 "except OSError as error: print(error.errno)")
        assert node.run(["/usr/bin/python3", "-c", probe]).stdout == "95\n"  # EOPNOTSUPP
        result = node.cluster.launch(["-H", "node0:2", "--spool-limit", "1M", "--tag-output", "rank", "--",
                                      *python(PRINTS)], timeout=60)
        assert result.code == 0, result.err
        for rank in range(2):
            lines = [line[4:] + "\n" for line in result.lines if line.startswith(f"[{rank}] ")]
            assert "".join(lines) == PRINTED, (rank, len(lines))
        assert not [path.name for path in node.path("/tmp").iterdir() if path.name.startswith("dtrain")]


# As above where there is less room than output: the next place takes it.
@pytest.mark.bound(30)
def test_j12_no_holes_and_no_room(node):
    pytest.importorskip("fusepy", reason="there is no python3-fusepy to make a file system with")
    node.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=1777", "tmpfs", "/tmp"])
    with FaultyDisk(node, "/tmp"):
        job = node.cluster.start_launch(
            ["--grace", "1s", "-H", "node0:1", "--spool-limit", "1M", "--", "sh", "-c",
             "yes | head -c 30000000; echo end >&2; exec sleep 600"], stdout=subprocess.DEVNULL)
        job.wait_for("end", stream="err")
        job.signal(signal.SIGINT)
        result = job.wait(20)
        assert result.code == 130, result
    node.run(["umount", "-l", "/tmp"])


PLACES = ["/tmp", "/var/tmp"]
SMALL = 256 << 10


@pytest.fixture
def small_places(node):
    """A node with little room in each place for files. What its sshd needs lies in one of them."""
    base = node.cluster.base
    node.run(["sh", "-c", "mkdir /run/base && mount --bind \"$0\" /run/base", base])
    for place in PLACES:
        node.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL},mode=1777", "none", place])
    node.run(["sh", "-c", "mkdir -p \"$0\" && mount --bind /run/base \"$0\"", base])
    yield node
    for place in [*PLACES, "/run/base"]:
        node.run(["umount", "-l", place])
    node.path("/run/base").rmdir()


@pytest.fixture
def full(small_places):
    for place in PLACES:
        small_places.path(f"{place}/filler").write_bytes(bytes(SMALL))
    return small_places


# It arrives, and the exit code is the program's; of two ranks the one that fails first would end the other.
@pytest.mark.parametrize("code", [0, 5])
def test_j12_full_places(full, code):
    ranks = 2 if code == 0 else 1
    result = full.cluster.launch(["-H", f"node0:{ranks}", "--tag-output", "rank", "--",
                                  *python(PRINTS + f"\nexit({code})")], timeout=30)
    assert result.code == code and "waits" not in result.err and "room" not in result.err, result.err
    for rank in range(ranks):
        lines = [line[4:] + "\n" for line in result.lines if line.startswith(f"[{rank}] ")]
        assert "".join(lines) == PRINTED, (rank, len(lines))


@pytest.mark.parametrize("end", ["ctrl-c", "timeout"])
def test_j12_a_job_on_a_full_node_is_ended(full, end):
    job = full.cluster.start_launch(["-H", "node0:1", *(["--timeout", "3s"] if end == "timeout" else []), "--",
                                     "sh", "-c", "yes | head -c 30000000; echo up >&2; exec sleep 600"],
                                    stdout=subprocess.DEVNULL)
    job.wait_for("up", stream="err")
    if end == "ctrl-c":
        job.signal(signal.SIGINT)
    result = job.wait(20)
    assert result.code == (130 if end == "ctrl-c" else 209) and "leftover" not in result.err, result.err


def test_j12_places_that_fill_up_meanwhile(small_places):
    result = small_places.cluster.launch(["-H", "node0:1", "--tag-output", "none", "--", *python(PRINTS)], timeout=30)
    assert result.code == 0 and result.out == PRINTED, result.err


@pytest.fixture
def small(node):
    """A node whose logins have a runtime directory of two MiB: its path there."""
    node.path("/run/small").mkdir()
    node.run(["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=20,mode=700", "tmpfs", "/run/small"])
    node.restart_sshd(setenv={"XDG_RUNTIME_DIR": "/run/small"})
    yield node
    node.run(["umount", "-l", "/run/small"])
    node.path("/run/small").rmdir()


def test_j12_a_full_runtime_directory(small):
    small.path("/run/small/filler").write_bytes(bytes(2 * MIB))
    result = small.cluster.launch(["-H", "node0:1", "--tag-output", "none", "--", *python(PRINTS)], timeout=60)
    assert result.code == 0 and result.out == PRINTED, result.err
    assert "waits" not in result.err, result.err


# Less room than the steps in which it is given back: it goes on as soon as some of it is delivered.
def test_j12_a_runtime_directory_smaller_than_the_spool_limit(small):
    result = small.cluster.launch(["-H", "node0:2", "--tag-output", "rank", "--", *python(PRINTS)], timeout=60)
    assert result.code == 0, result.err
    for rank in range(2):
        lines = [line[4:] + "\n" for line in result.lines if line.startswith(f"[{rank}] ")]
        assert "".join(lines) == PRINTED, (rank, len(lines))


# Where no file can be made the next place is taken.
@pytest.mark.parametrize("how", ["no inode", "read-only", "not there"])
def test_j12_a_runtime_directory_that_takes_no_file(small, how):
    if how == "no inode":
        small.run(["sh", "-c", "i=0; while touch /run/small/$i 2>/dev/null; do i=$((i + 1)); done"])
    elif how == "read-only":
        small.run(["mount", "-o", "remount,ro", "/run/small"])
    else:
        small.restart_sshd(setenv={"XDG_RUNTIME_DIR": "/run/not-there"})
    result = small.cluster.launch(["-H", "node0:1", "--tag-output", "none", "--", *python(PRINTS)], timeout=60)
    assert result.code == 0 and result.out == PRINTED, result.err
    assert "waits" not in result.err, result.err


# The launcher's own, where its status socket lies: the job does not depend on it, and -v tells.
def test_j12_a_launcher_without_room_for_its_socket(node):
    head = node.cluster.head
    head.path("/run/dtrain").mkdir(mode=0o700, exist_ok=True)
    head.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=1,mode=700", "tmpfs", "/run/dtrain"])
    job = node.cluster.start_launch(["-v", "-H", "node0:1", "--tag-output", "none", "--", "sh", "-c",
                                     "echo up; until [ -e /run/go ]; do sleep 0.05; done; echo end"])
    job.wait_for("up\n")
    assert "no status queries" in job.err and "No space left" in job.err, job.err
    told = head.run([DTRAIN, "ps", "--json"], check=False)
    assert json.loads(told.stdout)["jobs"] == [], told
    node.path("/run/go").touch()
    result = job.wait(20)
    node.path("/run/go").unlink()
    assert result.code == 0 and result.out == "up\nend\n", result
    head.run(["umount", "/run/dtrain"])
    head.path("/run/dtrain").rmdir()
