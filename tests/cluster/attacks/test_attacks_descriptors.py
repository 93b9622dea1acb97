# SPDX-License-Identifier: Apache-2.0
"""A process that the agent makes for mallory has been root's a moment ago. She takes what it has."""
import re

from mallory import alices_job, place  # noqa: F401 - fixtures

LAUNCHES = 200
AT_LEAST = 50  # processes that were looked into: else the attack is none


def test_no_descriptor_leads_to_somebody_else(place, alices_job):  # noqa: F811
    before = alices_job.lines()
    told = place.attack("take_descriptors.py", LAUNCHES, place.pid_there(place.agent.pid), timeout=400)
    *found, last = told.splitlines()
    taken, processes, failed = map(int, re.findall(r"\d+", last))
    assert not found, told
    assert failed == 0 and processes >= AT_LEAST and taken > processes, told
    assert alices_job.lines() > before
