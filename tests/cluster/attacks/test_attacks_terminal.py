# SPDX-License-Identifier: Apache-2.0
"""Root looks, on a terminal, at what mallory's job has written: nothing of it may reach the terminal but text."""
import json

import launching
from mallory import DTRAIN, alices_job, place  # noqa: F401 - fixtures
from terminal import Terminal

# The title, a request for a termcap string, the cursor's place, 8-bit CSI, and text that is turned around.
EVIL = r"\033]0;owned\007 \033P+q544e\033\\ \033[6n \302\2332J \342\200\256txt.exe end\n"


def test_output_of_another_user_is_text(place, alices_job):  # noqa: F811
    launch = place.start_launch("--", "sh", "-c", f"printf '{EVIL}'; exec sleep 600")
    terminal = Terminal(place.node)
    try:
        def jobs():
            told = place.node.run([DTRAIN, "nodes", "--json", "-H", "node0"]).stdout
            return [job for node in json.loads(told)["nodes"] for job in node.get("jobs", ())]

        launching.wait_until(lambda: any(job["owner"] == "mallory" for job in jobs()), 30, jobs)
        job = next(job["id"] for job in jobs() if job["owner"] == "mallory")
        command = f"{DTRAIN} logs --rank 0 -H node0 {job}"
        launching.wait_until(lambda: " end" in terminal.run(command)[1], 30, lambda: terminal.shown)
        code, shown = terminal.run(command)
        assert code == 0
        assert shown == (r"\x1b]0;owned\x07 \x1bP+q544e\x1b\ \x1b[6n \xc2\x9b2J \xe2\x80\xaetxt.exe end" "\n")
        # Elsewhere it is as it was written.
        code, shown = terminal.run(f"{command} | od -An -c | head -1")
        assert "033   ]   0   ;" in shown
    finally:
        terminal.close()
        launch.signal(15)
        assert launch.wait(30).code == 143
