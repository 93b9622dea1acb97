# SPDX-License-Identifier: Apache-2.0
"""The cgroup of a job is its user's, and the kernel keeps each that she makes below it."""
import pytest

from mallory import HERE, alices_job, place  # noqa: F401 - fixtures

COUNT = 3000


def test_cgroups_without_end(place, alices_job):  # noqa: F811
    if place.node.cgroup_dir is None:
        pytest.skip("no cgroup v2 here")
    result = place.start_launch("--tag-output", "none", "--", "/usr/bin/python3", "-I",
                                HERE / "make_cgroups.py", COUNT, user="mallory").wait(120)
    assert result.code == 0, result
    for line in [line for line in result.lines if line.startswith("made ")]:
        _, depth, why_deep, count, why_wide = line.split()
        assert int(depth) <= 12 and int(count) <= 1000, line
        assert why_deep == why_wide == "EAGAIN", line
