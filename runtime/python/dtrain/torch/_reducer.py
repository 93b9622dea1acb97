# SPDX-License-Identifier: Apache-2.0
"""Reducing the gradients of a DistributedOptimizer while backward() still makes them."""

import ctypes
import itertools
import threading

import torch

import dtrain
from dtrain import Compression, OrderError, Sum, allreduce_async_
from dtrain import _arrays, _handles, _job, _timeline
from dtrain._calls import group_of, shape_text
from dtrain._library import library, make_options

from ._sparse import sparse_allreduce_async


class _Gradient:
    """One parameter's gradient."""

    def __init__(self, parameter, name):
        self.parameter = parameter
        self.name = name
        self.key = None  # the name that the ranks know it by
        self.unit = None
        self.type = self.dtype = self.options = None  # see Reducer._prepare()
        self.number = ctypes.c_uint64()
        self.sparse_dim = 0  # of a sparse one: how many dimensions its indices have; else 0
        self.clear()

    def clear(self):
        self.passes = 0  # of backward() that have made it since the last step
        self.wait = None  # returns what is reduced; None before it was started
        self.direct = False  # started by the hook itself
        self.context = None  # what decompress() needs


class _Unit:
    """Gradients that start together."""

    def __init__(self, gradients, number):
        self.gradients = gradients
        self.number = number  # in the order of the parameters
        for gradient in gradients:
            gradient.unit = self
        self.clear()

    def clear(self):
        self.missing = len(self.gradients)
        for gradient in self.gradients:
            gradient.clear()


def _no_values(like, sparse_dim):
    """A sparse tensor of zeros, whose indices have so many dimensions."""
    indices = torch.empty(sparse_dim, 0, dtype=torch.int64, device=like.device)
    values = torch.empty(0, *like.shape[sparse_dim:], dtype=like.dtype, device=like.device)
    return torch.sparse_coo_tensor(indices, values, like.shape)


@torch.no_grad()
def _assign_sparse(target, result):
    # Not of target.detach(), which has indices and values of its own from then on.
    target.zero_().add_(result)


class _Ordinals:
    """Numbers for optimizers, in the order in which they are first used in a generation: those of one
    process set may have parameters of the same names."""

    generation = None
    counts = {}

    @classmethod
    def next_of(cls, process_set):
        if cls.generation != _job.generation:
            cls.generation, cls.counts = _job.generation, {}
        count = cls.counts.setdefault(process_set.process_set_id, itertools.count())
        return next(count)


