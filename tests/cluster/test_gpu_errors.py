# SPDX-License-Identifier: Apache-2.0
"""A host whose GPU reports a fatal error while an attempt runs is left out of the next attempts. GPUs are those of the
fake NVML, one on each host; what they report is a line in a file of that host."""
import json
import os
import signal
import time

import pytest

import hosts
from detached import launch
from launching import wait_until
from residents import Resident
from test_resident import workers

LIBRARY = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
ENV = {"FAKE_NVML": "/root/work/nvml", "DTRAIN_NVML_LIBRARY": str(LIBRARY)}
FLAGS = ["--lease", "3s", "--grace", "1s", "--backoff", "100ms", "-N", "3:4", "--max-restarts", 2]
LIVES = ["sh", "-c", 'echo "attempt $DTRAIN_ATTEMPT of $WORLD_SIZE on $(hostname)"; exec sleep 600']
FELL_OFF = "GPU 0 reported Xid 79 (GPU has fallen off the bus)"
LEFT_OUT = f"dtrain: node2 is left out while others suffice: {FELL_OFF}\n"


class Gpu:
    """The one of a host."""

    def __init__(self, cluster, host):
        self.work = cluster.work(host)
        self.uuid = f"GPU-{host.name}"
        (self.work / "nvml").write_text(
            f"gpu uuid={self.uuid} pci=00000000:3B:00.0 ecc=1 utilisation=90\n"
            "events /root/work/events\nregistered /root/work/registered\n")

    def watches(self):
        """How many have begun."""
        path = self.work / "registered"
        return path.stat().st_size if path.exists() else 0

    def reports(self, what):
        with open(self.work / "events", "a") as file:
            file.write(f"{self.uuid} {what}\n" if what != "hang" else "hang\n")


@pytest.fixture
def gpus(make_cluster):
    cluster = make_cluster(4)
    gpus = [Gpu(cluster, host) for host in cluster.nodes]
    for host in cluster.nodes:
        host.restart_sshd(setenv=ENV)
    return cluster, gpus


def kill_rank(host):
    for pid, _ in workers(host):
        os.kill(int(pid), signal.SIGKILL)


def start(cluster, gpus, *flags):
    job = cluster.start_launch([*FLAGS, *flags, *cluster.hosts_flag(1), "--", *LIVES])
    job.wait_for("attempt 0 of 4", count=4)
    wait_until(lambda: all(gpu.watches() == 1 for gpu in gpus), 20, lambda: [gpu.watches() for gpu in gpus])
    return job


def end(job, code=130):
    job.signal(signal.SIGINT)
    result = job.wait(30)
    assert result.code == code, result
    return result


def test_a_host_whose_gpu_falls_off_the_bus_is_left_out(gpus):
    cluster, of_host = gpus
    job = start(cluster, of_host)
    of_host[2].reports("xid 79")
    job.wait_for(f"node2: {FELL_OFF}\n", stream="err")
    assert "restart" not in job.err and len(workers(cluster.nodes[2])) == 1, job.err
    kill_rank(cluster.nodes[2])
    job.wait_for("attempt 1 of 3", count=3)
    assert "attempt 1 of 3 on node2" not in job.out and LEFT_OUT in job.err, job.err
    assert f"in 0.1 s: rank 2 on node2 was killed by signal 9 (SIGKILL); GPU 0 on node2 {FELL_OFF[6:]}\n" in job.err, job.err
    assert not workers(cluster.nodes[2])
    # What programs do to their GPU does not count.
    wait_until(lambda: of_host[0].watches() == 2, 20, "no watch")
    of_host[0].reports("xid 31")
    job.wait_for("node0: GPU 0 reported Xid 31 (GPU memory page fault)\n", stream="err")
    kill_rank(cluster.nodes[0])
    job.wait_for("attempt 2 of 3", count=3)
    result = end(job)
    assert result.err.count(FELL_OFF[6:]) == 4, result  # when it came, left out, the cause, and in the report
    assert "mostly" not in result.err, result  # who ended it did so himself


def test_how_the_gpus_are_is_told(gpus):
    cluster, of_host = gpus
    job = start(cluster, of_host)

    def told():
        listed = json.loads(cluster.head.run([cluster.programs / "dtrain", "ps", "--json"]).stdout)["jobs"][0]
        answer = cluster.head.run(["curl", "-s", "--unix-socket", f"/run/dtrain/{listed['id']}.sock",
                                   f"http://localhost/v1/jobs/{listed['id']}/gpus"]).stdout
        series = json.loads(answer)["gpus"]
        return series if len(series) == 4 and all(90 in gpu["utilisation_percent"] for gpu in series) else None
    series = wait_until(told, 40, "no samples")
    assert [gpu["host"] for gpu in series] == [f"node{i}" for i in range(4)], series
    assert all(gpu["uuid"] == f"GPU-{gpu['host']}" and gpu["power_watts"][0] is None for gpu in series), series
    end(job)


