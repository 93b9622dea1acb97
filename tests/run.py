#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""run.py BUILD [--changed[=COMMIT]] [--resume] [--write] [ctest arguments]: runs tests of a build with ctest.

Says first what it runs and how long that takes, then every ten seconds how far it is. A test that fails is run
once more, alone, after the others; of a pytest file only what failed in it. If it passes then, it is flaky: it is
listed at the end, its output is kept in build/flaky.log, and the run is green unless there are more than three.
A suite (a GoogleTest program or a pytest file) of which no test is there makes the run red, too.

--changed only what the changes since COMMIT, or since main, can break (changed.py).
--everything also cluster suites that are not in the smoke set, and tests with the label `more`. Arguments of ctest's
          select from all, too. AddressSanitizer's build leaves out cluster suites that are neither in the smoke set
          nor hostile, which take hours there and go through the same code.
--state   prints what names the state of the source, and runs nothing.
--resume  leaves out what has passed since a run of the same source began that was stopped.
--write   puts the numbers of tests and their seconds into tests/suites.txt, from which estimates are made.
"""
import argparse
import atexit
import collections
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import changed

SUITES = Path(__file__).resolve().with_name("suites.txt")
FLAKES_ALLOWED = 3
SLOTS_OF_A_CORE = 3             # tests run at a time: most of them wait for something
SLOTS_OF_A_CORE_IN = {"asan": 2, "tsan": 1.5}  # a sanitizer's compute
SECONDS_OF_A_LINE = 10          # between two lines about progress
SECONDS_OF_A_TEST = 0.15        # of one of a kind of which tests/suites.txt knows none
# What tests get of the caller's variables: none of a launcher, a proxy, or another tool.
KEPT_VARIABLES = re.compile(r"PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG|LC_\w+|TMPDIR|XDG_RUNTIME_DIR|LD_LIBRARY_PATH|CI|"
                            r"CCACHE_\w+|\w+SAN_OPTIONS|DTRAIN_(TEST_)?SEED")
WITHOUT_GPU = "NcclGpu."        # may be skipped in CI, whose machines have no GPU
STARTED = re.compile(r" +Start +(\d+): ")
ENDED = re.compile(r" *\d+/\d+ Test +#(\d+): .*?(\*\*\*\w[\w ]*|Passed) +([\d.]+) sec")


class Test:
    """One of ctest's tests: a case of a GoogleTest program, or a pytest file."""

    def __init__(self, number, listed):
        self.number = number
        self.name = listed["name"]
        self.command = listed.get("command", [])
        properties = {each["name"]: each["value"] for each in listed.get("properties", [])}
        self.labels = properties.get("LABELS", [])
        self.timeout = float(properties.get("TIMEOUT", 1500))
        self.slots = int(properties.get("PROCESSORS", 1))
        self.folder = properties.get("WORKING_DIRECTORY")
        self.environment = dict(each.split("=", 1) for each in properties.get("ENVIRONMENT", []) if each)
        self.is_pytest = "pytest" in self.command
        self.suite = self.name if self.is_pytest or not self.command else Path(self.command[0]).name

    def again(self, cases):
        """Runs it alone, of a pytest file only these cases: (passed, output)."""
        command = list(self.command)
        if self.is_pytest and cases:
            command = command[:-1] + [f"{command[-1]}::{case}" for case in cases]
        with tempfile.TemporaryFile() as file:
            try:
                process = subprocess.Popen(command, cwd=self.folder, env={**plain_environment(), **self.environment},
                                           stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                           start_new_session=True)
            except OSError as error:
                return False, f"cannot start it: {error}\n"
            with process, ended_with_us(process):
                in_time = ends_within(process, self.timeout)
            file.seek(0)
            output = file.read().decode(errors="replace")
        return (in_time and process.returncode == 0,
                output if in_time else f"{output}\nno end after {self.timeout:.0f} s\n")


