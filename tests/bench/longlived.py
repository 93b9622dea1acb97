# SPDX-License-Identifier: Apache-2.0
"""What a job that outlives its launcher costs: `launch -d` beside a launch that stays, coming back to a job whose
launcher was killed, the next attempt after a rank's failure, much output on the launcher's disk while launchers are
killed, and looking at many records and many jobs. Four hosts with resident agents."""
import os
import re
import shutil
import signal
import struct
import sys
import time

from compare import DTRAIN, hosts, parser, save, table, verdict

import detached
import residents
from launching import wait_until

LIVES = ["sh", "-c", "echo up; exec sleep 600"]
# Fails once, as rank 6, 1 s after all are up; tells when, on the clock that all hosts share.
FAILS = ["/usr/bin/python3", "-I", "-c", """
import os, sys, time
print("attempt", os.environ["DTRAIN_ATTEMPT"], time.monotonic(), flush=True)
if os.environ["DTRAIN_ATTEMPT"] == "0" and os.environ["RANK"] == "6":
    time.sleep(1)
    print("fails", time.monotonic(), flush=True)
    os._exit(3)
time.sleep(600 if os.environ["DTRAIN_ATTEMPT"] == "0" else 0)
"""]
BACKOFF = 0.1
# Each rank writes LINES numbered lines a second, until that file exists.
LINES = 2500
WRITES = ["/usr/bin/python3", "-I", "-c", f"""
import os, sys, time
n, begin = 0, time.monotonic()
while not os.path.exists("/tmp/end-of-bench"):
    due = int((time.monotonic() - begin) * {LINES})
    sys.stdout.write("".join("%039d\\n" % i for i in range(n, due)))
    sys.stdout.flush()
    n = max(n, due)
    time.sleep(0.02)
print("last", n)
"""]
COPIES = 100_000


