# SPDX-License-Identifier: Apache-2.0
"""Any Python object, and single numbers. Neither numpy nor torch is needed."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Iterable, Mapping

from . import _arrays, _errors
from ._calls import gather_integers, issue
from ._handles import GroupHandle
from ._moves import broadcast_async_, issue_rows
from ._process_sets import global_process_set

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, SupportsFloat, TypeVar, overload

    from ._process_sets import ProcessSet

    Key = TypeVar("Key")
    Value = TypeVar("Value")

_FLOAT64 = _arrays.NATIVE["float64"]


def dumps(value):
    """Pickles, with cloudpickle where there is one: it knows functions of notebooks, too."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return cloudpickle.dumps(value)


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None,
                     process_set: ProcessSet | None = global_process_set) -> Any:
    """Returns rank `root_rank`'s object on every rank.

    obj: anything that can be pickled; ignored on other ranks.
    root_rank: a rank of the job, also with a process_set. ValueError if it is not in the set.
    name: matches the call with that of the other ranks; without a name, the order of calls does.
    """
    process_set = process_set or global_process_set
    root = process_set.index_of(root_rank)
    is_root = process_set.rank() == root
    data = dumps(obj) if is_root else b""
    size = f"{name}.sz" if name else None
    length = gather_integers([len(data)], process_set, size)[root][0]
    buffer = ctypes.create_string_buffer(data, length)
    arguments = ctypes.addressof(buffer), length, _arrays.BYTE, root
    issue("dtrain_broadcast", arguments, buffer, lambda: None, label=name,
          process_set=process_set, wait=True)
    return obj if is_root else pickle.loads(buffer)


def allgather_object(obj: Value, name: str | None = None,
                     process_set: ProcessSet | None = global_process_set) -> list[Value]:
    """Returns the list of all ranks' objects, in rank order.

    obj: anything that can be pickled.
    name: matches the call with that of the other ranks; without a name, the order of calls does.
    """
    process_set = process_set or global_process_set
    return [pickle.loads(part) for part in gather_octets(dumps(obj), name, process_set)]


def gather_octets(data, name, process_set):
    """Every rank's bytes, in rank order."""
    mine, everyones = ctypes.create_string_buffer(data, len(data)), []

    def allocate(lengths):
        everyones.append(ctypes.create_string_buffer(max(1, sum(lengths))))
        return ctypes.addressof(everyones[0])

    def finish(lengths):
        view, parts, at = memoryview(everyones[0]), [], 0
        for length in lengths:
            parts.append(view[at : at + length])
            at += length
        return parts

    return issue_rows("dtrain_allgatherv", ctypes.addressof(mine), len(data), 1, _arrays.BYTE, allocate, mine, finish,
                      label=name, process_set=process_set, wait=True)


if TYPE_CHECKING:
    @overload
    def metric_average(value: Mapping[Key, SupportsFloat], name: str | None = ...,
                       process_set: ProcessSet | None = ...) -> dict[Key, float]: ...
    @overload
    def metric_average(value: SupportsFloat, name: str | None = ...,
                       process_set: ProcessSet | None = ...) -> float: ...


def metric_average(value: SupportsFloat | Mapping[Any, SupportsFloat], name: str | None = None,
                   process_set: ProcessSet | None = global_process_set) -> float | dict[Any, float]:
    """Returns the average over all ranks of a number, or of each value of a dictionary of numbers.

    value: what float() converts, such as a tensor or array of one element; or a dictionary of such,
        whose keys are the same on all ranks.
    name: matches the call with that of the other ranks; without a name, the order of calls does.
    """
    process_set = process_set or global_process_set
    if isinstance(value, Mapping):
        keys = sorted(value)  # on all ranks in the same order
        averages = _average([float(value[key]) for key in keys], name, process_set)
        return {key: averages[keys.index(key)] for key in value}
    return _average([float(value)], name, process_set)[0]


def _average(values, name, process_set):
    buffer = (ctypes.c_double * len(values))(*values)
    address = ctypes.addressof(buffer)
    # 1: DTRAIN_AVG
    issue("dtrain_allreduce", (address, address, len(values), _FLOAT64, 1), buffer, lambda: None,
          label=name, process_set=process_set, wait=True)
    return list(buffer)


def broadcast_parameters(params: Mapping[Any, Any] | Iterable[Any], root_rank: int = 0,
                         process_set: ProcessSet | None = global_process_set) -> None:
    """Writes rank `root_rank`'s values into every rank's arrays or tensors.

    params: a dictionary of arrays or tensors (`model.state_dict()`), pairs of name and value
        (`model.named_parameters()`), or values alone; the same names on all ranks.
    root_rank: a rank of the job, also with a process_set.

    Raises ValueError for anything else, MismatchError if the ranks' names, shapes or types differ.
    """
    if isinstance(params, Mapping):
        params = sorted(params.items())
    elif not isinstance(params, Iterable) or isinstance(params, str):
        raise _errors.InvalidArgumentError(
            f"broadcast_parameters: a {type(params).__name__} has no parameters: give a "
            "state_dict(), or the pairs of named_parameters()"
        )
    pairs = [pair if isinstance(pair, tuple) else (None, pair) for pair in params]
    GroupHandle([
        broadcast_async_(value, root_rank, name=None if name is None else str(name),
                         process_set=process_set)
        for name, value in pairs
        if value is not None
    ]).wait()
