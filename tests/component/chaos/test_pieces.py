# SPDX-License-Identifier: Apache-2.0
"""A chaos run that is made in pieces: what its file keeps, and what tools/chaos says about it. No hosts are made."""
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "chaos"))

import chaos  # noqa: E402
import pieces  # noqa: E402

THREE_HOURS = 3 * 3600


@pytest.fixture
def path(tmp_path):
    return tmp_path / "build/chaos.json"


def start(path, state=None, commit="abc", programs="1"):
    run = pieces.Run(path, state or pieces.State(7, None, THREE_HOURS), commit, programs, is_kept=state is not None)
    run.save()
    return run


def play(run, rounds=1, seconds=1800.0, longest=2.0):
    for _ in range(rounds):
        run.record(seconds, {"short -> own code": 2}, {"kill": 1, "cut": 2}, longest)


def test_a_run_goes_on_where_a_piece_ended(path):
    first = start(path)
    play(first, 2)
    again = pieces.resumed(path)
    assert again == first.state
    assert (again.seed, again.next, again.rounds, again.spent) == (7, 3, 2, 3600)
    second = start(path, again, commit="def", programs="2")
    play(second, 3, longest=9.0)
    third = start(path, pieces.resumed(path), commit="def", programs="2")
    assert not third.state.is_complete()
    play(third)
    state = pieces.resumed(path)
    assert state.is_complete()
    assert pieces.summary(state, 19, chaos.faults.KINDS) == (
        "no violation in 6 rounds, seed 7, 3 h: 12 x short -> own code\n"
        "18 faults: 12 x links cut, 6 x agents killed\n"
        "the longest end: 9.0 s after the last fault, in round 3; 19 s are allowed\n"
        "3 pieces, of commit abc (rounds 1 to 2), def (rounds 3 to 5), def (round 6)\n"
        "violations: 0")


def test_an_interrupted_round_is_repeated(path):
    run = start(path)
    assert pieces.resumed(path).next == 1
    play(run)
    assert pieces.resumed(path).next == 2
    assert start(path, pieces.resumed(path)).state.pieces == run.state.pieces, "a piece without a complete round counts"


def test_the_total_can_be_changed(path):
    play(start(path))
    assert pieces.resumed(path).seconds == THREE_HOURS
    assert not pieces.resumed(path, THREE_HOURS * 2).is_complete()
    assert pieces.resumed(path, 1800).is_complete()


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_write_that_fails_keeps_what_was_there(path, monkeypatch, where):
    run = start(path)
    play(run)
    before = path.read_text()

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(pieces.os, where, fail)
    with pytest.raises(OSError):
        play(run)
    monkeypatch.undo()
    assert path.read_text() == before and run.state == pieces.resumed(path)
    play(run)
    assert pieces.resumed(path).next == 3
    assert run.state.pieces == [pieces.Piece("abc", "1", 1, 2)]


def test_the_file_is_on_disk_before_it_is_renamed(path, monkeypatch):
    run = start(path)
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(pieces.os, name, lambda *args, name=name, real=real: calls.append(name) or real(*args))
    play(run)
    assert calls == ["fsync", "replace", "fsync"]


def test_after_a_violation_only_a_new_run_starts(path):
    run = start(path, pieces.State(7, "early", THREE_HOURS))
    play(run)
    run.violated(2)
    with pytest.raises(pieces.Refused) as refused:
        pieces.resumed(path)
    assert refused.value.code == 1
    assert "seed 7" in str(refused.value) and "tools/chaos --seed 7 --round 2 --plan early;" in str(refused.value)
    assert "violation in round 2" in pieces.replaced(path)
    start(path)
    assert pieces.resumed(path).violation is None


def test_what_a_new_run_replaces(path):
    assert pieces.replaced(path) is None
    run = start(path)
    play(run)
    assert pieces.replaced(path) == "replacing the unfinished run of seed 7 (1 round and 30 min of 3 h)"
    play(run, 5)
    assert pieces.replaced(path) is None
    path.write_text("{")
    assert pieces.replaced(path) == f"replacing {path}, which does not hold a chaos run"


@pytest.mark.parametrize("text", [
    "", "{", "[]", "{}", "null", b"\xff\xfe", {"seed": "7"}, {"seed": True}, {"spent": float("nan")}, {"spent": -1},
    {"plan": 3}, {"faults": {"kill": "x"}}, {"pieces": [{}]}, {"pieces": [3]}, {"further": 1}, {"violation": "2"}])
