# SPDX-License-Identifier: Apache-2.0
"""What dtrain.run() starts as every rank: reads the function from stdin and writes its result."""

import os
import sys

from . import _frames, _functions, _job, _reports, _runner


def _call(contents):
    """(True, the report of the result) or (False, the exception)."""
    try:
        for folder in contents["path"]:
            if folder not in sys.path:
                sys.path.append(folder)
        function, arguments, keywords = _functions.loads(contents["call"])
        return True, _reports.of_result(function(*arguments, **keywords))
    except BaseException as error:  # SystemExit and KeyboardInterrupt, too
        return False, error


def main():
    stdout = os.dup(1)
    contents = _frames.unpack(sys.stdin.buffer)
    rank = int(os.environ.get("DTRAIN_RANK", "0"))
    _runner.driver = _runner.Driver(stdout, contents["marker"], rank)
    worked, outcome = _call(contents)
    # An exception is not for stderr: run() raises it, once.
    report = outcome if worked else _reports.of_error(outcome)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    try:
        _runner.driver.send(rank, report)
    except OSError:
        if not worked:
            sys.stderr.write(_reports.read(report).traceback)
        raise
    if not worked:
        _job.abandon()
        code = outcome.code if isinstance(outcome, SystemExit) else 1
        sys.exit(code if isinstance(code, int) and code != 0 else 1)
    if _job.in_job():
        _job.leave_at_exit()


if __name__ == "__main__":
    main()
