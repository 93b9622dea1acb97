# SPDX-License-Identifier: Apache-2.0
"""Lines that have no end yet: progress bars and prompts of several ranks, on a terminal and in a pipe."""
import re
import signal
import subprocess

from conftest import BIN

BAR = """
for i in range(1, 1000):
    sys.stderr.write(f"\\rstep {i} of rank {rank} ")
    if os.path.exists(f"{folder}/enough"):
        break
    time.sleep(0.02)
"""


def test_a_bar_stands_in_place_below_the_lines_that_scroll(screens, program, allow):
    screen = screens(["-np", 2, "--", *program("""
if rank == 1:
    for i in range(40):
        print("line", i)
        time.sleep(0.02)
    wait_for("enough")
else:""" + BAR.replace("\n", "\n    ") + """
    sys.stderr.write("\\rall done\\033[K\\n")
""")])
    screen.wait_for(lambda: "[1] line 39" in screen.text and screen.shown[-1].startswith("[0] step "))
    seen = screen.shown[-1]
    screen.wait_for(lambda: screen.shown[-1] != seen)
    allow("enough")
    assert screen.end() == 0
    assert sorted(screen.lines) == sorted([*(f"[1] line {i}" for i in range(40)), "[0] all done"])


def test_each_rank_has_a_row_and_in_a_small_window_rank_0_and_a_count(screens, program, allow):
    screen = screens(["-np", 4, "--", *program(BAR)])
    rows = [re.compile(rf"\[{rank}\] step \d+ of rank {rank}$") for rank in range(4)]

    def all_stand():
        at = next((y for y, row in enumerate(screen.shown) if rows[0].match(row)), None)
        return at is not None and all(rows[i].match(screen.shown[min(at + i, 23)]) for i in range(4))
    screen.wait_for(all_stand)
    screen.resize(20, 3)
    screen.wait_for(lambda: "(and 3 more ranks)" in screen.text and screen.text.count(" step ") == 1)
    screen.resize(80, 24)
    screen.wait_for(all_stand)
    allow("enough")
    assert screen.end() == 0
    last = [next(row for row in reversed(screen.lines) if rows[rank].match(row)) for rank in range(4)]
    assert len(set(last)) == 4


def test_a_prompt_is_seen_at_once_and_answered_while_others_talk(screens, program, allow):
    screen = screens(["-np", 2, "--", *program("""
if rank == 0:
    name = input("Name? ")
    again = input("Again? ")
    print("hello", name, again)
    open(f"{folder}/enough", "w").close()
else:
    i = 0
    while not os.path.exists(f"{folder}/enough"):
        i += 1
        print("talk", i)
        time.sleep(0.05)
""")])
    screen.wait_for(lambda: any(row == "[0] Name?" for row in screen.shown) and "talk" in screen.text)
    # What is typed while a row is drawn is echoed into that row.
    def stands_at(prompt):
        return screen.shown[screen.cursor[1]] == prompt and screen.cursor[0] == len(f"{prompt} ")
    screen.wait_for(lambda: stands_at("[0] Name?"))
    screen.type("bob\n")
    screen.wait_for(lambda: stands_at("[0] Again?"))
    screen.type("yes\n")
    assert screen.end() == 0
    assert "[0] hello bob yes" in screen.lines
    rows = re.compile(r"\[1\] talk \d+|\[0\] (Name\?|Again\?)( \w*)?|\[0\] hello bob yes|bob|yes")
    assert [row for row in screen.lines if not rows.fullmatch(row)] == []


def test_what_stands_at_the_end_stays_above_the_report(screens, program, allow):
    screen = screens(["-np", 2, "--", *program("""
print("\\rhalf \\033[32mdone\\033[0m", end="")
sys.stdout.flush()
wait_for("enough")
sys.exit(rank * 3)
""")])
    screen.wait_for(lambda: all(f"[{rank}] half done" in screen.text for rank in range(2)))
    allow("enough")
    assert screen.end() == 3
    lines = screen.lines
    assert {"[0] half done", "[1] half done"} <= set(lines)
    assert max(map(lines.index, ("[0] half done", "[1] half done"))) < lines.index("dtrain: exit code 3")
    assert lines.count("[1] half done") == 1 and screen.colour("done") == "green"


def test_ctrl_c_while_bars_stand(screens, program):
    screen = screens(["-np", 3, "--grace", "20s", "--", *program("""
import signal
def leave(*_):
    sys.stderr.write("\\nsaved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
""" + BAR)])
    screen.wait_for(lambda: all(f"[{rank}] step" in screen.text for rank in range(3)))
    screen.type("\x03")
    assert screen.end() == 130
    for rank in range(3):
        assert f"[{rank}] saved" in screen.lines
        assert sum(bool(re.match(rf"\[{rank}\] step", row)) for row in screen.lines) == 1
    assert screen.lines[-1] == "dtrain: exit code 130"


def test_long_and_wide_lines_in_a_narrow_terminal(screens, program, allow):
    screen = screens(["-np", 2, "--", *program("""
if rank == 0:
    sys.stdout.write("\\r" + "\\u4f60" * 60)
else:
    sys.stdout.write("a long question " * 10 + "what? ")
sys.stdout.flush()
wait_for("enough")
""")], columns=40, rows=10)
    screen.wait_for(lambda: "what?" in screen.text and "\u4f60" in screen.text)
    assert sum("\u4f60" in row for row in screen.shown) == 1
    assert re.search(r"^\[1\] \.\.\..*question what\?$", screen.text, re.M)
    allow("enough")
    assert screen.end() == 0
    text = "".join(screen.lines)
    assert text.count("\u4f60") == 60 and text.count("long question") >= 9


