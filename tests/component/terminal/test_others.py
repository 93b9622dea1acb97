# SPDX-License-Identifier: Apache-2.0
"""Another user's job on our terminal: nothing of its output is obeyed unless that is asked for."""
import os
import subprocess

import pytest
from conftest import BIN

OUTPUT = r"\033[31mred\033[0m \033]0;title\007 \342\200\256abc\nopen"
SHOWN = r"\x1b[31mred\x1b[0m \x1b]0;title\x07 \xe2\x80\xaeabc"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A detached job, whose folder is another user's now."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    launched = subprocess.run([BIN / "dtrain", "launch", "-d", "-np", "1", "--", "printf", OUTPUT], check=True,
                              capture_output=True, text=True).stdout.strip()
    subprocess.run([BIN / "dtrain", "wait", launched], check=True, capture_output=True, timeout=60)
    subprocess.run(["chown", "-R", "nobody", tmp_path / "dtrain/jobs" / launched], check=True)
    return launched


def test_logs_and_attach_show_escapes_as_text(screens, job):
    for command in ("logs", "attach"):
        screen = screens([job], command=command)
        assert screen.end() == 0
        assert [SHOWN, "open"] == screen.lines[:2], screen.lines
        assert b"\033" not in screen.raw, bytes(screen.raw)


def test_logs_raw_and_pipes_have_the_bytes(screens, job):
    screen = screens(["--raw", job], command="logs")
    assert screen.end() == 0
    assert b"\033[31mred\033[0m \033]0;title\007 \xe2\x80\xaeabc\r\nopen" in screen.raw
    piped = subprocess.run([BIN / "dtrain", "logs", job], check=True, capture_output=True).stdout
    assert piped == b"\033[31mred\033[0m \033]0;title\007 \xe2\x80\xaeabc\nopen"


def test_json_has_nothing_that_a_terminal_obeys(screens, job):
    screen = screens(["--json", job], command="logs", columns=200)
    assert screen.end() == 0
    assert b"\033" not in screen.raw and "\u202e".encode() not in screen.raw and b"\\u202e" in screen.raw
