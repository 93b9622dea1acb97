# SPDX-License-Identifier: Apache-2.0
"""What ranks of dtrain.run() can do to the terminal of the program that called it. Needs no numpy."""
import os
import pty
import random
import re
import subprocess
import sys

import pytest

from dtrain import _frames, _terminal

# As tests/unit/output/terminal_text_test.cc has them: both follow the same rules.
SHOWN = [
    (b"", b""), (b"plain a\tb back\\slash", b"plain a\tb back\\slash"),
    ("héllo ✓ 🚀 你".encode(), "héllo ✓ 🚀 你".encode()),
    (b"\33[31mred\33[0m", b"\33[31mred\33[0m\33[0m"), (b"\33[1;38:5:9mx", b"\33[1;38:5:9mx\33[0m"),
    (b"\33[mx\33[K", b"\33[mx\33[K\33[0m"),
    (b"\33]52;c;aGk=\7", b"\\x1b]52;c;aGk=\\x07"), (b"\33]0;title\33\\", b"\\x1b]0;title\\x1b\\"),
    (b"\33[2J\33[H", b"\\x1b[2J\\x1b[H"), (b"\33[A\33[2K", b"\\x1b[A\\x1b[2K"),
    (b"\33[>4m\33[?25l", b"\\x1b[>4m\\x1b[?25l"), (b"\33c\33P+q\33\\", b"\\x1bc\\x1bP+q\\x1b\\"),
    (b"a\bb\16\177", b"a\\x08b\\x0e\\x7f"), (b"\0\v\f", b"\\x00\\x0b\\x0c"),
    (b"\2332J", b"\\x9b2J"), (b"\302\2332J", b"\\xc2\\x9b2J"), (b"\340\202\2332J", b"\\xe0\\x82\\x9b2J"),
    (b"\360\200\202\233", b"\\xf0\\x80\\x82\\x9b"), (b"\33\302\233", b"\\x1b\\xc2\\x9b"),
    (b"a\342\200\256b", b"a\\xe2\\x80\\xaeb"), (b"\342\201\247", b"\\xe2\\x81\\xa7"),
    (b"\342\200\251 \342\201\252", b"\342\200\251 \342\201\252"),
    (b"\r 10%\r 20%", b"\r[3]  10%\r[3]  20%"), (b"ok\r[0] faked", b"ok\r[3] [0] faked"),
    (b"a\r\r\rb", b"a\r[3] b"), (b"windows\r", b"windows\r"), (b"\33[7mx\ry", b"\33[7mx\33[0m\r[3] y"),
    (b"\33", b"\\x1b"), (b"\33[", b"\\x1b["), (b"\33[3", b"\\x1b[3"), (b"\33[31;", b"\\x1b[31;"), (b"31mx", b"31mx"),
]


@pytest.mark.parametrize("line,shown", SHOWN, ids=repr)
def test_a_line_is_shown_by_the_rules_of_the_launcher(line, shown):
    assert _terminal.line(line, b"[3] ") == b"[3] " + shown
    assert _terminal.lines(b"[3] " + line + b"\nnext\n", _frames.TAG) == b"[3] " + shown + b"\nnext\n"


