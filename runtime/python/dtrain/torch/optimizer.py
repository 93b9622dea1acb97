# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: averages gradients over the ranks while backward() still makes them."""

import contextlib
import threading
import warnings

import dtrain
from dtrain import (
    Average,
    Compression,
    InvalidArgumentError,
    StateError,
    UnsupportedError,
    allreduce_async_,
)
from dtrain._operations import chosen


class _Gradient:
    """One parameter's gradient."""

    def __init__(self, parameter, name):
        self.parameter = parameter
        self.name = name
        self.passes = 0  # of backward() that have made it since the last step
        self.handle = None
        self.sent = None  # what travels, and what decompress() needs


class Reducer:
    """All-reduces the gradients of some parameters as backward() makes them.

    All ranks must start the all-reduces in the same order, while backward() makes gradients in an
    order that may differ. So the order is fixed, the reverse of the parameters', which is about
    that of backward(); a gradient starts when it is there and all before it have been started.
    libdtrain sends small ones together (DTRAIN_FUSION_THRESHOLD).
    """

    def __init__(self, compression, passes_per_step, op, predivide, process_set, sparse_as_dense):
        self._compression = compression
        self._passes_per_step = passes_per_step
        self._op = op
        # Average: divided in two steps, before and after, so that sums of float16 stay small.
        self._factors = (1.0 / predivide, predivide)
        self._process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        self._order = []
        self._started = 0  # of _order, since the last step
        self._hooks = []
        # Autograd has a thread for each device.
        self._lock = threading.RLock()

    def add(self, named_parameters):
        """Parameters, in the order of the model. Before any backward(), or after a step."""
        new = [_Gradient(parameter, name) for name, parameter in named_parameters]
        for gradient in new:
            self._watch(gradient)
        self._order += reversed(new)

    def _watch(self, gradient):
        parameter = gradient.parameter

        def made(*_):
            with self._lock:
                self._made(gradient)

        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(made))
            return
        # Before PyTorch 2.1: the node that adds to .grad, which lives as long as we hold it.
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(made)
        self._hooks.append(node)

    def _made(self, gradient):
        if gradient.passes == self._passes_per_step:
            raise StateError(
                f"the gradient of {gradient.name} was computed more than backward_passes_per_step "
                f"({self._passes_per_step}) times before step(); raise backward_passes_per_step to "
                "accumulate gradients locally"
            )
        gradient.passes += 1
        while self._started < len(self._order):
            first = self._order[self._started]
            if first.passes < self._passes_per_step:
                break
            self._start(first)

    def _start(self, gradient):
        """Of the first one in order that was not started yet."""
        parameter = gradient.parameter
        if parameter.grad is None:
            # Unused by this rank; others may have used it.
            parameter.grad = parameter.detach().new_zeros(parameter.shape)
        if parameter.grad.is_sparse:
            if not self._sparse_as_dense:
                raise UnsupportedError(
                    f"the gradient of {gradient.name} is sparse: give sparse_as_dense=True"
                )
            parameter.grad = parameter.grad.to_dense()
        small, context = self._compression.compress(parameter.grad.detach())
        before, after = self._factors
        gradient.sent = small, context
        gradient.handle = allreduce_async_(
            small, name=gradient.name, op=self._op, prescale_factor=before,
            postscale_factor=after, process_set=self._process_set,
        )
        self._started += 1

    def in_flight(self):
        """Whether gradients are on their way."""
        return self._started > 0

    def finish(self):
        """Starts the gradients that backward() has not made, and waits for all."""
        try:
            while self._started < len(self._order):
                self._start(self._order[self._started])
            for gradient in self._order:
                self._finish(gradient)
        finally:
            self.reset()

    def _finish(self, gradient):
        reduced = gradient.handle.wait()
        small, context = gradient.sent
        result = self._compression.decompress(reduced, context)
        target = gradient.parameter.grad
        if target is None:
            gradient.parameter.grad = result
        elif result.data_ptr() != target.data_ptr():
            target.detach().copy_(result)

    def reset(self):
        self._started = 0
        for gradient in self._order:
            gradient.passes, gradient.handle, gradient.sent = 0, None, None