class Result:
    """What became of one test: `outcome` is passed, failed or skipped."""

    def __init__(self, outcome, seconds, output):
        self.outcome = outcome
        self.seconds = seconds
        self.output = output

    def failed_cases(self):
        """Of a pytest file, the names behind the file's; none if it ended otherwise (a timeout, a crash)."""
        return re.findall(r"^[^\s:]+\.py::(.+?) (?:FAILED|ERROR) +\[ *\d+%\]$", self.output, re.M)

    def reason(self):
        """How it failed, in a line."""
        for pattern in (r"^E +(\S.*)$", r"^.*: Failure\n(.*(?:\n .*)*)", r"^(?:FAILED|ERROR) \S+ - (.*)$",
                        r"^__+ .* __+\n(\S.*(?:\n\S.*)?)"):
            found = re.search(pattern, self.output, re.M)
            if found:
                return " ".join(found.group(1).split())[:200]
        lines = self.output.strip().splitlines()
        return lines[-1][:200] if lines else "no output"


@functools.cache
def state_folder():
    """Where jobs that tests launch leave their records, which are not the caller's."""
    folder = tempfile.TemporaryDirectory(prefix="dtrain-tests-")
    atexit.register(folder.cleanup)
    return folder.name


def plain_environment():
    """Without a TMPDIR that a shell would split: tests write scripts there."""
    kept = {name: value for name, value in os.environ.items() if KEPT_VARIABLES.fullmatch(name)
            and (name != "TMPDIR" or re.fullmatch(r"[\w./-]+", value))}
    return {**kept, "XDG_STATE_HOME": state_folder()}


def list_tests(build, arguments):
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", *arguments],
                            stdout=subprocess.PIPE, check=True, env=plain_environment())
    everything = subprocess.run(["ctest", "--test-dir", build, "-N"], stdout=subprocess.PIPE, check=True, text=True,
                                env=plain_environment())
    numbers = {name: int(number) for number, name in
               re.findall(r"^ *Test +#(\d+): (.*)$", everything.stdout, re.M)}
    return [Test(numbers[each["name"]], each) for each in json.loads(listed.stdout)["tests"]]


def programs_of(build):
    """The GoogleTest programs that ctest asks for their tests."""
    lines = "".join(path.read_text() for path in Path(build, "tests").rglob("CTestTestfile.cmake"))
    return set(re.findall(r"(\w+)\[\d+\]_include\.cmake", lines))


def known_suites():
    """{suite: (tests, seconds)} of tests/suites.txt."""
    return {suite: (int(tests), float(seconds)) for suite, tests, seconds in
            (line.split() for line in SUITES.read_text().splitlines())} if SUITES.exists() else {}


def kind_of(suite):
    """How its name begins: unit_ or component_, whose cases are tests of their own; cluster., smoke. or component.,
    which are one test each."""
    return re.match(r"[^_.]*[_.]?", suite)[0]


def seconds_of(tests, known):
    """What each is expected to take of a slot: {name: s}. A suite that is not known takes the mean of its kind."""
    numbers, seconds = collections.Counter(), collections.Counter()
    for suite, (cases, took) in known.items():
        numbers[kind_of(suite)] += 1 if "." in suite else max(1, cases)
        seconds[kind_of(suite)] += took

    def expected(test):
        if test.suite in known:
            cases, took = known[test.suite]
            return took if test.is_pytest else took / max(1, cases)
        kind = kind_of(test.suite)
        return seconds[kind] / numbers[kind] if numbers[kind] else SECONDS_OF_A_TEST

    return {test.name: test.slots * expected(test) for test in tests}


