# SPDX-License-Identifier: Apache-2.0
"""Sending a function to workers: by cloudpickle where there is one, else by a small pickler of
ours that adds to pickle what run() needs: functions of the main program, of notebooks, and within
functions, which another process cannot import.
"""

import builtins
import dis
import importlib
import io
import marshal
import pickle
import sys
import types


def dumps(value):
    """Bytes for loads(). What cannot be pickled raises pickle.PicklingError."""
    try:
        import cloudpickle
    except ImportError:
        buffer = io.BytesIO()
        _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
        return buffer.getvalue()
    return cloudpickle.dumps(value)


def loads(data):
    return pickle.loads(data)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj):
        if isinstance(obj, types.FunctionType) and not _importable(obj):
            return _reduce_function(obj)
        if isinstance(obj, types.ModuleType):
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, types.CellType):
            return types.CellType, _cell_contents(obj)
        if isinstance(obj, type) and obj.__module__ == "__main__":
            raise pickle.PicklingError(
                f"class {obj.__qualname__} is defined in the main program, where workers cannot "
                "import it: install cloudpickle, or move the class to a module"
            )
        return NotImplemented


def _importable(function):
    if function.__module__ in (None, "__main__"):
        return False
    found = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _cell_contents(cell):
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _codes(code):
    """A function's code, and that of functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _global_names(code):
    # Not simply co_names: it has the names of attributes, too.
    for part in _codes(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                yield instruction.argval


def _submodules(code, modules):
    """Of `import package.module`, which leaves only `package` among the globals."""
    names = {name for part in _codes(code) for name in part.co_names}
    for module in modules:
        prefix = module.__name__ + "."
        for name in list(sys.modules):
            if name.startswith(prefix) and names.issuperset(name[len(prefix) :].split(".")):
                yield name


def _reduce_function(function):
    code = function.__code__
    wanted = {name for name in _global_names(code) if name in function.__globals__}
    values = {name: function.__globals__[name] for name in sorted(wanted)}
    modules = [value for value in values.values() if isinstance(value, types.ModuleType)]
    state = {
        "modules": sorted(_submodules(code, modules)),
        "globals": values,
        # Here, and not with the function itself, which may be among its own globals or cells.
        "cells": [_cell_contents(cell) for cell in function.__closure__ or ()],
        "defaults": function.__defaults__,
        "keyword_defaults": function.__kwdefaults__,
        "dictionary": function.__dict__,
        "qualname": function.__qualname__,
        "doc": function.__doc__,
    }
    cells = len(function.__closure__ or ())
    made = (marshal.dumps(code), sys.version_info[:2], function.__module__, cells)
    return _make_function, made, state, None, None, _fill_function


def _make_function(code, version, module, cells):
    if tuple(version) != sys.version_info[:2]:
        raise RuntimeError(
            f"the function comes from Python {version[0]}.{version[1]}, this worker has "
            f"{sys.version_info[0]}.{sys.version_info[1]}: code can only be sent between equal "
            "versions"
        )
    namespace = {"__builtins__": builtins, "__name__": module or "__main__"}
    closure = tuple(types.CellType() for _ in range(cells))
    return types.FunctionType(marshal.loads(code), namespace, None, None, closure)


def _fill_function(function, state):
    for name in state["modules"]:
        importlib.import_module(name)
    function.__globals__.update(state["globals"])
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["keyword_defaults"]
    function.__dict__.update(state["dictionary"])
    function.__qualname__ = state["qualname"]
    function.__doc__ = state["doc"]
    for cell, contents in zip(function.__closure__ or (), state["cells"]):
        if contents:
            cell.cell_contents = contents[0]
