# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way through an all-reduce: many in one buffer, or one alone."""

import ctypes

import torch

from dtrain import Compression, _arrays, _timeline
from dtrain._calls import group_of, shape_text
from dtrain._collectives import start_allreduce
from dtrain._handles import Handle
from dtrain._library import library, make_options

from ._sparse import sparse_allreduce_async


# Bytes of gradients that are copied to travel together: of the first, which start while most of
# backward() is still to come, and of the others. Those of PyTorch's DDP.
_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20
# From so many on a gradient travels alone on a CPU, where copying it costs more than another call.
_ALONE_ON_CPU = 128 << 10


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

    def start(self, tensor, name):
        """Starts an all-reduce in place. A function that waits for it."""
        return start_allreduce(tensor, name, self.op, self._factors, self.process_set,
                               Compression.none, in_place=True, wait=False).wait

    def start_again(self, source, tensor, name, plan):
        """As start(), from `source` into `tensor`, but faster, as one backward() may make hundreds of these
        calls. `plan`: a list that belongs to this caller alone; it keeps the arguments of one round for
        the next."""
        if (self._factors != (1.0, 1.0) or tensor.device.type != "cpu" or tensor.numel() == 0
                or _timeline.active or not tensor.is_contiguous()):
            return self.start(tensor.copy_(source) if source is not tensor else tensor, name)
        if not plan or plan[0] is not tensor.dtype:
            type_name = _arrays.TorchTensors.type_name(tensor)
            if type_name not in _arrays.NATIVE:
                return self.start(tensor.copy_(source) if source is not tensor else tensor, name)
            shape = shape_text(_arrays.TorchTensors, tensor, True)
            plan[:] = (tensor.dtype, library().function("dtrain_allreduce_async"),
                       _arrays.NATIVE[type_name],
                       make_options(group_of(self.process_set), name, shape=shape))
        _, function, kind, options = plan
        number = ctypes.c_uint64()
        if function(source.data_ptr(), tensor.data_ptr(), tensor.numel(), kind, self.op, options,
                    number) != 0:
            # Tries again, and raises.
            return self.start(tensor.copy_(source) if source is not tensor else tensor, name)
        return Handle(number.value, (source, tensor), lambda: tensor).wait


UNKNOWN = object()


class Gradient:
    """One parameter's gradient, and where it stands in a round of the Reducer."""

    def __init__(self, parameter, name, group):
        self.parameter, self.name, self.group = parameter, name, group
        self.home = None  # the Bucket or Single that it travels in; None before some rank has made it
        self.hooks = []
        self.result = None  # of the last round: the same on all ranks
        self.settled = False  # the program has not asked for another one since: no step, no zero_grad()
        self.zeroed = False  # it is zero or nothing
        self.zero_version = None  # of the tensor, if zero_grad() has zeroed one since the last round
        self._result_version = None
        self.look()
        self.clear()

    def clear(self):
        self.made = False  # by the backward() that is running
        self.touched = False  # by any since the last round
        self.common = None  # the part of it that all ranks have already, if the reducer keeps that
        self.version = None  # of what backward() has made, when it had
        self.before = None  # what the parameter had when backward() began; UNKNOWN where it came first
        self.present = False  # this rank has given values
        self.late = False  # backward() has made more of it after it had started
        self.stream = None  # that it was made on
        self.own = None  # what the program has in the parameter

    def look(self):
        """At the parameter, which the program may give another type, device or shape."""
        p = self.parameter
        self.type, self.shape = (p.dtype, p.device), p.shape
        # Dense, in the parameter's memory order.
        self.strides = torch.empty_like(p, device="meta").stride()
        self.order = sorted(range(p.dim()), key=lambda i: -self.strides[i])

    def has_changed(self):
        p = self.parameter
        return p.dtype is not self.type[0] or p.device != self.type[1] or p.shape != self.shape

    def note_common(self):
        """Before backward() adds to it: keeps a copy of the part that all ranks have already."""
        grad = self.parameter.grad
        if self.home is not None and self.home.started:
            return  # this one will be late
        if not self.touched:
            self.common = None if grad is None or self.zeroed else grad.detach().clone()
        else:
            self._forget_common_if_zeroed(grad)

    def _forget_common_if_zeroed(self, grad):
        if self.common is not None and (
                grad is None or grad._version != self.version and not dense(grad).any()):
            self.common = None  # by the program, meanwhile

    def take(self, keeps_common):
        """What this rank has. The parameter has no gradient until the end of the round: what backward()
        still makes of it is found there."""
        self.own = grad = self.parameter.grad
        self.parameter.grad = None
        self.present = grad is not None
        if grad is None:
            return None
        if keeps_common and self.touched:
            self._forget_common_if_zeroed(grad)
        elif keeps_common and (
                self.settled or grad is self.result and grad._version == self._result_version):
            self.common = grad.detach().clone()
        grad = grad.detach()
        return grad.resolve_conj().resolve_neg() if grad.layout is torch.strided else grad

    @property
    def is_autograds(self):
        """Whether autograd has made the tensor that was taken, and may still use its memory."""
        return self.touched and self.own is not self.result and self.before is not self.own

    def give(self, result, lent=False):
        """Ends the round. `result`: None where no rank has given values, else for us to keep, unless it is
        lent. It goes where the program's own tensor is, which it may have kept."""
        own = self.own
        if own is not None and not own.requires_grad and self.before is None and self.touched:
            own = None  # autograd has made it, so nobody else has it
        if own is not None and result is not None and own.layout is result.layout is torch.strided:
            values = own.detach()
            if values.data_ptr() != result.data_ptr():
                try:
                    values.copy_(result)
                except RuntimeError:
                    own = result.clone()  # instead of one that has been expanded
            result = own
        elif lent:
            result = result.clone()
        self.parameter.grad = self.result = result
        self._result_version = None if result is None else result._version
        self.settled, self.zeroed, self.zero_version = result is not None, False, None

    @property
    def is_made_by_hand(self):
        """Whether the program has given the parameter a gradient since the last round, or has zeroed the one of that
        round and written into it."""
        grad = self.parameter.grad
        if grad is None or self.settled:
            return False
        return grad is not self.result or self.zero_version is not None and grad._version != self.zero_version

    def add(self, late):
        """Adds the reduced sum of what backward() made after this gradient had been sent."""
        grad = self.parameter.grad
        if grad is None or grad.is_sparse:
            self.parameter.grad = self.result = late if grad is None else late + grad
        else:
            grad.detach().add_(late)