def test_a_corrupt_file_is_refused(path, text):
    play(start(path))
    if isinstance(text, dict):
        text = json.dumps({**json.loads(path.read_text()), **text})
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(pieces.Refused) as refused:
        pieces.resumed(path)
    assert refused.value.code == 2 and str(path) in str(refused.value)


@pytest.mark.parametrize(("commit", "programs", "line"), [
    ("abc", "1", None),
    ("def", "2", "the pieces of this run are of different commits: abc before, def now"),
    ("def", "1", "the pieces of this run are of different commits: abc before, def now (the programs are the same)"),
    ("abc", "2", "the pieces of this run are of different builds of commit abc")])
def test_pieces_of_different_commits_are_reported(path, commit, programs, line):
    run = start(path)
    assert run.difference() is None
    play(run)
    assert start(path, pieces.resumed(path), commit, programs).difference() == line


def test_one_process_uses_the_file(path):
    with pieces.alone(path), pytest.raises(pieces.Refused, match="another tools/chaos"), pieces.alone(path):
        pass
    with pieces.alone(path):
        pass


def test_a_signal_ends_the_piece_once():
    with pieces.Signals() as signals:
        with pytest.raises(pieces.Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # not while it cleans up
        with pytest.raises(pieces.Stopped):
            signals.check()
    assert signals.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class Rehearsed:
    """A round that takes no time, or has a violation."""
    plan = "early"
    jobs = ()

    def __init__(self, *_):
        self.error = None

    def play(self):
        if self.error:
            raise self.error
        return []

    def struck(self):
        return {"kill": 1}


def rehearse(monkeypatch, path, errors, only_one=False):
    """Plays a run whose n-th round has `errors`[n]; (whether all was well, the run)."""
    made = []

    def make(*_):
        made.append(Rehearsed())
        made[-1].error = errors.get(len(made))
        return made[-1]

    monkeypatch.setattr(chaos, "Round", make)
    world = SimpleNamespace(agents={}, cluster=SimpleNamespace(hosts=[]))
    run = start(path)
    return chaos.play_rounds(run, world, pieces.Signals(), only_one), run


def test_a_violation_is_kept_and_printed(monkeypatch, capsys, path):
    well, run = rehearse(monkeypatch, path, {3: chaos.Violation("two of them")})
    assert not well and run.state.violation == 3 and run.state.rounds == 2
    err = capsys.readouterr().err
    assert "VIOLATION in round 3" in err and "again: tools/chaos --seed 7 --round 3\ntwo of them\n" in err
    with pytest.raises(pieces.Refused):
        pieces.resumed(path)


def test_a_signal_keeps_the_rounds_before_it(monkeypatch, path):
    with pytest.raises(pieces.Stopped):
        rehearse(monkeypatch, path, {3: pieces.Stopped()})
    assert pieces.resumed(path).next == 3


def test_one_round_alone_is_not_kept(monkeypatch):
    well, run = rehearse(monkeypatch, None, {}, only_one=True)
    assert well and run.state.rounds == 1 and not run.is_kept


def refused_with(capsys, path, *args):
    """(exit code, stderr)."""
    with pytest.raises(SystemExit) as ended:
        chaos.main(list(args), path)
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize("args", [
    "--hours x", "--hours 0", "--hours -1", "--hours nan", "--minutes inf", "--hours 1 --minutes 2", "--round 0",
    "--round 3 --resume", "--plan none", "--seed x"])
def test_bad_input_is_refused(capsys, path, args):
    code, err = refused_with(capsys, path, *args.split())
    assert code == 2 and args.split()[0] in err and not path.exists()


def test_resume_without_a_run_is_refused(capsys, path):
    code, err = refused_with(capsys, path, "--resume")
    assert code == 2 and err == f"tools/chaos: no run to resume: {path} is missing; start one without --resume\n"


@pytest.mark.parametrize("args", ["--seed 8", "--plan long"])
def test_another_seed_or_plan_cannot_continue_a_run(capsys, path, args):
    play(start(path))
    code, err = refused_with(capsys, path, "--resume", *args.split())
    assert code == 2 and "start a new one without --resume" in err


def test_a_complete_run_prints_its_summary_again(capsys, path):
    play(start(path), 6)
    before = path.read_text()
    chaos.main(["--hours", "3", "--resume"], path)
    out = capsys.readouterr().out
    assert out.startswith("no violation in 6 rounds, seed 7, 3 h") and out.endswith("violations: 0\n")
    assert path.read_text() == before
