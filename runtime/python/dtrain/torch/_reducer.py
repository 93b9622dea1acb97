# SPDX-License-Identifier: Apache-2.0
"""Reducing the gradients of a DistributedOptimizer while backward() still makes them."""

from __future__ import annotations

import itertools
import threading
import typing
import weakref
import zlib

import torch

import dtrain
from dtrain import Compression, MismatchError, StateError, Sum, _job
from dtrain._collectives import start_allreduce

from ._buckets import UNKNOWN, Gradient, dense, planned
from ._hooks import at_end_of_backward, unwatch, watch
from ._mismatch import description, explained

# The gradients that reducers have, by their parameters' id(): the latest that was made for one has it.
_owned: weakref.WeakValueDictionary[int, Gradient] = weakref.WeakValueDictionary()


class _Ordinals:
    """Numbers for reducers, as those of one process set may have parameters of the same names: in the
    order in which they were made; those of an earlier job of this process are numbered anew."""

    job = None
    counts: dict[int, itertools.count[int]] = {}
    living: weakref.WeakValueDictionary[int, Reducer] = weakref.WeakValueDictionary()
    made = itertools.count()

    @classmethod
    def enter(cls, reducer):
        if cls.job != _job.number:
            cls.job, cls.counts = _job.number, {}
            for _, other in sorted(cls.living.items()):
                cls._number(other)
        if reducer._job != _job.number:
            cls.living[next(cls.made)] = reducer
            cls._number(reducer)

    @classmethod
    def _number(cls, reducer):
        process_set = reducer._terms.process_set.process_set_id
        number = next(cls.counts.setdefault(process_set, itertools.count(1)))
        reducer._job = _job.number
        reducer._ordinal = process_set or 0, number
        reducer._prefix = f"optimizer {number}: " if number > 1 else ""

    @classmethod
    def of(cls, reducer):
        """Its process set and its number there: reducers sort by that alike on all ranks."""
        cls.enter(reducer)
        return reducer._ordinal


class _Backward:
    """A call of backward() that makes gradients of a reducer: lives as long as autograd works on it."""

    def __init__(self, reducer):
        self.reducer = reducer

    def end(self):
        """Autograd calls this for each reducer in the order in which they began, which may differ between ranks:
        if they reduced here, ranks would wait for each other. _end_all() runs after the last of these calls."""
        _ended.backwards.add(self)
        torch.autograd.Variable._execution_engine.queue_callback(_end_all)


class _Ended(threading.local):
    """Whose end() autograd has called: one thread makes all such calls of a backward()."""

    def __init__(self):
        self.backwards = weakref.WeakSet()  # if the backward() fails before _end_all(), they go with it


_ended = _Ended()


