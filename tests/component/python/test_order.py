# SPDX-License-Identifier: Apache-2.0
"""Collectives find each other by kind and name, whatever the order, and a mismatch ends nothing."""
import time

NEEDS = ("numpy",)


def in_any_order():
    """Started and waited for in an order of the rank's own, also those that take two calls."""
    import random

    import numpy as np

    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    for turn in range(20):
        calls = [
            (lambda i=i: dtrain.allreduce_async(np.full(7, i + me), op=dtrain.Sum, name=f"r{i}"),
             np.full(7, n * i + n * (n - 1) // 2))
            for i in range(4)
        ] + [
            (lambda i=i: dtrain.allgather_async(np.full(me + 1, i), name=f"g{i}"),
             np.full(n * (n + 1) // 2, i))
            for i in range(4)
        ] + [
            (lambda i=i: dtrain.broadcast_async(np.array([me]), i % n, name=f"b{i}"),
             np.array([i % n]))
            for i in range(4)
        ] + [
            (lambda i=i: dtrain.alltoall_async(np.full(n, i), name=f"a{i}"), np.full(n, i))
            for i in range(4)
        ]
        dice = random.Random(turn * n + me)
        dice.shuffle(calls)
        pending = [(start(), right) for start, right in calls]
        dice.shuffle(pending)
        for handle, right in pending:
            assert np.array_equal(handle.wait(), right), (handle.wait(), right)


def blocking_calls_beside_pending_ones():
    """A rank that gathers at once needs the other, which does something else first."""
    import numpy as np

    import dtrain

    me = dtrain.rank()
    for _ in range(10):
        if me == 0:
            pending = dtrain.allgather_async(np.arange(3), name="gathered")
            assert dtrain.allreduce(1, op=dtrain.Sum, name="sum") == dtrain.size()
            got = pending.wait()
        else:
            got = dtrain.allgather(np.arange(3), name="gathered")
            assert dtrain.allreduce(1, op=dtrain.Sum, name="sum") == dtrain.size()
        assert len(got) == 3 * dtrain.size()


def in_two_threads():
    """Each waits for what the other rank's other thread has not begun yet."""
    import threading

    import numpy as np

    import dtrain

    me, got = dtrain.rank(), {}

    def reduce(name, wait):
        time.sleep(wait)
        got[name] = dtrain.allreduce(np.array([me + 1]), op=dtrain.Sum, name=name)[0]

    threads = [threading.Thread(target=reduce, args=(name, 0.2 * ((i + me) % 2)))
               for i, name in enumerate(["a", "b"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(range(1, dtrain.size() + 1))
    assert got == {"a": total, "b": total}, got


def looked_at():
    """poll() never waits: not for a rank that comes late either."""

    import numpy as np

    import dtrain

    pending, slowest = None, 0.0
    if dtrain.rank() == 0:
        pending = [dtrain.allreduce_async(np.ones(3)), dtrain.allgather_async(np.ones(3))]
        for _ in range(100):
            for handle in pending:
                before = time.monotonic()
                assert not dtrain.poll(handle)
                slowest = max(slowest, time.monotonic() - before)
    dtrain.broadcast(np.ones(1), 0, name="go on")
    if pending is None:
        pending = [dtrain.allreduce_async(np.ones(3)), dtrain.allgather_async(np.ones(3))]
    deadline = time.monotonic() + 60
    while not all([dtrain.poll(handle) for handle in pending]):
        assert time.monotonic() < deadline
    assert slowest < 0.5


def mismatches():
    """On every rank, and both the name and the job can be used again."""
    import numpy as np

    import dtrain

    me = dtrain.rank()
    odd = me % 2
    kinds = [np.float32, np.int32]
    operations = [dtrain.Sum, dtrain.Max]
    wrong = [
        lambda **o: dtrain.allreduce(np.zeros(10 + me), **o),
        lambda **o: dtrain.allreduce(np.zeros(10, kinds[odd]), op=dtrain.Sum, **o),
        lambda **o: dtrain.allreduce(np.zeros(10), op=operations[odd], **o),
        lambda **o: dtrain.broadcast(np.zeros(10 + me), 0, **o),
        lambda **o: dtrain.broadcast(np.zeros(10), odd, **o),
        lambda **o: dtrain.reducescatter(np.zeros((10 + me, 2)), **o),
        lambda **o: dtrain.allgather(np.zeros((3, 2 + me)), **o),
        lambda **o: dtrain.allgather(np.zeros((3, 2), kinds[odd]), **o),
        lambda **o: dtrain.alltoall(np.zeros((6, 2 + me)), **o),
        # As many numbers, or bytes.
        lambda **o: dtrain.allreduce(np.zeros([(2, 6), (3, 4)][odd]), **o),
        lambda **o: dtrain.allreduce_(np.zeros([(2, 6), (12,)][odd]), **o),
        lambda **o: dtrain.allreduce(np.zeros(4, [np.int8, np.int32][odd]), op=dtrain.Sum, **o),
        lambda **o: dtrain.broadcast(np.zeros([(2, 6), (3, 4)][odd]), 0, **o),
        lambda **o: dtrain.broadcast(np.zeros([4, 1][odd], [np.int8, np.int32][odd]), 0, **o),
        lambda **o: dtrain.reducescatter(np.zeros([(2, 6), (4, 3)][odd]), **o),
    ]
    for i, call in enumerate(wrong):
        for options in ({}, {"name": "wrong"}):
            try:
                call(**options)
            except dtrain.HorovodInternalError as error:
                assert isinstance(error, dtrain.MismatchError), error
            else:
                raise AssertionError(f"number {i}: nothing was raised")
            assert dtrain.allreduce(1, op=dtrain.Sum, name="wrong") == dtrain.size(), i


def used_twice():
    """Whether a name may be used again does not depend on how fast the other ranks are."""
    import numpy as np

    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    for start in (lambda: dtrain.allreduce_async(np.ones(n), name="x"),
                  lambda: dtrain.allgather_async(np.ones(n), name="x"),
                  lambda: dtrain.alltoall_async(np.ones(n), name="x"),
                  lambda: dtrain.broadcast_async(np.ones(n), 0, name="x"),
                  lambda: dtrain.reducescatter_async(np.ones(n), name="x")):
        for _ in range(10):
            if me > 0:
                dtrain.barrier()  # the other rank's is there already
            start()
            try:
                start()
                raise AssertionError("a name was used twice")
            except ValueError as error:
                assert '"x" is in flight' in str(error), error
            if me == 0:
                dtrain.barrier()
            dtrain.barrier()
            # Never waited for itself, but something was: it may be over.
            deadline = time.monotonic() + 60
            while True:
                try:
                    start().wait()
                    break
                except ValueError:
                    assert time.monotonic() < deadline


def never_waited_for():
    """Also what takes two stages, which this rank may have begun and another one not yet."""
    import numpy as np

    import dtrain

    for turn in range(10):
        starts = [lambda: dtrain.allgather_async(np.ones(3), name="g"),
                  lambda: dtrain.alltoall_async(np.ones(4), name="a"),
                  lambda: dtrain.allreduce_async(np.ones(4), name="r")]
        if dtrain.rank() == turn % 2:
            dtrain.barrier()
        for start in starts:
            start()
        if dtrain.rank() != turn % 2:
            dtrain.barrier()
        dtrain.shutdown()
        dtrain.init()


def joined():
    """What is not possible while a rank is in join() is an error of the others alone."""
    import numpy as np

    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    for first in range(n):
        if me != first:
            others = ", ".join(str(rank) for rank in range(n) if rank != first)
            for call in (lambda: dtrain.allgather(np.zeros(3)),
                         lambda: dtrain.broadcast(np.zeros(3), (first + 1) % n),
                         lambda: dtrain.alltoall(np.zeros(n)),
                         lambda: dtrain.reducescatter(np.zeros(n))):
                try:
                    call()
                    raise AssertionError("nothing was raised")
                except dtrain.MismatchError as error:
                    # The others are of one mind, and it is known at once.
                    assert f"ranks {others} for" in str(error), error
                    assert f"rank {first} for dtrain_join" in str(error), error
            assert dtrain.allreduce(np.ones(2), op=dtrain.Sum)[0] == n - 1
        last = dtrain.join()
        assert last != first and dtrain.allgather_object(last) == [last] * n


def split_beside_unnamed_ones():
    """One rank starts an unnamed collective before split(), the other one within it, as another thread of it may."""
    from unittest import mock

    import numpy as np

    import dtrain
    from dtrain import _process_sets

    started, create = [], _process_sets._add

    def start():
        started.append(dtrain.allreduce_async(np.ones(3), op=dtrain.Sum))

    def start_and_create(*arguments):
        if dtrain.rank() == 1:
            start()
        assert started[0].wait()[0] == 2
        create(*arguments)

    if dtrain.rank() == 0:
        start()
    with mock.patch.object(_process_sets, "_add", start_and_create):
        assert dtrain.split(0).ranks == [0, 1]


def test_order_differs_between_ranks(on_ranks):
    on_ranks(3, in_any_order)


def test_pending_collectives_go_on_while_others_are_waited_for(on_ranks):
    on_ranks(2, blocking_calls_beside_pending_ones)


def test_two_threads_wait_for_different_collectives(on_ranks):
    on_ranks(2, in_two_threads)


def test_split_matches_no_unnamed_collective(on_ranks):
    on_ranks(2, split_beside_unnamed_ones)


def test_poll_does_not_wait(on_ranks):
    on_ranks(2, looked_at)


def test_a_mismatch_is_an_error_on_every_rank_and_the_job_goes_on(on_ranks):
    on_ranks(2, mismatches)


def test_what_join_does_not_help_is_an_error_of_the_others(on_ranks):
    on_ranks(3, joined)


def test_a_name_is_in_use_until_the_program_has_waited(on_ranks, monkeypatch):
    monkeypatch.setenv("DTRAIN_CYCLE_TIME", "0")  # all begins at once
    on_ranks(2, used_twice)


def test_the_job_is_left_with_what_was_started(on_ranks):
    on_ranks(2, never_waited_for)
