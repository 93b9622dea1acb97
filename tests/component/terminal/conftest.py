# SPDX-License-Identifier: Apache-2.0
"""A terminal for the tests: a real pty, whose bytes pyte, a terminal emulator, turns into a screen.

    screen = screens(["-np", "2", "--", "python3", "-c", "..."])      # dtrain launch, on a terminal
    screen.wait_for(lambda: "[0] Name?" in screen.text)
    screen.type("bob\\n")
    assert screen.end() == 0
    screen.lines                                                      # what has scrolled away, too
"""
import fcntl
import importlib.util
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

try:
    import pyte
except ImportError:
    pyte = None

BIN = Path(os.environ["DTRAIN_BIN_DIR"])
IN_CI = os.environ.get("CI") == "true"
CTEST_SKIPPED = 77


class Screen:
    """A command on a terminal of its own, and what stands there."""

    def __init__(self, argv, columns=80, rows=24, env=None, **options):
        self._screen = pyte.HistoryScreen(columns, rows, history=100000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Condition()
        self.raw = bytearray()
        self._main, terminal = pty.openpty()
        self._set_size(columns, rows)
        streams = {name: terminal for name in ("stdin", "stdout", "stderr")} | options
        self.process = subprocess.Popen(
            argv, start_new_session=True, env={**os.environ, "TERM": "xterm", **(env or {})},
            preexec_fn=lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0), **streams)
        os.close(terminal)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _set_size(self, columns, rows):
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self):
        while True:
            try:
                data = os.read(self._main, 65536)
            except OSError:  # nobody has the terminal open any more
                data = b""
            with self._lock:
                if not data:
                    self._lock.notify_all()
                    return
                self.raw += data
                self._stream.feed(data)
                self._lock.notify_all()

    def resize(self, columns, rows):
        with self._lock:
            self._screen.resize(rows, columns)
            self._set_size(columns, rows)

    @property
    def shown(self):
        """The rows of the screen, without what is empty at their ends."""
        return [row.rstrip() for row in self._screen.display]

    @property
    def text(self):
        return "\n".join(self.shown)

    @property
    def lines(self):
        """All rows, also those that have scrolled away, but for empty ones at the end."""
        gone = ["".join(row[x].data for x in range(self._screen.columns)).rstrip()
                for row in self._screen.history.top]
        rows = gone + self.shown
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def cursor(self):
        return self._screen.cursor.x, self._screen.cursor.y

    def colour(self, text):
        """That a text on the screen has."""
        for y, row in enumerate(self._screen.display):
            if text in row:
                return self._screen.buffer[y][row.index(text)].fg
        return None

    def type(self, text):
        os.write(self._main, text.encode())

    def wait_for(self, condition, timeout=30):
        until = time.monotonic() + timeout
        with self._lock:
            while not condition():
                left = until - time.monotonic()
                assert left > 0, "\n".join([*self.lines, repr(bytes(self.raw[-2000:]))])
                self._lock.wait(min(left, 1))

    def end(self, timeout=60):
        """Its exit code, when all that it has written is on the screen."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._main)


@pytest.fixture
def screens():
    if pyte is None:
        pytest.skip("needs python3-pyte")
    made = []

    def make(args, command="launch", **options):
        made.append(Screen([BIN / "dtrain", command, *map(str, args)], **options))
        return made[-1]

    yield make
    for screen in made:
        screen.close()


@pytest.fixture
def program(tmp_path):
    """A worker: program(text) is the command that runs that Python."""
    def make(text):
        path = tmp_path / f"worker{len(list(tmp_path.iterdir()))}.py"
        path.write_text("import os, sys, time\nrank = int(os.environ['RANK'])\n"
                        f"folder = {str(tmp_path)!r}\n"
                        "def wait_for(name):\n"
                        "    while not os.path.exists(f'{folder}/{name}'):\n"
                        "        time.sleep(0.01)\n" + text)
        return [sys.executable, "-u", path]
    return make


@pytest.fixture
def allow(tmp_path):
    """What a worker waits for."""
    return lambda name: (tmp_path / name).touch()


def pytest_collection_modifyitems(items):
    for item in items:
        for package in getattr(item.module, "NEEDS", ()):
            if importlib.util.find_spec(package) is None:
                item.add_marker(pytest.mark.skip(reason=f"there is no Python package {package}"))


def pytest_sessionfinish(session, exitstatus):
    skipped = session.config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    if skipped and exitstatus == 0:
        # A skip may hide a broken machine: in CI it is a failure, elsewhere ctest shows it.
        session.exitstatus = 1 if IN_CI else CTEST_SKIPPED
