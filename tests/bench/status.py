# SPDX-License-Identifier: Apache-2.0
"""What status requests cost: a thousand a second, half of them on a unix socket and half on a loopback
port, while four ranks write as fast as they can: of the launcher, with a rank on each of four hosts with
resident agents, and of an agent, on whose host all four are. Every byte that they wrote must arrive."""
import json
import os
import re
import subprocess
import sys
import threading

from compare import hosts, parser, save, table, verdict

import launching
import resident_hosts
from residents import STATE

RANKS = 4
RATE = 1000
CONNECTIONS = 16  # of each kind
# Writes until it is told to stop, then tells how much that was.
WRITER = """
import os
block = b"".join(b"%099d\\n" % i for i in range(1000))
written = 0
while not os.path.exists("/root/work/stop"):
    left = memoryview(block)
    while left:
        count = os.write(1, left)
        left, written = left[count:], written + count
with open("/root/work/written." + os.environ["RANK"], "w") as told:
    told.write(str(written))
"""


class Flood:
    """The job, RANKS of them on these nodes, and who reads its output."""

    def __init__(self, cluster, nodes):
        self._cluster = cluster
        self._folders = [cluster.work(node) for node in nodes]
        for folder in self._folders:
            for old in [*folder.glob("stop"), *folder.glob("written.*")]:
                old.unlink()
        out, self._in = os.pipe()
        self.arrived = 0
        self._reader = threading.Thread(target=self._count, args=(out,))
        self._reader.start()
        self.launch = launching.Launch(
            cluster.head, [*resident_hosts.by_tcp(cluster, RANKS // len(nodes), nodes),
                           "--tag-output", "none",
                           "--status-listen", "0", "--", "/usr/bin/python3", "-I", "-c", WRITER],
            stdout=self._in)
        os.close(self._in)

    def _count(self, fd):
        buffer = bytearray(1 << 20)
        while count := os.readv(fd, [buffer]):
            self.arrived += count
        os.close(fd)

    def wait_until_it_flows(self):
        launching.wait_until(lambda: self.arrived > 10_000_000, 60, lambda: self.launch.err)

    def address(self):
        """(job, port, token)"""
        self.launch.wait_for("token in", stream="err")
        port, job, path = re.search(r"127\.0\.0\.1:(\d+)/v1/jobs/(\S+), token in (\S+)",
                                    self.launch.err).groups()
        return job, int(port), self._cluster.head.path(path).read_text().strip()

    def finish(self):
        """Bytes that the ranks wrote; they have ended."""
        for folder in self._folders:
            (folder / "stop").touch()
        result = self.launch.wait(120)
        self._reader.join()
        if result.code != 0:
            sys.exit(f"the job failed: {result}")
        told = [told for folder in self._folders for told in folder.glob("written.*")]
        if len(told) != RANKS:
            sys.exit(f"only {len(told)} ranks told what they wrote")
        return sum(int(one.read_text()) for one in told)


def of_launcher(cluster, flood):
    """The host where to ask, and what."""
    job, port, token = flood.address()
    base = f"/v1/jobs/{job}"
    return cluster.head, {
        "socket": f"/run/dtrain/{job}.sock", "tcp": ["127.0.0.1", port], "token": token,
        "paths": [base, f"{base}/ranks", "/metrics", "/v1/jobs", "/v1/nodes", "/healthz"]}


def of_agent(agent, flood):
    base = f"/v1/jobs/{flood.address()[0]}"
    [port] = re.findall(r"status on http://127\.0\.0\.1:(\d+)/", agent.log)
    return agent.host, {
        "socket": f"{STATE}/http.sock", "tcp": ["127.0.0.1", int(port)],
        "token": agent.host.path(f"{STATE}/http.token").read_text().strip(),
        "paths": [base, f"{base}/ranks", "/metrics", "/v1/jobs", "/v1/node", "/healthz"]}


def ask(where, seconds):
    host, spec = where
    spec = {**spec, "rate": RATE, "seconds": seconds, "connections": CONNECTIONS}
    load = host.popen(
        ["/usr/bin/python3", "-I", resident_hosts.HERE / "status_load.py", json.dumps(spec)],
        stdout=subprocess.PIPE, text=True)
    out, _ = load.communicate()
    if load.returncode != 0:
        sys.exit("the load generator failed")
    return json.loads(out)


def part(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000


def main():
    options = parser(rounds=1)
    options.add_argument("--seconds", type=int, default=10)
    options = options.parse_args()
    rows, checks, kept = [], [], []
    flags = ["--status-listen", "127.0.0.1:0"]
    with hosts.Cluster(4) as cluster, resident_hosts.agents(cluster, flags) as agents:
        for number in range(options.rounds):
            for who in ("launcher", "agent"):
                flood = Flood(cluster, cluster.nodes if who == "launcher" else cluster.nodes[:1])
                flood.wait_until_it_flows()
                where = of_launcher(cluster, flood) if who == "launcher" else of_agent(agents[0], flood)
                before = flood.arrived
                told = ask(where, options.seconds)
                speed = (flood.arrived - before) / options.seconds / 1e6
                lost = flood.finish() - flood.arrived
                times = told["seconds"]
                rows.append((f"{who}, round {number + 1}", len(times), len(told["errors"]),
                             *(f"{part(times, share):.1f}" for share in (0.5, 0.99, 0.999)),
                             f"{part(told['served'], 0.99):.1f}", f"{speed:.0f}", lost))
                checks += [verdict(f"{who}: requests without a good answer",
                                   RATE * options.seconds - len(times) + len(told["errors"]), 0),
                           verdict(f"{who}: p99 of a status request, ms", part(times, 0.99), 50),
                           verdict(f"{who}: bytes of the logs that are missing", abs(lost), 0)]
                kept.append({"of": who, **told, "log_mb_s": speed, "lost": lost})
    table(f"{RATE} status requests a second for {options.seconds} s while four ranks flood their logs",
          ("", "answers", "errors", "p50 ms", "p99", "p99.9", "p99 once sent", "logs MB/s",
           "bytes lost"), rows)
    save(options, {"status": kept, "checks": checks})
    if not all(check["met"] for check in checks):
        sys.exit(1)


main()
