# SPDX-License-Identifier: Apache-2.0
"""Mallory says that SIGKILL does not end her processes, or makes it look so. The node takes jobs as
before."""
import time

import pytest

from mallory import alices_job, place  # noqa: F401 - fixtures


@pytest.mark.parametrize("how", ["say", "respawn"])
def test_only_what_was_killed_and_stays_quarantines_a_node(place, alices_job, how):  # noqa: F811
    attack = place.start_attack("stay.py", how)
    assert attack.stdout.readline().strip() in ("said", "respawns")
    end = time.monotonic() + 6  # longer than the agent waits for anybody
    while time.monotonic() < end:
        result = place.start_launch("--", "echo", "fine", user="alice").wait(30)
        assert result.code == 0, (result, place.agent.log)
        assert "quarantined" not in place.agent.log, place.agent.log
    place.end_attack("stay.py", attack, 60)
