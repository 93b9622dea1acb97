# SPDX-License-Identifier: Apache-2.0
"""Mallory has a job of the name of alice's, on the same node, in a container as hers is. Docker's daemon has the
containers of all users, and anybody who may ask it removes any of them. When mallory's job ends, hers alone goes."""
import shutil

import pytest

from launching import wait_until
from mallory import ALICE, MALLORY, RANKS, AlicesJob, place  # noqa: F401 - a fixture
from test_attacks_orders import Sessions, jobs_of

IMAGE = "of-both"
STORE = "/run/docker"
# Stands in for docker: a name is taken once among all users, and a client that is killed leaves its container.
DOCKER = f"""#!/bin/sh
printf '%s\\n' "$*" >>{STORE}/calls
case $1 in
  run)
    while [ "$1" != --name ]; do shift; done
    name=$2
    mkdir "{STORE}/$name" || exit 125
    while [ "$1" != {IMAGE} ]; do shift; done
    shift
    "$@"
    code=$?
    rmdir "{STORE}/$name"
    exit $code ;;
  rm)
    shift 2
    for name; do rmdir "{STORE}/$name"; done ;;
esac
"""


@pytest.fixture
def alices_job(place):  # noqa: F811
    programs = place.node.base / "docker"
    programs.mkdir()
    (programs / "docker").write_text(DOCKER)
    (programs / "docker").chmod(0o755)
    # Shepherds look there first.
    place.node.run(["mount", "--bind", programs, "/usr/local/bin"])
    store = place.node.path(STORE)
    store.mkdir()
    store.chmod(0o777)
    (store / "calls").touch()
    (store / "calls").chmod(0o666)
    job = AlicesJob(place, "--container", IMAGE, "--container-runtime", "docker")
    yield job
    job.check()
    shutil.rmtree(store)


def containers(place):  # noqa: F811
    return {path.name for path in place.node.path(STORE).iterdir() if path.is_dir()}


def test_a_job_of_the_same_name_has_containers_of_its_own(place, alices_job):  # noqa: F811
    [job] = jobs_of(place, "alice")
    alices = {f"dtrain-{ALICE}.{job}.0.{rank}" for rank in range(RANKS)}
    mallorys = f"dtrain-{MALLORY}.{job}.0.0"
    assert containers(place) == alices
    session = Sessions(place, 1, "contained", job, IMAGE)
    try:
        assert session.began == ["joined"], place.agent.log
        wait_until(lambda: mallorys in containers(place), 30, lambda: f"{containers(place)}\n{place.agent.log}")
    finally:
        session.end()
    # Her lease ends it.
    wait_until(lambda: not jobs_of(place, "mallory"), 90, lambda: place.agent.log)
    assert containers(place) == alices
    calls = (place.node.path(STORE) / "calls").read_text().splitlines()
    assert {line for line in calls if line.startswith("rm ")} == {f"rm --force {mallorys}"}, calls
