# SPDX-License-Identifier: Apache-2.0
"""libdtrain.so: where it is, and its functions.

The library is loaded by the first function that needs it, so that a program that only calls
dtrain.run() needs none.
"""

import ctypes
import os
import sys
import threading
import time
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p

from . import _errors

SONAME = "libdtrain.so.0"
_NCCL = "libnccl.so.2"
_BUSY = 8  # DTRAIN_ERROR_BUSY
_RETRY_SECONDS = 0.0001


class Config(Structure):
    """dtrain_config"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint64),
        ("init_timeout_ms", c_int64),
        ("collective_timeout_ms", c_int64),
        ("address", c_char_p),
    ]


class Options(Structure):
    """dtrain_options"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint64),
        ("group", c_void_p),
        ("name", c_char_p),
        ("stream", c_void_p),
        ("shape", c_char_p),
    ]


_OPTIONS_AND_HANDLE = [POINTER(Options), POINTER(c_uint64)]
_COLLECTIVES: dict[str, list] = {
    "dtrain_barrier": [],
    "dtrain_allreduce": [c_void_p, c_void_p, c_size_t, c_int, c_int],
    "dtrain_broadcast": [c_void_p, c_size_t, c_int, c_int],
    "dtrain_allgather": [c_void_p, c_void_p, c_size_t, c_int],
    "dtrain_reduce_scatter": [c_void_p, c_void_p, c_size_t, c_int, c_int],
    "dtrain_alltoall": [c_void_p, c_void_p, c_size_t, c_int],
    "dtrain_reduce": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_int],
}
# Functions that return a dtrain_status.
_CALLS = {
    "dtrain_init": [POINTER(Config)],
    "dtrain_finalize": [],
    "dtrain_finalize_at_exit": [],
    "dtrain_rejoin": [POINTER(Config)],
    "dtrain_group_create": [c_int, c_int, POINTER(c_void_p)],
    "dtrain_group_free": [c_void_p],
    "dtrain_group_set_timeout": [c_void_p, c_int64],
    "dtrain_alloc": [c_size_t, POINTER(c_void_p)],
    "dtrain_alloc_device": [c_size_t, POINTER(c_void_p)],
    "dtrain_alloc_registrable": [c_size_t, POINTER(c_void_p)],
    "dtrain_free": [c_void_p],
    "dtrain_register": [c_void_p, c_void_p, POINTER(c_int)],
    "dtrain_deregister": [c_void_p, c_void_p],
    "dtrain_join": [POINTER(c_int)],
    "dtrain_wait": [c_uint64],
    "dtrain_test": [c_uint64, POINTER(c_int)],
    **_COLLECTIVES,
    **{name + "_async": types + _OPTIONS_AND_HANDLE for name, types in _COLLECTIVES.items()},
    "dtrain_allgatherv_async": [c_void_p, c_uint64, c_size_t, c_int, c_void_p, c_void_p, *_OPTIONS_AND_HANDLE],
    "dtrain_alltoallv_async": [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p, *_OPTIONS_AND_HANDLE],
}
_OTHERS = {
    "dtrain_rank": ([], c_int),
    "dtrain_size": ([], c_int),
    "dtrain_local_rank": ([], c_int),
    "dtrain_local_size": ([], c_int),
    "dtrain_node_rank": ([], c_int),
    "dtrain_node_count": ([], c_int),
    "dtrain_group_rank": ([c_void_p], c_int),
    "dtrain_group_size": ([c_void_p], c_int),
    "dtrain_mark_begin": ([c_char_p], None),
    "dtrain_mark_end": ([], None),
    "dtrain_abandon": ([], None),
    "dtrain_backend": ([], c_char_p),
    "dtrain_last_error": ([], c_char_p),
    "dtrain_version": ([], c_char_p),
}


def make_options(group=None, label=None, stream=None, shape=None):
    """dtrain_options: of a group, a name, a CUDA stream's address, and a text on the arrays."""
    encoded = label.encode(errors="replace") if label else None
    shape = shape.encode() if shape else None
    return Options(ctypes.sizeof(Options), 0, group, encoded, stream, shape)


