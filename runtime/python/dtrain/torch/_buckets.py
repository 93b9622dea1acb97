# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way through an all-reduce: many in one buffer, or one alone."""

import sys

import torch

from dtrain import Compression, Sum
from dtrain._collectives import start_allreduce

from ._sparse import sparse_allreduce_async


class Terms:
    """How an optimizer's gradients are reduced."""

    def __init__(self, compression, op, predivide, process_set, sparse_as_dense):
        self.compression, self.op, self.process_set = compression, op, process_set
        self.sparse_as_dense = sparse_as_dense
        # Average: divided in two steps, before and after, so that sums of float16 stay small.
        self._factors = (1.0 / predivide, predivide)

    @property
    def element_by_element(self):
        """Whether gradients can be compressed together: nobody knows what the program's own class does."""
        return self.compression in (Compression.none, Compression.fp16)

    def start(self, tensor, name, note):
        """Starts an all-reduce in place. A function that waits for it. `note`: what must be the same on
        all ranks, too."""
        return start_allreduce(tensor, name, self.op, self._factors, self.process_set,
                               Compression.none, in_place=True, wait=False, note=note).wait

    def without_common(self, gradient, values):
        """`values` of this rank, written over: what all ranks have in common already enters a sum
        once. An average of it is what it was, anyway."""
        if self.op is Sum and gradient.common is not None:
            values.sub_(gradient.common, alpha=1.0 - 1.0 / self.process_set.size())
        return values


class Gradient:
    """One parameter's gradient, and where it stands in a round of the Reducer."""

    def __init__(self, parameter, name, group):
        self.parameter, self.name, self.group = parameter, name, group
        self.type = parameter.dtype, parameter.device
        self.home = None  # the Bucket or Single that it travels in; None before some rank has made it
        self.hooks = []
        self.result = None  # of the last round: the same on all ranks
        self.clear()

    def clear(self):
        self.made = False  # by the backward() that is running
        self.touched = False  # by any since the last round
        self.common = None  # of what it has now, the part that all ranks have, where that counts
        self.present = False  # this rank has given values
        self.late = False  # backward() has made more of it after it had started
        self.stream = None  # that it was made on
        self._own = None

    def take(self):
        """What this rank has. The parameter has no gradient until the end of the round: what backward()
        still makes of it is found there."""
        grad = self.parameter.grad
        self.parameter.grad = None
        self.present = grad is not None
        if not self.touched and grad is self.result:
            self.common = grad
        if self.present and grad.requires_grad:
            self._own = grad  # of backward(create_graph=True)
        return grad

    def give(self, result):
        """Ends the round. `result`: None where no rank has given values."""
        if self._own is not None and result is not None and not result.is_sparse:
            self._own.detach().copy_(result)
            result = self._own
        self.parameter.grad = self.result = result

    def add(self, late):
        """What was made after it had started, reduced."""
        grad = self.parameter.grad
        if grad is None or grad.is_sparse:
            self.parameter.grad = self.result = late if grad is None else late + grad
        else:
            grad.add_(late)


