# SPDX-License-Identifier: Apache-2.0
"""A process that the agent makes for mallory has been root's a moment ago. She takes what it has. The
agent's log is a file, as in most tests, a stream socket, as journald's, or a terminal."""
import os
import re
import socket
import threading

import pytest

from mallory import Place, alices_job  # noqa: F401 - a fixture

# How many processes she looks into.
PROCESSES = {"file": 50, "socket": 15, "terminal": 15}
FORGED_AT_MOST = 25  # lines a minute, however many are written


class Log:
    """Where the agent writes, and a thread that copies it to the file that the test reads."""

    def __init__(self, kind):
        if kind == "socket":
            self._ours, theirs = (end.detach() for end in socket.socketpair())
        else:
            self._ours, theirs = os.openpty()
        self.options = {"before_exec": lambda: os.dup2(theirs, 2)}
        self._theirs = theirs

    def copy_to(self, file):
        def copy():
            try:
                while piece := os.read(self._ours, 65536):
                    os.write(file.fileno(), piece.replace(b"\r\n", b"\n"))
            except (OSError, ValueError):
                pass  # the last who had the terminal has closed it, or the file is

        threading.Thread(target=copy, daemon=True).start()

    def close(self):
        os.close(self._theirs)


@pytest.fixture(params=list(PROCESSES))
def place(make_cluster, request):
    log = Log(request.param) if request.param != "file" else None
    made = Place(make_cluster(1), **(log.options if log else {}))
    if log:
        log.copy_to(made.agent._log)
    made.kind = request.param
    made.add_users()
    made.agent.start()
    yield made
    made.agent.stop()
    if log:
        log.close()


def test_no_descriptor_leads_to_somebody_else(place, alices_job):  # noqa: F811
    before = alices_job.lines()
    wanted = PROCESSES[place.kind]
    told = place.attack("take_descriptors.py", wanted, place.pid_there(place.agent.pid), timeout=400)
    *found, last = told.splitlines()
    taken, processes, failed = map(int, re.findall(r"\d+", last))
    assert not found, told
    assert failed == 0 and processes >= wanted and taken > processes, told
    assert alices_job.lines() > before


def test_nobody_else_writes_the_agents_log(place, alices_job):  # noqa: F811
    before = alices_job.lines()
    assert place.attack("write_log.py").splitlines()[-1] == "done"
    lines = place.agent.log.splitlines()
    assert any("serving on" in line for line in lines), "it was cut"
    forged = [line for line in lines if "forged" in line]
    assert 0 < len(forged) <= FORGED_AT_MOST, len(forged)
    assert all(re.search(r" warning: shepherd \d+ of mallory: ", line) for line in forged), forged[0]
    assert alices_job.lines() > before
