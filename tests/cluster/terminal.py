# SPDX-License-Identifier: Apache-2.0
"""A terminal on a host with a shell in it, as a user has it: commands are typed, and what they print is read."""
import contextlib
import os
import pty
import re
import select
import threading

import launching

PROMPT = re.compile(r"<(\d+)>\$ \Z")


class Terminal:
    def __init__(self, host, cwd="/root"):
        self._main, far = pty.openpty()
        self._seen = bytearray()
        self._closed = False
        # --ctty: the terminal's end hangs up the shell, and the shell what it has started.
        self._shell = host.popen(["setsid", "--ctty", "--wait", "bash", "--norc", "--noprofile", "--noediting", "-i"],
                                 cwd=cwd, stdin=far, stdout=far, stderr=far, env={"TERM": "dumb", "PS1": "<$?>$ ", "HISTFILE": ""})
        os.close(far)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._wait_for_prompt(20)
        self.run("stty -echo")

    def _read(self):
        # A read that waits would keep the terminal open when it is closed.
        with contextlib.suppress(OSError):  # when the shell is gone
            while not self._closed:
                if select.select([self._main], [], [], 0.05)[0]:
                    self._seen.extend(os.read(self._main, 65536))

    @property
    def shown(self):
        """By the command that was typed last."""
        return self._seen.decode(errors="replace").replace("\r\n", "\n")

    def _wait_for_prompt(self, timeout):
        return launching.wait_until(lambda: PROMPT.search(self.shown), timeout, lambda: self.shown)

    def type(self, line):
        """A command, which runs on."""
        self._seen.clear()
        os.write(self._main, line.encode() + b"\n")

    def wait_for(self, pattern, timeout=30):
        return launching.wait_until(lambda: re.search(pattern, self.shown, re.M), timeout, lambda: self.shown)

    def end(self, timeout=60):
        """Of what was typed: its exit code and what it has printed."""
        found = self._wait_for_prompt(timeout)
        return int(found[1]), self.shown[:found.start()]

    def run(self, line, timeout=60):
        self.type(line)
        return self.end(timeout)

    def interrupt(self, timeout=20):
        """Ctrl-C, and the end of the command."""
        os.write(self._main, b"\x03")
        return self.end(timeout)

    def close(self):
        """As when its window is closed: the processes in it are hung up."""
        if not self._closed:
            self._closed = True
            self._reader.join()
            os.close(self._main)
            self._shell.wait(20)