class Bucket:
    """Gradients of one type on one device, in one buffer. Between the rounds they are views of it."""

    def __init__(self, gradients, terms):
        self.gradients, self._terms = gradients, terms
        first, last = gradients[0].name, gradients[-1].name
        self.name = first if len(gradients) == 1 else f"{first} to {last}"
        self.held = False  # it does not start before backward() is over: it was too early once
        self._make_buffer()
        self.clear()

    def clear(self):
        self.started = False
        self.missing = len(self.gradients)
        self._wait = self._context = None

    def _make_buffer(self):
        parameters = [gradient.parameter for gradient in self.gradients]
        dtype, device = self.gradients[0].type
        flat = torch.empty(sum(p.numel() for p in parameters), dtype=dtype, device=device)
        self._views, begin = [], 0
        for p in parameters:
            # In the memory order of the parameter. `data`: each counts its own versions.
            view = flat.as_strided(p.shape, memory_order(p), begin).data
            self._views.append(view)
            begin += p.numel()
        self._flat = flat
        self._wire = torch.view_as_real(flat).view(-1) if dtype.is_complex else flat
        self._in_order = all(view.is_contiguous() for view in self._views)

    def start(self, prefix, note):
        self.started = True
        # The program has kept a gradient of the last round, which must stay as it is.
        if any(sys.getrefcount(self._views[i]) > 2 + (self.gradients[i].result is self._views[i])
               for i in range(len(self._views))):
            self._make_buffer()
        self._fill()
        small, self._context = self._terms.compression.compress(self._wire)
        self._wait = self._terms.start(small, prefix + self.name, note)

    def _fill(self):
        grads = [gradient.take() for gradient in self.gradients]
        wait_for_streams(self.gradients)
        dtype, device = self.gradients[0].type
        if self._in_order and all(
                grad is not None and grad is not view and grad.layout is torch.strided
                and grad.dtype is dtype and grad.device == device
                for grad, view in zip(grads, self._views)):
            torch.cat([grad.detach().reshape(-1) for grad in grads], out=self._flat)
        else:
            for grad, view in zip(grads, self._views):
                if grad is None:
                    view.zero_()
                elif grad is not view:
                    view.copy_(dense(grad.detach()))
        for gradient, view in zip(self.gradients, self._views):
            self._terms.without_common(gradient, view)

    def finish(self, made):
        """Waits, and gives the parameters their gradients. `made`, of a gradient: whether any rank has
        given values."""
        try:
            result = self._wait()
            if self._context is not None:
                self._wire.copy_(self._terms.compression.decompress(result, self._context))
        finally:
            for gradient, view in zip(self.gradients, self._views):
                gradient.give(view if made(gradient) else None)


class Single:
    """A gradient that travels alone: a sparse one, or one that the program's own compression packs."""

    def __init__(self, gradient, terms, sparse_dim):
        """`sparse_dim`: how many dimensions its indices have; 0 of a dense one."""
        self.gradients, self._terms, self.name = [gradient], terms, gradient.name
        self._sparse_dim = sparse_dim
        self.held = False
        self.clear()

    def clear(self):
        self.started, self.missing = False, 1
        self._wait = self._context = self._target = None

    def start(self, prefix, note):
        self.started = True
        gradient, terms, dim = self.gradients[0], self._terms, self._sparse_dim
        grad = gradient.take()
        wait_for_streams(self.gradients)
        value = None if grad is None else grad.detach()
        if dim and not terms.sparse_as_dense:
            if value is None or value.is_sparse and value._nnz() == 0:
                # zero_grad() has made it one whose indices are not as they were.
                value = _no_values(gradient.parameter, dim)
            elif not value.is_sparse:
                value = value.to_sparse(dim)
            if gradient.common is not None:
                value = terms.without_common(gradient, value.clone())
            self._wait = sparse_allreduce_async(value, prefix + self.name, terms.op,
                                                terms.process_set)
            return
        if value is None:
            value = torch.zeros_like(gradient.parameter)
        else:
            value = dense(value)
        if gradient.common is not None:
            value = terms.without_common(gradient, value.clone())
        self._target = grad if grad is not None and not dim else value
        small, self._context = terms.compression.compress(value)
        self._wait = terms.start(small, prefix + self.name, note)

    def finish(self, made):
        result = None
        gradient, dim = self.gradients[0], self._sparse_dim
        try:
            result = self._wait()
            if self._target is None:
                return
            result = self._terms.compression.decompress(result, self._context)
            if dim:
                # SparseAdam and the like need it as it was.
                result = result.to_sparse(dim)
            else:
                target = self._target.detach()
                if result.data_ptr() != target.data_ptr():
                    target.copy_(result)
                result = self._target
        finally:
            gradient.give(result if made(gradient) else None)


def memory_order(parameter):
    """The strides of a dense tensor like it."""
    return torch.empty_like(parameter, device="meta").stride()


def dense(tensor):
    return tensor.to_dense() if tensor.is_sparse else tensor


def _no_values(like, sparse_dim):
    """A sparse tensor of zeros, whose indices have so many dimensions."""
    indices = torch.empty(sparse_dim, 0, dtype=torch.int64, device=like.device)
    values = torch.empty(0, *like.shape[sparse_dim:], dtype=like.dtype, device=like.device)
    return torch.sparse_coo_tensor(indices, values, like.shape)


def wait_for_streams(gradients):
    """What this thread enqueues from now on comes after what has made these."""
    streams = {gradient.stream for gradient in gradients} - {None}
    if streams:
        current = torch.cuda.current_stream(gradients[0].parameter.device)
        for stream in streams - {current}:
            current.wait_stream(stream)
