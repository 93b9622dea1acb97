#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""count.py BUILD [--write]: counts the tests of each suite after ctest ran in BUILD, and fails when a
suite of tests/counts.txt has fewer than there, or none. A suite is a GoogleTest program or a pytest
file. Removing tests on purpose: --write makes tests/counts.txt anew."""
import collections
import json
import re
import subprocess
import sys
from pathlib import Path

COUNTS = Path(__file__).resolve().with_name("counts.txt")


def count(build):
    """{suite: tests}, as ctest lists them; of a pytest file what it collected when it ran."""
    listed = json.loads(subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, check=True).stdout)
    found = collections.Counter()
    files = set()
    for test in listed["tests"]:
        command = test.get("command", [])
        if "pytest" in command:
            files.add(test["name"])
        elif command:
            found[Path(command[0]).name] += 1
    log = (Path(build) / "Testing/Temporary/LastTest.log").read_text(errors="replace")
    for name, output in re.findall(r"^\d+/\d+ Testing: (\S+)\n(.*?)(?=^\d+/\d+ Testing: |\Z)", log,
                                   re.S | re.M):
        collected = re.search(r"collected (\d+) item", output)
        if name in files and collected:
            found[name] = int(collected.group(1))
    return found


def main(build, *flags):
    found = count(build)
    if flags == ("--write",):
        COUNTS.write_text("".join(f"{suite} {found[suite]}\n" for suite in sorted(found)))
        return 0
    fewer = [f"{suite} has {found[suite]} tests, {wanted} before"
             for suite, wanted in (line.split() for line in COUNTS.read_text().splitlines())
             if found[suite] < int(wanted)]
    print(f"{sum(found.values())} tests in {len(found)} suites")
    if fewer:
        print("\n".join([*fewer, f"if that is right: tests/count.py {build} --write"]))
    return 1 if fewer else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
