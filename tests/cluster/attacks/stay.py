# SPDX-License-Identifier: Apache-2.0
"""stay.py HOW: as mallory, wants an agent to believe that SIGKILL does not end her processes.
  say      the socket of her shepherd to its launcher says so, of a job that runs
  respawn  her shepherd is killed, and what looks like a process of its job makes another one and ends,
           all the time, for some seconds, outside of all cgroups of the job
Prints what it did."""
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import own_job  # noqa: E402

SECONDS = 8  # longer than any patience of the agent's
LINES = 24
RESPAWNS = """
import os, time, sys
end = time.monotonic() + float(sys.argv[1])
os.setsid()
while time.monotonic() < end:
    if os.fork() != 0: os._exit(0)
    time.sleep(0.0005)
"""


def variables_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as text:
        return dict(each.split(b"=", 1) for each in text.read().split(b"\0") if b"=" in each)


def say(shepherd, _):
    """A NodeFailure of KIND_CLEANUP."""
    failure = own_job.field(1, 5) + own_job.field(2, b"it cannot be killed") + own_job.field(3, 204)
    os.write(own_job.take_link(shepherd), own_job.said(own_job.field(9, failure)))
    print("said", flush=True)


def respawn(shepherd, worker):
    variables = variables_of(worker)
    assert b"DTRAIN_JOB_ID" in variables, variables
    os.kill(shepherd, signal.SIGKILL)
    for _ in range(LINES):
        subprocess.Popen(["/usr/bin/python3", "-I", "-S", "-c", RESPAWNS, str(SECONDS)], env=variables)
    print("respawns", flush=True)


job = own_job.start()
{"say": say, "respawn": respawn}[sys.argv[1]](own_job.find(own_job.is_shepherd), own_job.find(own_job.is_worker))
time.sleep(SECONDS)  # as long as the attack lasts
own_job.end(job)
