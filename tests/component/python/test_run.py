# SPDX-License-Identifier: Apache-2.0
"""dtrain.run(): functions on the ranks of a local job. Needs no numpy."""
import json
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

import dtrain
from dtrain import _frames, _functions, _reports


def place(factor, *, offset=0):
    import dtrain

    dtrain.init()
    return dtrain.rank() * factor + offset, dtrain.size()


def test_results_come_back_in_rank_order(on_ranks):
    assert dtrain.run(place, 10, offset=1, np=-3) == [(1, 3), (11, 3), (21, 3)]


def test_what_the_user_has_set_for_launches_of_his_own_changes_nothing(monkeypatch):
    monkeypatch.setenv("DTRAIN_SHOW_RANKS", "0")
    assert dtrain.run(place, 10, np=-2) == [(0, 2), (10, 2)]


def test_functions_that_cannot_be_imported_are_sent(capfd):
    """As a notebook has them; also without cloudpickle."""
    word = "closure"

    def outer(times):
        return inner(times) + suffix()

    def inner(times):
        return word * times if times < 2 else inner(times - 1) + word

    def suffix(text="!"):
        return text

    assert dtrain.run(outer, 2, np=-2) == ["closureclosure!"] * 2
    assert dtrain.run(lambda *a, **k: (a, k), 1, [2], x=3, np=-1) == [((1, [2]), {"x": 3})]


def test_a_sent_function_has_what_it_uses_and_nothing_else():
    """Of the main program's globals; an attribute of the same name is none of them."""
    source = (
        "import os, xml.dom.minidom, threading\n"
        "real = threading.Lock()\n"  # cannot be pickled
        "used = [1, 2]\n"
        "def fn():\n"
        "    document = xml.dom.minidom.parseString('<a/>')\n"
        "    return (3j).real, [x + used[0] for x in used], document.documentElement.tagName\n"
    )
    space = {"__name__": "__main__"}
    exec(source, space)
    assert dtrain.run(space["fn"], np=-1) == [(0.0, [2, 3], "a")]


def test_without_init_and_with_large_results():
    def large():
        import os

        return os.environ["DTRAIN_RANK"] * (3 << 20)

    results = dtrain.run(large, np=-2)
    assert results == ["0" * (3 << 20), "1" * (3 << 20)]


def test_output_is_passed_on_without_the_results(capfd):
    def talk():
        import os
        import sys

        print("out of rank", os.environ["DTRAIN_RANK"], os.environ["COLOUR"])
        print("err of rank", os.environ["DTRAIN_RANK"], file=sys.stderr)
        assert sys.stdin.read() == ""
        print("an unfinished line", end="")
        return 1

    assert dtrain.run(talk, np=-2, env={"COLOUR": "blue"}) == [1, 1]
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == sorted(
        [f"[{r}] out of rank {r} blue" for r in (0, 1)] +
        [f"[{r}] an unfinished line" for r in (0, 1)])
    assert "[0] err of rank 0" in err and "[1] err of rank 1" in err


class Special(Exception):
    def __init__(self, number, word):
        super().__init__(number, word)


def fails_on_one():
    import dtrain

    dtrain.init()
    if dtrain.rank() == 1:
        raise Special(7, "seven")
    dtrain.barrier()


def test_an_exception_comes_back_with_rank_and_traceback(capfd):
    with pytest.raises(dtrain.RemoteError) as caught:
        dtrain.run(fails_on_one, np=-3)
    error = caught.value
    assert error.rank == 1 and error.exit_code == 1
    assert "rank 1: Special: (7, 'seven')" in str(error)
    assert "in fails_on_one" in error.traceback and "_worker" not in error.traceback
    # A class of the program's own is only text: making it again could run code of the worker's choice.
    assert error.__cause__ is None
    # The exception carries it: neither the rank nor the launcher's report prints it as well.
    out, err = capfd.readouterr()
    assert "Special" not in out + err and "Traceback" not in err, err
    assert "rank 1" in err, err


@pytest.mark.parametrize("error", [
    ValueError("no data here"), KeyError("a", 2, None, 0.5), FileNotFoundError(2, "No such file", "x"), SystemExit(4),
    dtrain.MismatchError("shapes differ"), ValueError()], ids=repr)
def test_an_exception_of_pythons_or_dtrains_own_is_the_cause(error):
    def fails(error=error):
        raise error

    with pytest.raises(dtrain.RemoteError) as caught:
        dtrain.run(fails, np=-1)
    cause = caught.value.__cause__
    assert type(cause) is type(error) and cause.args == error.args and str(cause) == str(error)


class Mark:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def sends(report, code):
    """A worker on a node whose root wants this user's account."""
    import os

    from dtrain import _runner

    _runner.driver.send(int(os.environ["DTRAIN_RANK"]), report)
    os._exit(code)


