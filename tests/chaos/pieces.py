# SPDX-License-Identifier: Apache-2.0
"""A chaos run made in pieces, and the small file that keeps it between them. Knows nothing of hosts.

The file is replaced as a whole after each round, so a piece may end at any moment, also by `kill -9` or a power cut:
the next piece repeats the round that was in progress and loses nothing else."""
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import signal
import subprocess
from collections import Counter


class Refused(Exception):
    """The run cannot begin or continue. `code` is the exit code."""

    def __init__(self, text, code=2):
        super().__init__(text)
        self.code = code


class Stopped(BaseException):
    """SIGINT or SIGTERM asks this piece to end."""


class Signals:
    """Turns the first SIGINT or SIGTERM into Stopped and ignores later ones, which would disturb the cleanup. A signal
    that is ignored already, as under nohup, stays ignored."""

    def __init__(self):
        self.number = None
        self._before = {}

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number, _):
        if self.number is None:
            self.number = number
            raise Stopped

    def check(self):
        """Python drops exceptions in some places, as in destructors, so the signal may have gone unnoticed."""
        if self.number is not None:
            raise Stopped


@dataclasses.dataclass
class Piece:
    """`commit` and `programs` (a hash) say what it ran; `first` and `last` are rounds."""
    commit: str
    programs: str
    first: int
    last: int


@dataclasses.dataclass
class State:
    """What the file holds."""
    seed: int
    plan: str | None
    seconds: float  # to be run in all
    spent: float = 0.0  # in complete rounds
    next: int = 1  # the round to be played next
    rounds: int = 0
    outcomes: dict = dataclasses.field(default_factory=dict)  # {what: how often}
    faults: dict = dataclasses.field(default_factory=dict)  # {kind: how often}
    longest: float = 0.0  # seconds from the last fault to a job's end
    longest_in: int = 0  # the round in which that was
    pieces: list = dataclasses.field(default_factory=list)
    violation: int | None = None  # the round that had it

    def is_complete(self):
        return self.violation is None and self.spent >= self.seconds

    def progress(self):
        return f"{count_of(self.rounds, 'round')} and {span(self.spent)} of {span(self.seconds)}"


def parse(text):
    """The State in `text`, or ValueError."""
    fields = json.loads(text)
    names = {field.name for field in dataclasses.fields(State)}
    if not isinstance(fields, dict) or set(fields) != names:
        raise ValueError("its fields are not those of a run")
    state = State(**fields)
    kinds = {int: ("seed", "next", "rounds", "longest_in"), (int, float): ("seconds", "spent", "longest"),
             (str, type(None)): ("plan",), (int, type(None)): ("violation",), dict: ("outcomes", "faults"),
             list: ("pieces",)}
    for kind, of_that_kind in kinds.items():
        for name in of_that_kind:
            if not isinstance(fields[name], kind) or isinstance(fields[name], bool):
                raise ValueError(f"{name} is {fields[name]!r}")
    for name in ("seconds", "spent", "longest"):
        if not math.isfinite(fields[name]) or fields[name] < 0:
            raise ValueError(f"{name} is {fields[name]!r}")
    for name in ("outcomes", "faults"):
        if not all(type(count) is int for count in fields[name].values()):
            raise ValueError(f"{name} are not counts")
    try:
        state.pieces = [Piece(**piece) for piece in state.pieces]
    except TypeError:
        raise ValueError("its pieces are not those of a run") from None
    return state


