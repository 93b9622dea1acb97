# SPDX-License-Identifier: Apache-2.0
"""Starting the library's collectives, on addresses and counts.

All of them are asynchronous calls, also those that are waited for at once: the library matches
these by name, so that ranks may make them in different order, and survives a mismatch.
"""

from __future__ import annotations

import ctypes

from . import _errors, _job, _timeline
from ._handles import Handle, claim, count_wait, hold, sweep
from ._library import library, make_options

INT64 = 1  # DTRAIN_INT64
# Stands for the memory of arrays without elements, which may have none.
_nowhere = ctypes.create_string_buffer(64)


def pointer(kind, x):
    """The address of `x`, which _arrays has as `kind`."""
    return kind.pointer(x) or ctypes.addressof(_nowhere)


def group_of(process_set):
    """The dtrain_group of a ProcessSet, for None that of all ranks."""
    return None if process_set is None else process_set.group()


def shape_text(kind, x, native):
    """What the ranks' arrays must have in common and the library cannot see, in words. `native`:
    the type of `x` is one that it knows."""
    shape = str(tuple(map(int, kind.shape(x))))
    return shape if native else f"{kind.type_name(x)} {shape}"


def issue(name, arguments, arrays, finish, stream=None, label=None, process_set=None, wait=False,
          shape=None):
    """Starts `name` with `arguments`. A Handle, or with `wait` its result.

    arrays: what must live until then. finish: makes the result. label: the name that the ranks know
    it by. shape: see shape_text().
    """
    called = name[len("dtrain_") :].removesuffix("v")
    _job.check_in_job(called)
    sweep()
    group = group_of(process_set)
    key = claim(called, group, label)
    stream = None if stream is None else stream.cuda_stream
    options = make_options(group, label, stream, shape)
    span = _timeline.begin(called, label) if _timeline.active else None
    if wait and span is None:
        count_wait()
        hold(key)
        try:
            library().start_and_wait(name, arguments, arrays, options)
        finally:
            hold(key, False)
        return finish()
    number = library().start(name, arguments, options)
    if span is not None:
        span.started()
    handle = Handle(number, arrays, finish, key, span)
    return handle.wait() if wait else handle


def gather_integers(values, process_set=None, label=None):
    """Every rank's list of integers, which are equally long."""
    count = len(values)
    ranks = _job.size() if process_set is None else process_set.size()
    mine = (ctypes.c_int64 * count)(*values)
    everyones = (ctypes.c_int64 * (count * ranks))()
    arguments = ctypes.addressof(mine), ctypes.addressof(everyones), count, INT64

    def finish():
        return [list(everyones[r * count : (r + 1) * count]) for r in range(ranks)]

    return issue("dtrain_allgather", arguments, (mine, everyones), finish, label=label,
                 process_set=process_set, wait=True)

