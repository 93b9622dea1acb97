# SPDX-License-Identifier: Apache-2.0
"""Programs that checks start: each has a time-out and always ends, and takes with it what it started."""

import itertools
import json
import os
import signal
import subprocess
import threading
import time
import uuid

# In the environment of everything that a run starts; by it what is left is found. Each program has
# the run's own value and a number.
MARK = "DTRAIN_GPU_CHECK"
RUN = uuid.uuid4().hex
NUMBERS = itertools.count(1)
OUTPUT_LIMIT = 200_000


class Ended:
    """How a program ended: code (None: it was ended by us), out, err, seconds."""

    def __init__(self, argv, code, out, err, seconds):
        self.argv, self.code, self.out, self.err, self.seconds = argv, code, out, err, seconds
        self.timed_out = code is None

    def lines(self):
        """The objects of the lines "gpu-check {...}"."""
        return [each for each in map(line_of, self.out.splitlines()) if each is not None]

    def why(self):
        """One line on an end that is not as it should be."""
        end = f"did not end in {self.seconds:.0f} s" if self.timed_out else f"ended with {self.code}"
        last = (self.err.strip() or self.out.strip()).splitlines()[-1:] or [""]
        return f"{os.path.basename(self.argv[0])} {end}{': ' if last[0] else ''}{last[0][:300]}"

    def raw(self):
        return {"argv": self.argv, "code": self.code, "seconds": round(self.seconds, 3), "lines": self.lines(),
                "out": self.out[-4000:], "err": self.err[-4000:]}


def line_of(text):
    if not text.startswith("gpu-check {"):
        return None
    try:
        return json.loads(text[len("gpu-check "):])
    except ValueError:
        return None


class Running:
    """A program in a process group of its own, whose output is read as it comes."""

    def __init__(self, argv, env):
        self.argv = [str(word) for word in argv]
        self.mark = f"{RUN}.{next(NUMBERS)}."
        self.start = time.monotonic()
        self.texts = {"out": "", "err": ""}
        self.changed = threading.Condition()
        self.process = subprocess.Popen(
            self.argv, env={**env, MARK: self.mark}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True)
        self.readers = [threading.Thread(target=self._read, args=(name, pipe), daemon=True)
                        for name, pipe in (("out", self.process.stdout), ("err", self.process.stderr))]
        for reader in self.readers:
            reader.start()

    def _read(self, name, pipe):
        for line in iter(lambda: pipe.readline(65536), b""):
            with self.changed:
                if len(self.texts[name]) < OUTPUT_LIMIT:
                    self.texts[name] += line.decode(errors="replace")
                self.changed.notify_all()

    def first_line(self, seconds):
        """The first "gpu-check" line, or None when none comes in time."""
        deadline = time.monotonic() + seconds
        while True:
            # Before the look at what has come: nothing comes after it.
            over = self.process.poll() is not None and not any(reader.is_alive() for reader in self.readers)
            with self.changed:
                for text in self.texts["out"].splitlines():
                    if line_of(text) is not None:
                        return line_of(text)
                if over or time.monotonic() >= deadline:
                    return None
                self.changed.wait(0.2)

    def wait(self, seconds):
        """Ended, in any case; what it started is gone then."""
        code = None
        try:
            code = self.process.wait(max(0.1, seconds - (time.monotonic() - self.start)))
        except subprocess.TimeoutExpired:
            self._end()
        took = time.monotonic() - self.start
        end_what_is_left(mark=self.mark)
        for reader in self.readers:
            reader.join(2)
        return Ended(self.argv, code, self.texts["out"], self.texts["err"], took)

    def _end(self):
        """First politely: a launcher then ends its workers on its own."""
        for number, patience in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                pass
            try:
                self.process.wait(patience)
                return
            except subprocess.TimeoutExpired:
                pass


def run(argv, env, seconds):
    return Running(argv, env).wait(seconds)


def pids_of_this_run(mark=RUN):
    """Processes that carry a mark: agents and workers are in sessions of their own."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if any(each.startswith(wanted) for each in file.read().split(b"\0")):
                    found.append(int(name))
        except OSError:
            pass  # gone, or another user's
    return found


def end_what_is_left(patience=3.0, mark=RUN):
    """Ends with KILL what this run has started and is still there after a moment; how many those were.
    What is defunct, or hangs in a driver, cannot be waited for."""
    deadline = time.monotonic() + patience
    while pids_of_this_run(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = pids_of_this_run(mark)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    deadline = time.monotonic() + 2
    while left and pids_of_this_run(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(left)
