# SPDX-License-Identifier: Apache-2.0
"""What the bars of 16 ranks cost: each rank draws a line like tqdm's 20 times a second, all on one terminal. The
launcher's processor time, as a share of one core, beside mpirun's, which passes the bytes on as they come."""
import fcntl
import os
import pty
import re
import signal
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time

from compare import DTRAIN, MPIRUN_LOCAL, parser, save, table, verdict

RANKS = 16
ROWS, COLUMNS = RANKS + 8, 120  # room for all bars
DRAWS = """
import os, sys, time
rank, begin, step = os.environ["OMPI_COMM_WORLD_RANK"], time.monotonic(), 0
while True:
    step += 1
    part = step % 1000
    bar = '#' * (part // 25)
    sys.stderr.write(f"\\rrank {rank}: {part / 10:3.0f}%|{bar:40}| {part}/1000 [{step / 20:.1f}s, 20it/s]")
    sys.stderr.flush()
    time.sleep(max(0, begin + step / 20 - time.monotonic()))
"""
COMMANDS = {"dtrain": [DTRAIN, "launch", "-np", f"-{RANKS}", "--"], "mpirun": [*MPIRUN_LOCAL, "-np", str(RANKS)]}


class Screen:
    """A terminal, whose bytes are counted."""

    def __init__(self):
        self._main, self.terminal = pty.openpty()
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.bytes = 0
        self.all_draw = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        drawn, tail = set(), b""
        while True:
            try:
                data = os.read(self._main, 65536)
            except OSError:  # nobody has it open any more
                return
            self.bytes += len(data)
            if not self.all_draw.is_set():
                drawn.update(re.findall(rb"rank (\d+):", tail + data))
                tail = data[-16:]
                if len(drawn) == RANKS:
                    self.all_draw.set()

    def close(self):
        self._reader.join()
        os.close(self._main)


def processor_seconds(pid):
    return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3)


def once(argv, seconds):
    screen = Screen()
    process = subprocess.Popen([*argv, "/usr/bin/python3", "-I", "-c", DRAWS], stdin=subprocess.DEVNULL,
                               stdout=screen.terminal, stderr=screen.terminal, start_new_session=True,
                               preexec_fn=lambda: fcntl.ioctl(screen.terminal, termios.TIOCSCTTY, 0),
                               env={**os.environ, "TERM": "xterm"})
    os.close(screen.terminal)
    drawing = screen.all_draw.wait(60)
    if drawing:
        start, used, shown = time.monotonic(), processor_seconds(process.pid), screen.bytes
        time.sleep(seconds)
        used, shown = processor_seconds(process.pid) - used, screen.bytes - shown
        passed = time.monotonic() - start
    process.send_signal(signal.SIGINT)
    process.wait()
    screen.close()
    if not drawing:
        sys.exit(f"{argv[0]}: not all ranks draw after 60 s")
    return {"share": used / passed, "bytes_per_second": shown / passed}


def main():
    options = parser(rounds=3)
    options.add_argument("--seconds", type=int, default=10, help="for which each is watched")
    options = options.parse_args()
    results = {name: [] for name in COMMANDS}
    for _ in range(options.rounds):
        for name, argv in COMMANDS.items():
            results[name].append(once(argv, options.seconds))
    shares = {name: statistics.median(run["share"] for run in runs) for name, runs in results.items()}
    table(f"{RANKS} ranks that draw 20 times a second on a terminal, {options.rounds} rounds of {options.seconds} s",
          ("", "% of a core", "max", "x mpirun", "kB/s shown"),
          [(name, f"{100 * shares[name]:.2f}", f"{100 * max(run['share'] for run in runs):.2f}",
            f"{shares[name] / shares['mpirun']:.2f}",
            f"{statistics.median(run['bytes_per_second'] for run in runs) / 1000:.1f}")
           for name, runs in results.items()])
    print()
    checks = [verdict("the launcher, % of a core", 100 * shares["dtrain"], 2)]
    save(options, {"bars": results, "checks": checks})


main()