def _end_all():
    backwards = sorted(_ended.backwards, key=lambda backward: _Ordinals.of(backward.reducer))
    _ended.backwards.clear()
    try:
        for backward in backwards:
            backward.reducer._end_backward(backward)
    finally:
        backwards.clear()  # or the traceback of a failure keeps alive those after it


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
        self._joined_in = None  # the generation in which other ranks were found to have joined
        self._gradients = []
        self._layout = None  # a hash of them
        self._lent = []  # gradients that others, made later, have taken over
        self._synchronizing = False
        self._job = None
        _Ordinals.enter(self)
        self._generation = None  # in which the ranks have begun to count rounds
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
                gradient.reducer = weakref.ref(self)
                before = _owned.get(id(parameter))
                owner = None if before is None else before.reducer()
                if owner is not None:
                    gradient.result, gradient.settled = before.result, before.settled
                    gradient.zero_version = before.zero_version
                    owner._hand_over(before)
                _owned[id(parameter)] = gradient
                self._gradients.append(gradient)
                self._watch(gradient)
            self._layout = None

    def _hand_over(self, gradient):
        with self._lock:
            unwatch(gradient.hooks)
            self._gradients.remove(gradient)
            self._lent.append(gradient)
            self._layout, self._agreed = None, False

    def close(self):
        """Its optimizer has gone."""
        with self._lock:
            for gradient in self._gradients:
                unwatch(gradient.hooks)
                _owned.pop(id(gradient.parameter), None)
            self._gradients, self._lent, self._buckets = [], [], []

    def _owners(self):
        """Other reducers that have gradients of this one."""
        owned = [_owned.get(id(gradient.parameter)) for gradient in self._lent]
        owners = {gradient.reducer() for gradient in owned if gradient is not None}
        return owners - {None, self}

    @property
    def _keeps_common(self):
        # Who has joined adds zeros to averages, also where all ranks have something in common.
        return self._terms.op is Sum or self._joined_in == _job.generation

    def renew(self):
        """Follows parameters that have got another type, device or shape, and takes back what another
        optimizer has had, which has gone."""
        with self._lock:
            back = [g for g in self._lent if id(g.parameter) not in _owned]
            if back:
                self._lent = [g for g in self._lent if id(g.parameter) in _owned]
                self.add([(g.name, g.parameter) for g in back],
                         {g.parameter: g.group for g in back})
                self._agreed = False
            for gradient in self._gradients:
                if gradient.has_changed():
                    gradient.look()
                    unwatch(gradient.hooks)
                    self._watch(gradient)
                    self._layout, self._agreed = None, False

    def zeroed(self):
        """The program has called zero_grad()."""
        with self._lock:
            for gradient in self._gradients + self._lent:
                gradient = _owned.get(id(gradient.parameter), gradient)
                gradient.zeroed, gradient.settled, gradient.common = True, False, None
                grad = gradient.parameter.grad
                gradient.zero_version = None if grad is None else grad._version

    def _describe(self):
        for number, gradient in enumerate(self._gradients):
            gradient.number = number
        listed = [(*description(g), g.strides) for g in self._gradients]
        self._layout = zlib.crc32(repr(listed).encode())

    def _watch(self, gradient):
        # The hooks live as long as the parameter may, and must not keep what it belongs to.
        me, its = weakref.ref(self), weakref.ref(gradient)
        lock = self._lock

        # The only Python function that is called for a gradient.
        def made():
            reducer, gradient = me(), its()
            if reducer is not None and gradient is not None:
                with lock:
                    reducer._has_made(gradient)

        def adds():
            reducer, gradient = me(), its()
            if gradient is not None and reducer is not None and reducer._keeps_common:
                with lock:
                    gradient.note_common()

        gradient.hooks = watch(gradient.parameter, made, adds if self._keeps_common else None)

    # ---- Within backward() ----

    def _has_made(self, gradient):
        if self._backward is None or self._backward() is None:
            self._begin_backward(gradient)
        home = gradient.home
        if home is not None and home.started:
            gradient.late = True
            return
        if self._keeps_common:
            gradient.version = gradient.parameter.grad._version
        if gradient.made:
            return
        gradient.made = gradient.touched = True
        gradient.zeroed = False
        self._made.append(gradient)
        if gradient.type[1].type == "cuda":
            gradient.stream = torch.cuda.current_stream(gradient.type[1])
        if home is None or not self._starting:
            return
        home.missing -= 1
        if home.missing == 0:
            self._start_full()

    def _begin_backward(self, first):
        if self._started and self._agreed:
            raise StateError(
                "backward() failed before, when some of its gradients had been sent to the other ranks, "
                "which wait for the rest: call optimizer.synchronize() after it, then do as they do, "
                "step() or zero_grad()"
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
        for gradient in self._gradients:
            gradient.before = gradient.parameter.grad
        first.before = UNKNOWN
        backward = _Backward(self)
        self._backward = weakref.ref(backward)
        at_end_of_backward(backward.end)

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
            bucket.start(self._prefix, self._keeps_common)
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
            if self._synchronizing:
                return  # another one, which we have taken over from as well
            self._synchronizing = True
            try:
                for other in self._owners():
                    other.synchronize()
            finally:
                self._synchronizing = False
            self.renew()
            if self._gradients and (self._untold or self._round == 0
                                    or any(g.is_made_by_hand for g in self._gradients)):
                self._reduce()

    def stepped(self):
        """The program has taken a step."""
        with self._lock:
            self._step += 1
            self._round = 0
            for reducer in (self, *self._owners()):
                for gradient in reducer._gradients:
                    gradient.settled = False

    def loss(self, loss):
        """What a closure returns, of all ranks: an optimizer that compares losses decides alike on all."""
        if isinstance(loss, torch.Tensor) and loss.is_floating_point():
            return dtrain.allreduce(loss.detach(), op=self._terms.op, name=f"{self._prefix}loss",
                                    process_set=self._terms.process_set)
        return self.loss(torch.tensor(loss, dtype=torch.float64)).item() if isinstance(loss, float) else loss

    @torch.no_grad()
    def _reduce(self):
        _Ordinals.enter(self)
        if self._generation != _job.generation:
            self._generation, self._agreed = _job.generation, False
            self._step, self._round = 1, 0
        if self._layout is None:
            self._describe()
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
            except Exception as error:
                # The others are waited for, too: nothing writes to a gradient after that.
                failure = failure or error
        for gradient, wait in lates:
            gradient.home.held = True
            try:
                gradient.add(wait())
            except Exception as error:
                failure = failure or error
        self._end_round()
        if failure is not None:
            raise failure

    def _give_up(self):
        # What is under way may never end, and where it is read and written is not ours any more.
        self._agreed = False
        for gradient in self._gradients:
            if gradient.own is not None and gradient.parameter.grad is None:
                gradient.parameter.grad = gradient.own
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
        return self._terms.start(value, f"{self._prefix}{gradient.name}, late")

    # ---- What the ranks tell each other ----

    def _tell(self):
        """What each gradient is on all ranks. None if all have made all that is in buckets, and no more."""
        unlike = [0, 0, 0]
        if self._agreed:
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
        # A sum and no gather, because other ranks may be in join(). The first: ranks that are not.
        numbers = torch.tensor([1, *numbers], dtype=torch.int64)
        try:
            start_allreduce(numbers, f"{self._prefix}gradients", Sum, (1.0, 1.0),
                            self._terms.process_set, Compression.none, in_place=True, wait=True,
                            note=f" in round {self._round} of step {self._step}, {self._layout:x}")
        except MismatchError as error:
            mine = self._ordinal[1], self._step, self._round, [description(g) for g in self._gradients]
            raise explained(error, mine, self._terms.process_set) from None
        present, *numbers = numbers.tolist()
        if present < self._terms.process_set.size() and not self._keeps_common:
            self._joined_in = _job.generation
            for gradient in self._gradients:
                unwatch(gradient.hooks)
                self._watch(gradient)
        return numbers

    def _place(self, told):
        """Puts the gradients that are new into buckets, and returns these."""
        new = [g for g in self._gradients if g.home is None and told and told.present[g.number]]
        last = len(self._gradients) + 1
        new.sort(key=lambda g: (told.position[g.number] or last, -g.number))
        sparse_dims = {g: told.dims[g.number] // told.sparse[g.number] if told.sparse[g.number] else 0
                       for g in new}
        buckets = planned(new, sparse_dims, self._terms, first=not self._buckets)
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
