# SPDX-License-Identifier: Apache-2.0
"""Faults of group J: output of every amount and kind. O4: every byte arrives. J12 is in test_spool.py."""
import hashlib
import os
import pty
import re
import signal
import subprocess

import pytest

import hosts
import leftovers
from launching import wait_until
from test_faults_d import python

LIMIT_KIB = 256 * 1024


def peak_kib(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            return int(re.search(r"VmHWM:\s*(\d+)", status.read()).group(1))
    except (OSError, AttributeError):
        return 0


# J1: as fast as they can, until we say stop.
def test_j1_flood(cluster):
    launch = cluster.start_launch([*cluster.hosts_flag(1), "--spool-limit", "64M", "--", "yes",
                                   "a line of the flood that is some sixty bytes long, or so ..."],
                                  stdout=subprocess.DEVNULL)
    sent = wait_until(lambda: written(launch.pid) > 300 << 20, 60, "300 MiB of output")
    assert sent
    peaks = {"launcher": peak_kib(launch.pid)}
    for host in cluster.nodes:
        for pid, _, line in leftovers.processes(host):
            if line.split()[-1] in ("bridge", "shepherd"):
                peaks[f"{host.name} {line.split()[-1]}"] = peak_kib(pid)
    launch.signal(signal.SIGINT)
    result = launch.wait(30)
    assert result.code == 130, result
    if not hosts.is_sanitized():
        assert max(peaks.values()) < LIMIT_KIB, peaks


def written(pid):
    with open(f"/proc/{pid}/io", encoding="ascii") as io:
        return int(re.search(r"wchar: (\d+)", io.read()).group(1))


# J2
def test_j2_no_newline_for_a_hundred_megabytes(cluster):
    size = 100_000_000
    result = cluster.launch(["-np", 1, "-H", "node2", "--", "sh", "-c",
                             f"head -c {size} /dev/zero | tr '\\0' x"], timeout=120)
    assert result.code == 0 and len(result.raw_out) == size, result.code
    assert result.raw_out.count(b"x") == size


# J3
def test_j3_any_bytes(cluster):
    data = bytes(range(256)) * 64 + b"\xff\xfe\0\0" + "é".encode()[:1]
    (cluster.base / "odd").write_bytes(data)
    result = cluster.launch(["-H", "node1:1,node3:1", "--log-dir", "/root/work/odd", "--", "cat",
                             cluster.base / "odd"])
    assert result.code == 0, result.code
    kept = [path.read_bytes() for path in (cluster.work() / "odd").rglob("*") if path.is_file()]
    assert kept.count(data) == 2
    result = cluster.launch(["-np", 1, "-H", "node1", "--", "cat", cluster.base / "odd"])
    assert result.raw_out == data


# J4
def test_j4_nobody_harms_a_terminal_that_ranks_share(cluster):
    evil = (b"\x1b]52;c;cHduZWQ=\x07\x1b]0;title\x07\x1b[2J\x1b[H\x1bc\xc2\x9b2J\x9b2J\n"
            b"mine\r[9] yours\n\x1b[31mred\x1b[0m\n 10%\r 20%\n")
    (cluster.base / "evil").write_bytes(evil)
    command = ["--", "cat", cluster.base / "evil"]
    shared = on_a_terminal(cluster, ["-H", "node0:1,node1:1", "--log-dir", "/root/work/j4", *command])
    for rank in b"01":
        tag = b"[%c] " % rank
        assert shared.count(tag + rb"\x1b]52;c;cHduZWQ=\x07\x1b]0;title\x07\x1b[2J\x1b[H\x1bc"
                            rb"\xc2\x9b2J\x9b2J" b"\r\n") == 1, shared
        assert tag + b"mine\r" + tag + b"[9] yours\r\n" in shared, shared
        assert tag + b"\x1b[31mred\x1b[0m" in shared, shared
        assert tag + b" 10%\r" + tag + b" 20%\r\n" in shared, shared
    assert b"\x1b]" not in shared and b"\x9b" not in shared, shared
    kept = [path.read_bytes() for path in (cluster.work() / "j4").rglob("*") if path.is_file()]
    assert kept.count(evil) == 2
    result = cluster.launch(["-H", "node0:1,node1:1", "--tag-output", "none", *command])
    assert result.raw_out.count(evil.split(b"\n")[0]) == 2, result
    assert evil.replace(b"\n", b"\r\n") in on_a_terminal(cluster, ["-H", "node0:1", *command])


def on_a_terminal(cluster, args):
    """What a launch with a terminal for stdout and stderr shows there."""
    main, terminal = pty.openpty()
    launch = cluster.head.popen([hosts.bin_dir() / "dtrain", "launch", *args], start_new_session=True,
                                stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal)
    os.close(terminal)
    seen = bytearray()
    try:
        while data := os.read(main, 65536):
            seen += data
    except OSError:  # nobody has the terminal any more
        pass
    os.close(main)
    assert launch.wait(20) == 0, bytes(seen)
    return bytes(seen)


# J6
def test_j6_lines_of_64_ranks_stay_whole(cluster):
    script = ("import os, sys\nr = os.environ['RANK']\n"
              "for i in range(100):\n    s = f'{r}:{i}:' + 'x' * (i * 37 % 900) + ':end\\n'\n"
              "    for part in (s[:3], s[3:]):\n        sys.stdout.write(part); sys.stdout.flush()\n")
    result = cluster.launch(["--oversubscribe", *cluster.hosts_flag(16), "--", *python(script)],
                            timeout=120)
    assert result.code == 0, result
    seen = {}
    for line in result.lines:
        rank, number, fill = re.fullmatch(r"\[(\d+)\] ?(\d+:\d+):(x*):end", line).groups()
        assert number.split(":")[0] == rank
        index = int(number.split(":")[1])
        assert len(fill) == index * 37 % 900
        seen.setdefault(int(rank), []).append(index)
    assert seen == {rank: list(range(100)) for rank in range(64)}


# Only the port, the pid, the address and the rank differ.
FOLDED = """
import os, sys, time, traceback
rank = int(os.environ['RANK'])
while not os.path.exists(sys.argv[1] + '/write'):
    time.sleep(0.01)
try:
    raise ConnectionError(f'rank {rank}, pid {os.getpid()}: read error [::1]:{4711 + rank} of {object()}')
except ConnectionError:
    traceback.print_exc()
while not os.path.exists(sys.argv[1] + '/end'):
    time.sleep(0.01)
sys.exit(1)
"""


def test_tracebacks_that_differ_in_addresses_pids_and_ranks_are_one(cluster):
    gates = cluster.base / "folded"
    gates.mkdir()
    launch = cluster.start_launch(["-H", "node0:2,node1:2", "--", *python(FOLDED), gates])
    told = re.compile(r"^dtrain: ranks? ([\d, and-]+) wrote the same traceback as rank (\d) but for addresses, pids "
                      r"and numbers of ranks ", re.M)

    def named():
        texts = [text for found in told.findall(launch.err) for text in found]
        ranges = re.findall(r"(\d)(?:-(\d))?", " ".join(texts))
        return {rank for first, last in ranges for rank in range(int(first), int(last or first) + 1)}
    try:
        (gates / "write").touch()
        wait_until(lambda: named() == {0, 1, 2, 3}, 30, lambda: launch.err)
        assert len(re.findall(r"^\[\d\] Traceback", launch.err, re.M)) == 1, launch.err
    finally:
        for gate in ("write", "end"):
            (gates / gate).touch()
    assert launch.wait(30).code == 1


# J7
def test_j7_last_line_without_newline(cluster):
    result = cluster.launch([*cluster.hosts_flag(1), "--", "sh", "-c", "printf 'last of %s' $RANK;"
                             " printf 'error of %s' $RANK >&2"])
    assert result.code == 0, result
    for rank in range(4):
        assert re.search(rf"^\[{rank}\] ?last of {rank}$", result.out, re.MULTILINE), result
        assert f"error of {rank}" in result.err, result
    result = cluster.launch(["-np", 1, "-H", "node1", "--", "printf", "end"])
    assert result.out == "end"


# J9
@pytest.mark.parametrize("code", [0, 5])
def test_j9_exit_right_after_a_burst(cluster, code):
    script = ("import os, sys\nline = b'%099d\\n'\n"
              "out = b''.join(line % i for i in range(1000000))\n"
              f"sys.stdout.buffer.write(out)\nsys.stdout.flush()\nos._exit({code})")
    result = cluster.launch(["-np", 1, "-H", "node0", "--", *python(script)], timeout=120)
    wanted = b"".join(b"%099d\n" % index for index in range(1000000))
    assert result.code == code and len(result.raw_out) == len(wanted), result.code
    assert hashlib.sha256(result.raw_out).digest() == hashlib.sha256(wanted).digest()