def load(path):
    """The State in the file, or None if there is no file."""
    try:
        return parse(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Refused(f"{path} does not hold a chaos run: {error}; start a new run without --resume") from None


def save(path, state):
    """Replaces the file as a whole; once this returns, a power cut does not undo it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    with open(beside, "w") as file:
        json.dump(dataclasses.asdict(state), file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def alone(path):
    """Keeps another process from the same file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_name(path.name + ".lock"), "w")
    except OSError as error:
        raise Refused(f"cannot keep the run: {error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"another tools/chaos is using {path}") from None
        yield


def replaced(path):
    """What a new run is about to replace, as a line to print; None if nothing is lost."""
    try:
        state = load(path)
    except Refused:
        return f"replacing {path}, which does not hold a chaos run"
    if state is None or state.is_complete():
        return None
    if state.violation is not None:
        return f"replacing the run of seed {state.seed}, which ended with a violation in round {state.violation}"
    return f"replacing the unfinished run of seed {state.seed} ({state.progress()})"


def resumed(path, seconds=None):
    """The State to continue. `seconds`: its new total, if it is to have one."""
    state = load(path)
    if state is None:
        raise Refused(f"no run to resume: {path} is missing; start one without --resume")
    if state.violation is not None:
        raise Refused(f"the run of seed {state.seed} ended with a violation in round {state.violation}; "
                      f"again: {again(state)}; start a new run without --resume", 1)
    if seconds is not None:
        state.seconds = seconds
    return state


def again(state):
    plan = f" --plan {state.plan}" if state.plan else ""
    return f"tools/chaos --seed {state.seed} --round {state.violation}{plan}"


def identify(source, programs):
    """(commit, hash of the programs) of what a piece runs."""
    asked = subprocess.run(
        ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True, text=True, check=False)
    total = hashlib.sha256()
    for program in programs:
        try:
            total.update(hashlib.sha256(program.read_bytes()).digest())
        except OSError as error:
            raise Refused(f"{error}; build first, or set DTRAIN_BIN_DIR") from None
    return asked.stdout.strip() or "unknown", total.hexdigest()[:16]


class Run:
    """One piece of a run. `path`: the file, or None to keep nothing. `is_kept`: the file holds the run already."""

    def __init__(self, path, state, commit, programs, is_kept):
        self.state = state
        self.is_kept = is_kept
        self._path = path
        self._commit = commit
        self._programs = programs
        self._has_piece = False  # from the first complete round on

    def save(self):
        self._replace()

    def _replace(self, **changes):
        """The file first: a signal may end this anywhere."""
        state = dataclasses.replace(self.state, **changes)
        if self._path is not None:
            save(self._path, state)
            self.is_kept = True
        self.state = state

    def difference(self):
        """A line to print if the pieces before this one ran something else, or None."""
        if not self.state.pieces:
            return None
        before = self.state.pieces[-1]
        if before.commit != self._commit:
            same = " (the programs are the same)" if before.programs == self._programs else ""
            return f"the pieces of this run are of different commits: {before.commit} before, {self._commit} now{same}"
        if before.programs != self._programs:
            return f"the pieces of this run are of different builds of commit {self._commit}"
        return None

    def record(self, seconds, outcomes, faults, longest):
        """The round that was due is complete."""
        state = self.state
        if self._has_piece:
            made = [*state.pieces[:-1], dataclasses.replace(state.pieces[-1], last=state.next)]
        else:
            made = [*state.pieces, Piece(self._commit, self._programs, state.next, state.next)]
        self._has_piece = True
        is_longest = longest > state.longest
        self._replace(next=state.next + 1, rounds=state.rounds + 1, spent=state.spent + seconds, pieces=made,
                      outcomes=dict(Counter(state.outcomes) + Counter(outcomes)),
                      faults=dict(Counter(state.faults) + Counter(faults)),
                      longest=longest if is_longest else state.longest,
                      longest_in=state.next if is_longest else state.longest_in)

    def violated(self, number):
        self._replace(violation=number)


def summary(state, bound, words):
    """Of a run without a violation. `bound`: seconds that a job's end may take; `words`: {kind of fault: its name}."""
    def listed(counts, words):
        return ", ".join(f"{count} x {words.get(what, what)}" for what, count in sorted(counts.items())) or "none"

    pieces = [f"{piece.commit} (round {piece.first})" if piece.first == piece.last else
              f"{piece.commit} (rounds {piece.first} to {piece.last})" for piece in state.pieces]
    return "\n".join([
        f"no violation in {count_of(state.rounds, 'round')}, seed {state.seed}, {span(state.spent)}: "
        f"{listed(state.outcomes, {})}",
        f"{count_of(sum(state.faults.values()), 'fault')}: {listed(state.faults, words)}",
        f"the longest end: {state.longest:.1f} s after the last fault, in round {state.longest_in}; "
        f"{bound:g} s are allowed",
        f"{count_of(len(pieces), 'piece')}, of commit {', '.join(pieces)}",
        "violations: 0"])


def count_of(number, what):
    return f"{number} {what}{'' if number == 1 else 's'}"


def span(seconds):
    if seconds >= 3600:
        return f"{seconds / 3600:.4g} h"
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:.3g} s"