class Bucket:
    """Small gradients of one type on one device, copied into one buffer, and back."""

    def __init__(self, gradients, terms):
        self.gradients, self._terms = gradients, terms
        first, last = gradients[0].name, gradients[-1].name
        self.name = first if len(gradients) == 1 else f"{first} to {last}"
        self.held = False  # it does not start before backward() is over: it was too early once
        self._plan = []
        dtype, device = gradients[0].type
        sizes = [gradient.shape.numel() for gradient in gradients]
        self._flat = torch.empty(sum(sizes), dtype=dtype, device=device)
        parts = self._flat.split(sizes)
        self._views = [part.view(g.shape) for part, g in zip(parts, gradients)]
        self._wire = torch.view_as_real(self._flat).view(-1) if dtype.is_complex else self._flat
        self.clear()

    def clear(self):
        self.started = False
        self.missing = len(self.gradients)
        self._wait = self._context = None

    def start(self, prefix, keeps_common):
        self.started = True
        grads = [gradient.take(keeps_common) for gradient in self.gradients]
        wait_for_streams(self.gradients)
        dtype, device = self.gradients[0].type
        if all(grad is not None and grad.layout is torch.strided and grad.dtype is dtype
               and grad.device == device for grad in grads):
            torch.cat([grad.reshape(-1) for grad in grads], out=self._flat)
        else:
            for grad, view in zip(grads, self._views):
                view.zero_() if grad is None else view.copy_(dense(grad))
        for gradient, view in zip(self.gradients, self._views):
            if gradient.common is not None:
                view.sub_(dense(gradient.common))
        small, self._context = self._terms.compression.compress(self._wire)
        self._wait = self._terms.start_again(small, small, prefix + self.name, self._plan)

    def finish(self, made):
        """Waits, and gives the parameters their gradients. `made`, of a gradient: whether any rank has
        given values."""
        try:
            result = self._wait()
            if self._context is not None:
                self._wire.copy_(self._terms.compression.decompress(result, self._context))
        finally:
            for gradient, view in zip(self.gradients, self._views):
                if gradient.common is not None:
                    view.add_(dense(gradient.common))
                some = made(gradient)
                gradient.give(view if some else None, lent=some)


