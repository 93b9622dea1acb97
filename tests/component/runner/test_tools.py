# SPDX-License-Identifier: Apache-2.0
"""tools/build and tools/test in a folder of their own, where the programs that they start are fakes."""
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path):
    """Makes files there, all of which can be run: checkout({"tools/lint": script}). Has tools/build and tools/test."""
    def make(files):
        for name in ("tools/build", "tools/test"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(SOURCE / name, tmp_path / name)
        for name, script in {"tools/install-deps": "#!/bin/sh\n", **files}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(script)
            (tmp_path / name).chmod(0o755)
        return tmp_path
    return make


def start(folder, *words):
    """In a process group of its own, in which Ctrl-C ends programs even if it did not end ours."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DTRAIN_")}
    return subprocess.Popen([folder / words[0], *words[1:]], cwd=folder, stdin=subprocess.DEVNULL, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                            env={**env, "PATH": f"{folder}/bin:{env['PATH']}"},
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


# Ends once the test has read a line about its progress.
CMAKE = """#!/bin/sh
[ "$1" = --build ] || exit 0
printf '%s\\n' '[1 9] CC a.o' '[3 9] CC b.o' 'b.cc: warning: that is odd'
tries=0
until [ -e go ] || [ $((tries += 1)) -gt 1000 ]; do /bin/sleep 0.02; done
"""
# Fails in the end, which ends who calls it again and again.
SLEEP = """#!/bin/sh
echo "$@" >>slept
[ "$(wc -l <slept)" -lt 1000 ] && exec /bin/sleep 0.02
"""


def test_a_build_without_a_terminal_says_every_ten_seconds_how_far_it_is(checkout):
    made = checkout({"bin/cmake": CMAKE, "bin/sleep": SLEEP})
    said = []
    with start(made, "tools/build") as build:
        for line in build.stdout:  # until all who can write there have ended
            said.append(line)
            if line.startswith("  3 of 9 steps after "):
                (made / "go").touch()
        assert build.wait(60) == 0, said
    assert (made / "go").exists() and "built build/release/bin\n" in said, said
    slept = (made / "slept").read_text().split()
    assert set(slept) == {"10"} and len(slept) < 1000, "it went on after the build"


RUN = """\
import sys, time
from pathlib import Path
if "--state" in sys.argv:
    print(Path("state").read_text())
    sys.exit()
build, *flags = sys.argv[1:]
with open("ran", "a") as file:
    print(Path(build).name, *flags, file=file)
deadline = time.monotonic() + 60
while build == "build/asan" and Path("stuck").exists() and time.monotonic() < deadline:
    time.sleep(0.02)
"""
EVERYTHING = ["release --everything", "asan --everything", "tsan --everything", "lint --tidy", "fuzz 600"]


@pytest.fixture
def parts(checkout):
    """A checkout in which the parts of `tools/test --all` note in `ran` that they ran."""
    made = checkout({"tools/build": "#!/bin/sh\n", "tests/run.py": RUN,
                     "tools/fuzz": '#!/bin/sh\necho fuzz "$@" >>ran\n',
                     "tools/lint": '#!/bin/sh\necho lint "$@" >>ran\n[ ! -e untidy ]\n'})
    (made / "state").write_text("one commit")
    return made


def run_all(folder, *words):
    """(exit code, what it printed, which parts ran)"""
    (folder / "ran").write_text("")
    with start(folder, "tools/test", "--all", *words) as running:
        said, _ = running.communicate(timeout=60)
    return running.returncode, said, (folder / "ran").read_text().splitlines()


def test_all_runs_every_part_anew(parts):
    for _ in range(2):
        code, said, ran = run_all(parts)
        assert code == 0 and ran == EVERYTHING, said


def test_a_stopped_run_of_all_goes_on_with_the_parts_that_are_left(parts):
    (parts / "stuck").touch()
    ran = parts / "ran"
    with start(parts, "tools/test", "--all") as running:
        deadline = time.monotonic() + 60
        while not (ran.exists() and "asan" in ran.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGINT)
        said, _ = running.communicate(timeout=60)
    assert running.returncode != 0 and ran.read_text().splitlines() == EVERYTHING[:2], said
    (parts / "stuck").unlink()
    code, said, went_on = run_all(parts, "--resume")
    assert code == 0 and "=== release: done before\n" in said, said
    assert went_on == ["asan --everything --resume", "tsan --everything --resume", *EVERYTHING[3:]]


def test_a_part_of_all_that_failed_runs_again_alone(parts):
    (parts / "untidy").touch()
    code, said, ran = run_all(parts)
    assert code == 1 and ran == EVERYTHING, "the parts behind it run"
    assert said.endswith("failed: lint; tools/test --all --resume runs what has not passed\n"), said
    (parts / "untidy").unlink()
    code, said, ran = run_all(parts, "--resume")
    assert code == 0 and ran == ["lint --tidy"], said
    code, said, ran = run_all(parts, "--resume")
    assert code == 0 and ran == [], said


def test_all_of_another_state_of_the_source_begins_anew(parts):
    assert run_all(parts)[0] == 0
    (parts / "state").write_text("one commit, and more")
    code, said, ran = run_all(parts, "--resume")
    assert code == 0 and "done before" not in said, said
    assert [line.removesuffix(" --resume") for line in ran] == EVERYTHING
