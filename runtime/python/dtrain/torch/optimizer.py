# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: an optimizer that uses the gradients of all ranks."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import warnings
import weakref

import torch

import dtrain
from dtrain import Average, Compression, InvalidArgumentError, StateError
from dtrain import global_process_set
from dtrain._operations import chosen

from ._buckets import Terms
from ._reducer import Reducer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Iterator

    from dtrain import ProcessSet, ReduceOp
    from dtrain.typing import Compressor

    class _Given(torch.optim.Optimizer, Any):
        """The optimizer's own class, which a type checker does not know."""
else:
    _Given = object


class _Distributed(_Given):
    """What DistributedOptimizer puts before an optimizer's own class."""

    def synchronize(self) -> None:
        """Reduces the gradients that backward() has left unreduced: in no_sync(), or with fewer calls than
        backward_passes_per_step. Seldom needed, as step() does it. Collective over the process set."""
        if self._dtrain_reducer is not None:
            self._dtrain_reducer.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which step() does not reduce gradients again. Never needed, as step() never does."""
        yield

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward() adds up gradients and reduces none, as in PyTorch's DDP; the next
        backward() or step() after it reduces them all."""
        reducer = self._dtrain_reducer
        if reducer is None:
            yield
            return
        before, reducer.paused = reducer.paused, True
        try:
            yield
        finally:
            reducer.paused = before

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Takes a step of the optimizer's own class with the gradients of all ranks. Returns what that does.

        closure: computes gradients and returns the loss; the optimizer gets the loss of all ranks.
        """
        if self._dtrain_reducer is None:
            return self._dtrain_counted_step(closure, **options)
        if closure is None:
            self.synchronize()
            result = self._dtrain_counted_step(None, **options)
        else:
            # It makes the gradients that the step uses, maybe several times.
            def reduced():
                loss = closure()
                self.synchronize()
                return self._dtrain_reducer.loss(loss)

            result = self._dtrain_counted_step(reduced, **options)
        self._dtrain_reducer.stepped()
        return result

    def _dtrain_counted_step(self, closure, **options):
        """The step of the optimizer's own class, also for a learning-rate scheduler that counts it."""
        counted = self._dtrain_counting
        step = super().step if counted is None else counted
        return step(closure, **options)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the zero_grad() of the optimizer's own class."""
        super().zero_grad(*args, **kwargs)
        if self._dtrain_reducer is not None:
            self._dtrain_reducer.renew()
            self._dtrain_reducer.zeroed()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the add_param_group() of the optimizer's own class. The same on all ranks."""
        super().add_param_group(param_group)
        if self._dtrain_reducer is not None:
            first = len(self.param_groups) - 1
            added = _named(self._parameter_names, self.param_groups[first:], first)
            self._parameter_names.update({parameter: name for name, parameter in added})
            self._dtrain_reducer.add(added)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how often backward() is called for each step from now on. Call it between two steps."""
        _check_passes(passes)
        self.backward_passes_per_step = passes
        if self._dtrain_reducer is not None:
            self._dtrain_reducer.passes_per_step = passes

    def __getstate__(self) -> Any:
        raise StateError("pickle optimizer.state_dict() instead of a DistributedOptimizer")


# Without this mark PyTorch wraps a class's step(), in load_state_dict() at the latest. The program's step hooks run in
# that wrapper, and the optimizer's own class has one already: with both, they would run twice.
_Distributed.step.hooked = True  # type: ignore[attr-defined]


def _named(names, groups, first=0):
    """(name, parameter) of all parameters, in order; those that have no name get one."""
    return [
        (names.get(parameter, f"allreduce.noname.{i}.{j}"), parameter)
        for i, group in enumerate(groups, first)
        for j, parameter in enumerate(group["params"])
    ]


def _checked_names(optimizer, named_parameters):
    """Names by parameter."""
    named = list(named_parameters) if named_parameters is not None else []
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in named):
        raise InvalidArgumentError("named_parameters: give the pairs of model.named_parameters()")
    names = [name for name, _ in named]
    twice = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    if twice:
        raise InvalidArgumentError(f"named_parameters: not unique: {', '.join(twice)}")
    by_parameter = {parameter: str(name) for name, parameter in named}
    if named_parameters is not None:
        unnamed = sum(
            p not in by_parameter for group in optimizer.param_groups for p in group["params"]
        )
        if unnamed:
            raise InvalidArgumentError(
                f"named_parameters: {unnamed} of the optimizer's parameters are not among them"
            )
    return by_parameter


def _check_passes(passes):
    if passes < 1:
        raise InvalidArgumentError("backward_passes_per_step is at least 1")


def _group_numbers(named, groups):
    """By parameter, where it belongs to a group. groups: None, a number of them, or lists of parameters."""
    if groups is None:
        return {}
    if not isinstance(groups, (list, tuple)):
        if not isinstance(groups, int) or groups < 1:
            raise InvalidArgumentError(f"groups={groups!r}: a positive number, or lists of tensors")
        return {p: i * groups // len(named) for i, (_, p) in enumerate(named)}
    number = {}
    for i, group in enumerate(groups):
        for parameter in group:
            if not isinstance(parameter, torch.Tensor):
                raise InvalidArgumentError("groups: lists of tensors, or a positive number")
            if parameter in number:
                raise InvalidArgumentError("groups: a parameter is in them twice")
            number[parameter] = i
    return number


def DistributedOptimizer(optimizer: torch.optim.Optimizer,
                         named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
                         compression: Compressor = Compression.none, backward_passes_per_step: int = 1,
                         op: ReduceOp | None = Average, gradient_predivide_factor: float = 1.0,
                         num_groups: int = 0, groups: int | Iterable[Iterable[torch.Tensor]] | None = None,
                         sparse_as_dense: bool = False,
                         process_set: ProcessSet | None = global_process_set) -> _Distributed:
    """Changes an optimizer so that its step() uses the gradients of all ranks, and returns it.

    When backward() returns, gradients are reduced. Parameters that a rank did not use count as zeros
    there; those that no rank used have no gradient. The optimizer keeps its class's attributes, and gets
    synchronize(), skip_synchronize(), no_sync() and set_backward_passes_per_step(). A learning-rate
    scheduler that was made for it before stays valid.

    named_parameters: names for error texts and the timeline, of all parameters of the optimizer.
    compression: Compression.fp16 sends half as many bytes.
    backward_passes_per_step: the number of calls of backward() whose gradients are added up before they
        are reduced; step() reduces what fewer have left. Nothing is divided by it.
    op: Average or Sum.
    gradient_predivide_factor: with Average, the part of the division that is done before the sum.
    num_groups: Horovod's older name for a number of `groups`; deprecated.
    groups: how many groups the gradients are dealt out to, or a list of lists of parameters. A group
        travels together, when the last of it is there. Never needed for speed.
    sparse_as_dense: whether sparse gradients are converted to dense ones and back; otherwise all ranks'
        values are gathered.
    process_set: the ranks that take part.

    Every rank calls backward() and step() equally often, or join() after its last step; otherwise all
    ranks get a MismatchError. Raises ValueError for bad arguments; op=Adasum is an UnsupportedError.
    """
    if isinstance(optimizer, _Distributed):
        raise InvalidArgumentError("DistributedOptimizer: this optimizer is one already")
    op = chosen(op)
    if op not in (Average, dtrain.Sum):
        raise InvalidArgumentError(f"DistributedOptimizer: op={op.name}; use Average or Sum")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise InvalidArgumentError("gradient_predivide_factor needs op=Average")
    _check_passes(backward_passes_per_step)
    if num_groups != 0:
        warnings.warn("`num_groups` is deprecated: use `groups`", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    process_set = process_set or global_process_set
    if process_set.process_set_id is None:
        raise InvalidArgumentError(f"{process_set} was not added: see add_process_set()")
    names = _checked_names(optimizer, named_parameters)
    named = _named(names, optimizer.param_groups)
    groups = _group_numbers(named, groups)

    reducer = None
    # The size of an elastic job may change.
    if process_set.included() and (len(process_set.ranks) > 1 or _is_elastic()):
        terms = Terms(compression, op, gradient_predivide_factor, process_set, sparse_as_dense)
        reducer = Reducer(terms, backward_passes_per_step)
        reducer.add(named, groups)

    # The optimizer stays as it was if anything above has failed.
    kind = type(optimizer)
    distributed = type(kind.__name__, (_Distributed, kind), {"__doc__": kind.__doc__})
    changed: Any = optimizer
    changed.__class__ = distributed
    changed._dtrain_counting = _replace_counting_step(changed)
    changed._dtrain_reducer = reducer
    if reducer is not None:
        weakref.finalize(changed, reducer.close).atexit = False
    changed._parameter_names = {parameter: name for name, parameter in named}
    changed.backward_passes_per_step = backward_passes_per_step
    return changed


def _replace_counting_step(optimizer):
    """Returns the counting step() that a learning-rate scheduler has put into the optimizer, or None. A
    step() that calls ours replaces it, with the attributes that the scheduler looks for."""
    counting = vars(optimizer).pop("step", None)
    if counting is None:
        return None
    me = weakref.ref(optimizer)

    @functools.wraps(counting)
    def step(*args, **kwargs):
        optimizer = me()
        return type(optimizer).step(optimizer, *args, **kwargs)

    optimizer.step = step
    return counting


def _is_elastic():
    return os.environ.get("HOROVOD_ELASTIC") == "1"
