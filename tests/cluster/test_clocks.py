# SPDX-License-Identifier: Apache-2.0
"""C10: hosts whose clocks are wrong. A resident agent is told another time by a library that it
preloads, as nothing else gives one process a clock of its own. (How times of other clocks are put on
ours is a unit test, job/failures_test.cc.)"""
import json
import subprocess
import time

import pytest

import hosts
import residents
from test_identity import node  # noqa: F401 - a fixture
from test_tcp import Tcp

SKEW = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long skew(void) {
  const char* s = getenv("TEST_SKEW");
  const char* file = getenv("TEST_SKEW_FILE");
  char text[32] = {0};
  int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return s ? atol(s) : 0;
  if (read(fd, text, sizeof(text) - 1) < 0) text[0] = 0;
  close(fd);
  return atol(text);
}
int clock_gettime(clockid_t id, struct timespec* t) {
  int r = (int)syscall(SYS_clock_gettime, id, t);
  if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += skew();
  return r;
}
int gettimeofday(struct timeval* t, void* zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"""


def environment(node, seconds):  # noqa: F811
    """For a program with so many seconds more on its clock, or as many as stand in /root/work/skew
    while there is such a file."""
    subprocess.run(["cc", "-shared", "-fPIC", "-o", node.cluster.work(node) / "skew.so", "-x", "c", "-"],
                   input=SKEW, text=True, check=True)
    return {"LD_PRELOAD": "/root/work/skew.so", "TEST_SKEW": str(seconds),
            "TEST_SKEW_FILE": "/root/work/skew"}


def set_clock(host, seconds):
    work = host.cluster.work(host)
    (work / "new").write_text(str(seconds))
    (work / "new").rename(work / "skew")


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_c10_a_wrong_clock_is_no_silence(make_cluster, seconds):
    cluster = make_cluster(1)
    node0 = cluster.nodes[0]
    node0.cluster = cluster
    agent = residents.Resident(node0, env=environment(node0, seconds)).start()
    started = cluster.start_launch(
        ["--lease", "6s", "-H", "node0:2", "--", "sh", "-c",
         "echo up; sleep 8; echo later"])
    started.wait_for("up", count=2)
    told = node0.run([hosts.bin_dir() / "dtrain", "ps", "--json"])
    (job,) = json.loads(told.stdout)["on_nodes"]
    assert 0 <= job["seconds"] < 60, job
    result = started.wait(40)
    assert result.code == 0 and result.out.count("later") == 2, result
    assert not result.tells_of_loss, result
    agent.stop()

# C17: the clocks of a host and of the launcher are set while a job runs, each the other way.
@pytest.mark.parametrize("seconds", [3600, -3600])
def test_c17_clocks_that_are_set_while_a_job_runs(make_cluster, seconds):
    cluster = make_cluster(2)
    for host in (cluster.head, *cluster.nodes):
        host.cluster = cluster
    first, second = cluster.nodes
    agent = residents.Resident(first, env=environment(first, 0)).start()
    trace = f"{cluster.base}/trace.json"
    started = cluster.start_launch(
        ["--lease", "5s", "--timeline", trace, "-H", "node0:1,node1:1", "--", "sh", "-c",
         "echo up; until [ -e /root/work/go ]; do sleep 0.1; done; echo later"],
        env=environment(cluster.head, 0))
    started.wait_for("up", count=2)
    set_clock(first, seconds)
    set_clock(cluster.head, -seconds)
    time.sleep(7)  # longer than the lease
    for node in (first, second):  # noqa: F402
        (cluster.work(node) / "go").touch()
    result = started.wait(40)
    assert result.code == 0 and result.out.count("later") == 2, result
    assert not result.tells_of_loss and "heard" not in result.err, result
    with open(trace, encoding="utf-8") as file:
        lives = [event for event in json.load(file) if event["name"] == "worker"]
    assert len(lives) == 2
    for life in lives:
        assert -1e5 <= life["ts"] and life["ts"] + life["dur"] <= result.seconds * 1e6 + 1e5, life
    agent.stop()

# To that host the certificates are not valid yet.
def test_c10_a_clock_that_refuses_certificates_is_told(node, tmp_path):  # noqa: F811
    tcp = Tcp(node, tmp_path)
    told = node.run([hosts.bin_dir() / "dtrain-agent", "serve", *tcp.agent.flags], check=False,
                    env=environment(node, -7200))
    assert told.returncode == 206 and "set the clocks" in told.stderr, told
