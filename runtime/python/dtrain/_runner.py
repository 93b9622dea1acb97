# SPDX-License-Identifier: Apache-2.0
"""HorovodRunner, as Databricks' sparkdl has it: a training function on the ranks of a new job."""

from __future__ import annotations

import operator
import os
import threading
import warnings

from . import _errors, _frames, _functions
from ._launch import run_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Mapping, TypeVar

    Result = TypeVar("Result")


class Driver:
    """The program that called run(), as a worker sees it: reached by frames within its output."""

    def __init__(self, descriptor, marker, rank):
        self._descriptor, self._marker, self._rank = descriptor, marker, rank
        self._turn = threading.Lock()
        # A fork may be made while another thread is sending.
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self):
        self._turn = threading.Lock()

    def show(self, text):
        self.send(_frames.speaker(self._rank, os.getpid()), text)

    def send(self, sender, data):
        with self._turn:
            for line in _frames.lines(self._marker, sender, data):
                while line:
                    line = line[os.write(self._descriptor, line) :]


# Set in a worker that run() has started.
driver: Driver | None = None


class HorovodRunner:
    """Runs a training function on the ranks of a job, as sparkdl.HorovodRunner does on Databricks.

    np: > 0: that many ranks, on the hosts of `hosts`, `hostfile` or the allocation that this program
        runs in, else on this machine. < 0: -np ranks on this machine, even in an allocation. 0
        (deprecated): all slots of the hosts.
    driver_log_verbosity: "all" shows what the ranks print; "log_callback_only" shows only what they
        pass to log_to_driver(), and the launcher's own messages. With np < 0 everything is shown.
    hosts, hostfile, env, python, timeout, launch_args: as for dtrain.run().

    Raises ValueError for bad arguments.
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only",
                 hosts: str | Iterable[str] | None = None, hostfile: str | os.PathLike[str] | None = None,
                 env: Mapping[str, object] | None = None, python: str | None = None,
                 timeout: float | None = None, launch_args: Iterable[str] = ()) -> None:
        try:
            self.num_processor = operator.index(np)
        except TypeError:
            raise _errors.InvalidArgumentError(
                f"HorovodRunner: np={np!r} is not a whole number of ranks"
            ) from None
        if driver_log_verbosity not in ("all", "log_callback_only"):
            raise _errors.InvalidArgumentError(
                f"HorovodRunner: driver_log_verbosity={driver_log_verbosity!r} is neither \"all\" "
                "nor \"log_callback_only\""
            )
        if self.num_processor == 0:
            warnings.warn("HorovodRunner(np=0), all slots of the hosts, is deprecated: give a "
                          "number", DeprecationWarning, stacklevel=2)
        self._quiet = driver_log_verbosity != "all" and self.num_processor >= 0
        self._options = dict(hosts=hosts, hostfile=hostfile, env=env, python=python,
                             timeout=timeout, launch_args=launch_args)

    def run(self, main: Callable[..., Result], **kwargs: Any) -> Result:
        """Calls main(**kwargs) on every rank and returns rank 0's result.

        Other ranks' results are discarded and need not be picklable. Raises RemoteError if main raises
        an exception, JobError if the job fails otherwise, ValueError for what cannot be pickled.
        """
        if not callable(main):
            raise _errors.InvalidArgumentError(f"HorovodRunner.run: {main!r} is not a function")
        try:
            call = _functions.dumps((_on_a_rank, (main, kwargs), {}))
        except Exception as error:
            what = _unpicklable(main=main, **{f"{name}=": kwargs[name] for name in kwargs})
            raise _errors.InvalidArgumentError(
                f"HorovodRunner.run: {what} cannot be sent to the ranks: {error}"
            ) from error
        return run_call(call, np=self.num_processor or None, quiet=self._quiet,
                        **self._options)[0]


def _unpicklable(**values):
    """The names of those that are."""
    names = []
    for name, value in values.items():
        try:
            _functions.dumps(value)
        except Exception:
            names.append(name)
    return " and ".join(names) or "main"


def _on_a_rank(main, kwargs):
    value = main(**kwargs)
    return value if os.environ.get("DTRAIN_RANK", "0") == "0" else None


def log_to_driver(message: object) -> None:
    """Shows a text in the output of the program that called HorovodRunner.run() or dtrain.run().

    driver_log_verbosity does not matter. In any other program, the text is printed.
    """
    if driver is None:
        print(message, flush=True)
    else:
        driver.show(str(message).encode(errors="replace"))
