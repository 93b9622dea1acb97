# SPDX-License-Identifier: Apache-2.0
"""What real programs draw, as workers of a job: tqdm, rich, pdb, git."""
import re
import subprocess
import sys

import pytest

NEEDS = ("tqdm", "rich")


def test_tqdm(screens, program, allow):
    screen = screens(["-np", 2, "--", *program("""
import tqdm
for i in tqdm.tqdm(range(200), desc="train", mininterval=0.01):
    if i == 100:
        wait_for("enough")
    time.sleep(0.005)
print("trained", rank)
""")])
    bars = [re.compile(rf"^\[{rank}\] train: +\d+%\|.*\| \d+/200 \[", re.M) for rank in range(2)]
    screen.wait_for(lambda: all(bar.search(screen.text) for bar in bars))
    half = re.compile(r"^\[1\] train:  50%.*(99|100)/200", re.M)  # it draws when it has time
    screen.wait_for(lambda: half.search(screen.text))
    allow("enough")
    assert screen.end() == 0
    for rank in range(2):
        lines = [line for line in screen.lines if line.startswith(f"[{rank}] train: ")]
        assert len(lines) == 1 and "100%" in lines[0] and "200/200" in lines[0], screen.lines
        assert f"[{rank}] trained {rank}" in screen.lines
    assert len(screen.lines) == 4


def test_nested_tqdm(screens, program, allow):
    screen = screens(["-np", 2, "--", *program("""
import tqdm
if rank == 0:
    for epoch in tqdm.trange(3, desc="epochs", mininterval=0.01):
        for step in tqdm.trange(50, desc="steps", mininterval=0.01, leave=False):
            if epoch == 1 and step == 25:
                wait_for("enough")
            time.sleep(0.005)
""")])
    screen.wait_for(lambda: re.search(r"^\[0\] epochs: +33%.* 1/3 .*\n\[0\] steps: +(48|50)%.* 2[45]/50 ", screen.text, re.M))
    allow("enough")
    assert screen.end() == 0
    assert "100%" in screen.lines[-1] and screen.lines[-1].startswith("[0] epochs")
    # The state before it was known that there are two.
    assert len(screen.lines) <= 3, screen.lines


def test_tqdm_write_beside_a_bar(screens, program):
    screen = screens(["-np", 2, "--", *program("""
import tqdm
for i in tqdm.tqdm(range(5), desc="train", mininterval=0):
    tqdm.tqdm.write(f"loss {i}", file=sys.stderr)
    time.sleep(0.01)
""")])
    assert screen.end() == 0
    for rank in range(2):
        mine = [line[4:] for line in screen.lines if line.startswith(f"[{rank}] ")]
        assert [line for line in mine if line.startswith("loss")] == [f"loss {i}" for i in range(5)], screen.lines
        assert mine[-1].startswith("train: 100%")


def test_rich(screens, program, allow):
    screen = screens(["-np", 2, "--", *program("""
from rich.console import Console
from rich.progress import Progress
with Progress(console=Console(force_terminal=True, width=60)) as progress:
    tasks = [progress.add_task(f"[green]{name}", total=10) for name in ("load", "train")]
    for i in range(10):
        for task in tasks:
            progress.advance(task)
        progress.refresh()
        if i == 4:
            wait_for("enough")
print("after", rank)
""")])
    screen.wait_for(lambda: all(re.search(rf"^\[{rank}\] load .* 50%.*\n\[{rank}\] train .* 50%", screen.text, re.M) for rank in range(2)))
    assert screen.colour("load") == "green"
    allow("enough")
    assert screen.end() == 0
    text = "\n".join(screen.lines)
    for rank in range(2):
        assert re.search(rf"^\[{rank}\] train .* 100%", text, re.M) and f"[{rank}] after {rank}" in screen.lines
    assert "\\x1b" not in text


def test_pdb(screens, program):
    screen = screens(["-np", 2, "--", *program("""
value = 41
if rank == 0:
    breakpoint()
    print("value is", value)
else:
    wait_for("never") if False else print("other")
""")])
    prompt = re.compile(r"^\[0\] \(Pdb\)$", re.M)
    screen.wait_for(lambda: prompt.search(screen.text) and "[1] other" in screen.text)
    screen.type("value + 1\n")
    screen.wait_for(lambda: "[0] 42" in screen.shown)
    screen.wait_for(lambda: screen.shown[screen.cursor[1]] == "[0] (Pdb)")
    screen.type("c\n")
    assert screen.end() == 0
    assert "[0] (Pdb) value + 1" in screen.lines and "[0] (Pdb) c" in screen.lines
    assert "[0] value is 41" in screen.lines


def test_git_clone(screens, tmp_path):
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    source = tmp_path / "source"
    try:
        subprocess.run([*git, "init", "-q", source], check=True)
    except FileNotFoundError:
        pytest.skip("needs git")
    for i in range(50):
        (source / f"file{i}").write_text(str(i) * 1000)
    subprocess.run([*git, "-C", source, "add", "."], check=True)
    subprocess.run([*git, "-C", source, "commit", "-qm", "all"], check=True)
    screen = screens(["-np", 2, "--", "sh", "-c", f"git clone --progress file://{source} {tmp_path}/of$RANK; echo cloned"])
    assert screen.end() == 0
    for rank in range(2):
        mine = [line[4:] for line in screen.lines if line.startswith(f"[{rank}] ")]
        received = [line for line in mine if line.startswith("Receiving objects")]
        assert len(received) == 1 and received[0].startswith("Receiving objects: 100%") and received[0].endswith("done."), mine
        assert "cloned" in mine


def test_pip(screens, tmp_path):
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing/setup.py").write_text("from setuptools import setup\nsetup(name='thing', version='1')\n")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs pip")
    screen = screens(["-np", 2, "--", sys.executable, "-m", "pip", "download", "--no-index", "--no-deps", "-d", tmp_path / "got",
                      "--no-build-isolation", tmp_path / "thing"], env={"FORCE_COLOR": "1"})
    screen.end()
    assert any(line.startswith("[0] Processing ") for line in screen.lines)
    assert "\\x1b" not in screen.text