class Single:
    """A gradient that travels alone, where it lies: a large one, a sparse one, or one that the program's
    own compression packs."""

    def __init__(self, gradient, terms, sparse_dim):
        """`sparse_dim`: how many dimensions its indices have; 0 of a dense one."""
        self.gradients, self._terms, self.name = [gradient], terms, gradient.name
        self._sparse_dim = sparse_dim
        self.held = False
        self._plan = []
        self.clear()

    def clear(self):
        self.started, self.missing = False, 1
        self._wait = self._context = self._values = None

    def start(self, prefix, keeps_common):
        self.started = True
        gradient, terms, dim = self.gradients[0], self._terms, self._sparse_dim
        grad = gradient.take(keeps_common)
        wait_for_streams(self.gradients)
        if dim and not terms.sparse_as_dense:
            if grad is None or grad.is_sparse and grad._nnz() == 0:
                # zero_grad() has made it one whose indices are not as they were.
                grad = _no_values(gradient.parameter, dim)
            elif not grad.is_sparse:
                grad = grad.to_sparse(dim)
            if gradient.common is not None:
                grad = _without_zeros(grad - gradient.common)
            self._wait = sparse_allreduce_async(grad, prefix + self.name, terms.op,
                                                terms.process_set)
            return
        if grad is None:
            grad = torch.zeros_like(gradient.parameter)
        elif grad.is_sparse:
            grad = grad.to_dense()
        if gradient.common is not None:
            grad = grad - dense(gradient.common)
        self._values = grad
        if terms.compression is not Compression.none:
            if gradient.is_autograds:
                self._values = grad.clone()
            self._to = self._values
            small, self._context = terms.compression.compress(self._values)
            self._wait = terms.start_again(small, small, prefix + self.name, self._plan)
            return
        # As it lies in memory, also where that is channel by channel.
        in_order = grad.stride() == gradient.strides
        if not in_order or gradient.is_autograds:
            self._values = torch.empty_strided(grad.shape, gradient.strides, dtype=grad.dtype,
                                               device=grad.device)
        if not in_order:
            grad = self._values.copy_(grad)
        self._to = _wire(self._values, gradient)
        source = self._to if self._values is grad else _wire(grad, gradient)
        self._wait = terms.start_again(source, self._to, prefix + self.name, self._plan)

    def finish(self, made):
        """As Bucket's."""
        gradient, dim, result = self.gradients[0], self._sparse_dim, None
        try:
            result = self._wait()
            if self._values is not None:
                result = self._terms.compression.decompress(result, self._context)
                if result.data_ptr() != self._to.data_ptr():
                    self._to.copy_(result)
                result = self._values
                # SparseAdam and the like need it as it was.
                result = result.to_sparse(dim) if dim else result
            if gradient.common is not None:
                result = result + gradient.common
                result = result.coalesce() if result.is_sparse else result
        finally:
            self._to = None
            gradient.give(result if made(gradient) else None)


def planned(gradients, sparse_dims, terms, first):
    """Buckets and Singles for `gradients`, in the order in which they will be made, which is the same on
    all ranks. sparse_dims: by gradient, 0 for a dense one. first: there are no others before them."""
    full, filling = [], {}  # each with where the last one is in `gradients`
    for i, gradient in enumerate(gradients):
        octets = gradient.parameter.numel() * gradient.parameter.element_size()
        large = gradient.type[1].type == "cpu" and octets >= _ALONE_ON_CPU
        dims = sparse_dims[gradient]
        if dims or not terms.element_by_element or large and gradient.group is None:
            full.append((i, Single(gradient, terms, dims)))
            continue
        key = gradient.type, gradient.group
        together, _, size = filling.pop(key, ((), 0, 0))
        together, size = (*together, gradient), size + octets
        if gradient.group is None and size >= (_FIRST_BUCKET if first and not full else _BUCKET):
            full.append((i, Bucket(together, terms)))
        else:
            filling[key] = together, i, size
    full += [(i, Bucket(together, terms)) for together, i, _ in filling.values()]
    return [bucket for _, bucket in sorted(full, key=lambda pair: pair[0])]


def dense(tensor):
    return tensor.to_dense() if tensor.is_sparse else tensor


def _wire(tensor, gradient):
    """A dense tensor as numbers that lie one after the other."""
    tensor = tensor.permute(gradient.order)
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _without_zeros(tensor):
    tensor = tensor.coalesce()
    values = tensor.values()
    some = values.reshape(len(values), -1).ne(0).any(1)
    return torch.sparse_coo_tensor(tensor.indices()[:, some], values[some], tensor.shape)


def _no_values(like, sparse_dim):
    """A sparse tensor of zeros, whose indices have so many dimensions."""
    indices = torch.empty(sparse_dim, 0, dtype=torch.int64, device=like.device)
    values = torch.empty(0, *like.shape[sparse_dim:], dtype=like.dtype, device=like.device)
    return torch.sparse_coo_tensor(indices, values, like.shape)


def wait_for_streams(gradients):
    """Lets the current stream wait for the streams that these gradients were made on."""
    streams = {gradient.stream for gradient in gradients} - {None}
    if streams:
        current = torch.cuda.current_stream(gradients[0].parameter.device)
        for stream in streams - {current}:
            current.wait_stream(stream)
