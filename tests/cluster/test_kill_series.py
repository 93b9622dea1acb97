# SPDX-License-Identifier: Apache-2.0
"""A short run of `tools/chaos kills`: spawner, agent, shepherd and launcher are killed twice each."""
import os
import subprocess

import hosts

KILLS = hosts.SOURCE_DIR / "tests/chaos/kills.py"


def test_each_is_killed_twice():
    seed = os.environ.get("DTRAIN_SEED")
    done = subprocess.run(["/usr/bin/python3", "-B", KILLS, "--kills", "2", *(["--seed", seed] if seed else [])],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no violation after" in done.stdout