def middle(values):
    return sorted(values)[len(values) // 2]


def row(name, values):
    return (name, f"{middle(values) * 1000:.0f}", f"{min(values) * 1000:.0f}", f"{max(values) * 1000:.0f}")


def synced(folder, rounds=50):
    """Of two appends that are on disk, as a journal makes them."""
    took = []
    fd = os.open(folder / "append", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(rounds):
        begin = time.monotonic()
        for _ in range(2):
            os.write(fd, b"x" * 200)
            os.fdatasync(fd)
        took.append(time.monotonic() - begin)
    os.close(fd)
    return took


def start_attached(cluster):
    """Until all ranks have written a line."""
    begin = time.monotonic()
    job = cluster.start_launch([*cluster.hosts_flag(4), "--", *LIVES])
    job.wait_for("up\n", count=16)
    took = time.monotonic() - begin
    job.signal(signal.SIGINT)
    job.wait()
    return took


def start_detached(cluster):
    begin = time.monotonic()
    job = detached.launch(cluster, [*cluster.hosts_flag(4), "--", *LIVES])
    took = time.monotonic() - begin
    job.stop()
    job.wait()
    return took


def come_back(cluster, rounds):
    """From `dtrain attach`, after a kill -9 of the launcher, to the first line of output."""
    job = detached.launch(cluster, [*cluster.hosts_flag(4), "--", *LIVES])
    took = []
    for _ in range(rounds):
        job.kill_launcher()
        begin = time.monotonic()
        reader = cluster.head.popen([DTRAIN, "attach", job.id], stdin=-3, stdout=-1, stderr=-3)
        if b"up" not in reader.stdout.readline():
            sys.exit("attach showed something else than the job's output")
        took.append(time.monotonic() - begin)
        reader.send_signal(signal.SIGINT)
        reader.wait(20)
        reader.stdout.close()
    job.stop()
    job.wait()
    return took


def next_attempt(cluster):
    """From a rank's failure to the first line of the attempt that follows, without the back-off."""
    result = cluster.launch(["--max-restarts", 1, "--backoff", f"{int(BACKOFF * 1000)}ms", *cluster.hosts_flag(4),
                             "--", *FAILS])
    if result.code != 0:
        sys.exit(f"the job ended with {result.code}\n{result.err}")
    failed = float(re.search(r"fails ([\d.]+)", result.out)[1])
    first = min(float(at) for at in re.findall(r"attempt 1 ([\d.]+)", result.out))
    return first - failed - BACKOFF


def peak_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        return int(re.search(r"VmHWM:\s*(\d+)", status.read())[1]) / 1024


def much_output(cluster, seconds, kills):
    """(highest peak of the launchers in MiB, lines): none is missing or there twice, whatever was killed."""
    job = detached.launch(cluster, [*cluster.hosts_flag(1), "--", *WRITES])
    peak, end = 0, time.monotonic() + seconds
    for kill in range(kills + 1):
        wait_until(lambda: job.launcher, 20, "no launcher")
        pause = (end - time.monotonic()) / (kills + 1 - kill)
        time.sleep(max(0.1, pause))
        peak = max(peak, peak_mib(job.launcher))
        if kill < kills:
            job.kill_launcher()
            job.start_launcher()
    for host in cluster.nodes:
        (host.base / "tmp/end-of-bench").touch()
    job.wait(60)
    lines = 0
    for rank in range(4):
        out = job.output(rank).splitlines()
        last = int(out[-1].split()[1])
        if out[:-1] != [b"%039d" % i for i in range(last)]:
            sys.exit(f"rank {rank}: {len(out) - 1} lines, not the {last} that it wrote")
        lines += last
    return peak, lines


def safe_frame(journal):
    """The bytes of its last frame that says which output is safe. None: it has none yet."""
    data, at, found = journal.read_bytes(), 0, None
    while at + 9 <= len(data):
        size, kind = struct.unpack_from("<IB", data, at)
        if kind & 0x7f == 10:  # LogsSafe; the highest bit is not of the number
            found = data[at:at + 9 + size]
        at += 9 + size
    return found


def timed(cluster, *argv):
    begin = time.monotonic()
    result = cluster.head.run([DTRAIN, *argv], timeout=600)
    return time.monotonic() - begin, result.stdout


def many_records(cluster, rounds):
    """(`show` of a job whose journal has few records, of one with COPIES more), each a process's whole life."""
    job = detached.launch(cluster, [*cluster.hosts_flag(1), "--", *LIVES])
    frame = wait_until(lambda: safe_frame(job.folder / "journal"), 60, "no output is safe")
    job.kill_launcher()
    few = [timed(cluster, "show", job.id)[0] for _ in range(rounds)]
    with (job.folder / "journal").open("ab") as journal:
        journal.write(frame * COPIES)  # replaying it again changes nothing
    many = [timed(cluster, "show", job.id)[0] for _ in range(rounds)]
    taken = job.start_launcher()
    job.stop()
    job.wait()
    taken.wait(20)
    return few, many


def many_jobs(cluster, jobs):
    """(`history` of few ended jobs, the first one of so many more, the second)."""
    job = detached.launch(cluster, [*cluster.hosts_flag(1), "--", "true"])
    job.wait()
    few = timed(cluster, "history", "--json", "--limit", "0")[0]
    for number in range(jobs):
        name = f"dtrain-{number:012x}"
        shutil.copytree(job.folder, job.folder.parent / name,
                        ignore=lambda folder, names: [each for each in names if each == "logs"])
        for file in ("spec", "summary.json"):
            path = job.folder.parent / name / file
            if path.exists():
                path.write_bytes(path.read_bytes().replace(job.id.encode(), name.encode()))
    first, out = timed(cluster, "history", "--json", "--limit", "0")
    again = timed(cluster, "history", "--json", "--limit", "0")[0]
    if out.count("dtrain-0") < jobs:
        sys.exit(f"history knows {out.count('dtrain-0')} of {jobs} jobs")
    return few, first, again


def main():
    common = parser(rounds=9)
    common.add_argument("--seconds", type=int, default=60, help="of much output")
    common.add_argument("--kills", type=int, default=20, help="of launchers, meanwhile")
    common.add_argument("--jobs", type=int, default=10_000, help="that have ended")
    options = common.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: the hosts are made of namespaces")
    with hosts.Cluster(4) as cluster:
        agents = [residents.Resident(node).start() for node in cluster.nodes]
        state = cluster.head.base / detached.STATE
        attached, alone = [], []
        for each in range(options.rounds + 1):  # the first is to warm up
            attached.append(start_attached(cluster))
            alone.append(start_detached(cluster))
        attached, alone, disk = attached[1:], alone[1:], synced(state)
        back = come_back(cluster, options.rounds)
        attempts = [next_attempt(cluster) for _ in range(options.rounds)]
        few, many = many_records(cluster, options.rounds)
        peak, lines = much_output(cluster, options.seconds, options.kills)
        alone_history, first, again = many_jobs(cluster, options.jobs)
        for agent in agents:
            agent.stop()
    table(f"4 hosts with resident agents, {options.rounds} rounds", ("", "median ms", "min", "max"), [
        row("16 ranks: launch until each has written a line", attached),
        row("16 ranks: launch -d until it returns", alone),
        row("two appends with fdatasync in the state folder", disk),
        row("attach after kill -9 of the launcher, to the first line", back),
        row("16 ranks: a rank's failure to the next attempt's first line", attempts),
        row("show of a job without a launcher", few),
        row(f"show of it with {COPIES:,} records more", many),
    ])
    print(f"  {lines:,} lines in {options.seconds} s over {options.kills} kill -9: none lost, none twice")
    print(f"  history of {options.jobs:,} jobs: {first:.2f} s the first time, then {again:.2f} s")
    print()
    checks = [
        verdict("launch -d beyond launch and two fdatasyncs, ms",
                (middle(alone) - middle(attached) - middle(disk)) * 1000, 10),
        verdict("attach after kill -9, s", middle(back), 0.5),
        verdict("a failure to the next attempt, s", middle(attempts), 1.5),
        verdict(f"replay of {COPIES:,} records, s", middle(many) - middle(few), 0.2),
        verdict("peak memory of launchers under much output, MiB", peak, 64),
        verdict(f"history of {options.jobs:,} jobs beyond that of few, s", again - alone_history, options.jobs / COPIES),
    ]
    save(options, {"launch": attached, "detached": alone, "fdatasync": disk, "attach": back, "attempt": attempts,
                   "show": few, "show_many": many, "peak_mib": peak, "lines": lines, "history": [first, again],
                   "checks": checks})


main()
