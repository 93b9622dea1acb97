# SPDX-License-Identifier: Apache-2.0
"""This build beside another one, in turn: how long a job without helpers takes from its last rank's exit to the end of
its launcher, and how long 1 GB of lines takes to a pipe and to a terminal. --other names the folder with the other
build's dtrain and dtrain-agent: build/release/bin of another checkout. The ratios of neighbouring runs count, so that a
machine whose speed changes meets both."""
import os
import pty
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from compare import DTRAIN, hosts, leftovers, parser, save, table, verdict

RANKS = 4
WAYS = {"on this machine": ["-np", f"-{RANKS}"], "over ssh": ["-H", f"node0:{RANKS}"]}
FLOOD_RANKS = 2  # a lone rank's output passes through as it is
LIMIT = 1.03
# All hosts share the machine's monotonic clock.
ENDS = """
import os, sys, time
stamp = open(f"{sys.argv[1]}/{os.environ['RANK']}", "w")
stamp.write(str(time.monotonic()))
stamp.flush()
os._exit(0)
"""
FLOODS = """
import os, sys
block = b"".join(b"%099d\\n" % i for i in range(1000))
for _ in range(int(sys.argv[1]) * 10):
    left = memoryview(block)
    while left: left = left[os.write(1, left):]
"""
PYTHON = ["/usr/bin/python3", "-I", "-S", "-c"]


def ends_in(cluster, dtrain, where):
    """Seconds from the last rank's exit to the launcher's."""
    stamps = cluster.base / "stamps"
    stamps.mkdir(exist_ok=True)
    for old in stamps.iterdir():
        old.unlink()
    process = cluster.head.popen([dtrain, "launch", *where, "--", *PYTHON, ENDS, stamps], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    code = process.wait()  # with a timeout Python would only look now and then
    ended = time.monotonic()
    last = [float(stamp.read_text()) for stamp in stamps.iterdir()]
    if code != 0 or len(last) != RANKS:
        sys.exit(f"{dtrain} ended with {code}, and {len(last)} ranks told when they did")
    leftovers.wait_for_no_processes(cluster, 30)
    return ended - max(last)


def flood_takes(cluster, dtrain, to, megabytes):
    """Seconds until all has been read."""
    near, far = os.pipe() if to == "a pipe" else pty.openpty()
    arrived = [0]

    def drain():
        buffer = bytearray(1 << 20)
        try:
            while count := os.readv(near, [buffer]):
                arrived[0] += count
        except OSError:  # nobody has the terminal open any more
            pass
    reader = threading.Thread(target=drain)
    reader.start()
    start = time.monotonic()
    process = cluster.head.popen([dtrain, "launch", "-np", f"-{FLOOD_RANKS}", "--", *PYTHON, FLOODS,
                                  str(megabytes // FLOOD_RANKS)], env={"TERM": "xterm"}, start_new_session=True,
                                 stdin=subprocess.DEVNULL, stdout=far, stderr=far)
    os.close(far)
    code = process.wait()
    reader.join()
    seconds = time.monotonic() - start
    os.close(near)
    if code != 0 or arrived[0] < megabytes // FLOOD_RANKS * FLOOD_RANKS * 1_000_000:
        sys.exit(f"{dtrain} ended with {code}, and {arrived[0]} bytes arrived")
    return seconds


def in_turn(builds, rounds, run):
    """Seconds of each build, by rounds."""
    for program in builds.values():
        run(program)  # the agent is on the host then
    times = {name: [] for name in builds}
    for number in range(rounds):
        # The one that goes first takes turns, too.
        for name in list(builds)[:: 1 if number % 2 == 0 else -1]:
            times[name].append(run(builds[name]))
    return times


def ratio(times):
    return statistics.median(mine / others for mine, others in zip(times["this"], times["other"]))


def main():
    options = parser(rounds=60)
    options.add_argument("--other", metavar="DIRECTORY", type=Path, required=True, help="of the other build's programs")
    options.add_argument("--floods", type=int, default=5, help="rounds of 1 GB")
    options.add_argument("--megabytes", type=int, default=1000)
    options = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: the hosts are made of namespaces")
    builds = {"this": DTRAIN, "other": str(options.other.resolve() / "dtrain")}
    results = {}
    with hosts.Cluster(1) as cluster:
        for program in builds.values():
            if not cluster.head.path(program).exists():
                sys.exit(f"the hosts do not see {program}: /root, /tmp and /run are their own")
        for way, where in WAYS.items():
            results[f"end of a job {way}"] = in_turn(builds, options.rounds,
                                                     lambda program: ends_in(cluster, program, where))
        for to in ("a pipe", "a terminal"):
            results[f"{options.megabytes} MB to {to}"] = in_turn(
                builds, options.floods, lambda program: flood_takes(cluster, program, to, options.megabytes))
    table(f"two builds, {options.rounds} ends and {options.floods} floods of each",
          ("", "this, median ms", "other", "this / other", "quartiles"),
          [(what, *(f"{statistics.median(times[name]) * 1000:.1f}" for name in builds), f"{ratio(times):.3f}",
            spread(times)) for what, times in results.items()])
    print()
    checks = [verdict(f"{what}, this build / the other", ratio(times), LIMIT) for what, times in results.items()]
    save(options, {"builds": results, "checks": checks})


def spread(times):
    ratios = [mine / others for mine, others in zip(times["this"], times["other"])]
    if len(ratios) < 2:
        return ""
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{low:.3f}-{high:.3f}"


main()
