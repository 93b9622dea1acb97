# SPDX-License-Identifier: Apache-2.0
"""Runs on the head of the cluster: the commands one after the other, round by round, so that a
change in the machine's mood meets all of them. Prints one JSON object.

Argument: {"rounds": N, "commands": {name: argv}, "env": {...}}. A command's standard output goes
to a pipe that is read and counted, as a terminal or a log collector would.
"""
import json
import os
import sys
import threading
import time


def count(fd, totals):
    while True:
        block = os.read(fd, 1 << 20)
        if not block:
            break
        totals[0] += len(block)
    os.close(fd)


def settle():
    """Waits until nothing else runs: what one command leaves behind is no part of the next."""
    quiet, deadline = 0, time.monotonic() + 2
    while quiet < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
        with open("/proc/loadavg") as load:
            running = int(load.read().split()[3].split("/")[0])
        quiet = quiet + 1 if running <= 1 else 0


def run(argv):
    reader, writer = os.pipe()
    totals = [0]
    drain = threading.Thread(target=count, args=(reader, totals))
    drain.start()
    quiet = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, writer, 1)]
    start = time.monotonic()
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=quiet)
    os.close(writer)
    _, status, usage = os.wait4(pid, 0)
    end = time.monotonic()
    drain.join()
    return {"seconds": end - start, "end": end, "drained": time.monotonic() - start,
            "code": os.waitstatus_to_exitcode(status), "bytes": totals[0],
            "rss_kib": usage.ru_maxrss}


def main():
    spec = json.loads(sys.argv[1])
    results = {name: [] for name in spec["commands"]}
    for _ in range(spec["rounds"]):
        for name, argv in spec["commands"].items():
            settle()
            results[name].append(run(argv))
    print(json.dumps(results))


main()