def test_nothing_unsafe_is_left_of_any_bytes():
    alphabet = b"\33[]0;52mKJ?>\r\n\t\b\7\233\302\240\303\251\342\234\223\\Px\0"
    source = random.Random(20261121)
    for _ in range(2000):
        data = bytes(source.choices(alphabet, k=source.randrange(60)))
        for shown in (_terminal.lines(data, _frames.TAG).decode(errors="replace"),
                      _terminal.words(data.decode(errors="replace"))):
            rest = re.sub(r"\x1b\[[0-9;:]*[mK]", "", shown)
            assert not re.search(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", rest), data


def test_an_exceptions_text_keeps_its_lines():
    text = "ValueError: a\nb \33[1mc\33[2J\rd\n"
    assert _terminal.words(text) == "ValueError: a\nb \33[1mc\\x1b[2J\33[0m\nd\n"
    assert _terminal.words("plain") == "plain" and _terminal.words("") == "" and _terminal.words("\ud800") == "\ufffd" * 3


def test_a_rank_cannot_begin_a_line_of_another_or_of_the_launcher():
    marker = "\x1edtrain-0123"
    text = _frames.speaker(1, 70)
    frame = b"".join(_frames.lines(marker, text, b"logged\r[0] text"))
    data = b"[1] 10%\r" + frame + b"[0] next\n[1] \rdtrain: faked\n"
    for cut in (1, 7, len(data)):
        pieces = [data[i : i + cut] for i in range(0, len(data), cut)]
        collector = _frames.Collector(marker, whole=True)
        shown = b"".join(_terminal.lines(collector.feed(piece), _frames.TAG) for piece in pieces)
        assert shown + collector.finish() == (
            b"[1] 10%\r\n[1] logged\n[1] [0] text\n[0] next\n[1] \r[1] dtrain: faked\n")
        errors = _frames.LaunchersLines()
        assert b"".join(map(errors.feed, pieces)) + errors.finish() == b""


PROGRAM = """
import os, sys
import dtrain
def talks():
    import os, sys
    evil = chr(27) + "]0;title" + chr(7) + chr(27) + "[2J"
    print("out" + evil + chr(27) + "[31mred")
    print("err" + evil, file=sys.stderr)
    print("ok" + chr(13) + "[9] faked", flush=True)
    dtrain.log_to_driver("logged" + evil)
    if os.environ["DTRAIN_RANK"] == os.environ["FAILS"]:
        raise ValueError("raised" + evil)
how, np, fails = sys.argv[1:]
if how == "run":
    dtrain.run(talks, np=int(np), env={"FAILS": fails})
else:
    runner = dtrain.HorovodRunner(np=int(np), driver_log_verbosity="log_callback_only", env={"FAILS": fails})
    runner.run(talks)
"""


def on_a_terminal(path, *words):
    """What the program writes to its terminal, and its exit code."""
    path.write_text(PROGRAM)
    ours, theirs = pty.openpty()
    program = subprocess.Popen([sys.executable, path, *map(str, words)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # EIO: nobody has the other end any more
            piece = b""
        if not piece:
            break
        written += piece
    os.close(ours)
    return written.replace(b"\r\n", b"\n"), program.wait(60)


EVIL = rb"\x1b]0;title\x07\x1b[2J"


def test_ranks_that_share_a_terminal_fill_their_own_lines_only(tmp_path):
    written, code = on_a_terminal(tmp_path / "main.py", "run", -2, "none")
    assert code == 0, written
    for rank in (b"[0] ", b"[1] "):
        for line in (b"out" + EVIL + b"\33[31mred\33[0m", b"err" + EVIL, b"ok\r" + rank + b"[9] faked", b"logged" + EVIL):
            assert rank + line + b"\n" in written, (rank + line, written)
    assert b"\7" not in written and b"\33]" not in written and b"\33[2J" not in written


@pytest.mark.parametrize("how,np", [("run", -2), ("runner", 2), ("run", -1)])
def test_a_failure_is_shown_without_what_would_take_over_the_terminal(tmp_path, how, np):
    written, code = on_a_terminal(tmp_path / "main.py", how, np, 0)
    assert code == 1
    assert b"RemoteError: rank 0: ValueError: raised" + EVIL in written, written
    if np != -1:
        assert b"[0] logged" + EVIL + b"\n" in written
        assert b"\7" not in written and b"\33]" not in written and b"\33[2J" not in written


def test_a_lone_rank_has_the_terminal(tmp_path):
    written, code = on_a_terminal(tmp_path / "main.py", "run", -1, "none")
    assert code == 0 and b"out\33]0;title\7\33[2J\33[31mred\n" in written, written
