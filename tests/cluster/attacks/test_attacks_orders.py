# SPDX-License-Identifier: Apache-2.0
"""Mallory has sessions with the name of alice's job, which anyone may read: for the attempt that runs and for the
next. Alice's job is restarted, seen and ended as ever. And she has sessions of her own that want all ports, and
launchers that come back for jobs that there are not."""
import json
import subprocess
import time

import pytest

import hosts
from launching import wait_until
from mallory import DTRAIN, HERE, alices_job, place  # noqa: F401 - fixtures
from residents import STATE
from test_abuse import cpu_seconds

FAIL = "/run/fail"
TWICE = (f"echo begin $DTRAIN_ATTEMPT; until [ -e {FAIL}$DTRAIN_ATTEMPT ]; do sleep 0.05; done; "
         "exit $((1 - DTRAIN_ATTEMPT))")


class Sessions:
    """Of mallory's, as crowd.py has them. `began`: its first lines."""

    def __init__(self, place, count, mode, *args):  # noqa: F811
        build = place.node.run([DTRAIN.with_name("dtrain-agent"), "version"]).stdout.split()[1]
        self._process = place.popen(["/usr/bin/python3", "-I", HERE / "crowd.py", mode, f"{STATE}/agent.sock", build,
                                     *map(str, args)],
                                    text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.began = [self._process.stdout.readline().strip() for _ in range(count)]

    def end(self):
        self._process.stdin.close()
        assert self._process.wait(20) == 0
        self._process.stdout.close()


@pytest.fixture
def twice(place):  # noqa: F811
    """A job of alice's that fails once, and mallory's namesakes."""
    before = jobs_of(place, "alice")
    launch = place.start_launch("--max-restarts", "1", "--", "sh", "-c", TWICE, user="alice")
    launch.wait_for("begin 0", count=2)
    [job] = jobs_of(place, "alice") - before
    namesakes = Sessions(place, 2, "namesakes", job, 0, 1)
    assert namesakes.began == ["joined"] * 2, place.agent.log
    yield launch, job
    namesakes.end()
    for attempt in (0, 1):
        place.node.path(f"{FAIL}{attempt}").unlink(missing_ok=True)


def jobs_of(place, owner):  # noqa: F811
    told = json.loads(place.node.run([DTRAIN, "nodes", "--json", "-H", "node0"]).stdout)
    return {job["id"] for node in told["nodes"] for job in node["jobs"] if job["owner"] == owner}


def ask(place, path, user):  # noqa: F811
    """(status, answer) of the agent, for a user of the node."""
    asked = place.popen(["curl", "-sS", "-w", "\n%{http_code}", "--unix-socket", f"{STATE}/http.sock",
                         f"http://localhost{path}"], user=user, text=True, stdout=subprocess.PIPE)
    body, _, status = asked.communicate(timeout=30)[0].rpartition("\n")
    return int(status), json.loads(body)


def test_a_restart_is_not_kept_from_its_name(place, twice):  # noqa: F811
    launch, job = twice
    place.node.path(f"{FAIL}0").touch()
    launch.wait_for("begin 1", count=2)
    # The next agent finds the job by what this one has written down.
    place.agent.kill()
    place.agent.start()
    status, seen = ask(place, f"/v1/jobs/{job}", "alice")
    assert status == 200 and (seen["owner"], seen["attempt"]) == ("alice", 1), seen
    place.node.path(f"{FAIL}1").touch()
    result = launch.wait(40)
    assert result.code == 0, (result, place.agent.log)


def test_each_sees_and_ends_its_own(place, alices_job, twice):  # noqa: F811
    launch, job = twice
    for user in ("alice", "mallory"):
        status, seen = ask(place, f"/v1/jobs/{job}", user)
        assert status == 200 and seen["owner"] == user, seen
    assert ask(place, f"/v1/jobs/{job}?owner=alice", "mallory")[0] == 403
    # Root may see both, and is asked which it means.
    show = [DTRAIN, "status", "--json", "-H", "node0"]
    told = place.node.run([*show, job], check=False)
    assert told.returncode == 2 and f"alice/{job}, mallory/{job}" in told.stderr, told
    told = place.node.run([*show, f"alice/{job}"])
    assert json.loads(told.stdout)["job"]["owner"] == "alice", told
    told = place.node.run([DTRAIN, "stop", "-H", "node0", f"mallory/{job}"], check=False)
    wait_until(lambda: job not in jobs_of(place, "mallory"), 30, lambda: (told, place.agent.log))
    assert job in jobs_of(place, "alice") and launch.process.poll() is None, launch.out
    told = place.node.run([DTRAIN, "stop", "-H", "node0", job])
    assert launch.wait(30).code != 0


def test_one_user_does_not_hold_all_ports(place, alices_job):  # noqa: F811
    sessions = Sessions(place, 6, "ports", 6)
    try:
        assert sessions.began == ["held"] * 2 + ["refused"] * 4, (sessions.began, place.agent.log)
        result = place.start_launch("--", "echo", "fine", user="alice").wait(30)
        assert result.code == 0, (result, place.agent.log)
    finally:
        sessions.end()
    wait_until(lambda: not jobs_of(place, "mallory"), 30, lambda: place.agent.log)  # its lease


# The agent looked at all processes of the node for each of them.
def test_jobs_that_are_not_there_cost_a_part_of_the_agents_time(place, alices_job):  # noqa: F811
    sessions = Sessions(place, 1, "resumes", 1000, 24)
    try:
        assert sessions.began == ["asking"], place.agent.log
        begin, used, slowest = time.monotonic(), cpu_seconds(place.agent.pid), 0
        while time.monotonic() < begin + 5:
            asked = time.monotonic()
            assert ask(place, "/healthz", "alice") == (200, {"status": "ok"}), place.agent.log
            slowest = max(slowest, time.monotonic() - asked)
        part = (cpu_seconds(place.agent.pid) - used) / (time.monotonic() - begin)
        assert slowest < 1, (slowest, part)
        assert part < 0.5 or hosts.is_sanitized(), (slowest, part)
    finally:
        sessions.end()
