# SPDX-License-Identifier: Apache-2.0
"""stop_children.py STOPPED EARLY AGENT: as mallory, launches again and again, and stops (SIGSTOP) the
process that the agent makes for her in the moment in which it becomes hers, until STOPPED of them
were, and EARLY of these before they ran the shepherd. Prints how many of each."""
import os
import signal
import subprocess
import sys
import time

FLAGS = ["--bind", "none", "--lease", "2s", "--grace", "1s", "-np", "1"]


def last_pid():
    with open("/proc/sys/kernel/ns_last_pid") as text:
        return int(text.read())


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as text:
            return int(text.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def next_child(agent, last, launch):
    """Processes are numbered one after the other: the next one's number is known."""
    while launch.poll() is None:
        now = last_pid()
        for pid in range(last + 1, now + 1):
            if parent_of(pid) == agent:
                return pid
        last = now
    return None


def stop(pid):
    while True:
        try:
            os.kill(pid, signal.SIGSTOP)
            return True
        except PermissionError:
            pass  # not hers yet
        except ProcessLookupError:
            return False


def main(enough, enough_early, agent):
    stopped = early = 0
    while stopped < enough or early < enough_early:
        last = last_pid()
        launch = subprocess.Popen([os.environ["DTRAIN"], "launch", *FLAGS, "--", "/bin/true"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        pid = next_child(agent, last, launch)
        if pid is not None and stop(pid):
            stopped += 1
            time.sleep(0.05)  # so that the launcher has said what it has to
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as text:
                    early += b"serve" in text.read().split(b"\0")
            except FileNotFoundError:
                pass  # the agent has killed it already
        launch.kill()
        launch.wait()
    print(f"stopped {stopped}, of these {early} before they ran the shepherd")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
