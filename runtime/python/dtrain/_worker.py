# SPDX-License-Identifier: Apache-2.0
"""What dtrain.run() starts as every rank: reads the function from stdin and writes its result."""

import os
import pickle
import sys
import traceback

from . import _errors, _frames, _functions, _job, _runner


def _describe(error):
    """An exception as plain values, for the other side may not have its class."""
    try:
        pickled = _functions.dumps(error)
        pickle.loads(pickled)
    except Exception:
        pickled = None
    # Without our own frame.
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    name = type(error).__name__
    text = f"{name}: {error}" if str(error) else name
    return {
        "text": text,
        "traceback": "".join(traceback.format_exception(type(error), error, trace)),
        "exception": pickled,
        # Failed because another rank had failed: of the job's errors the least interesting.
        "follows": isinstance(error, (_errors.NetworkError, _errors.JobTimeoutError)),
    }


def _call(contents):
    """(True, the pickled result) or (False, the exception)."""
    try:
        for folder in contents["path"]:
            if folder not in sys.path:
                sys.path.append(folder)
        function, arguments, keywords = _functions.loads(contents["call"])
        return True, _functions.dumps(function(*arguments, **keywords))
    except BaseException as error:  # SystemExit and KeyboardInterrupt, too
        return False, error


def main():
    stdout = os.dup(1)
    contents = _frames.unpack(sys.stdin.buffer)
    rank = int(os.environ.get("DTRAIN_RANK", "0"))
    _runner.driver = _runner.Driver(stdout, contents["marker"], rank)
    worked, outcome = _call(contents)
    if worked:
        report = {"result": outcome}
    else:
        # Not on stderr: run() raises it, once.
        report = _describe(outcome)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    try:
        _runner.driver.send(rank, pickle.dumps(report, 4))
    except OSError:
        sys.stderr.write(report.get("traceback", ""))
        raise
    if not worked:
        _job.abandon()
        code = outcome.code if isinstance(outcome, SystemExit) else 1
        sys.exit(code if isinstance(code, int) and code != 0 else 1)
    if _job.in_job():
        _job.leave()


if __name__ == "__main__":
    main()