def test_nothing_that_a_failed_job_sends_is_unpickled(tmp_path):
    mark = tmp_path / "mark"
    evil = pickle.dumps(Mark(str(mark)), 4)
    for report, code in [(evil, 3), (b"{}\n" + evil, 3), (evil, 0)]:
        with pytest.raises(dtrain.JobError):
            dtrain.run(sends, report, code, np=-1)
        assert not mark.exists(), (report, code)
    # One rank alone cannot make a job of several succeed.
    with pytest.raises(dtrain.JobError, match="without a result of rank"):
        dtrain.run(lambda: sends(b"{}\n" + evil, 0) if os.environ["DTRAIN_RANK"] == "0" else os._exit(0), np=-2)
    assert not mark.exists()


def test_different_exceptions_are_all_shown(capfd):
    def both_fail():
        import os
        import time

        time.sleep(0.2)
        raise ValueError(f"mine is {os.environ['DTRAIN_RANK']}")

    with pytest.raises(dtrain.RemoteError) as caught:
        dtrain.run(both_fail, np=-2, launch_args=["--grace", "10s"])
    err = capfd.readouterr().err
    shown = str(caught.value) + err
    assert shown.count("in both_fail") <= 2 and f"mine is {caught.value.rank}" not in err, shown


def test_exceptions_and_results_that_cannot_be_pickled(capfd):
    def unpicklable_exception():
        class Local(Exception):
            pass

        raise Local("not from here")

    with pytest.raises(dtrain.RemoteError, match="Local: not from here"):
        dtrain.run(unpicklable_exception, np=-1)

    def unpicklable_result():
        import threading

        return threading.Lock()

    with pytest.raises(dtrain.RemoteError, match="lock"):
        dtrain.run(unpicklable_result, np=-1)


def dies(how):
    import os
    import sys

    import dtrain

    dtrain.init()
    if dtrain.rank() == 1:
        if how == "signal":
            os.kill(os.getpid(), 9)
        if how == "silent":
            os._exit(0)
        sys.exit(5)
    dtrain.barrier()


def test_a_worker_that_is_killed_or_leaves_is_told(capfd):
    with pytest.raises(dtrain.JobError, match="rank 1 on .* was killed by signal 9") as caught:
        dtrain.run(dies, "signal", np=-2)
    assert caught.value.exit_code == 137
    assert not isinstance(caught.value, dtrain.RemoteError)
    with pytest.raises(dtrain.RemoteError, match="rank 1: SystemExit: 5") as caught:
        dtrain.run(dies, "exit", np=-2)
    assert caught.value.exit_code == 5


def test_a_rank_without_a_result_is_told():
    def leaves():
        import os

        if os.environ["DTRAIN_RANK"] == "1":
            os._exit(0)

    with pytest.raises(dtrain.JobError, match="without a result of rank 1"):
        dtrain.run(leaves, np=-2)


def test_what_the_launcher_refuses_is_told(capfd, monkeypatch):
    with pytest.raises(dtrain.JobError) as caught:
        dtrain.run(place, 1, np=2, hosts="-bad")
    assert caught.value.exit_code == 2
    with pytest.raises(dtrain.InvalidArgumentError, match="np=0"):
        dtrain.run(place, 1, np=0)
    monkeypatch.setenv("DTRAIN_BIN", "/nonexistent/dtrain")
    with pytest.raises(dtrain.JobEnvironmentError, match="DTRAIN_BIN=/nonexistent/dtrain"):
        dtrain.run(place, 1, np=-1)


