#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""count.py BUILD [--whole [--but-long] | --write]: counts the tests of each suite after ctest ran in BUILD.
A suite is a GoogleTest program or a pytest file. It fails when one has no tests; of pytest files those that
ran are looked at. --whole, for a run of all tests of the release build as root, also compares with
tests/counts.txt: each suite must be there and have at least as many tests. With --but-long, suites labelled
"long" may be missing. After a change on purpose, --write makes that file again."""
import collections
import json
import re
import subprocess
import sys
from pathlib import Path

COUNTS = Path(__file__).resolve().with_name("counts.txt")


def count(listed, log, programs):
    """{suite: tests}, as ctest lists those of the programs; of a pytest file what it collected when it ran."""
    found = collections.Counter(dict.fromkeys(programs, 0))
    files = set()
    for test in listed["tests"]:
        command = test.get("command", [])
        if "pytest" in command:
            files.add(test["name"])
        elif command:
            found[Path(command[0]).name] += 1
    for name, output in re.findall(r"^\d+/\d+ Testing: (\S+)\n(.*?)(?=^\d+/\d+ Testing: |\Z)", log,
                                   re.S | re.M):
        if name in files:
            collected = re.search(r"collected (\d+) item", output)
            found[name] = int(collected.group(1)) if collected else 0
    return found


def programs_of(build):
    """The GoogleTest programs that ctest asks for their tests."""
    lines = "".join(path.read_text() for path in Path(build, "tests").rglob("CTestTestfile.cmake"))
    return set(re.findall(r"(\w+)\[\d+\]_include\.cmake", lines))


def suites_labelled(listed, label):
    return {test["name"] for test in listed["tests"] for each in test.get("properties", [])
            if each["name"] == "LABELS" and label in each["value"]}


def mistakes(found, wanted=None):
    """What is wrong with these counts; with `wanted` those of a whole run."""
    wrong = [f"{suite} has no tests" for suite in sorted(found) if found[suite] == 0]
    for suite, number in (wanted or {}).items():
        if suite not in found or 0 < found[suite] < number:
            wrong.append(f"{suite} has {found[suite]} tests, {number} before")
    if wanted is not None:
        wrong += [f"{suite} is not in tests/counts.txt" for suite in sorted(found) if suite not in wanted]
    return wrong


def main(build, *flags):
    # Before ctest lists its tests, which empties the log.
    path = Path(build, "Testing/Temporary/LastTest.log")
    log = path.read_text(errors="replace") if path.exists() else ""
    listed = json.loads(subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, check=True).stdout)
    found = count(listed, log, programs_of(build))
    if flags == ("--write",):
        COUNTS.write_text("".join(f"{suite} {found[suite]}\n" for suite in sorted(found)))
        return 0
    wanted = None
    if flags[:1] == ("--whole",):
        wanted = {suite: int(number) for suite, number in
                  (line.split() for line in COUNTS.read_text().splitlines())}
        if "--but-long" in flags:
            for suite in suites_labelled(listed, "long") - set(found):
                wanted.pop(suite, None)
        print(f"{sum(found.values())} tests in {len(found)} suites")
    wrong = mistakes(found, wanted)
    if wrong:
        print("\n".join(wrong))
        if wanted:
            print(f"if that is right: tests/count.py {build} --write")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