class Reducer:
    """All-reduces the gradients of some parameters as backward() makes them.

    The order in which they start is fixed and the same on all ranks: that in which backward() made
    them in the first step, on the first rank. A unit starts when it is there and all before it have
    been started; in the first step all start when that is over. libdtrain sends small ones together
    (DTRAIN_FUSION_THRESHOLD), and finds more to send together when they come in the same order.
    """

    def __init__(self, compression, passes_per_step, op, predivide, process_set, sparse_as_dense):
        self.passes_per_step = passes_per_step
        self._compression = compression
        self._op = op
        # Average: divided in two steps, before and after, so that sums of float16 stay small.
        self._factors = (1.0 / predivide, predivide)
        self._process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        self._units = []
        self._order = None  # of _units, when the ranks have agreed on it
        self._generation = None  # in which the ranks know it, by its number
        self._made = []  # units in the order of this step, before they have
        self._started = 0  # of _order, since the last step
        # Gradients on the host that go as they are: the hook calls the library itself, because all
        # that runs for each gradient holds up backward().
        self._direct = compression is Compression.none and predivide == 1.0
        self._allreduce = library().function("dtrain_allreduce_async")
        self._hooks = []
        # Autograd has a thread for each device.
        self._lock = threading.RLock()

    def add(self, groups):
        """groups: lists of pairs of name and parameter, in the order of the model; those of a list
        start together. Before any backward(), or after a step."""
        for group in groups:
            gradients = [_Gradient(parameter, name) for name, parameter in group]
            self._units.append(_Unit(gradients, len(self._units)))
            for gradient in gradients:
                self._watch(gradient)
        self._order = None

    def _watch(self, gradient):
        parameter, unit, lock = gradient.parameter, gradient.unit, self._lock

        def made(*_):
            # The only Python function that is called for a gradient, as long as it is a plain one.
            with lock:
                if gradient.passes == self.passes_per_step:
                    raise OrderError(
                        f"the gradient of {gradient.name} was computed more than "
                        f"backward_passes_per_step ({self.passes_per_step}) times before step(); "
                        "raise backward_passes_per_step to accumulate gradients locally"
                    )
                gradient.passes += 1
                if gradient.passes < self.passes_per_step:
                    return
                unit.missing -= 1
                if unit.missing:
                    return
                order = self._order
                if order is None or self._generation != _job.generation:
                    self._order = None
                    self._made.append(unit)
                    return
                while self._started < len(order) and not order[self._started].missing:
                    first = order[self._started]
                    self._started += 1
                    for each in first.gradients:
                        value = each.parameter.grad
                        # `type` is None where it cannot be direct.
                        if (each.type is not None and value is not None
                                and value.dtype is each.dtype and value.layout is torch.strided
                                and value.is_contiguous() and _timeline.active is None):
                            place = value.data_ptr()
                            if self._allreduce(place, place, value.numel(), each.type, self._op,
                                               each.options, each.number) == 0:
                                each.direct = True
                                _handles.kept[each.number.value] = value
                                continue
                        # Also when it failed: that tries again, and raises.
                        self._start_one(each)

        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(made))
            return
        # Before PyTorch 2.1: the node that adds to .grad, which lives as long as we hold it.
        with torch.enable_grad():
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(made)
        self._hooks.append(node)

    def _start_one(self, gradient):
        parameter = gradient.parameter
        if parameter.grad is None:
            # Unused by this rank; others may have used it.
            zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            sparse = gradient.sparse_dim
            parameter.grad = _no_values(parameter, sparse) if sparse else zeros
        value = parameter.grad.detach()
        if not value.is_sparse:
            gradient.sparse_dim = 0
        elif not self._sparse_as_dense:
            if value._nnz() == 0 and gradient.sparse_dim:
                # zero_grad() has made it one whose indices are as those of the last step no more.
                value = _no_values(parameter, gradient.sparse_dim)
            gradient.sparse_dim = value.sparse_dim()
            gradient.wait = sparse_allreduce_async(value, gradient.key, self._op,
                                                   self._process_set)
            return
        else:
            gradient.sparse_dim = gradient.sparse_dim or value.sparse_dim()
        if value.is_sparse:
            value = value.to_dense()
        small, gradient.context = self._compression.compress(value)
        before, after = self._factors
        gradient.wait = allreduce_async_(
            small, name=gradient.key, op=self._op, prescale_factor=before,
            postscale_factor=after, process_set=self._process_set,
        ).wait

    def finish(self):
        """Starts the gradients that backward() has not made, and waits for all."""
        try:
            with self._lock:
                order = self._agreed_order()
                for unit in order[self._started :]:
                    self._started += 1
                    for gradient in unit.gradients:
                        self._start_one(gradient)
            self._finish_all(order)
        finally:
            self.reset()

    def in_flight(self):
        """Whether backward() has made gradients since the last step."""
        return any(g.passes or g.wait or g.direct for unit in self._units for g in unit.gradients)

    def abandon(self):
        """Waits for the gradients in flight, and forgets those of this step."""
        try:
            if self._started:
                self._finish_all(self._order[: self._started])
        finally:
            self.reset()

    def _finish_all(self, order):
        failure = None
        for unit in order:
            for gradient in unit.gradients:
                try:
                    self._finish(gradient)
                except dtrain.Error as error:
                    # The others are waited for, too: nothing writes to a gradient after that.
                    failure = failure or error
        if failure is not None:
            raise failure

    def _finish(self, gradient):
        if gradient.direct:
            number = gradient.number.value
            _handles.count_wait()
            try:
                library().call("dtrain_wait", number)
            finally:
                _handles.kept.pop(number, None)
            return
        result = gradient.wait()
        target = gradient.parameter.grad
        if gradient.sparse_dim and not self._sparse_as_dense:
            gradient.sparse_dim = result.sparse_dim()
            _assign_sparse(target, result)
            return
        result = self._compression.decompress(result, gradient.context)
        if gradient.sparse_dim:
            # SparseAdam and the like need it as it was.
            _assign_sparse(target, result.to_sparse(gradient.sparse_dim))
        elif result.data_ptr() != target.data_ptr():
            target.detach().copy_(result)

    def _agreed_order(self):
        """The order in which the units start. Collective in the first step."""
        if self._generation != _job.generation:
            self._order, self._generation = None, _job.generation
            number = _Ordinals.next_of(self._process_set)
            self._prefix = f"optimizer {number + 1}: " if number else ""
        if self._order is None and self._units:
            for unit in self._units:
                for gradient in unit.gradients:
                    gradient.key = self._prefix + gradient.name
            positions = self._exchange()
            if not positions.any():
                # That rank is in join(), and the next step asks again.
                return self._units[::-1]
            self._order = sorted(self._units, key=lambda unit: positions[unit.number])
            for unit in self._units:
                for gradient in unit.gradients:
                    self._prepare(gradient)
        return self._order or []

    def _prepare(self, gradient):
        """For the hook to call the library itself."""
        parameter = gradient.parameter
        name = str(parameter.dtype).rpartition(".")[2]
        if self._direct and parameter.device.type == "cpu" and name in _arrays.FLOATING:
            gradient.type, gradient.dtype = _arrays.NATIVE[name], parameter.dtype
            shape = shape_text(_arrays.of(parameter)[1], parameter, True)
            gradient.options = make_options(group_of(self._process_set), gradient.key, shape=shape)

    def _exchange(self):
        """The first rank's positions of the units. What other ranks have found to be sparse is so here,
        where it was not used."""
        gradients = [gradient for unit in self._units for gradient in unit.gradients]
        units, count = len(self._units), len(gradients)
        told = torch.zeros(units + 2 * count, dtype=torch.int64)
        positions, dims, sparse = told[:units], told[units : units + count], told[units + count :]
        for i, gradient in enumerate(gradients):
            grad = gradient.parameter.grad
            if grad is not None and grad.is_sparse:
                dims[i], sparse[i] = grad.sparse_dim(), 1
        if self._process_set.rank() == 0:
            unmade = [unit for unit in reversed(self._units) if unit not in self._made]
            for position, unit in enumerate(self._made + unmade):
                positions[unit.number] = position + 1
        # A sum and no broadcast, because other ranks may be in join().
        name = f"DistributedOptimizer.order.{self._units[0].gradients[0].key}"
        told = dtrain.allreduce(told, op=Sum, name=name, process_set=self._process_set)
        for i, gradient in enumerate(gradients):
            if told[units + count + i]:
                gradient.sparse_dim = int(told[units + i] // told[units + count + i])
        return told[:units]

    def reset(self):
        """After a step."""
        with self._lock:
            self._started = 0
            self._made = []
            for unit in self._units:
                unit.clear()
