# SPDX-License-Identifier: Apache-2.0
"""dtrain.run(): a function on the workers of a job, from a program or a notebook."""

from __future__ import annotations

import functools
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys

from . import _copies, _errors, _frames, _functions, _reports, _terminal
from ._library import installed_in, package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Mapping, TypeVar

    Result = TypeVar("Result")

# The job ends with the process that called run(), also when that is killed: the launcher is told
# by a SIGTERM then. The signal is asked for in a process of its own and kept by exec.
_TETHER = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class JobError(RuntimeError):
    """The job of run() failed, but not by an exception in the function. `exit_code` is `dtrain launch`'s."""

    __module__ = "dtrain"

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class RemoteError(JobError):
    """The function of run() raised an exception on a worker.

    `rank` is the worker's, `traceback` the text of its traceback. The `__cause__` of this exception
    is the original one if its class is Python's or dtrain's own and its arguments are text, numbers
    or None. Any other exception is only text here, because loading it could run code of a node's
    choice.
    """

    __module__ = "dtrain"

    def __init__(self, rank: int, text: str, traceback: str, exit_code: int = 1) -> None:
        super().__init__(f"rank {rank}: {text}\n\n{traceback}".rstrip(), exit_code)
        self.rank = rank
        self.traceback = traceback


def run(fn: Callable[..., Result], *args: Any, np: int | None = None, hosts: str | Iterable[str] | None = None,
        hostfile: str | os.PathLike[str] | None = None, env: Mapping[str, object] | None = None,
        python: str | None = None, timeout: float | None = None, launch_args: Iterable[str] = (),
        **kwargs: Any) -> list[Result]:
    """Runs fn(*args, **kwargs) on every worker of a new job and returns the results in rank order.

    np: the number of ranks; negative: that many on this machine, even in an allocation. Default: all
        slots of the hosts.
    hosts: "node1:4,node2:4" or a list of such words.
    hostfile: a file of hosts. Without either, the nodes of the allocation that this program runs in,
        or this machine.
    env: variables for the workers. The launcher gets them too; no command line shows their values.
    python: the workers' interpreter; default: this one.
    timeout: seconds after which the job is ended.
    launch_args: further flags of `dtrain launch`.

    fn, its arguments and results are pickled: with cloudpickle if it is installed; without it,
    functions of the main program work too, but its classes do not. The nodes need Python and what fn
    imports; this package is sent to hosts that are named and lack it. What the workers print is shown
    as it comes.

    Raises RemoteError if fn raises an exception, JobError if the job fails otherwise, ValueError for
    bad arguments, JobEnvironmentError if there is no dtrain program. KeyboardInterrupt ends the job and
    is raised when the job is over.

    With `num_proc` it is Horovod's run(fn, args=(), kwargs=None, num_proc=1, hosts=None,
    hostfile=None, start_timeout=None, ssh_port=None, output_filename=None, verbose=None,
    executable=None, env=None). Horovod's arguments for elastic jobs are an UnsupportedError; those that
    choose a transport or network are ignored.
    """
    if "num_proc" in kwargs:
        return _run_as_horovod(fn, args, np=np, hosts=hosts, hostfile=hostfile, env=env,
                               python=python, timeout=timeout, launch_args=launch_args, **kwargs)
    return run_call(_functions.dumps((fn, args, kwargs)), np=np, hosts=hosts, hostfile=hostfile,
                    env=env, python=python, timeout=timeout, launch_args=launch_args)


def run_call(call, *, np, hosts, hostfile, env, python, timeout, launch_args, quiet=False):
    """run() of a pickled (fn, args, kwargs). `quiet`: of the workers' output only the texts of
    log_to_driver() are shown."""
    variables = _variables(env)
    launch_args = list(launch_args)
    contents = {
        "marker": f"\x1edtrain-{secrets.token_hex(16)}",
        "path": [folder or os.getcwd() for folder in sys.path],
        "call": call,
    }
    flags = [*_flags(np, hosts, hostfile, timeout), *(f"-x{name}" for name in variables)]
    launch = [_find_dtrain(), "launch", *flags, *launch_args]
    # Whatever the user's configuration says.
    ours = ["--stdin", "all", "--show-ranks", "all"]
    if quiet:
        ours += ["--tag-output", "rank"]  # tells the workers' lines from the launcher's
    worker = [*ours, "--", python or sys.executable]
    are_named = hosts is not None or hostfile is not None
    copy = _copies.for_others(launch_args) if are_named else None
    if copy is None:
        worker += ["-m", "dtrain._worker"]
    else:
        launch += ["--stage", copy, "--stage-quiet"]
        worker += ["-c", _copies.BEGIN, os.getcwd()]
    # A lone rank may do with the terminal what it would do without us, as under the launcher; further
    # flags may be about the number of ranks.
    alone = np is not None and abs(int(np)) == 1 and not launch_args
    out, err = (not alone and _terminal.is_one(stream) for stream in (sys.stdout, sys.stderr))
    collector = _frames.Collector(contents["marker"], quiet, whole=out)
    errors = _frames.LaunchersLines() if quiet else _frames.Lines() if err else None
    process = _Process(launch, worker, variables, _frames.pack(contents),
                       _Shown(sys.stdout, collector, out), _Shown(sys.stderr, errors, err))
    code = process.run()
    try:
        verdict = json.loads(process.told)
    except ValueError:
        verdict = {}
    return _outcome(code, verdict, collector.results)


