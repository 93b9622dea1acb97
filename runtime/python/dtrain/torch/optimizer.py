# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: an optimizer that uses the gradients of all ranks."""

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


class _Distributed:
    """What DistributedOptimizer puts before an optimizer's own class."""

    def synchronize(self):
        """Horovod's, and seldom needed: reduces what the last calls of backward() have left unreduced, if
        they were fewer than backward_passes_per_step or within no_sync()."""
        if self._dtrain_reducer is not None:
            self._dtrain_reducer.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Horovod's: step() does nothing twice in any case."""
        yield

    @contextlib.contextmanager
    def no_sync(self):
        """In it backward() adds up gradients and reduces none, as in PyTorch's DDP; the next backward()
        or step() reduces them all."""
        reducer = self._dtrain_reducer
        if reducer is None:
            yield
            return
        before, reducer.paused = reducer.paused, True
        try:
            yield
        finally:
            reducer.paused = before

    def step(self, closure=None, **options):
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

    def zero_grad(self, *args, **kwargs):
        super().zero_grad(*args, **kwargs)
        if self._dtrain_reducer is not None:
            self._dtrain_reducer.renew()
            self._dtrain_reducer.zeroed()

    def add_param_group(self, group):
        super().add_param_group(group)
        if self._dtrain_reducer is not None:
            first = len(self.param_groups) - 1
            added = _named(self._parameter_names, self.param_groups[first:], first)
            self._parameter_names.update({parameter: name for name, parameter in added})
            self._dtrain_reducer.add(added)

    def set_backward_passes_per_step(self, passes):
        """How often backward() is called for each step from now on; between two steps."""
        _check_passes(passes)
        self.backward_passes_per_step = passes
        if self._dtrain_reducer is not None:
            self._dtrain_reducer.passes_per_step = passes

    def __getstate__(self):
        raise StateError("pickle optimizer.state_dict() instead of a DistributedOptimizer")


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


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,
                         backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0,
                         num_groups=0, groups=None, sparse_as_dense=False,
                         process_set=global_process_set):
    """Changes `optimizer` and returns it: from now on its step() uses the gradients of all ranks. A
    learning-rate scheduler that was made for it before stays valid.

    When backward() returns, gradients are reduced. Parameters that a rank did not use count as zeros
    there; those that no rank used have no gradient.

    named_parameters: names for error texts and the timeline.
    compression: Compression.fp16 sends half as many bytes.
    backward_passes_per_step: calls of backward() whose gradients are added up before they are
        reduced; step() reduces what is left of fewer. Nothing is divided by it.
    op: Average or Sum. gradient_predivide_factor: with Average, the part of the division that is
        done before the sum.
    groups: how many groups the gradients are dealt out to, or lists of parameters: those of a group
        travel together, when the last of them is there. Never needed for speed. num_groups: the older name for a number of them.
    sparse_as_dense: sparse gradients are made dense to be reduced, and sparse again. Otherwise all
        ranks' values are gathered.

    Raises ValueError for bad arguments, UnsupportedError (one of its kinds) for op=Adasum. Every
    rank calls backward() and step() equally often, or join() after its last step.
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
    if process_set.included() and (process_set.size() > 1 or _is_elastic()):
        terms = Terms(compression, op, gradient_predivide_factor, process_set, sparse_as_dense)
        reducer = Reducer(terms, backward_passes_per_step)
        reducer.add(named, groups)

    # The optimizer stays as it was if anything above has failed.
    kind = type(optimizer)
    distributed = type(kind.__name__, (_Distributed, kind), {"__doc__": kind.__doc__})
    optimizer.__class__ = distributed
    optimizer._dtrain_counting = _replace_counting_step(optimizer)
    optimizer._dtrain_reducer = reducer
    if reducer is not None:
        weakref.finalize(optimizer, reducer.close).atexit = False
    optimizer._parameter_names = {parameter: name for name, parameter in named}
    optimizer.backward_passes_per_step = backward_passes_per_step
    return optimizer


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
