# SPDX-License-Identifier: Apache-2.0
"""How the package's files import each other: in one direction only. Read from their text, so that
an import within a function counts as well."""
import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import dtrain

PACKAGE = Path(dtrain.__file__).parent


def module_name(file, package=PACKAGE):
    parts = [package.name, *file.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree, module, is_package):
    """Full names that a file imports: of modules, or of what is in them. Not what only type checkers read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = node.level - 1 if is_package else node.level
            base = module.split(".")[: len(module.split(".")) - up] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{base}.{name.name}" for name in node.names)


def graph(package=PACKAGE):
    """For each module those that it imports. One of a name within a module is one of the module."""
    files = {module_name(file, package): file for file in package.rglob("*.py")}
    edges = {}
    for module, file in files.items():
        names = imported(ast.parse(file.read_text()), module, file.name == "__init__.py")
        targets = (name if name in files else name.rpartition(".")[0] for name in names)
        edges[module] = {target for target in targets if target in files and target != module}
    return edges


def cycle(edges):
    """One, as a list of modules; empty when there is none."""
    done = set()

    def visit(module, path):
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        done.add(module)
        for target in sorted(edges[module]):
            found = visit(target, [*path, module])
            if found:
                return found
        return []

    return next(filter(None, (visit(module, []) for module in sorted(edges))), [])


def test_no_file_imports_itself_by_way_of_others():
    edges = graph()
    assert "dtrain._job" in edges["dtrain._calls"] and "dtrain" in edges["dtrain.torch"]
    assert not cycle(edges), " imports ".join(cycle(edges))


def test_a_cycle_would_be_found(tmp_path):
    """Also when one of its imports is within a function."""
    package = tmp_path / "p"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("from .a import f\n")
    (package / "a.py").write_text("def f():\n    from . import b\n")
    (package / "b.py").write_text("from .sub.c import g\n")
    (package / "sub/__init__.py").write_text("")
    (package / "sub/c.py").write_text("from ..a import f\n")
    assert sorted(cycle(graph(package))) == ["p.a", "p.b", "p.sub.c"]


# Of Horovod 0.28.1: name, and what it is called with.
PROCESS_SET = "process_set=global_process_set"
FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
SIGNATURES = {
    "allreduce": f"tensor, average, name, compression, op, {FACTORS}, {PROCESS_SET}",
    "allreduce_async": f"tensor, average, name, op, {FACTORS}, {PROCESS_SET}",
    "allreduce_": f"tensor, average, name, op, {FACTORS}, {PROCESS_SET}",
    "allreduce_async_": f"tensor, average, name, op, {FACTORS}, {PROCESS_SET}",
    "grouped_allreduce": f"tensors, average, name, compression, op, {FACTORS}, {PROCESS_SET}",
    "grouped_allreduce_async": f"tensors, average, name, op, {FACTORS}, {PROCESS_SET}",
    "grouped_allreduce_": f"tensors, average, name, op, {FACTORS}, {PROCESS_SET}",
    "grouped_allreduce_async_": f"tensors, average, name, op, {FACTORS}, {PROCESS_SET}",
    "sparse_allreduce_async": f"tensor, name, op, {PROCESS_SET}",
    "allgather": f"tensor, name, {PROCESS_SET}",
    "allgather_async": f"tensor, name, {PROCESS_SET}",
    "grouped_allgather": f"tensors, name, {PROCESS_SET}",
    "grouped_allgather_async": f"tensors, name, {PROCESS_SET}",
    "broadcast": f"tensor, root_rank, name, {PROCESS_SET}",
    "broadcast_async": f"tensor, root_rank, name, {PROCESS_SET}",
    "broadcast_": f"tensor, root_rank, name, {PROCESS_SET}",
    "broadcast_async_": f"tensor, root_rank, name, {PROCESS_SET}",
    "alltoall": f"tensor, splits, name, {PROCESS_SET}",
    "alltoall_async": f"tensor, splits, name, {PROCESS_SET}",
    "reducescatter": f"tensor, name, compression, op=Average, {PROCESS_SET}, {FACTORS}",
    "reducescatter_async": f"tensor, name, op=Average, {PROCESS_SET}, {FACTORS}",
    "grouped_reducescatter": f"tensors, name, compression, op=Average, {PROCESS_SET}, {FACTORS}",
    "grouped_reducescatter_async": f"tensors, name, op=Average, {PROCESS_SET}, {FACTORS}",
    "join": "device=-1",
    "barrier": PROCESS_SET,
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model",
    "broadcast_object": f"obj, root_rank=0, name, {PROCESS_SET}",
    "allgather_object": "obj, name",
    "DistributedOptimizer": "optimizer, named_parameters, compression, backward_passes_per_step=1, "
                            "op=Average, gradient_predivide_factor=1.0, num_groups=0, groups, "
                            f"sparse_as_dense=False, {PROCESS_SET}",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
    "init": "comm, process_sets",
    "shutdown": "",
    "is_initialized": "",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
}
WITHOUT_ARGUMENTS = """rank size local_rank local_size cross_rank cross_size is_homogeneous
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built
    ccl_built cuda_built rocm_built""".split()
OTHERS = """Average Sum Adasum Min Max Product Compression HorovodInternalError ProcessSet
    global_process_set elastic""".split()


def described(function, count):
    """The first parameters: with their defaults, but for None and a class."""
    import dtrain.torch as hvd

    words = []
    for parameter in list(inspect.signature(function).parameters.values())[:count]:
        value = parameter.default
        if value is hvd.global_process_set:
            value = "global_process_set"
        elif isinstance(value, hvd.ReduceOp):
            value = value.name
        plain = value is inspect.Parameter.empty or value is None or inspect.isclass(value)
        words.append(parameter.name if plain else f"{parameter.name}={value}")
    return ", ".join(words)


def test_help_shows_defaults_as_they_are_written():
    text = str(inspect.signature(dtrain.allreduce))
    assert "= Compression.none," in text and "= global_process_set)" in text, text
    assert "= Average," in str(inspect.signature(dtrain.reducescatter))


def test_what_starts_jobs_is_loaded_when_it_is_asked_for():
    """A worker's import is part of every start."""
    text = ("import sys, dtrain\n"
            "late = {'dtrain._launch', 'dtrain._runner', 'subprocess', 'pathlib', 'random', 'numpy', 'typing'}\n"
            "assert not late & set(sys.modules), late & set(sys.modules)\n"
            "assert {'run', 'HorovodRunner', 'JobError'} <= set(dir(dtrain)) & set(dtrain.__all__)\n"
            "from dtrain import *\n"
            "assert run is dtrain.run and JobError.__module__ == RemoteError.__module__ == 'dtrain'\n"
            "try: dtrain.nothing\n"
            "except AttributeError as error: assert 'nothing' in str(error)\n")
    # Without site, whose .pth files may import anything.
    done = subprocess.run([sys.executable, "-S", "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_names_and_signatures_are_horovods():
    """Ours may have more parameters behind."""
    import pytest

    hvd = pytest.importorskip("dtrain.torch", reason="there is no Python package torch")
    for name, right in SIGNATURES.items():
        count = len(right.split(", ")) if right else 0
        assert described(getattr(hvd, name), count).replace("root_rank=0", "root_rank") == \
            right.replace("root_rank=0", "root_rank"), name
    for name in WITHOUT_ARGUMENTS + OTHERS:
        assert hasattr(hvd, name), name
    ops = importlib.import_module("dtrain.torch.mpi_ops")
    assert all(getattr(ops, name) is getattr(hvd, name) for name in (*SIGNATURES, "Adasum"))
    assert {"none", "fp16"} <= set(dir(hvd.Compression))
    for name in ("run", "TorchState", "ElasticSampler"):
        assert hasattr(hvd.elastic, name)
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    broken = (hvd.MismatchError, hvd.NetworkError, hvd.JobTimeoutError, hvd.InternalError)
    assert all(issubclass(kind, hvd.HorovodInternalError) for kind in broken)
    mistakes = (hvd.InvalidArgumentError, hvd.UnsupportedError, hvd.StateError)
    assert all(issubclass(kind, ValueError) for kind in mistakes)
    assert not any(issubclass(kind, hvd.HorovodInternalError) for kind in mistakes)
