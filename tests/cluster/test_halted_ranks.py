# SPDX-License-Identifier: Apache-2.0
"""22: what is said of ranks that do not run."""
import os
import re
import signal
import time

from launching import wait_until

# Other tests have sleeping ranks at the same time.
SECONDS = str(10_000_000 + os.getpid())
WAITS = ["sh", "-c", f'echo "rank $RANK pid $(cut -d " " -f 1 /proc/self/stat)"; exec sleep {SECONDS}']


def worker(rank):
    """Its pid as the test sees it."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read()
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read()
        except OSError:
            continue
        if line == f"sleep\0{SECONDS}\0".encode() and re.search(rb"(?:^|\0)RANK=%d\0" % rank, environ):
            return int(pid)
    return None


def test_the_time_limit_tells_which_rank_is_stopped_and_since_when(cluster):
    job = cluster.start_launch(["--timeout", "25s", "--grace", "1s", *cluster.hosts_flag(1), "--",
                                *WAITS])
    job.wait_for("pid", count=4)
    pid = wait_until(lambda: worker(3), 10, "rank 3")
    os.kill(pid, signal.SIGSTOP)
    result = job.wait(60)
    assert result.code == 209, result
    assert re.search(r"dtrain: the time limit of 25 s was reached; 4 of 4 ranks still ran; rank 3 on "
                     r"node3 \(pid \d+\): stopped \(T\) since \d\d:\d\d:\d\d$", result.err, re.M), result


# The program is below a script, which waits for it.
def test_ctrl_c_tells_of_a_stopped_program_of_a_script(cluster):
    job = cluster.start_launch(["--grace", "1s", *cluster.hosts_flag(1), "--", "bash", "-c",
                                f'echo "up $$"; sleep {SECONDS}; true'])
    job.wait_for("up", count=4)
    pid = wait_until(lambda: worker(3), 10, "rank 3")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(10)  # it is looked at every five seconds
    job.signal(signal.SIGINT)
    result = job.wait(60)
    assert result.code == 130, result
    assert re.search(r"dtrain: ended by SIGINT(, sent by [^;]*)?; rank 3 on node3 \(pid \d+\): stopped "
                     r"\(T\) since \d\d:\d\d:\d\d$", result.err, re.M), result


def test_the_time_limit_of_a_job_that_runs(cluster):
    result = cluster.launch(["--timeout", "15s", "--grace", "1s", *cluster.hosts_flag(1), "--", *WAITS])
    assert result.code == 209, result
    assert "dtrain: the time limit of 15 s was reached; 4 of 4 ranks still ran\n" in result.err, result
