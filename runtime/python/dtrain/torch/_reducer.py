# SPDX-License-Identifier: Apache-2.0
"""Reducing the gradients of a DistributedOptimizer while backward() still makes them."""

import itertools
import sys
import threading
import typing
import weakref
import zlib

import torch
from torch.autograd.function import BackwardCFunction

import dtrain
from dtrain import Compression, MismatchError, StateError, Sum, _job
from dtrain._collectives import start_allreduce

from ._buckets import Bucket, Gradient, Single, dense, memory_order

# Bytes of gradients that travel together: of the first, which start while most of backward() is still
# to come; and of the others, which on a CPU stay in its cache until they are sent. The first and the
# last are those of PyTorch's DDP.
_FIRST_BUCKET, _CPU_BUCKET, _BUCKET = 1 << 20, 4 << 20, 25 << 20
_NESTED = BackwardCFunction.apply.__code__
# The gradients that a Reducer has, by their parameters' id(): the latest that was made for one has it.
_owned = {}


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


class _Backward:
    """A call of backward(): lives as long as autograd works on it."""


class Reducer:
    """All-reduces the gradients of some parameters, as all ranks do in rounds: one within each
    backward(), or each last one of `passes_per_step`, and one in a step that had none.

    In a round every gradient travels once, in a bucket (see _buckets.py). Which gradients are in which
    is decided in the round in which a rank has first made them: in the order of the first rank. From
    then on a bucket starts within backward() when all of it is there and all before it have started. At
    the end of backward() the others start, the ranks tell each other what they have not made, and all
    is waited for: what the program does with gradients after backward() it does with reduced ones.
    """

    def __init__(self, terms, passes_per_step):
        self.passes_per_step = passes_per_step
        self.paused = False  # backward() adds up gradients and reduces none
        self._terms = terms
        self._gradients = []
        self._successors = set()  # other reducers, which have taken over some of the gradients
        self._generation = None  # in which the ranks know it, by its number
        self._agreed = False  # about the buckets
        self._buckets = []  # in the order in which they start
        self._started = 0  # of them, in this round
        self._made = []  # gradients, by the backward() that is running
        self._backward = None  # a weak reference to it
        self._starting = False  # buckets start within it
        self._passes = 0  # since the last round
        self._untold = False  # a backward() since then has made gradients
        self._step, self._round = 1, 0
        # Autograd has a thread for each device.
        self._lock = threading.RLock()

    # ---- What is reduced ----

    def add(self, named, groups={}):
        """named: pairs of name and parameter, in the order of the model. groups: numbers of those that
        share a bucket with the others of that number."""
        with self._lock:
            for name, parameter in named:
                if not (parameter.is_floating_point() or parameter.is_complex()):
                    continue  # has no gradient
                gradient = Gradient(parameter, name, groups.get(parameter))
                before = _owned.get(id(parameter))
                if before is not None:
                    before.reducer._hand_over(before, self)
                gradient.reducer = self
                _owned[id(parameter)] = gradient
                self._gradients.append(gradient)
                self._watch(gradient)
            self._describe()

    def _hand_over(self, gradient, successor):
        with self._lock:
            _unwatch(gradient)
            self._gradients.remove(gradient)
            self._agreed = False
            if successor is not self:
                self._successors.add(successor)
            self._describe()

    def renew(self):
        """Follows parameters that have got another type or another device."""
        with self._lock:
            changed = [g for g in self._gradients
                       if (g.parameter.dtype, g.parameter.device) != g.type]
            for gradient in changed:
                _unwatch(gradient)
                gradient.type = gradient.parameter.dtype, gradient.parameter.device
                self._watch(gradient)
            if changed:
                self._agreed = False
                self._describe()

    def _describe(self):
        for number, gradient in enumerate(self._gradients):
            gradient.number = number
        listed = [(*_description(g), memory_order(g.parameter)) for g in self._gradients]
        self._layout = zlib.crc32(repr(listed).encode())

    def _watch(self, gradient):
        parameter, lock = gradient.parameter, self._lock

        # The only Python function that is called for a gradient.
        def made(*_):
            with lock:
                self._has_made(gradient)

        def adds(_):
            with lock:
                if not gradient.touched and parameter.grad is not None:
                    gradient.common = parameter.grad.detach().clone()

        frozen = not parameter.requires_grad
        if frozen:
            # Maybe not for ever.
            parameter.requires_grad_(True)
        if self._terms.op is Sum:
            gradient.hooks.append(parameter.register_hook(adds))
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            gradient.hooks.append(parameter.register_post_accumulate_grad_hook(made))
        else:
            # Before PyTorch 2.1: the node that adds to .grad, which lives as long as we hold it.
            with torch.enable_grad():
                node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            gradient.node = node
            gradient.hooks.append(node.register_hook(made))
        if frozen:
            parameter.requires_grad_(False)

    # ---- Within backward() ----

    def _has_made(self, gradient):
        if self._backward is None or self._backward() is None:
            self._begin_backward()
        home = gradient.home
        if home is not None and home.started:
            gradient.late = True
            return
        if gradient.made:
            return
        gradient.made = gradient.touched = True
        self._made.append(gradient)
        if gradient.type[1].type == "cuda":
            gradient.stream = torch.cuda.current_stream(gradient.type[1])
        if home is None or not self._starting:
            return
        home.missing -= 1
        if home.missing == 0:
            self._start_full()

    def _begin_backward(self):
        if self._started and self._agreed:
            raise StateError(
                "backward() failed before, when some of its gradients had been sent to the other ranks, "
                "which wait for the rest: call optimizer.step() for it as they do, then go on"
            )
        # Of one before that failed, too.
        for gradient in self._made:
            gradient.made = False
        for bucket in self._buckets:
            bucket.missing = len(bucket.gradients)
        self._made.clear()
        self._untold = True
        self._starting = (not self.paused and self._passes + 1 >= self.passes_per_step
                          and self._agreed and self._generation == _job.generation)
        backward = _Backward()
        self._backward = weakref.ref(backward)
        self._at_end_of(backward)

    def _at_end_of(self, backward):
        """Calls _end_backward() then: of the outermost, where an autograd function calls backward() itself,
        as checkpoints do."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not _NESTED:
            frame = frame.f_back
        if frame is None:
            torch.autograd.Variable._execution_engine.queue_callback(
                lambda: self._end_backward(backward))
            return
        hooks = []

        def outside(*_):
            if hooks:
                for hook in hooks:
                    hook.remove()
                hooks.clear()
                self._at_end_of(backward)

        # What comes after that function.
        for node, _ in frame.f_locals["self"].next_functions:
            if node is not None:
                hooks.append(node.register_hook(outside))

    @torch.no_grad()
    def _start_full(self):
        while self._started < len(self._buckets):
            bucket = self._buckets[self._started]
            if bucket.missing or bucket.held:
                return
            self._start(bucket)

    def _start(self, bucket):
        if self._started == 0:
            self._round += 1
        self._started += 1
        try:
            bucket.start(self._prefix, self._note())
        except BaseException:
            self._give_up()
            raise

    def _end_backward(self, backward):
        with self._lock:
            if self._backward is None or self._backward() is not backward:
                return
            self._backward = None
            if self.paused:
                return
            self._passes += 1
            if self._passes >= self.passes_per_step:
                self._reduce()

    # ---- A round ----

    def synchronize(self):
        """Makes a round, unless there was one since the last step and backward() has made nothing since."""
        with self._lock:
            for other in self._successors:
                other.synchronize()
            self.renew()
            if self._untold or self._round == 0:
                self._reduce()

    def stepped(self):
        """The program has taken a step."""
        with self._lock:
            self._step += 1
            self._round = 0

    def loss(self, loss):
        """What a closure returns, of all ranks: an optimizer that compares losses decides alike on all."""
        if not isinstance(loss, torch.Tensor) or not loss.is_floating_point():
            return loss
        return dtrain.allreduce(loss.detach(), op=self._terms.op, name=f"{self._prefix}loss",
                                process_set=self._terms.process_set)

    @torch.no_grad()
    def _reduce(self):
        if self._generation != _job.generation:
            self._generation, self._agreed = _job.generation, False
            number = _Ordinals.next_of(self._terms.process_set)
            self._prefix = f"optimizer {number + 1}: " if number else ""
            self._step, self._round = 1, 0
        if not self._agreed:
            self._buckets, self._started = [], 0
            for gradient in self._gradients:
                gradient.home = None
        for bucket in self._buckets[self._started :]:
            self._start(bucket)
        if not self._started:
            self._round += 1
        try:
            told = self._tell()
            for bucket in self._place(told):
                self._start(bucket)
            lates = [(gradient, self._start_late(gradient))
                     for gradient in self._gradients if told and told.late[gradient.number]]
        except BaseException:
            self._give_up()
            raise
        self._agreed = True
        self._finish(told, lates)

    def _finish(self, told, lates):
        failure = None
        for bucket in self._buckets:
            try:
                bucket.finish(lambda gradient: not told or told.present[gradient.number])
            except dtrain.Error as error:
                # The others are waited for, too: nothing writes to a gradient after that.
                failure = failure or error
        for gradient, wait in lates:
            gradient.home.held = True
            try:
                gradient.add(wait())
            except dtrain.Error as error:
                failure = failure or error
        self._end_round()
        if failure is not None:
            raise failure

    def _give_up(self):
        # What is under way may never end, and where it is read and written is not ours any more.
        self._agreed = False
        self._end_round()

    def _end_round(self):
        self._started = self._passes = 0
        self._untold = False
        self._backward = None
        self._made.clear()
        for gradient in self._gradients:
            gradient.clear()
        for bucket in self._buckets:
            bucket.clear()

    def _start_late(self, gradient):
        parameter = gradient.parameter
        value, parameter.grad = parameter.grad, None
        value = torch.zeros_like(parameter) if value is None else dense(value.detach())
        return self._terms.start(value, f"{self._prefix}{gradient.name}, late", self._note())

    # ---- What the ranks tell each other ----

    def _note(self):
        return f" in round {self._round} of step {self._step}"

    def _tell(self):
        """What each gradient is on all ranks. None if all have made all that is in buckets, and no more."""
        if self._agreed:
            unlike = [0, 0, 0]
            for gradient in self._gradients:
                if gradient.home is None:
                    unlike[0] += gradient.parameter.grad is not None
                else:
                    unlike[1] += not gradient.present
                    unlike[2] += gradient.late
            if not any(self._sum(unlike)):
                return None
        count = len(self._gradients)
        told = _Told(*([0] * count for _ in _Told._fields))
        for number, gradient in enumerate(self._gradients):
            if gradient.home is not None:
                told.present[number], told.late[number] = int(gradient.present), int(gradient.late)
            elif gradient.parameter.grad is not None:
                told.present[number] = 1
                if gradient.parameter.grad.is_sparse:
                    told.sparse[number] = 1
                    told.dims[number] = gradient.parameter.grad.sparse_dim()
        if self._terms.process_set.rank() == 0:
            for position, gradient in enumerate(self._made):
                told.position[gradient.number] = position + 1
        everyones = iter(self._sum(itertools.chain(*told)))
        return _Told(*(list(itertools.islice(everyones, count)) for _ in told))

    def _sum(self, numbers):
        # A sum and no gather, because other ranks may be in join().
        numbers = torch.tensor(list(numbers), dtype=torch.int64)
        try:
            start_allreduce(numbers, f"{self._prefix}gradients", Sum, (1.0, 1.0),
                            self._terms.process_set, Compression.none, in_place=True, wait=True,
                            note=f"{self._note()}, {self._layout:x}")
        except MismatchError as error:
            raise self._explained(error) from None
        return numbers.tolist()

    def _explained(self, error):
        """Which rank has wrapped other parameters, or called backward() or step() more often."""
        ranks = self._terms.process_set.ranks
        mine = self._step, self._round, [_description(gradient) for gradient in self._gradients]
        everyones = dtrain.allgather_object(mine, process_set=self._terms.process_set)
        for rank, (step, turn, listed) in zip(ranks[1:], everyones[1:]):
            for first, other in itertools.zip_longest(everyones[0][2], listed):
                if first != other:
                    return MismatchError(
                        f"DistributedOptimizer: rank {ranks[0]} has {_said(first)} where rank {rank} has "
                        f"{_said(other)}; every rank must give it the same parameters in the same order"
                    )
            if (step, turn) != everyones[0][:2]:
                return MismatchError(
                    f"DistributedOptimizer: rank {ranks[0]} reduces gradients for time "
                    f"{everyones[0][1]} of step {everyones[0][0]}, rank {rank} for time {turn} of step "
                    f"{step}; every rank must call backward() and step() equally often, or join() "
                    "when it has no more data"
                )
        return error

    def _place(self, told):
        """Puts the gradients that are new into buckets, and returns these."""
        new = [g for g in self._gradients if g.home is None and told and told.present[g.number]]
        last = len(self._gradients) + 1
        new.sort(key=lambda g: (told.position[g.number] or last, -g.number))
        full, filling = [], {}  # lists, and where the last of each is in `new`
        for i, gradient in enumerate(new):
            sparse = told.sparse[gradient.number]
            if sparse or not self._terms.element_by_element:
                dims = told.dims[gradient.number] // sparse if sparse else 0
                full.append((i, Single(gradient, self._terms, dims)))
                continue
            key = gradient.type, gradient.group
            together = filling.pop(key, ((), 0, 0))
            size = together[2] + gradient.parameter.numel() * gradient.parameter.element_size()
            together = (*together[0], gradient), i, size
            room = _CPU_BUCKET if gradient.type[1].type == "cpu" else _BUCKET
            if not (self._buckets or full):
                room = _FIRST_BUCKET
            if gradient.group is None and size >= room:
                full.append((i, Bucket(together[0], self._terms)))
            else:
                filling[key] = together
        full += [(i, Bucket(gradients, self._terms)) for gradients, i, _ in filling.values()]
        buckets = [bucket for _, bucket in sorted(full, key=lambda pair: pair[0])]
        for bucket in buckets:
            for gradient in bucket.gradients:
                gradient.home = bucket
        self._buckets += buckets
        return buckets


class _Told(typing.NamedTuple):
    """Numbers of ranks, by gradient, but for `dims` and `position`."""

    present: list  # have values of it
    late: list  # have made more of it after it had started
    sparse: list  # have a sparse one
    dims: list  # of the indices of these, added up
    position: list  # in the order of the first rank, from 1


def _description(gradient):
    parameter = gradient.parameter
    return gradient.name, tuple(parameter.shape), str(parameter.dtype).rpartition(".")[2]


def _said(description):
    if description is None:
        return "no more parameters"
    name, shape, dtype = description
    return f"{name} ({dtype} {shape})"


def _unwatch(gradient):
    for hook in gradient.hooks:
        hook.remove()
    gradient.hooks.clear()
