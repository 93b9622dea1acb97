# SPDX-License-Identifier: Apache-2.0
"""What is shown of a job that has had several launchers, and when it has ended."""
import json
import os
import re
import signal
import time

import pytest

from detached import launch
from launching import wait_until
from test_detached import COUNTS, FLAGS, ended, residents, state  # noqa: F401
from test_supervised import kill_and_wait, run

SUCCEEDS = [*COUNTS[:2], COUNTS[2].replace("exit $((CODE + RANK))", "exit 0")]


@pytest.mark.launcher_killed
def test_times_are_those_of_the_job_and_not_of_its_launcher(cluster, residents, ended):  # noqa: F811
    job = launch(cluster, [*FLAGS, "--max-restarts", 1, *cluster.hosts_flag(1), "--", *SUCCEEDS])
    runs_since = time.monotonic()
    time.sleep(4)  # more than what follows takes
    runs = time.monotonic() - runs_since
    kill_and_wait(job, 2)
    told = wait_until(lambda: json.loads(run(cluster, "ps", "--json").stdout)["jobs"], 10, "no job")[0]
    ended()
    summary = job.wait(20)
    assert summary["attempts"][0]["ran_s"] > runs, summary["attempts"]
    assert told["seconds"] > runs, told
    assert re.search(r"attempt 0, ran ([4-9]|[1-9][0-9])\.[0-9]+ s: succeeded", run(cluster, "show", job.id).stdout)


def test_a_job_that_has_ended_can_be_removed(cluster, residents):  # noqa: F811
    job = launch(cluster, ["--on-end", "sleep 1", *cluster.hosts_flag(1), "--", "true"])
    assert run(cluster, "wait", job.id).returncode == 0
    assert "controlled by" not in run(cluster, "show", job.id).stdout
    run(cluster, "rm", job.id)
    assert not job.folder.exists()
    wait_until(lambda: job.launcher is None and job.minder is None, 10, "a launcher stays")


def test_who_launched_it(cluster, residents):  # noqa: F811
    job = launch(cluster, [*cluster.hosts_flag(1), "--", "true"])
    job.wait(10)
    assert json.loads(run(cluster, "show", "--json", job.id).stdout)["user"] == "root"


def test_that_it_was_stopped_is_known_later(cluster, residents, ended):  # noqa: F811
    job = launch(cluster, [*FLAGS, *cluster.hosts_flag(1), "--", *SUCCEEDS])
    assert job.stop().returncode == 0
    job.wait(10)
    assert json.loads(run(cluster, "show", "--json", job.id).stdout).get("stop"), "a SIGTERM of anybody"