# Not by an event, and after the last word of its rank.
def test_an_ecc_error_that_is_found_after_the_end_counts(gpus):
    cluster, of_host = gpus
    job = start(cluster, of_host)
    text = (of_host[1].work / "nvml").read_text()
    (of_host[1].work / "nvml").write_text(text.replace("ecc=1", "ecc=3"))
    kill_rank(cluster.nodes[1])
    job.wait_for("attempt 1 of 3", count=3)
    assert "dtrain: node1 is left out while others suffice: GPU 0 had 2 uncorrected ECC errors\n" in job.err, job.err
    end(job)


def test_a_host_that_the_job_needs_stays(gpus):
    cluster, of_host = gpus
    job = cluster.start_launch([*FLAGS[:-4], "--max-restarts", 1, *cluster.hosts_flag(1, cluster.nodes[:2]), "--", *LIVES])
    job.wait_for("attempt 0 of 2", count=2)
    wait_until(lambda: of_host[1].watches() == 1, 20, "no watch")
    of_host[1].reports("xid 94")
    job.wait_for("node1: GPU 0 reported Xid 94 (contained ECC error)\n", stream="err")
    kill_rank(cluster.nodes[1])
    job.wait_for("attempt 1 of 2", count=2)
    assert "dtrain: node1 stays in the job, which has no host in its place: GPU 0 reported Xid 94" in job.err, job.err
    kill_rank(cluster.nodes[0])
    result = job.wait(30)
    assert result.code == 208 and "contained ECC error" in result.err, result


# The driver hangs, and whoever asks it anything. The end waits for the look at the GPUs that each end has, two seconds
# beyond the grace here, and the restart for nothing.
def test_a_driver_that_hangs_delays_no_restart(gpus):
    cluster, of_host = gpus
    job = start(cluster, of_host)
    of_host[2].reports("hang")
    begin = time.monotonic()
    kill_rank(cluster.nodes[2])
    job.wait_for("attempt 1 of 3", count=3, timeout=40)
    took = time.monotonic() - begin
    assert "dtrain: node2 is left out while others suffice: GPU 0 cannot be used any more: NVIDIA's driver (NVML) does " \
           "not answer" in job.err, job.err
    assert took < 15, (took, job.err)
    end(job)


# When that is known before, nothing is waited for.
def test_a_driver_that_has_hung_for_long_delays_nothing(gpus):
    cluster, of_host = gpus
    job = start(cluster, of_host)
    of_host[2].reports("hang")
    time.sleep(24)  # more than two of its samples, which nothing else tells
    begin = time.monotonic()
    kill_rank(cluster.nodes[2])
    job.wait_for("attempt 1 of 3", count=3, timeout=40)
    took = time.monotonic() - begin
    assert "node2 is left out" in job.err and took < 8, (took, job.err)
    end(job)


def phase(cluster, job):
    told = cluster.head.run([cluster.programs / "dtrain", "ps", "--json"]).stdout
    return next(each["phase"] for each in json.loads(told)["jobs"] if each["id"] == job.id)


# The launcher that has heard of it is gone, and so is the one after it.
@pytest.mark.launcher_killed
def test_the_next_launcher_knows_it(gpus):
    cluster, of_host = gpus
    agents = [Resident(host, env=ENV).start() for host in cluster.nodes]
    try:
        job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "--", *LIVES])
        wait_until(lambda: all(gpu.watches() == 1 for gpu in of_host), 20, lambda: job.log)
        of_host[2].reports("xid 79")
        wait_until(lambda: FELL_OFF in job.log, 20, lambda: job.log)
        job.kill_launcher()
        taken = job.start_launcher()
        # Its agent says it again, and the journal has it.
        wait_until(lambda: FELL_OFF in taken.err, 20, lambda: taken.err)
        kill_rank(cluster.nodes[2])
        wait_until(lambda: LEFT_OUT in taken.err, 30, lambda: taken.err)
        wait_until(lambda: b"attempt 1 of 3" in job.output(0, attempt=1), 30, lambda: taken.err)
        # A launcher that ends before all workers run has the attempt started again, which is none of the restarts.
        wait_until(lambda: phase(cluster, job) == "run", 30, lambda: taken.err)
        job.kill_launcher()
        third = job.start_launcher()
        kill_rank(cluster.nodes[0])
        wait_until(lambda: b"attempt 2 of 3" in job.output(0, attempt=2), 30, lambda: third.err)
        shown = cluster.head.run([cluster.programs / "dtrain", "show", job.id]).stdout
        assert f"GPU 0 on node2 {FELL_OFF[6:]}" in (shown if isinstance(shown, str) else shown.decode()), shown
        job.stop()
        causes = [each["cause"] for each in job.wait(20)["attempts"]]
        assert f"GPU 0 on node2 {FELL_OFF[6:]}" in causes[0], causes
    finally:
        for agent in agents:
            agent.stop()