class Library:
    """A loaded libdtrain.so."""

    def __init__(self, path):
        self.path = str(path)
        # ctypes opens it for itself (RTLD_LOCAL): no other library meets its symbols.
        self._c = ctypes.CDLL(self.path)
        self._functions = {}
        self._inside = set()  # the threads that are in a call, by their idents
        self._left_behind = []  # arrays that the library may still use

    def function(self, name):
        found = self._functions.get(name)
        if found is None:
            try:
                found = getattr(self._c, name)
            except AttributeError:
                raise _errors.UnsupportedError(
                    f"{self.path} has no {name}: it is older than this Python package"
                ) from None
            if name in _CALLS:
                found.argtypes, found.restype = _CALLS[name], c_int
            else:
                found.argtypes, found.restype = _OTHERS[name]
            self._functions[name] = found
        return found

    def call(self, name, *arguments):
        """Calls a function that returns a status; raises what is not DTRAIN_OK."""
        function, me = self.function(name), threading.get_ident()
        self._inside.add(me)
        try:
            status = function(*arguments)
            while status == _BUSY:
                # Another thread is in a call that lets nobody else in.
                time.sleep(_RETRY_SECONDS)
                status = function(*arguments)
        finally:
            self._inside.discard(me)
        self._check(status)

    def _check(self, status):
        if status != 0:
            # The text is that of this thread's last call.
            text = self.function("dtrain_last_error")().decode(errors="replace")
            raise _errors.from_status(status, text)

    def others_inside(self):
        """Whether other threads are in a call."""
        return bool(self._inside - {threading.get_ident()})

    def get(self, name, *arguments):
        """Calls a function that may be called at any time."""
        return self.function(name)(*arguments)

    def start(self, name, arguments, options):
        """Starts the asynchronous form of a collective; returns its handle."""
        handle = c_uint64()
        self.call(name + "_async", *arguments, byref(options), byref(handle))
        return handle.value

    def start_and_wait(self, name, arguments, arrays, options):
        """Both, with nothing between them: the thread that waits does the work itself when it comes
        before the library's own, which saves two changes of threads. `arrays` live until then."""
        start, wait = self.function(name + "_async"), self.function("dtrain_wait")
        handle, me = c_uint64(), threading.get_ident()
        begun = False
        self._inside.add(me)
        try:
            status = start(*arguments, options, handle)
            while status == _BUSY:
                time.sleep(_RETRY_SECONDS)
                status = start(*arguments, options, handle)
            begun = status == 0
            if begun:
                status = wait(handle)
                while status == _BUSY:
                    time.sleep(_RETRY_SECONDS)
                    status = wait(handle)
            begun = False
        finally:
            self._inside.discard(me)
            if begun:
                # A signal has raised an exception between the two.
                self._left_behind.append(arrays)
        self._check(status)


def package():
    """The folder of this package."""
    from pathlib import Path  # takes as long to load as all of this module

    return Path(__file__).resolve().parent


def installed_in():
    """The folder that a wheel was installed into, with bin and lib of its own: an environment, or ~/.local.
    None: this package lies elsewhere."""
    # <folder>/lib/python3.11/site-packages/dtrain
    here = package()
    found = here.parents[3] if len(here.parents) > 3 else None
    return found if here.parent.name in ("site-packages", "dist-packages") else None


def _from_wheel():
    if installed_in():
        yield installed_in() / "lib" / SONAME


def _beside_dtrain():
    """The lib folder of the dtrain that would be run."""
    import shutil
    from pathlib import Path

    program = os.environ.get("DTRAIN_BIN") or shutil.which("dtrain")
    if program:
        yield Path(program).resolve().parent.parent / "lib" / SONAME


def _in_build_folder():
    """When the package lies in dtrain's sources: what was built there, release first."""
    top = package().parents[2]
    if (top / "runtime/include/dtrain/dtrain.h").exists():
        built = list((top / "build").glob(f"*/lib/{SONAME}"))
        yield from sorted(built, key=lambda p: (p.parts[-3] == "release", p.stat().st_mtime))[::-1]


def candidates():
    """Where libdtrain may be, the best place first. A name without a slash is for the loader."""
    chosen = os.environ.get("DTRAIN_LIBRARY")
    if chosen:
        return [chosen]
    here = package()
    files = [here / SONAME, here / "lib" / SONAME, here / "libdtrain.so"]
    files += [*_from_wheel(), *_in_build_folder(), *_beside_dtrain()]
    return [str(path) for path in files if path.exists()] + [SONAME]


def _load():
    tried = []
    for path in candidates():
        try:
            return Library(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
    raise _errors.LibraryError(
        "libdtrain cannot be loaded; set DTRAIN_LIBRARY to its libdtrain.so. Tried "
        + "; ".join(tried)
    )


_loaded = None
_loading = threading.Lock()


def library():
    """The one Library of this process. Raises LibraryError."""
    global _loaded
    if _loaded is None:
        with _loading:
            if _loaded is None:
                _loaded = _load()
    return _loaded


def loaded():
    """The Library, or None when nothing has needed it yet."""
    return _loaded


def load_nccl_of_pip():
    """Loads the NCCL that pip has installed with torch, if the program has loaded none. The loader does not look
    into its folder. libdtrain, and torch when it is imported later, then use this one: a process should have one."""
    if os.environ.get("DTRAIN_NCCL_LIBRARY") or os.environ.get("DTRAIN_BACKEND") == "cpu" or _is_loaded(_NCCL):
        return
    chosen = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if any(folder and os.path.exists(os.path.join(folder, _NCCL)) for folder in chosen):
        return
    files = (os.path.join(folder, "nvidia/nccl/lib", _NCCL) for folder in sys.path if isinstance(folder, str))
    file = next(filter(os.path.exists, files), None)
    if file is None:
        return
    try:
        # The driver first, as in libdtrain: without one, 200 MB would be mapped for nothing.
        ctypes.CDLL(os.environ.get("DTRAIN_CUDA_LIBRARY") or "libcuda.so.1")
        ctypes.CDLL(os.path.abspath(file))
    except OSError:
        pass  # libdtrain reports what it cannot open, unless no rank can


def _is_loaded(name):
    try:
        ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True
