# SPDX-License-Identifier: Apache-2.0
"""The canary of LeakSanitizer: each program that leaves by _exit (common/os/leave) looks for leaks first, and
the check after each test finds what it reports. A library that is preloaded leaks where it is told to."""
import subprocess

import pytest

import hosts
import launching
import leftovers
import residents
from launching import wait_until

# In the program that has the word among its arguments. Several blocks, as a register may keep one alive.
PLANT = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) static void plant(void) {
  for (int i = 0; i < 16; ++i) {
    char* volatile lost = malloc(4242);
    if (lost) lost[0] = 1;
    lost = NULL;
  }
}
__attribute__((constructor)) static void begin(void) {
  const char* word = getenv("TEST_LEAK_IN");
  char line[4096] = {0};
  int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  ssize_t size = fd < 0 ? 0 : read(fd, line, sizeof(line) - 1);
  if (fd >= 0) close(fd);
  if (!word) return;
  for (char* at = line; at < line + size; at += strlen(at) + 1) {
    if (strcmp(at, word) == 0) return plant();
  }
}
"""


def planted(cluster, host, word):
    """The environment of a program on `host` that leaks."""
    subprocess.run(["cc", "-g", "-shared", "-fPIC", "-o", cluster.work(host) / "plant.so", "-x", "c", "-"],
                   input=PLANT, text=True, check=True)
    return {"LD_PRELOAD": "/root/work/plant.so", "TEST_LEAK_IN": word,
            # The library need not come behind the sanitizer's own.
            "ASAN_OPTIONS": launching.SANITIZER_OPTIONS["ASAN_OPTIONS"] + ":verify_asan_link_order=0"}


def run(cluster, program):
    """Runs it with a leak. Its exit code, or None where nobody sees it."""
    node = cluster.nodes[0]
    launch = ["--env", "none", "-H", "node0:1", "--", "true"]
    if program == "bridge":
        node.restart_sshd(setenv=planted(cluster, node, program))
        cluster.launch(launch)
        return None
    if program == "serve":
        agent = residents.Resident(node, env=planted(cluster, node, program)).start()
        cluster.launch(launch)
        agent.process.terminate()
        return agent.process.wait(20)
    words = [program, *(launch if program == "launch" else [])]
    return launching.Launch(cluster.head, [hosts.bin_dir() / "dtrain", *words],
                            env=planted(cluster, cluster.head, program)).wait().code


@pytest.mark.parametrize("program", ["launch", "ps", "bridge", "serve"])
def test_a_leak_is_reported_and_found(make_cluster, program):
    cluster = make_cluster(1)
    before = leftovers.Leftovers(cluster)
    code = run(cluster, program)
    host = cluster.head.name if program in ("launch", "ps") else "node0"

    def reports():
        return [what for what in before.find()
                if what.startswith(f"{host}: sanitizer report") and "LeakSanitizer" in what and "plant" in what]

    if hosts.is_sanitized():
        wait_until(reports, 20, before.find)
        assert code in (99, None)
    else:
        assert not reports() and code in (0, None)
    before.remove()
    if program == "serve":
        residents.Resident(cluster.nodes[0]).stop()
