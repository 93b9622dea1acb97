# SPDX-License-Identifier: Apache-2.0
"""Running `dtrain launch` on a host and looking at it while it runs."""
import contextlib
import functools
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import checkout
from checkout import SOURCE_DIR  # noqa: F401 - others take it from here

# Reports go to files that the check after each test finds. Harmless for builds without sanitizers.
SANITIZER_FOLDER = "sanitizer"
SANITIZER_REPORTS = f"/tmp/{SANITIZER_FOLDER}"
# intercept_tls_get_addr: GCC 12's runtime guesses where the thread-local variables of a library that was loaded
# later begin, and may guess an address of some hundred bytes, at which its search for leaks crashes.
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": f"log_path={SANITIZER_REPORTS}/report:detect_leaks=1:exitcode=99:intercept_tls_get_addr=0",
    "UBSAN_OPTIONS": f"log_path={SANITIZER_REPORTS}/report:print_stacktrace=1",
    "LSAN_OPTIONS": "exitcode=99",
}


def bin_dir():
    return checkout.BIN_DIR


@functools.cache
def is_sanitized():
    """Whether the programs are built with AddressSanitizer."""
    return b"__asan_init" in (bin_dir() / "dtrain-agent").read_bytes()


def patient(seconds):
    """How long a test waits for what the release build does within `seconds` on an idle machine. Some machines are half as
    fast, and AddressSanitizer makes programs slower."""
    return seconds * (8 if is_sanitized() else 2)


@dataclass
class Result:
    code: int
    out: str
    err: str
    raw_out: bytes
    raw_err: bytes
    seconds: float

    def __str__(self):
        return (f"exit code {self.code} after {self.seconds:.2f} s\n--- stdout\n{self.out[-6000:]}"
                f"\n--- stderr\n{self.err[-6000:]}")

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def begins_again(self):
        """How often a host was lost when not all workers ran yet: those of the other hosts were started once more."""
        return self.err.count("not all workers ran yet: the start begins again")

    def said_by(self, rank):
        """What a rank wrote, without its prefix, once for each start, which all begin with the same line. One, and one
        more at most for each time that the start began again."""
        said = [line.split("] ", 1)[1] for line in self.lines if line.startswith(f"[{rank}] ")]
        starts = [[]]
        for line in said:
            if starts[-1] and line == said[0] and len(starts) <= self.begins_again:
                starts.append([])
            starts[-1].append(line)
        return starts

    @property
    def tells_of_loss(self):
        """Whether stderr has anything of what is lost; that a silent node will be is a warning only."""
        return "lost" in self.err.replace("it will be declared lost after", "")


def only_job(host, *where):
    """The id of the one that runs there, as `dtrain ps` knows it."""
    told = json.loads(host.run([bin_dir() / "dtrain", "ps", "--json", *where]).stdout)
    [job] = told["jobs"] + told["on_nodes"]
    return job["id"]


class Launch:
    """A command in progress. Its output goes to files, so that it never waits for the test."""

    def __init__(self, host, argv, env=None, stdin=subprocess.DEVNULL, stdout=None, **options):
        self._host = host
        self._out = tempfile.TemporaryFile()
        self._err = tempfile.TemporaryFile()
        self.started = time.monotonic()
        self.process = host.popen(argv, env=env, stdin=stdin, stdout=stdout or self._out,
                                  stderr=self._err, start_new_session=True, **options)
        self.pid = self.process.pid
        self.mark = b""  # NAME=value, PYTHONFAULTHANDLER's, of programs that tell where they hang

    @property
    def out(self):
        return read_all(self._out).decode(errors="replace")

    @property
    def err(self):
        return read_all(self._err).decode(errors="replace")

    def signal(self, number):
        self.process.send_signal(number)

    def wait_for(self, text, timeout=30, stream="out", count=1):
        """Waits until `text` stands `count` times in the output."""
        timeout = patient(timeout)
        deadline = time.monotonic() + timeout
        while getattr(self, stream).count(text) < count:
            if self.process.poll() is not None and getattr(self, stream).count(text) < count:
                raise AssertionError(f"ended before it wrote {text!r}: {self.wait(5)}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {text!r} within {timeout} s\n{self.out}\n{self.err}")
            time.sleep(0.01)

    def wait(self, timeout=60):
        timeout = patient(timeout)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            if self.mark:
                self._ask_where()
            saw = f"--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-4000:]}\n--- dtrain status\n{self._status()}"
            self.kill()
            raise AssertionError(f"still running after {timeout} s\n{saw}") from None
        out, err = read_all(self._out), read_all(self._err)
        return Result(self.process.returncode, out.decode(errors="replace"),
                      err.decode(errors="replace"), out, err, time.monotonic() - self.started)

    def _status(self):
        """Of the job on its host, if there is just one."""
        try:
            asked = self._host.popen([bin_dir() / "dtrain", "status"], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:  # a host with another root
            return str(error)
        try:
            return asked.communicate(timeout=10)[0].decode(errors="replace")[-4000:]
        except subprocess.TimeoutExpired:
            asked.kill()  # and not waited for: it may stand in the kernel before a disk that stalls
            return "(no answer for 10 s)"

    def _ask_where(self):
        """Has the marked Python programs say on stderr where they are; they end by it."""
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    os.kill(int(entry), signal.SIGABRT)
            except OSError:
                continue
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.process.pid} cannot be killed: a disk that stalls?") from None


def read_all(file):
    # The writer shares our offset, so read by position.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def wait_until(condition, timeout, what):
    """Waits for an event that nobody announces, with a deadline."""
    timeout = patient(timeout)
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what() if callable(what) else what}")
        time.sleep(0.01)