def _find_dtrain():
    """The dtrain to run: DTRAIN_BIN, else what came with this package, else PATH, else what was built in
    the sources around us."""
    chosen = os.environ.get("DTRAIN_BIN")
    found = chosen
    if not found and installed_in():
        found = shutil.which("dtrain", path=installed_in() / "bin")  # also where PATH lacks it, as in notebooks
    found = found or shutil.which("dtrain")
    if not found:
        built = list((package().parents[2] / "build").glob("*/bin/dtrain"))
        built.sort(key=lambda path: (path.parts[-3] == "release", path.stat().st_mtime))
        found = built[-1] if built else None
    if not found or not os.access(found, os.X_OK):
        where = f"DTRAIN_BIN={chosen} is not one" if chosen else "there is none in PATH"
        raise _errors.JobEnvironmentError(f"run: no dtrain program: {where}; set DTRAIN_BIN")
    return str(found)


def _variables(env):
    """What the workers get, by name. Names must do for a command line."""
    variables = {str(name): str(value) for name, value in (env or {}).items()}
    for name in variables:
        if not name or "=" in name or "\0" in name:
            raise _errors.InvalidArgumentError(f"run: env: {name!r} cannot be a variable's name")
    # So that the workers find this package where it lies.
    rest = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package().parent), rest)))
    return variables


# Horovod's arguments by what becomes of them.
_NO_ELASTIC_JOB = ("min_num_proc", "max_num_proc", "slots", "reset_limit", "cooldown_range",
                   "host_discovery_script", "min_np", "max_np")
_DTRAIN_FINDS_OUT = ("disable_cache", "use_gloo", "use_mpi", "mpi_args", "network_interface",
                     "network_interfaces", "ssh_identity_file")


def _run_as_horovod(fn, positional, *, np, hosts, hostfile, env, python, timeout, launch_args, num_proc,
                    args=(), kwargs=None, start_timeout=None, ssh_port=None, output_filename=None,
                    verbose=None, executable=None, **others):
    if positional:
        raise _errors.InvalidArgumentError("run: with num_proc give args=(...) and kwargs={...}")
    for name, value in others.items():
        if name in _NO_ELASTIC_JOB and value is not None:
            raise _errors.UnsupportedError(f"run({name}=...): run() has no elastic jobs")
        if name not in _NO_ELASTIC_JOB + _DTRAIN_FINDS_OUT:
            raise TypeError(f"run() got an unexpected keyword argument {name!r}")
    flags = [*launch_args]
    if start_timeout is not None:
        flags += ["--start-timeout", f"{max(1000, round(start_timeout * 1000))}ms"]
    if ssh_port is not None:
        flags += ["--ssh-port", str(ssh_port)]
    if output_filename is not None:
        flags += ["--log-dir", str(output_filename)]
    if verbose:
        flags += ["--verbose"]
    ranks = np if np is not None else num_proc
    # Horovod's default is this machine, which a negative number means here.
    here = hosts is None and hostfile is None
    call = functools.partial(fn, *args, **(kwargs or {}))
    return run(call, np=-ranks if here else ranks, hosts=hosts, hostfile=hostfile, env=env,
               python=executable or python, timeout=timeout, launch_args=flags)


def _flags(np, hosts, hostfile, timeout):
    if np is not None:
        if int(np) == 0:
            raise _errors.InvalidArgumentError("run: np=0: a job has at least one rank")
        yield from ("-np", str(int(np)))
    if hosts is not None:
        yield from ("-H", hosts if isinstance(hosts, str) else ",".join(hosts))
    if hostfile is not None:
        yield from ("--hostfile", str(hostfile))
    if timeout is not None:
        yield from ("--timeout", f"{max(1, round(timeout * 1000))}ms")


