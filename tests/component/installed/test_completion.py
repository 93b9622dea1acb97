# SPDX-License-Identifier: Apache-2.0
"""Completion in real shells: bash and zsh on a terminal, with the Tab key; fish as it asks."""
import contextlib
import json
import os
import pty
import select
import subprocess
import time

import pytest
from conftest import BIN_DIR, DTRAIN

DEADLINE = 60  # seconds; a shell answers in milliseconds


@pytest.fixture
def place(tmp_path):
    """A home with files to complete, a `dtrain` in PATH and nothing of this machine's settings."""
    for name in ("hosts.txt", "other.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "logs").mkdir()
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path


def environment(place):
    kept = {name: os.environ[name] for name in os.environ if name.endswith("SAN_OPTIONS")}
    return {"PATH": f"{BIN_DIR}:/usr/bin:/bin", "HOME": str(place), "TERM": "vt100", "PS1": "> ",
            "LC_ALL": "C.UTF-8", "XDG_RUNTIME_DIR": str(place / "run"), **kept}


class Terminal:
    """An interactive shell; `setup` is typed first."""

    def __init__(self, command, setup, place):
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(place)
            os.execvpe(command[0], command, environment(place))
        self._seen = ""
        self.type(f"{setup}; echo rea''dy\n")
        self.wait_for("ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._fd)  # hangs up
        os.waitpid(self._pid, 0)

    def type(self, text):
        os.write(self._fd, text.encode())

    def wait_for(self, text):
        """Reads on until `text` has come; what had been seen before it counts no more."""
        end = time.monotonic() + DEADLINE
        while text not in self._seen:
            ready, _, _ = select.select([self._fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self._seen!r}"
            self._seen += os.read(self._fd, 65536).decode(errors="replace")
        self._seen = self._seen.split(text, 1)[1]

    def becomes(self, typed, line):
        """Types words and Tab, and has the shell say what the line is then."""
        self.type(f"{typed}\t\x01echo :\n")  # Ctrl-A: to its beginning
        self.wait_for(f"\n:{line}\r\n")


def bash(place):
    return Terminal(["bash", "--norc", "--noprofile", "-i"],
                    "bind 'set enable-bracketed-paste off'; source <(dtrain completion bash)",
                    place)


def zsh(place):
    return Terminal(["zsh", "-f", "-i"],
                    "unsetopt beep prompt_sp auto_remove_slash; unset zle_bracketed_paste; "
                    "autoload compinit; compinit -D -u; source <(dtrain completion zsh)", place)


def zsh_installed(place):
    """Finds the script where packages put it, in a folder of its path."""
    folder = place / "functions"
    folder.mkdir()
    script = subprocess.run([DTRAIN, "completion", "zsh"], capture_output=True, check=True).stdout
    (folder / "_dtrain").write_bytes(script)
    return Terminal(["zsh", "-f", "-i"],
                    "unsetopt beep prompt_sp auto_remove_slash; unset zle_bracketed_paste; "
                    f"fpath=({folder} $fpath); autoload compinit; compinit -D -u", place)


SHELLS = [pytest.param(bash, id="bash"),
          pytest.param(zsh, id="zsh", marks=pytest.mark.needs("zsh")),
          pytest.param(zsh_installed, id="zsh-installed", marks=pytest.mark.needs("zsh"))]
LINES = [
    ("dtrain lau", "dtrain launch"),
    ("dtrain bench sc", "dtrain bench scaling"),
    ("dtrain launch --tag-o", "dtrain launch --tag-output"),
    ("dtrain launch -np 2 --tag-output r", "dtrain launch -np 2 --tag-output rank"),
    ("dtrain launch --tag-output=r", "dtrain launch --tag-output=rank"),
    ("dtrain launch --map-by pp", "dtrain launch --map-by ppr:"),
    ("dtrain launch --hostfile ho", "dtrain launch --hostfile hosts.txt"),
    ("dtrain launch --hostfile=ho", "dtrain launch --hostfile=hosts.txt"),
    ("dtrain launch -q --log-dir l", "dtrain launch -q --log-dir logs/"),
    ("dtrain launch -np 2 ech", "dtrain launch -np 2 echo"),
    ("dtrain launch --np=2 -- cat ho", "dtrain launch --np=2 -- cat hosts.txt"),
    ("dtrain man dtrain-la", "dtrain man dtrain-launch"),
]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key(shell, place):
    with shell(place) as terminal:
        for typed, line in LINES:
            terminal.becomes(typed, line)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_knows_the_jobs(shell, place):
    with running_job(place) as job, shell(place) as terminal:
        terminal.becomes("dtrain stop ", f"dtrain stop {job}")


def fish(place, line):
    """What fish offers for a line: words without their explanations."""
    script = f"dtrain completion fish | source; complete -C {line!r}"
    done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True,
                          cwd=place, env=environment(place), timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (0, ""), line
    return [offer.split("\t")[0] for offer in done.stdout.splitlines()]


@pytest.mark.needs("fish")
def test_fish(place):
    for typed, line in LINES:
        last = line.split(" ")[-1]
        assert fish(place, typed) == [last], typed
    with running_job(place) as job:
        assert fish(place, "dtrain logs -f ") == [job]


@pytest.mark.needs("fish")
def test_fish_shows_what_a_flag_is(place):
    script = "dtrain completion fish | source; complete -C 'dtrain launch --ssh-c'"
    done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True,
                          cwd=place, env=environment(place), timeout=DEADLINE)
    assert done.stdout == "--ssh-config\tread FILE instead of ~/.ssh/config\n"


@pytest.mark.parametrize("check", [
    pytest.param(["bash", "-n"], id="bash"),
    pytest.param(["zsh", "-n"], id="zsh", marks=pytest.mark.needs("zsh")),
    pytest.param(["fish", "--no-execute"], id="fish", marks=pytest.mark.needs("fish"))])
def test_the_script_is_valid(check, dtrain, tmp_path):
    script = tmp_path / "script"
    script.write_text(dtrain("completion", check[0]))
    done = subprocess.run([*check, script], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@contextlib.contextmanager
def running_job(place):
    """A job on this machine; its id, once it can be asked for."""
    launch = subprocess.Popen([DTRAIN, "launch", "-np", "-1", "--stdin", "0", "cat"], cwd=place,
                              env=environment(place), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    try:
        launch.stdin.write(b"up\n")
        launch.stdin.flush()
        assert launch.stdout.readline() == b"up\n"
        listed = subprocess.run([DTRAIN, "ps", "--json"], env=environment(place), check=True,
                                capture_output=True, text=True)
        yield json.loads(listed.stdout)["jobs"][0]["id"]
    finally:
        launch.communicate()  # closes its input, and cat ends