class _Distributed:
    """What DistributedOptimizer puts before an optimizer's own class."""

    def synchronize(self):
        """Waits until all gradients are reduced; for what is done with them before step(), as
        clipping is. Then step() within skip_synchronize()."""
        if self._dtrain_reducer is not None:
            self._dtrain_reducer.finish()
        self._dtrain_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self):
        """In it step() does not synchronize, because the program has done so."""
        self._dtrain_should_synchronize = False
        try:
            yield
        finally:
            self._dtrain_should_synchronize = True

    def step(self, closure=None):
        if closure is not None and self._dtrain_should_synchronize:
            # It makes the gradients that the step uses, maybe several times.
            def reduced():
                loss = closure()
                self.synchronize()
                return loss

            result = super().step(reduced)
            self._dtrain_synchronized = False
            return result
        if self._dtrain_should_synchronize:
            if self._dtrain_synchronized:
                warnings.warn(
                    "optimizer.step() reduces the gradients again: after optimizer.synchronize() "
                    "call it within `with optimizer.skip_synchronize():`",
                    stacklevel=2,
                )
            self.synchronize()
        self._dtrain_synchronized = False
        return super().step(closure)

    def zero_grad(self, *args, **kwargs):
        if self._dtrain_reducer is not None and self._dtrain_reducer.in_flight():
            raise StateError(
                "optimizer.zero_grad() between loss.backward() and optimizer.step() or "
                "synchronize(): the gradients are on their way to the other ranks"
            )
        return super().zero_grad(*args, **kwargs)

    def add_param_group(self, group):
        super().add_param_group(group)
        if self._dtrain_reducer is not None:
            number = len(self.param_groups) - 1
            self._dtrain_reducer.add(_named({}, self.param_groups[-1:], number))

    def __getstate__(self):
        raise StateError("pickle optimizer.state_dict() instead of a DistributedOptimizer")


def _named(names, groups, first=0):
    """(name, parameter) of all parameters that need a gradient, in order."""
    for i, group in enumerate(groups, first):
        for j, parameter in enumerate(group["params"]):
            if parameter.requires_grad:
                yield names.get(id(parameter), f"group{i}.parameter{j}"), parameter


def _checked_names(optimizer, named_parameters):
    named = list(named_parameters) if named_parameters is not None else []
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in named):
        raise InvalidArgumentError("named_parameters: give the pairs of model.named_parameters()")
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(f"named_parameters: not unique: {', '.join(twice)}")
    by_id = {id(parameter): str(name) for name, parameter in named}
    if named:
        unnamed = sum(
            id(p) not in by_id for group in optimizer.param_groups for p in group["params"]
        )
        if unnamed:
            raise InvalidArgumentError(
                f"named_parameters: {unnamed} of the optimizer's parameters are not among them"
            )
    return by_id


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,
                         backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0,
                         num_groups=0, groups=None, sparse_as_dense=False, process_set=None):
    """`optimizer` with a step() that uses the gradients of all ranks; of the same class, with the
    same parameter groups and state.

    backward() starts an all-reduce for each gradient; step() waits for them. Parameters that a rank
    did not use count as zeros there.

    named_parameters: names for error texts and the timeline.
    compression: Compression.fp16 sends half as many bytes.
    backward_passes_per_step: calls of backward() whose gradients are added up before they are
        reduced; call step() and zero_grad() once for that many. Nothing is divided by it.
    op: Average or Sum. gradient_predivide_factor: with Average, the part of the division that is
        done before the sum.
    num_groups, groups: of Horovod's; libdtrain decides itself what travels together.

    Every rank must take the same number of steps. Wrap the optimizer before learning-rate
    schedulers are made for it.
    """
    op = chosen(op)
    if op not in (Average, dtrain.Sum):
        raise InvalidArgumentError(f"DistributedOptimizer: op={op.name}; use Average or Sum")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise InvalidArgumentError("gradient_predivide_factor needs op=Average")
    if backward_passes_per_step < 1:
        raise InvalidArgumentError("backward_passes_per_step is at least 1")
    process_set = process_set or dtrain.global_process_set
    names = _checked_names(optimizer, named_parameters)

    kind = type(optimizer)
    distributed = type(kind.__name__, (_Distributed, kind), {"__doc__": kind.__doc__})
    made = distributed.__new__(distributed)
    # A learning-rate scheduler puts its own step() into the object; ours comes first.
    made.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    made._dtrain_should_synchronize = True
    made._dtrain_synchronized = False
    made._dtrain_reducer = None
    if process_set.included() and process_set.size() > 1:
        made._dtrain_reducer = Reducer(compression, backward_passes_per_step, op,
                                       gradient_predivide_factor, process_set, sparse_as_dense)
        made._dtrain_reducer.add(_named(names, optimizer.param_groups))
    return made