def test_a_lone_rank_is_passed_on_and_the_report_begins_a_line(screens, program, allow):
    screen = screens(["-np", 1, "--", *program("""
sys.stderr.write("\\r 50%|#####     |")
wait_for("enough")
sys.exit(4)
""")])
    screen.wait_for(lambda: "50%" in screen.text)
    allow("enough")
    assert screen.end() == 4
    assert screen.lines[0] == " 50%|#####     |"
    assert screen.lines[1].startswith("dtrain: rank 0 ")


def test_nested_bars_keep_their_places(screens, program, allow):
    screen = screens(["-np", 2, "--", *program("""
def draw(i):
    sys.stderr.write(f"\\router {i}")
    sys.stderr.write(f"\\n\\rinner {i}\\033[A")
    sys.stderr.flush()
if rank == 0:
    i = 0
    while not os.path.exists(f"{folder}/enough"):
        i += 1
        draw(i)
        time.sleep(0.02)
    sys.stderr.write("\\n\\rinner end\\n")
""")])
    screen.wait_for(lambda: re.search(r"^\[0\] outer [5-9]\d\n\[0\] inner", screen.text, re.M))
    allow("enough")
    assert screen.end() == 0
    # The first state may have gone out before the program went up again.
    assert len(screen.lines) <= 4 and screen.lines[-1] == "[0] inner end"


def test_only_stdout_is_the_terminal(screens, program, allow, tmp_path):
    with open(tmp_path / "err", "wb") as err:
        screen = screens(["-np", 2, "--", *program("""
sys.stderr.write("whole\\n")
sys.stdout.write("ready? ")
sys.stdout.flush()
wait_for("enough")
""")], stderr=err)
        screen.wait_for(lambda: "[0] ready?" in screen.text and "[1] ready?" in screen.text)
        allow("enough")
        assert screen.end() == 0
    assert sorted((tmp_path / "err").read_text().splitlines()) == ["[0] whole", "[1] whole"]
    assert sorted(screen.lines) == ["[0] ready?", "[1] ready?"]


def test_a_terminal_that_can_draw_nothing(screens, program, allow):
    screen = screens(["-np", 2, "--", *program("""
if rank == 0:
    input("Name? ")
else:
    wait_for("talk")
    print("talk")
""")], env={"TERM": "dumb"})
    screen.wait_for(lambda: screen.shown[0] == "[0] Name?")
    screen.type("x\n")
    allow("talk")
    assert screen.end() == 0
    assert "[1] talk" in screen.lines and b"\033" not in screen.raw


def piped(args, **options):
    return subprocess.Popen([BIN / "dtrain", "launch", *map(str, args)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def test_in_a_pipe_the_latest_state_once_a_second(program, allow):
    launch = piped(["-np", 2, "--", *program("""
if rank == 0:""" + BAR.replace("\n", "\n    ") + """
    sys.stderr.write("\\rall done\\033[K\\n")
""")])
    states = [launch.stdout.readline().decode() for _ in range(3)]
    allow("enough")
    rest = launch.stdout.read().decode().splitlines()
    assert launch.wait() == 0
    steps = [int(re.fullmatch(r"\[0\] step (\d+) of rank 0 \n", state)[1]) for state in states]
    # It moves some fifty times a second; how often exactly depends on the machine.
    assert all(b > a + 1 for a, b in zip(steps, steps[1:])), steps
    assert rest[-1] == "[0] all done" and len(rest) <= 3


def test_in_a_pipe_a_prompt_is_written_and_its_line_goes_on(program, allow):
    launch = piped(["-np", 2, "--", *program("""
if rank == 0:
    sys.stdout.write("Name? ")
    wait_for("enough")
    print("bob")
else:
    wait_for("talk")
    sys.stdout.write("and ")
    wait_for("enough")
    print("so on")
""")])
    assert launch.stdout.read(10) == b"[0] Name? "
    allow("enough")
    assert b"[0] Name? bob\n" in b"[0] Name? " + launch.stdout.read(4)
    allow("talk")
    assert launch.stdout.read() == b"[1] and so on\n"
    assert launch.wait() == 0


def test_log_files_have_the_bytes(program, allow, tmp_path):
    launch = piped(["-np", 2, "--log-dir", tmp_path / "logs", "--", *program("""
for i in range(3):
    sys.stdout.write(f"\\r{i}")
    sys.stdout.flush()
wait_for("enough")
""")])
    assert launch.stdout.read(5)[3:] == b" 2"
    allow("enough")
    launch.stdout.read()
    assert launch.wait() == 0
    assert (tmp_path / "logs/rank-00001.out").read_bytes() == b"\r0\r1\r2"


def test_a_rank_that_is_killed_leaves_its_line(screens, program, allow):
    screen = screens(["-np", 2, "--", *program("""
import signal
sys.stdout.write("before the end ")
sys.stdout.flush()
wait_for("enough")
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
wait_for("never")
""")])
    screen.wait_for(lambda: "[0] before the end" in screen.text)
    allow("enough")
    assert screen.end() == 128 + signal.SIGKILL
    assert sum(row == "[0] before the end" for row in screen.lines) == 1
