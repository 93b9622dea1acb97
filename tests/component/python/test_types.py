# SPDX-License-Identifier: Apache-2.0
"""What editors, help() and type checkers see of the package."""
import ast
import enum
import importlib
import inspect
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import dtrain
import dtrain.elastic

SOURCE_DIR = Path(__file__).resolve().parents[3]
PACKAGES = SOURCE_DIR / "runtime/python"
TORCH = "dtrain.torch", "dtrain.torch.elastic"
MODULES = ["dtrain", "dtrain.elastic", "dtrain.typing", *TORCH]


def module(name):
    if name in TORCH:
        pytest.importorskip("torch", reason="there is no Python package torch")
    return importlib.import_module(name)


# ---- What is public ----


def listed(name):
    """The names of a module's __all__, as they are written."""
    file = PACKAGES.joinpath(*name.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    (value,) = (node.value for node in ast.parse(file.read_text()).body
                if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    return ast.literal_eval(value)


@pytest.mark.parametrize("name", ["dtrain", "dtrain.torch"])
def test_all_is_what_is_public(name):
    """It is written out, as editors and type checkers do not run the package."""
    found = module(name)
    public = {each for each in dir(found) if not each.startswith("_")
              and not isinstance(getattr(found, each), types.ModuleType)}
    if name == "dtrain.torch":
        public.add("elastic")
        assert set(dtrain.__all__) <= public
    assert listed(name) == found.__all__ == sorted(public)


# ---- Documentation and annotations ----


def exported(name):
    """(name, value) of what a module has."""
    found = module(name)
    return [(f"{name}.{each}", getattr(found, each)) for each in found.__all__]


def functions(name, value):
    """(name, function) of a function, or of the public methods that a class of ours defines."""
    if inspect.isfunction(value):
        yield name, value
    elif inspect.isclass(value):
        for each, member in vars(value).items():
            if type(value).__module__ == "typing" and each == "__init__":
                continue  # of a Protocol
            member = getattr(member, "__func__", getattr(member, "fget", member))
            if inspect.isfunction(member) and (not each.startswith("_") or each == "__init__"):
                yield f"{name}.{each}", inspect.unwrap(member)


def own_documentation(value):
    """Not that of a base class. An object has that of its class, and a type of typing none."""
    if not (inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)):
        value = type(value)
    return vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__


@pytest.mark.parametrize("name", MODULES)
def test_everything_has_documentation(name):
    for what, value in exported(name):
        if type(value).__module__ == "typing":
            continue
        text = own_documentation(value)
        first, _, rest = (text or "").partition("\n")
        assert first.endswith((".", ":")) and not rest.split("\n")[0].strip(), f"{what}: {text}"


@pytest.mark.parametrize("name", MODULES)
def test_everything_is_annotated(name):
    seen = 0
    values = exported(name)
    if name == "dtrain.torch":
        values.append((f"{name}.DistributedOptimizer()", module("dtrain.torch.optimizer")._Distributed))
    for what, value in values:
        if inspect.isclass(value) and issubclass(value, enum.Enum):
            continue
        for each, function in functions(what, value):
            signature = inspect.signature(function)
            missing = [parameter.name for parameter in signature.parameters.values()
                       if parameter.annotation is inspect.Parameter.empty and parameter.name not in ("self", "cls")]
            if signature.return_annotation is inspect.Signature.empty:
                missing.append("return")
            assert not missing, f"{each}: no type of {', '.join(missing)}"
            seen += 1
    assert seen


def test_help_reads_well():
    done = subprocess.run([sys.executable, "-c", "import dtrain; help(dtrain.allreduce)"], capture_output=True,
                          text=True, check=True)
    assert "tensor: 'Array | Numbers'" in done.stdout and "op: 'ReduceOp | None' = None" in done.stdout
    assert "Returns the average of an array or tensor over all ranks" in done.stdout


# ---- A type checker ----

# What dtrain and the programs below need of PyTorch, whose own files take mypy a minute.
PYTORCH = {
    "__init__.pyi": """
        from . import nn, optim, utils
        class dtype: ...
        class device: ...
        float16: dtype
        class Tensor:
            def __float__(self) -> float: ...
            def __add__(self, other: Tensor) -> Tensor: ...
        def zeros(*size: int) -> Tensor: ...
        """,
    "autograd/__init__.pyi": "",
    "autograd/function.pyi": """
        from typing import Any
        class BackwardCFunction: ...
        def once_differentiable(function: Any) -> Any: ...
        """,
    "nn/modules/__init__.pyi": "",
    "nn/modules/batchnorm.pyi": """
        class _BatchNorm: ...
        class _LazyNormBase: ...
        """,
    "nn/modules/lazy.pyi": "class LazyModuleMixin: ...",
    "nn/__init__.pyi": """
        from typing import Iterator
        from torch import Tensor
        class Module:
            def parameters(self) -> Iterator[Tensor]: ...
            def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...
            def state_dict(self) -> dict[str, Tensor]: ...
        class Linear(Module):
            def __init__(self, inputs: int, outputs: int) -> None: ...
        """,
    "optim.pyi": """
        from typing import Any, Callable, Iterable
        from torch import Tensor
        class Optimizer:
            param_groups: list[dict[str, Any]]
            def step(self, closure: Callable[[], float] | None = ...) -> float | None: ...
            def zero_grad(self, set_to_none: bool = ...) -> None: ...
        class SGD(Optimizer):
            def __init__(self, parameters: Iterable[Tensor], lr: float) -> None: ...
        """,
    "utils/__init__.pyi": "from . import data",
    "utils/data.pyi": """
        from typing import Generic, TypeVar
        Item = TypeVar("Item")
        class Sampler(Generic[Item]): ...
        """,
}

RIGHT = """
from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import torch

import dtrain
import dtrain.elastic
import dtrain.torch as hvd
from dtrain.torch.mpi_ops import allgather
from dtrain.typing import CudaArray, Handle

Numpy = np.ndarray[Any, Any]
array, tensor = np.zeros(3, np.float32), torch.zeros(3)

dtrain.init(process_sets=[dtrain.ProcessSet([0, 1])], timeout=60)
assert_type(dtrain.rank(), int)
assert_type(dtrain.is_homogeneous(), bool)
assert_type(dtrain.allreduce(array, op=dtrain.Sum, compression=dtrain.Compression.fp16), Numpy)
assert_type(dtrain.allreduce([1.0, 2.0]), Numpy)
assert_type(dtrain.allreduce(1.0), Any)
assert_type(dtrain.allreduce_(array), Numpy)
assert_type(dtrain.broadcast(3, root_rank=0), Numpy)
assert_type(dtrain.alltoall(array, [1, 2]), tuple[Numpy, Numpy])
assert_type(dtrain.alltoall([[1], [2]], [1, 1]), tuple[Numpy, Numpy])
assert_type(dtrain.reducescatter([[1], [2]]), Numpy)
assert_type(dtrain.alloc((2, 3), np.float64), Numpy)
assert_type(dtrain.metric_average({"loss": tensor, "accuracy": 1}), dict[str, float])
assert_type(dtrain.metric_average(0.5, name="loss"), float)
assert_type(dtrain.allgather_object("text"), list[str])
assert_type(dtrain.split(dtrain.rank() % 2), dtrain.ProcessSet | None)

assert_type(hvd.allreduce(tensor), torch.Tensor)
assert_type(allgather(tensor), torch.Tensor)
assert_type(hvd.alltoall(tensor), torch.Tensor)
assert_type(hvd.alltoall(tensor, splits=[1, 2]), tuple[torch.Tensor, torch.Tensor])
assert_type(hvd.grouped_allreduce([tensor, tensor]), list[torch.Tensor])
assert_type(hvd.alloc((2, 3), torch.float16), torch.Tensor)
handles: list[Handle[torch.Tensor]] = [hvd.allreduce_async_(tensor), hvd.broadcast_async(tensor, 0)]
assert_type(hvd.synchronize(handles[0]), torch.Tensor)
assert_type(hvd.poll(handles[0]), bool)
assert_type(hvd.synchronize(hvd.grouped_allgather_async([array])), list[Numpy])
assert_type(hvd.sparse_allreduce_async(tensor, "embedding", hvd.Sum)(), torch.Tensor)


def on_a_gpu(array: CudaArray, unknown: Any) -> None:
    assert_type(dtrain.allreduce_(array), CudaArray)
    assert_type(dtrain.alltoall(array, [1, 2])[0], CudaArray)
    assert_type(dtrain.allreduce(unknown), Any)


class Halves:
    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor / 2, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor * 2


model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=Halves)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
assert_type(hvd.SyncBatchNorm.convert_sync_batchnorm(model), torch.nn.Linear)
with optimizer.no_sync():
    pass
optimizer.synchronize()
with optimizer.skip_synchronize():
    optimizer.step()
optimizer.step(lambda: 0.5)
optimizer.zero_grad()
assert_type(optimizer.param_groups, list[dict[str, Any]])
assert_type(list(hvd.DistributedSampler(range(10), drop_last=True)), list[int])


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, epochs: int) -> int:
    while state.epoch < epochs:
        state.epoch += 1
        state.commit()
    return epochs


assert_type(train(hvd.elastic.TorchState(model, optimizer, epoch=0), 3), int)
dtrain.elastic.notify_hosts(1.0, dtrain.elastic.HostUpdateResult.added)


def work(rate: float, epochs: int) -> str:
    with dtrain.mark("work"):
        return f"{rate} {epochs}"


assert_type(dtrain.run(work, 0.1, epochs=3, np=-2, env={"KEY": 1}), list[str])
assert_type(dtrain.HorovodRunner(np=-2).run(work, rate=0.1, epochs=3), str)
assert_type(dtrain.barrier_context().allGather("text"), list[str])
try:
    dtrain.barrier()
except dtrain.RemoteError as error:
    assert_type(error.rank, int)
except dtrain.HorovodInternalError as error:
    assert_type(error.status, str)
"""

# With the kind of error on each line that has one.
WRONG = """
import numpy as np
import torch

import dtrain
import dtrain.torch as hvd

array, tensor = np.zeros(3), torch.zeros(3)
dtrain.nothing  # attr-defined
dtrain.allreduce(array, op="sum")  # call-overload
dtrain.allreduce(array, operation=dtrain.Sum)  # call-overload
dtrain.allreduce_(array, op=3)  # arg-type
dtrain.allreduce_([1.0, 2.0])  # type-var
dtrain.allreduce_(array, compression=dtrain.Compression.fp16)  # call-arg
dtrain.broadcast(array)  # call-overload
dtrain.poll(array)  # arg-type
dtrain.barrier([0, 1])  # arg-type
text: str = hvd.allreduce(tensor)  # assignment
hvd.allreduce(tensor, process_set=[0, 1])  # call-overload
hvd.allreduce_async(tensor) + tensor  # operator
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([tensor], lr=0.1), names=[])  # call-arg
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([tensor], lr=0.1), compression=array)  # arg-type
optimizer.synchronize(1)  # call-arg
dtrain.run(print, np="2")  # arg-type
dtrain.HorovodRunner(2)  # misc
hvd.elastic.ElasticSampler(3)  # arg-type
"""


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """mypy(text): what `mypy --strict` says of a program that uses dtrain's wheel; (line, kind) of each error."""
    sys.path.insert(0, str(SOURCE_DIR / "tools"))
    from package_forms import wheel

    work = tmp_path_factory.mktemp("wheel")
    wheel.unpack(wheel.build_pure(PACKAGES, work, 1_000_000_000), work / "installed")
    wheel.unpack({f"torch/{name}": inspect.cleandoc(text).encode() for name, text in PYTORCH.items()}, work / "stubs")

    def check(text):
        folder = tmp_path_factory.mktemp("program")
        (folder / "program.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", work / "cache", "program.py"], cwd=folder,
            capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(work / "installed"), "MYPYPATH": str(work / "stubs")})
        assert done.returncode in (0, 1), done.stdout + done.stderr
        print(done.stdout)  # shown when the test fails
        return re.findall(r"^program\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)

    return check


def test_a_right_program_has_the_types_that_it_expects(mypy):
    assert mypy(RIGHT) == []


def test_a_wrong_program_is_refused_line_by_line(mypy):
    expected = [(str(number), kind) for number, line in enumerate(WRONG.splitlines(), 1)
                for kind in line.partition("# ")[2].split()]
    assert mypy(WRONG) == expected
