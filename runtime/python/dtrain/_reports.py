# SPDX-License-Identifier: Apache-2.0
"""What each worker of run() sends at its end: its result, or why it has none.

Reports come from nodes that run() need not trust with this machine. So a report is a line of JSON.
Only a result, which follows that line, is a pickle, and run() loads it only after the whole job
has succeeded.
"""

import builtins
import json
import traceback

from . import _errors, _functions, _terminal


class Report:
    """Either `result`, a pickle, or the texts of a failure."""

    def __init__(self, result=None, text="", trace="", follows=False, cause=None):
        self.result = result
        self.text = text
        self.traceback = trace
        # Failed because another rank had failed: of the job's errors the least interesting.
        self.follows = follows
        self.cause = cause  # the exception, made again, if it is of a known class


def of_result(value):
    """Bytes for read(). Raises what pickling raises."""
    return b"{}\n" + _functions.dumps(value)


def of_error(error):
    """Bytes for read(), for an exception that was raised."""
    # Without our own frame.
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    name = type(error).__name__
    report = {
        "text": f"{name}: {error}" if str(error) else name,
        "traceback": "".join(traceback.format_exception(type(error), error, trace)),
        "follows": isinstance(error, (_errors.NetworkError, _errors.JobTimeoutError)),
    }
    if _known(name) is type(error):
        # Not `args`, which lacks an OSError's file name.
        arguments = error.__reduce__()[1]
        if all(map(_is_plain, arguments)):
            report["exception"] = [name, *arguments]
    return json.dumps(report).encode() + b"\n"


def read(data):
    """The Report in these bytes, which may be anything."""
    head, _, result = data.partition(b"\n")
    try:
        report = json.loads(head)
        if report == {}:
            return Report(result)
        text, trace = _terminal.words(report["text"]), _terminal.words(report["traceback"])
        return Report(None, text, trace, report["follows"] is True, _made(report.get("exception")))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Report(None, "its report cannot be read: is its dtrain package of another version?")


def _known(name):
    """A class of exceptions that can be made of any plain values without harm, or None."""
    kind = getattr(builtins, name, None) or getattr(_errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        return None
    # HostsUpdatedInterrupt takes other arguments than it shows. Of the others, Python itself
    # believes the positions in a text.
    is_odd = issubclass(kind, (_errors.HostsUpdatedInterrupt, UnicodeError, SyntaxError))
    return None if is_odd else kind


def _is_plain(value):
    # json refuses integers of thousands of digits.
    return value is None or type(value) in (bool, float, str) or type(value) is int and abs(value) < 1 << 64


def _made(exception):
    if not exception or not all(map(_is_plain, exception)):
        return None
    name, *arguments = exception
    kind = _known(name)
    if kind is None:
        return None
    try:
        return kind(*(_terminal.words(value) if isinstance(value, str) else value
                      for value in arguments))
    except Exception:
        return None