def in_words(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


class Done:
    """The names of tests that have passed since a run began, for --resume, with the state of the source."""

    def __init__(self, path, resume):
        self._path = path
        self._state = source_state()
        self.names = set()
        if resume and path.exists():
            state, *names = path.read_text().splitlines()
            if state == self._state:
                self.names = set(names)
            else:
                print("--resume: the source has changed since that run; all tests run again")
        path.write_text("\n".join([self._state, *sorted(self.names)]) + "\n")

    def add(self, name):
        with self._path.open("a") as file:
            file.write(f"{name}\n")


def source_state():
    """Names the commit and what has changed since."""
    root = SUITES.parent.parent

    def git(*words):
        return subprocess.run(["git", *words], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              check=False).stdout
    state = hashlib.sha256(git("diff", "HEAD"))
    for name in git("ls-files", "--others", "--exclude-standard", "-z").split(b"\0"):
        path = root / os.fsdecode(name)
        state.update(name + (path.read_bytes() if path.is_file() else b""))
    return f"{git('rev-parse', 'HEAD').decode().strip()} {state.hexdigest()[:16]}"


class Progress:
    """Prints how far a run is: not more often than a line in ten seconds, and each failure at once."""

    def __init__(self, tests, expected, jobs):
        self._expected = dict(expected)
        self._all = len(tests)
        self._running = {}
        self._jobs = jobs
        self._start = self._told = time.monotonic()
        self.ended = 0

    def started(self, name):
        self._running[name] = time.monotonic()

    def finished(self, name, outcome, seconds):
        self._running.pop(name, None)
        self._expected.pop(name, None)
        self.ended += 1
        if outcome != "Passed" and not outcome.startswith(("***Skipped", "***Not Run")):
            print(f"  FAILED {name} after {seconds} s", flush=True)

    def tick(self):
        now = time.monotonic()
        if now - self._told < SECONDS_OF_A_LINE:
            return
        self._told = now
        left = sum(self._expected.values()) - sum(min(now - since, self._expected.get(name, 0))
                                                  for name, since in self._running.items())
        longest = max(self._running, key=lambda name: now - self._running[name], default="")
        print(f"  {self.ended} of {self._all} after {in_words(now - self._start)}, about "
              f"{in_words(max(0, left) / self._jobs)} left{f'; running {longest}' if longest else ''}", flush=True)


def lines_of(stream, tick):
    """The lines of a program's output; calls `tick` about once a second."""
    rest = b""
    while True:
        ready, _, _ = select.select([stream], [], [], 1)
        tick()
        if not ready:
            continue
        piece = os.read(stream.fileno(), 65536)
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace") + "\n" for line in lines)


@contextlib.contextmanager
def ended_with_us(process):
    """If this program is interrupted, so are that process and its group, which then clean up."""
    try:
        yield
    except BaseException:
        os.killpg(process.pid, signal.SIGINT)
        raise


def ends_within(process, seconds):
    """Whether it ends by itself in time. Otherwise it has a minute to clean up, and its group is killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return False


def run_ctest(build, tests, jobs, progress, done):
    """Runs these: {name: Result}. What ctest says is kept in BUILD/test.log."""
    log = Path(build, "test.log")
    wanted = Path(build, "test-numbers.txt")
    wanted.write_text(",".join(["0", "0", "0", *(str(test.number) for test in tests)]) + "\n")
    report = Path(build, "tests.xml")
    report.unlink(missing_ok=True)
    names = {test.number: test.name for test in tests}
    command = ["ctest", "--test-dir", build, "--output-on-failure", "-j", str(jobs), "-I", str(wanted.resolve()),
               "--test-output-size-passed", "4000000", "--test-output-size-failed", "4000000",
               "--output-junit", str(report.resolve())]
    with log.open("w", buffering=1) as file, subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, env=plain_environment()) as ctest, ended_with_us(ctest):
        for line in lines_of(ctest.stdout, progress.tick):
            file.write(line)
            started, ended = STARTED.match(line), ENDED.match(line)
            if started:
                progress.started(names[int(started.group(1))])
            elif ended:
                name, outcome = names[int(ended.group(1))], ended.group(2).strip()
                progress.finished(name, outcome, ended.group(3))
                if outcome == "Passed":
                    done.add(name)
    if not report.exists():
        raise SystemExit(f"ctest ended with {ctest.returncode} before it had run all; see {log}")
    return read_report(report)


def read_report(path):
    results = {}
    for case in ElementTree.parse(path).getroot():
        if case.tag != "testcase":
            continue
        status = case.get("status")
        outcome = {"run": "passed", "fail": "failed"}.get(status, "skipped")
        if case.find("failure") is not None:
            outcome = "failed"
        results[case.get("name")] = Result(outcome, float(case.get("time", 0)), case.findtext("system-out") or "")
    return results


def run_failed_again(tests, results, flaky_log):
    """Each that failed, alone; returns (flaky lines, names that failed twice)."""
    flaky, broken = [], []
    for test in tests:
        result = results.get(test.name)
        if result is None or result.outcome != "failed":
            continue
        cases = result.failed_cases() if test.is_pytest else []
        name = "::".join([test.name, *cases[:1]])
        print(f"once more, alone: {name}{f' and {len(cases) - 1} more' if len(cases) > 1 else ''}", flush=True)
        passed, output = test.again(cases)
        if passed:
            flaky.append(f"{name}, {result.reason()}")
            result.outcome = "passed"
            with flaky_log.open("a") as file:
                file.write(f"=== {time.strftime('%Y-%m-%d %H:%M:%S')} {name}\n{result.output}\n")
        else:
            broken.append(name)
            print(f"--- {name}\n" + "\n".join(line[:300] for line in output.splitlines()[-80:]), flush=True)
    return flaky, broken


def count(listed, results, programs):
    """{suite: (tests, seconds)}: of a program, its tests that are listed; of a pytest file that ran, what it collected."""
    numbers = collections.Counter(dict.fromkeys(programs, 0))
    seconds = collections.Counter()
    for test in listed:
        result = results.get(test.name)
        if test.is_pytest:
            collected = re.search(r"collected (\d+) item", result.output) if result else None
            if result:
                numbers[test.suite] = int(collected.group(1)) if collected else 0
        else:
            numbers[test.suite] += 1
        if result:
            seconds[test.suite] += result.seconds
    return {suite: (numbers[suite], seconds[suite]) for suite in numbers}


def write_suites(counted, known, results_of):
    for suite, (tests, seconds) in counted.items():
        if suite in results_of and tests:
            known[suite] = (tests, seconds)
    SUITES.write_text("".join(f"{suite} {tests} {seconds:.1f}\n" for suite, (tests, seconds) in sorted(known.items())))


def choose(tests, build, options, arguments, in_ci):
    """Those that are asked for. Without arguments, and in CI with them, what only a change of some files needs is there
    if one of them has changed, and otherwise left out."""
    if options.everything and not arguments and Path(build).name == "asan":
        return [test for test in tests if "cluster" not in test.labels or {"smoke", "sanitized"} & set(test.labels)]
    if options.everything or arguments and not in_ci:
        return tests
    standard = tests if arguments else [test for test in tests
                                        if "smoke" in test.labels or not {"cluster", "more"} & set(test.labels)]
    commit = options.changed or changed.base()
    files, wanted = changed.suites_since(commit, changed.read_needs(Path(build, "needs.txt")))

    def touched(suites):
        return [test for test in tests
                if files is None or changed.is_wanted([test.suite, test.name], test.labels, suites)]
    if options.changed is not None:
        print(f"{'all files' if files is None else f'{len(files)} files'} changed since "
              f"{commit[:12] or 'an unknown commit'}: {' '.join(sorted(wanted)) or 'nothing to test'}", flush=True)
        return touched(wanted)
    seldom = {test.name for test in tests
              if changed.is_wanted([test.suite, test.name], test.labels, changed.ONLY_WHEN_CHANGED)}
    # A change that any cluster suite could notice gets the smoke set here.
    needed = {test.name for test in touched(wanted - {"@cluster"})} & seldom
    usual = {test.name for test in standard}
    kept = usual - seldom | needed
    left_out, added = usual - kept, sorted(kept - usual)
    if left_out:
        print(f"left out: {len(left_out)} tests whose files have not changed since {commit[:12]}; "
              "tools/test --all runs them")
    if added:
        print(f"added, as their files have changed since {commit[:12]}: {' '.join(added)}")
    return [test for test in tests if test.name in kept]


def kinds(tests):
    """How many of each kind, in words."""
    found = collections.Counter(test.labels[0] if test.labels else "other" for test in tests)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(found.items(), key=lambda each: -each[1]))


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD", nargs="?")
    parser.add_argument("--everything", action="store_true")
    parser.add_argument("--state", action="store_true")
    parser.add_argument("--changed", nargs="?", const="", metavar="COMMIT")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--write", action="store_true")
    return parser.parse_known_args(words)


def main(words):
    options, arguments = parse(words)
    if options.state:
        print(source_state())
        return 0
    build, in_ci = options.build, os.environ.get("CI") == "true"
    listed = list_tests(build, arguments)
    tests = choose(listed, build, options, arguments, in_ci)
    if not tests and options.changed is not None:
        return 0
    if not tests:
        print(f"no test matches {' '.join(arguments)}", file=sys.stderr)
        return 1
    known = known_suites()
    selected = tests
    lock = Path(build, "tests.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"the tests of {build} run already, in another process", file=sys.stderr)
        return 2
    done = Done(Path(build, "tests-passed.txt"), options.resume)
    if done.names:
        tests = [test for test in tests if test.name not in done.names]
        print(f"{len(selected) - len(tests)} have passed before")
    expected = seconds_of(tests, known)
    # Those with whole jobs, and pages, take two each.
    jobs = max(2, int((os.cpu_count() or 1) * SLOTS_OF_A_CORE_IN.get(Path(build).name, SLOTS_OF_A_CORE)))
    start = time.monotonic()
    print(f"{Path(build).name}: {len(tests)} tests ({kinds(tests)}); about {in_words(sum(expected.values()) / jobs)}, "
          f"{jobs} at a time; the log is {build}/test.log", flush=True)
    results = run_ctest(build, tests, jobs, Progress(tests, expected, jobs), done) if tests else {}

    flaky, broken = run_failed_again(tests, results, Path(build).parent / "flaky.log")
    counted = count(listed, results, programs_of(build) if not arguments else {})
    empty = sorted(suite for suite, (number, _) in counted.items() if number == 0)
    for suite, (number, _) in sorted(counted.items()):
        if not arguments and suite in known and 0 < number < known[suite][0]:
            print(f"{suite} has {number} tests, {known[suite][0]} before")
    if options.write:
        write_suites(counted, known, {test.suite for test in tests if test.name in results})
    skipped = [test.name for test in tests if results.get(test.name) and results[test.name].outcome == "skipped"]
    unwanted = [name for name in skipped if in_ci and not name.startswith(WITHOUT_GPU)]
    for title, names in (("no tests", empty), ("failed twice", broken), ("skipped, an error in CI", unwanted),
                         ("flaky", flaky)):
        for name in names:
            print(f"{title}: {name}")
    if len(flaky) > FLAKES_ALLOWED:
        print(f"{len(flaky)} flaky tests are more than {FLAKES_ALLOWED}: an error")
    if skipped and os.geteuid() != 0 and any("cluster" in test.labels for test in selected):
        print("The cluster tests were skipped: they make hosts from namespaces, which needs root.")
    passed = sum(result.outcome == "passed" for result in results.values())
    print(f"{Path(build).name}: {in_words(time.monotonic() - start)}")
    print(f"{passed} passed, {len(broken)} failed, {len(skipped)} skipped")
    wrong = broken or empty or unwanted or len(flaky) > FLAKES_ALLOWED
    return 1 if wrong or passed + len(skipped) + len(broken) < len(tests) else 0


if __name__ == "__main__":
    # Also where SIGINT is ignored, as behind a shell's `&`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nstopped; --resume goes on with what has not passed", file=sys.stderr)
        sys.exit(130)