MAIN = """
import sys, dtrain, os, time
def waits():
    dtrain.init()
    with open(sys.argv[1] + str(dtrain.rank()), "w") as file:
        file.write(str(os.getpid()))
    print("running", flush=True)
    while True:
        time.sleep(1)
if __name__ == "__main__":
    waits.__globals__["sys"] = sys
    prefix = sys.argv[1]
    def with_prefix(prefix=prefix):
        sys.argv = ["", prefix]
        waits()
    try:
        dtrain.run(with_prefix, np=-2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_job_ends_with_the_program_that_runs_it(tmp_path, number):
    """Ctrl-C in a program or notebook; and its end in any other way."""
    main = tmp_path / "main.py"
    main.write_text(MAIN)
    program = subprocess.Popen([sys.executable, main, str(tmp_path / "rank")], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    for _ in range(2):
        assert "running" in program.stdout.readline()
    workers = [int((tmp_path / f"rank{r}").read_text()) for r in (0, 1)]
    program.send_signal(number)
    out, _ = program.communicate(timeout=60)
    assert ("interrupted" in out) == (number == signal.SIGINT)
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in workers):
        assert time.monotonic() < deadline, "workers were left behind"
        time.sleep(0.01)


# ---- The parts, without a job ----


def test_a_report_is_read_as_text_only():
    try:
        raise OSError(5, "broken", "a\x1b[2Jb")
    except OSError as error:
        report = _reports.read(_reports.of_error(error))
    assert report.text == "OSError: [Errno 5] broken: 'a\\x1b[2Jb'" and report.traceback.endswith(report.text + "\n")
    assert report.result is None and report.cause.filename == "a\\x1b[2Jb"
    texts = {"text": "t", "traceback": "", "follows": False}
    for exception in (["open", "x"], ["eval", "1"], ["UnicodeDecodeError", "a", "b", -1, 2, "c"], ["Nothing"],
                      ["SyntaxError", "a"], ["ExceptionGroup", "a"], ["dict"], ["ValueError", ["list"]], "ab"):
        read = _reports.read(json.dumps({**texts, "exception": exception}).encode())
        assert (read.text, read.cause) == ("t", None), exception
    for data in (b"", b"\n", pickle.dumps(texts, 4), b"[" * 100000, b"9" * 10000, b"[]", b"null", b'{"text": 1}',
                 json.dumps({**texts, "exception": 5}).encode(), json.dumps({**texts, "exception": [None]}).encode()):
        read = _reports.read(data)
        assert read.result is None and "cannot be read" in read.text, data
    # A number that json does not write; text that cannot be encoded.
    for odd in (ValueError(10 ** 3000), ValueError("\ud800")):
        assert str(_reports.read(_reports.of_error(odd)).text).encode().startswith(b"ValueError: ")


def test_frames_survive_any_cut_and_keep_the_programs_output():
    marker = "\x1edtrain-0123"
    data = bytes(range(256)) * 40
    frames = b"".join(b"[1] " + line for line in _frames.lines(marker, 1, data))
    frames += b"2026-01-31T12:00:00.123 [host:0] " + b"".join(_frames.lines(marker, 0, b"zero"))
    text = b"[0] before\n" + frames + b"[0] partial" + b"".join(_frames.lines(marker, 2, b""))
    text += b"[0] progress\rafter"
    for cut in (1, 7, 4096, len(text)):
        collector = _frames.Collector(marker)
        own = b"".join(collector.feed(text[i : i + cut]) for i in range(0, len(text), cut))
        own += collector.finish()
        assert own == b"[0] before\n[0] partial\n[0] progress\rafter"
        assert collector.results == {1: data, 0: b"zero", 2: b""}
    broken = _frames.Collector(marker)
    broken.feed(f"{marker} nonsense\n{marker} 1 0 4 !!!!\n{marker} 1 9 9 AAAA\n".encode())
    assert broken.results == {}


def test_lines_of_results_are_written_in_one_piece():
    assert max(map(len, _frames.lines("m" * 42, 99999, b"x" * 100000))) <= 4096


def test_a_class_of_the_main_program_is_refused_with_what_to_do():
    made = type("OfMain", (), {"__module__": "__main__"})
    function = eval("lambda: OfMain()", {"OfMain": made, "__name__": "__main__"})
    with pytest.raises(Exception, match="install cloudpickle"):
        _functions._Pickler(open(os.devnull, "wb")).dump(function)


def test_values_of_variables_are_in_no_command_line(capfd):
    """Everybody on a host can read those."""
    def look():
        import os
        from pathlib import Path

        lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline")
                 if os.access(file, os.R_OK)]
        return os.environ["KEY"], os.environ["LINES"], lines

    values = {"KEY": "se" + "cret" * 3, "LINES": "one = 1\ntwo"}
    for key, text, lines in dtrain.run(look, np=-2, env=values):
        assert key == values["KEY"] and text == values["LINES"]
        assert any(b"-xKEY" in line.split(b"\0") for line in lines)
        assert not any(key.encode() in line or b"one = 1" in line for line in lines)
    for name in ("", "A=B"):
        with pytest.raises(ValueError, match="cannot be a variable's name"):
            dtrain.run(look, np=-1, env={name: "x"})


def test_with_num_proc_the_arguments_are_horovods():
    assert dtrain.run(place, args=(10,), kwargs={"offset": 1}, num_proc=2, start_timeout=60,
               use_gloo=True) == [(1, 2), (11, 2)]
    assert dtrain.run(place, args=[1], num_proc=1, hosts="localhost:2") == [(0, 1)]
    assert dtrain.run(os.getenv, args=["HVD_KEY"], num_proc=1, env={"HVD_KEY": "value"}) == ["value"]
    for kind, wrong in [(ValueError, {"num_proc": 1, "hosts": "localhost"}),
                        (dtrain.UnsupportedError, {"num_proc": 1, "max_num_proc": 2}),
                        (TypeError, {"num_proc": 1, "processes": 2})]:
        with pytest.raises(kind):
            dtrain.run(place, *([10] if kind is ValueError else []), **wrong)


def test_the_copy_for_other_hosts(monkeypatch, tmp_path):
    from dtrain import _copies

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    copy = _copies.for_others(["--lease", "9s"])
    assert os.path.isfile(f"{copy}/dtrain/_worker.py") and os.path.isfile(f"{copy}/dtrain/libdtrain.so.0")
    assert _copies.for_others([]) == copy
    old = tmp_path / "dtrain/python/0123456789abcdef"
    old.mkdir()
    os.utime(old, (0, 0))
    # A library that is not there is named by the ranks that need it.
    monkeypatch.setenv("DTRAIN_LIBRARY", "/no/libdtrain.so")
    without = _copies.for_others([])
    assert without != copy and not os.path.exists(f"{without}/dtrain/libdtrain.so.0") and not old.exists()
    # The user says what is in the ranks' folder, or there is no place.
    assert _copies.for_others(["--stage=."]) is None and _copies.for_others(["--wdir", "/x"]) is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _copies.for_others([]) is None