class _Shown:
    """One of the job's streams, on its way to where this program writes."""

    def __init__(self, stream, lines, safely):
        """`lines`: a _frames.Lines, or None: what comes is shown as it is. `safely`: the stream is a
        terminal that ranks share, and all that `lines` gives out is whole lines."""
        self._stream, self._lines, self._safely = stream, lines, safely

    def feed(self, data):
        self._write(self._lines.feed(data) if self._lines else data)

    def finish(self):
        if self._lines:
            self._write(self._lines.finish())

    def _write(self, data):
        # What log_to_driver() sends is not filtered by the launcher, even if it had our terminal.
        _print(self._stream, _terminal.lines(data, _frames.TAG) if self._safely else data)


class _Process:
    """`dtrain launch`: its input, and its output to where this program writes."""

    def __init__(self, launch, worker, variables, data, out, err):
        """`launch` and `worker` are the command, which has room for a flag between them.
        `variables`: for the launcher, by name."""
        self.told = b""
        self._data = memoryview(data)
        self._out, self._err = out, err
        self._selector = selectors.DefaultSelector()
        tether = [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid())]
        # The result file is a pipe, so that nothing is left when this process is killed.
        told, tell = os.pipe()
        command = [*launch, "--result-json", f"/dev/fd/{tell}", *worker]
        # A session of its own: Ctrl-C reaches it once, through us.
        self._process = subprocess.Popen(
            tether + command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, bufsize=0,
            pass_fds=[tell], env={**os.environ, **variables},
        )
        os.close(tell)
        self._told = open(told, "rb", buffering=0)

    def run(self):
        """The exit code."""
        pipes = self._process.stdin, self._process.stdout, self._process.stderr, self._told
        actions = self._feed, self._show_stdout, self._show_stderr, self._hear
        for pipe, action in zip(pipes, actions):
            os.set_blocking(pipe.fileno(), False)
            write = pipe is self._process.stdin
            event = selectors.EVENT_WRITE if write else selectors.EVENT_READ
            self._selector.register(pipe, event, action)
        stopped = None
        while True:
            try:
                while self._selector.get_map():
                    for key, _ in self._selector.select():
                        key.data(key.fileobj)
                code = self._process.wait()
                break
            except KeyboardInterrupt as error:
                # The launcher stops the workers; a second one makes it do so at once.
                stopped = error
                self._signal(signal.SIGINT)
            except BaseException as error:
                # Our output is closed, or the like.
                if stopped is not None and not isinstance(stopped, KeyboardInterrupt):
                    self._process.kill()
                    raise
                stopped = error
                self._signal(signal.SIGTERM)
        self._selector.close()
        if stopped is not None:
            raise stopped
        self._out.finish()
        self._err.finish()
        return code

    def _signal(self, number):
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _close(self, pipe):
        self._selector.unregister(pipe)
        pipe.close()

    def _feed(self, pipe):
        try:
            self._data = self._data[os.write(pipe.fileno(), self._data[: 1 << 16]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._data = self._data[:0]
        if not self._data:
            self._close(pipe)

    def _read(self, pipe):
        try:
            data = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return None
        if not data:
            self._close(pipe)
        return data

    def _show_stdout(self, pipe):
        data = self._read(pipe)
        if data:
            self._out.feed(data)

    def _show_stderr(self, pipe):
        data = self._read(pipe)
        if data:
            self._err.feed(data)

    def _hear(self, pipe):
        self.told += self._read(pipe) or b""


def _print(stream, data):
    if data and stream is not None:
        stream.write(data.decode(errors="replace"))
        stream.flush()


def _outcome(code, verdict, frames):
    """The list of results; raises when there are not all of them."""
    reports = {rank: _reports.read(data) for rank, data in frames.items()}
    first = verdict.get("verdict", {}).get("first_failed_rank")
    failures = {rank: report for rank, report in reports.items() if report.result is None}
    told = [rank for rank, report in failures.items() if not report.follows]
    raised = None
    if first in failures and (first in told or not told):
        raised = first
    elif told and first in (None, *failures):
        raised = min(told)
    # The workers leave it to us to show them.
    others = "".join(f"rank {rank}: {report.traceback}" for rank, report in
                     sorted(failures.items()) if rank in told and rank != raised
                     and (raised is None or report.text != failures[raised].text))
    _print(sys.stderr, others.encode())
    if raised is not None:
        failure = failures[raised]
        raise RemoteError(raised, failure.text, failure.traceback, code) from failure.cause
    if code != 0 or failures:
        raise JobError(f"dtrain launch ended with exit code {code}: {_why(verdict)}", code)
    size = verdict.get("world_size", len(reports))
    missing = sorted(set(range(size)) - set(reports))
    if missing:
        ranks = ", ".join(map(str, missing))
        raise JobError(f"the job ended well, but without a result of rank {ranks}", code)
    # Only now: a pickle can run code. docs/python.md says whom this trusts.
    return [_functions.loads(reports[rank].result) for rank in range(size)]


def _why(verdict):
    message = verdict.get("verdict", {}).get("message")
    return _terminal.words(message) if message else "see its output"
