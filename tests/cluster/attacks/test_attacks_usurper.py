# SPDX-License-Identifier: Apache-2.0
"""Somebody has taken over the agent: a program of its user's takes its place at the spawner's socket, while alice's
job counts lines. What it may not have is refused and audited, the spawner is as before, and the agent that systemd
starts again has the node back. Each request by itself is in tests/component/spawner/attacks_test.cc."""
import contextlib
import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest

import hosts
import spawners
from guarded import SYSTEM, alices_job, guarded  # noqa: F401 - fixtures
from launching import wait_until
from mallory import HERE, IDS

CONNECT = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('/run/dtrain-agent/usurped.sock');"
           " sys.stdin.read()")
SEED = int(os.environ.get("DTRAIN_SEED") or random.randrange(1 << 30))
# spawner/protocol.h: Stage
REQUEST, PROOF, BUSY, UNKNOWN, POLICY = 1, 2, 3, 4, 6
# what: [stage, words]; stage 0: it is done.
ANSWERS = {
    "root by name": [POLICY, "root needs allow-root = yes and a connection of root's"],
    "root connected": [POLICY, "root needs allow-root = yes and a connection of root's"],
    "a system user by name": [POLICY, f"system has uid {SYSTEM}, below min-uid 1000"],
    "a system user connected": [POLICY, f"system has uid {SYSTEM}, below min-uid 1000"],
    "its own user": [POLICY, "the agent's own user runs no jobs"],
    "a socket pair": [PROOF, "not an accepted connection"],
    "no connection": [REQUEST, "descriptor"],
    "mallory connected": [0, "type 65"],
    "the same descriptor": [PROOF, "has started a job before"],
    "a copy of it": [PROOF, "has started a job before"],
    "a job that is there": [BUSY, "a job of this name is there"],
    "it is killed": [0, "type 66"],
    "it is killed again": [UNKNOWN, "there is no job hers.0"],
    "the same descriptor afterwards": [PROOF, "has started a job before"],
    "a job named ..": [REQUEST, "not plain"],
    "a job above": [REQUEST, "not plain"],
    "an account above": [REQUEST, "not plain"],
    "a kill above": [REQUEST, "not plain"],
    "a nonce": [REQUEST, "unknown type"],
    "an answer": [REQUEST, "unknown type"],
    "another version": [REQUEST, "unknown version"],
    "descriptors with a list": [REQUEST, "descriptors that nobody asked for"],
    "a lease of weeks": [REQUEST, ""],
    "what is not yet": [REQUEST, ""],
    "a part of a request": [REQUEST, "wrong size"],
    "64 KiB": [REQUEST, "longer than a packet"],
    "a second connection": [0, "closed"],
}
MIB = 1024  # of VmRSS's kB
MAY_GROW = (300 if hosts.is_sanitized() else 1) * MIB


class Look:
    """What a process takes of the machine."""

    def __init__(self, pid):
        def of(file, word):
            return int(re.search(rf"^{word}:?\s+(\d+)", Path(f"/proc/{pid}/{file}").read_text(), re.M).group(1))

        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        self.memory = of("status", "VmRSS")
        self.turns = of("status", "voluntary_ctxt_switches")
        self.ticks = int(fields[11]) + int(fields[12])
        self.children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def __repr__(self):
        return str(vars(self))


def clients(place):
    """Users who have connected to what they take for the agent."""
    for before in (None, "system", "mallory"):
        options = {"text": True, "stdin": subprocess.PIPE, "start_new_session": True}
        argv = ["/usr/bin/python3", "-I", "-c", CONNECT]
        yield place.popen(argv, user=before, **options) if before else place.node.popen(argv, cwd="/", **options)


def check_idle(spawner):
    """Nobody is connected, so it sleeps; the only event that could come is its own end."""
    before = Look(spawner.process.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        spawner.process.wait(1)
    after = Look(spawner.process.pid)
    assert after.turns <= before.turns + 1 and after.ticks <= before.ticks + 1, (before, after)


@contextlib.contextmanager
def without_agent(place):
    """The attack ends it. Systemd would start it again, and so alice's job goes on."""
    try:
        yield
    finally:
        if place.agent.ended():
            place.agent.start()


def attack(place):
    """What usurp.py was answered."""
    process = place.popen(["/usr/bin/python3", "-I", HERE / "usurp.py", f"{spawners.RUN}/agent.sock",
                           place.pid_there(place.agent.pid), SEED], user="dtrain", text=True, start_new_session=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == "listening\n", process.communicate()
    connected = list(clients(place))
    try:
        told = {}
        for line in place.end_attack("usurp.py", process, 240).splitlines():
            told.update(json.loads(line))
        return told
    finally:
        for client in connected:
            client.communicate()
            assert client.returncode == 0


def check_refused(told, log):
    assert told["answers"].keys() == ANSWERS.keys(), told
    for what, [stage, words] in ANSWERS.items():
        answer = told["answers"][what]
        assert answer[0] == stage and words in answer[1], (what, answer)
        if stage != 0:
            assert f"audit: refused: stage {stage}, {answer[1]}" in log, (what, answer, log[-5000:])
    assert re.search(r"audit: refused: a connection of uid \d+: there is one", log)
    assert told["flood"] == 100_000 and told["closed"], told
    assert re.search(r"audit: refused \d+ more", log), log[-5000:]
    assert "the agent breaks the rules; its connection ends" in log


def test_a_program_in_the_agents_place(guarded, alices_job):  # noqa: F811
    print(f"DTRAIN_SEED={SEED}")
    spawner, folder = guarded.spawner, guarded.node.path(f"{spawners.RUN}/jobs")
    # One start and end, so that what is kept for later is there.
    assert guarded.launch_by_tls("mallory", "true").code == 0
    # The spawner forgets mallory's job once its agent has seen the end of it; alice's stays.
    wait_until(lambda: len(os.listdir(folder)) == 1, 30, lambda: os.listdir(folder))
    jobs, before = os.listdir(folder), Look(spawner.process.pid)
    with without_agent(guarded):
        told = attack(guarded)
        assert guarded.agent.ended() and spawner.process.poll() is None, spawner.log
        check_refused(told, spawner.log)
        # Nothing was begun and nothing is kept; the agent's own descriptor is gone.
        wait_until(lambda: Look(spawner.process.pid).descriptors == before.descriptors - 1, 60,
                   lambda: (before, Look(spawner.process.pid)))
        after = Look(spawner.process.pid)
        assert after.children == before.children and after.memory <= before.memory + MAY_GROW, (before, after)
        assert os.listdir(folder) == jobs
        assert not guarded.pids_of("mallory") and not guarded.pids_of("system")
        check_idle(spawner)
    assert "taken over from the previous agent" in guarded.agent.log
    for user in ("mallory", "alice"):
        result = guarded.launch_by_tls(user, "id", "-u")
        assert result.code == 0 and str(IDS[user]) in result.out, (result, guarded.agent.log)
