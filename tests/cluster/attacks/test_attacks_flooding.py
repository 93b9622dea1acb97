# SPDX-License-Identifier: Apache-2.0
"""Mallory's shepherd says more than anybody reads. The agent keeps a bounded part of it."""
import pytest

import hosts
from launching import wait_until
from mallory import alices_job, place  # noqa: F401 - fixtures
from test_abuse import MIB
from test_attacks_crowds import Peak, resident_bytes

SAID = 700


@pytest.mark.parametrize("how", ["read", "unread"])
def test_what_a_shepherd_says_is_not_kept_without_end(place, alices_job, how):  # noqa: F811
    before = resident_bytes(place.agent.pid)
    with Peak(place.agent.pid) as peak:
        # The shepherd's own words may come between the attacker's, which ends the job at once.
        for _ in range(5):
            taken = int(place.attack("flood.py", SAID, how).split()[-1])
            if taken > 300:
                break
    # The socket took more than the agent may have of it: else the attack is none.
    assert taken > 300, taken
    if not hosts.is_sanitized():
        assert peak.memory - before < 280 * MIB, f"{(peak.memory - before) / MIB:.0f} MiB more"
    result = place.start_launch("--", "echo", "fine", user="alice").wait(30)
    assert result.code == 0, (result, place.agent.log)
    # Mallory's jobs were cut off from their launchers: they end with their leases.
    wait_until(lambda: len(place.agent.jobs()) == 1, 40, lambda: place.agent.log)
