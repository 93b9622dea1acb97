# SPDX-License-Identifier: Apache-2.0
"""The collectives on numpy arrays."""
import ctypes

NEEDS = ("numpy",)

REDUCED = ["bool", "int8", "uint8", "int16", "uint16", "uint32", "int32", "int64", "float16",
           "float32", "float64"]
MOVED = [*REDUCED, "uint64", "complex64", "complex128"]


def values(dtype, shape, rank):
    """Small whole numbers, which every type holds and whose sums and products are exact."""
    import numpy as np

    size = int(np.prod(shape))
    return ((np.arange(size) * (rank + 3) + rank) % 4).reshape(shape).astype(dtype)


def reduces_like_numpy(dtype):
    import numpy as np

    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    for shape in [(), (1,), (7,), (3, 5), (0,), (2, 0, 3), (1031,)]:
        mine = values(dtype, shape, me)
        everyones = np.stack([values(dtype, shape, r) for r in range(n)])
        wide = everyones.astype("float64")
        expected = {
            dtrain.Sum: wide.sum(axis=0),
            dtrain.Average: wide.sum(axis=0) / n,
            dtrain.Min: wide.min(axis=0),
            dtrain.Max: wide.max(axis=0),
            dtrain.Product: wide.prod(axis=0),
        }
        for op, right in expected.items():
            if np.dtype(dtype).kind in "iub" and op is dtrain.Average:
                right = np.trunc(right)
            right = right.astype(dtype)
            before = mine.copy()
            results = {
                "allreduce": dtrain.allreduce(mine, op=op),
                "async": dtrain.synchronize(dtrain.allreduce_async(mine, op=op)),
            }
            assert np.array_equal(mine, before), "the input was changed"
            target = mine.copy()
            assert dtrain.allreduce_(target, op=op) is target
            results["in place"] = target
            for how, got in results.items():
                what = f"{op.name} of {dtype}{shape}, {how}: {got} is not {right}"
                assert got.dtype == dtype and got.shape == shape, what
                assert np.allclose(got.astype("float64"), right.astype("float64"), rtol=1e-3), what


def reduce_like_numpy(dtypes):
    for dtype in dtypes:
        reduces_like_numpy(dtype)


def moves_like_numpy(dtypes):
    import numpy as np

    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    for dtype in dtypes:
        for rows, rest in [(1, ()), (5, ()), (3, (3,)), (0, (2,)), (4, (1, 7))]:
            everyones = [values(dtype, (rows, *rest), r) for r in range(n)]
            mine = everyones[me].copy()
            what = f"{dtype} {rows} {rest}"
            assert np.array_equal(dtrain.broadcast(mine, n - 1), everyones[n - 1]), what
            assert dtrain.broadcast_(mine, 1) is mine
            assert np.array_equal(mine, everyones[1]), what
            got = dtrain.allgather(everyones[me])
            assert got.dtype == dtype and np.array_equal(got, np.concatenate(everyones)), what
            # As many rows as the rank's number and some.
            uneven = [values(dtype, (rows + r, *rest), r) for r in range(n)]
            got = dtrain.synchronize(dtrain.allgather_async(uneven[me]))
            assert np.array_equal(got, np.concatenate(uneven)), what
            blocks = [values(dtype, (rows * n, *rest), r) for r in range(n)]
            got = dtrain.alltoall(blocks[me])
            right = np.concatenate([b[me * rows : (me + 1) * rows] for b in blocks])
            assert got.dtype == dtype and np.array_equal(got, right), what


def gathers_unequal_rows():
    import numpy as np

    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    for dtype in ("float32", "float16", "uint8", "complex128", "bool"):
        for rows in ([90001, 0, 5], [1, 70003, 0], [60001, 60002, 1], [0, 0, 200000]):
            everyones = [values(dtype, (count, 3), r) for r, count in enumerate(rows)]
            for turn in range(2):
                call = [lambda: dtrain.allgather(everyones[me]),
                        lambda: dtrain.allgather_async(everyones[me], name="u").wait()][turn]
                got = call()
                assert got.dtype == dtype and np.array_equal(got, np.concatenate(everyones)), rows
    got = dtrain.allgather(np.full((10 + me, 2), me))
    assert got.tolist() == [[r, r] for r in range(n) for _ in range(10 + r)]
    # Rows without elements.
    assert dtrain.allgather(np.zeros((me + 1, 0))).shape == (n * (n + 1) // 2, 0)
    assert dtrain.alltoall(np.zeros((n, 3, 0), np.int8), [1] * n)[0].shape == (n, 3, 0)


def deals_unequal_rows():
    import numpy as np

    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    random = np.random.default_rng(5)
    for dtype in ("float32", "float16", "uint8", "complex128", "bool"):
        for turn in range(6):
            # Rows from each rank to each: some, or a block much longer than the others.
            splits = random.integers(0, 9, (n, n))
            splits[turn % n][(turn + turn // n) % n] = [3, 50000, 400000][turn % 3]
            everyones = [values(dtype, (splits[r].sum(), 3), r) for r in range(n)]
            parts = [np.split(rows, np.cumsum(splits[r])[:-1]) for r, rows in enumerate(everyones)]
            got, counts = dtrain.alltoall(everyones[me], splits[me])
            assert got.dtype == dtype and list(counts) == list(splits[:, me])
            assert np.array_equal(got, np.concatenate([parts[r][me] for r in range(n)])), splits


def deals_out():
    import numpy as np

    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    # Rank r sends r + t rows to rank t.
    mine = np.concatenate([np.full((me + t, 2), 10 * me + t, np.int16) for t in range(n)])
    got, counts = dtrain.alltoall(mine, splits=[me + t for t in range(n)])
    assert list(counts) == [r + me for r in range(n)]
    right = np.concatenate([np.full((r + me, 2), 10 * r + me, np.int16) for r in range(n)])
    assert np.array_equal(got, right)
    # 7 rows for 3 ranks: 3, 2, 2.
    for dtype in ("float32", "int8"):
        rows = np.arange(14).reshape(7, 2).astype(dtype)
        got = dtrain.reducescatter(rows * (me + 1), op=dtrain.Sum)
        first = [0, 3, 5, 7]
        assert got.dtype == dtype
        assert np.array_equal(got, rows[first[me] : first[me + 1]] * 6)
    even = np.arange(6, dtype=np.float64)
    assert np.array_equal(dtrain.reducescatter(even), even[2 * me : 2 * me + 2])


def strange_layouts():
    import numpy as np

    import dtrain

    n = dtrain.size()
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (base[:, ::2], base.T, base[::-1], base.astype(">f4")):
        view = view.copy(order="K") if view.base is None else view
        right = view * n
        assert np.array_equal(dtrain.allreduce(view, op=dtrain.Sum), right)
    target = np.zeros((4, 6), np.float32)
    part = target[:, 1::2]
    part += dtrain.rank() + 1
    dtrain.allreduce_(part, op=dtrain.Sum)
    assert (target[:, 1::2] == n * (n + 1) / 2).all() and (target[:, ::2] == 0).all()
    part[...] = dtrain.rank()
    dtrain.broadcast_(part, 1)
    assert (target[:, 1::2] == 1).all() and (target[:, ::2] == 0).all()
    unaligned = np.frombuffer(bytearray(41), np.uint8)[1:].view(np.float64)
    assert np.array_equal(dtrain.allreduce(unaligned + 1, op=dtrain.Sum), np.full(5, n))
    dtrain.allreduce_(unaligned, op=dtrain.Sum)
    # Numbers and lists.
    assert dtrain.allreduce(2.5, op=dtrain.Sum) == 2.5 * n
    assert list(dtrain.allreduce([1, 2], op=dtrain.Sum)) == [n, 2 * n]
    assert np.isclose(dtrain.allreduce(np.float32(8), op=dtrain.Sum, prescale_factor=0.5,
                                       postscale_factor=0.25), n)
    small = dtrain.allreduce(base, compression=dtrain.Compression.fp16)
    assert small.dtype == np.float32 and np.array_equal(small, base)


def many_at_once():
    import random

    import numpy as np

    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    dice = random.Random(7)
    for _ in range(5):
        pending = []
        for i in range(60):
            count = dice.choice([0, 1, 3, 1000, 70000])
            op = dice.choice([dtrain.Sum, dtrain.Average, dtrain.Max])
            root = dice.randrange(n)
            mine = np.full(count, i + me, dice.choice([np.float32, np.float64]))
            if dice.random() < 0.7:
                right = {dtrain.Sum: n * i + n * (n - 1) / 2, dtrain.Average: i + (n - 1) / 2,
                         dtrain.Max: i + n - 1}[op]
                pending.append((dtrain.allreduce_async(mine, op=op, name=f"a{i}"), right, count))
            else:
                pending.append((dtrain.broadcast_async(mine, root), i + root, count))
        # Each rank looks at them in an order of its own.
        random.Random(me).shuffle(pending)
        for handle, right, count in pending:
            if random.random() < 0.3:
                handle.done()
            got = dtrain.synchronize(handle)
            assert dtrain.poll(handle) and len(got) == count and np.allclose(got, right)
    got = dtrain.grouped_allreduce([np.full(3, k + me) for k in range(4)], op=dtrain.Sum)
    assert [int(x[0]) for x in got] == [n * k + n * (n - 1) // 2 for k in range(4)]


def some_of_the_ranks():
    import numpy as np

    import dtrain

    me = dtrain.rank()
    ends = dtrain.add_process_set([0, 3])
    halves = dtrain.split(me // 2)
    assert halves.ranks == [0, 1] if me < 2 else halves.ranks == [2, 3]
    assert dtrain.split(-1) is None
    got = dtrain.allreduce(np.array([me]), op=dtrain.Sum, process_set=halves)
    assert got[0] == (1 if me < 2 else 5)
    assert list(dtrain.allgather(np.array([me]), process_set=halves)) == halves.ranks
    assert dtrain.broadcast_object(me, halves.ranks[1], process_set=halves) == halves.ranks[1]
    assert ends.included() == (me in (0, 3))
    if ends.included():
        assert dtrain.broadcast(np.array([me]), 3, process_set=ends)[0] == 3
        assert dtrain.metric_average(me, process_set=ends) == 1.5
        assert ends.rank() == (0 if me == 0 else 1) and ends.size() == 2
    else:
        try:
            dtrain.barrier(process_set=ends)
            raise AssertionError("a rank that is not in the set took part")
        except dtrain.InvalidArgumentError as error:
            assert "is not in ProcessSet([0, 3])" in str(error)
    dtrain.barrier()
    if ends.included():
        assert dtrain.remove_process_set(ends)


def objects_and_metrics():
    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    assert dtrain.broadcast_object({"rank": me, "text": "ä" * 1001}, 1)["rank"] == 1
    assert dtrain.broadcast_object(None, 0) is None
    assert dtrain.allgather_object("x" * me) == ["x" * r for r in range(n)]
    large = "x" * (1 << 20)  # of one rank only: not padded to the longest
    for name in (None, "large"):
        gathered = dtrain.allgather_object(large if me == n - 1 else me, name=name)
        assert gathered == [*range(n - 1), large]
    assert dtrain.metric_average(me) == (n - 1) / 2
    averages = dtrain.metric_average({"loss": me, "accuracy": 1.0})
    assert averages == {"loss": (n - 1) / 2, "accuracy": 1.0}
    with dtrain.mark("a span"):
        dtrain.barrier()
    return me, dtrain.local_rank(), dtrain.cross_rank(), dtrain.cross_size(), dtrain.size()


def different_counts():
    import numpy as np

    import dtrain

    try:
        dtrain.allreduce(np.zeros(10 + dtrain.rank(), np.float32))
    except dtrain.Error as error:
        return type(error).__name__, str(error)


def different_rows():
    import numpy as np

    import dtrain

    odd = dtrain.rank() // 2
    for function in (dtrain.allgather, dtrain.alltoall):
        # The second are as many bytes.
        for shape in ((4, 3 + odd), (4, 6) if odd else (4, 2, 3)):
            try:
                function(np.zeros(shape))
                raise AssertionError("arrays with different rows were put together")
            except dtrain.MismatchError as error:
                assert "ranks 0, 1 for" in str(error) and "; ranks 2, 3 for" in str(error), error
    # The job goes on.
    assert dtrain.allreduce(1, op=dtrain.Sum) == 4


def refused():
    import numpy as np

    import dtrain

    readonly = np.zeros(3)
    readonly.flags.writeable = False
    wrong = [
        (dtrain.InvalidArgumentError, "read-only", lambda: dtrain.allreduce_(readonly)),
        (dtrain.InvalidArgumentError, "in place", lambda: dtrain.allreduce_([1.0])),
        (dtrain.InvalidArgumentError, "object", lambda: dtrain.allreduce(np.array([None]))),
        (dtrain.UnsupportedError, "Sum of complex64",
         lambda: dtrain.allreduce(np.zeros(2, np.complex64), op=dtrain.Sum)),
        (dtrain.UnsupportedError, "Adasum", lambda: dtrain.allreduce(1.0, op=dtrain.Adasum)),
        (dtrain.InvalidArgumentError, "split evenly", lambda: dtrain.alltoall(np.zeros(3))),
        (dtrain.InvalidArgumentError, "splits", lambda: dtrain.alltoall(np.zeros(3), [1, 1])),
        (dtrain.InvalidArgumentError, "root", lambda: dtrain.broadcast(np.zeros(3), 2)),
        *((dtrain.InvalidArgumentError, "was not added",
           lambda function=function: function(np.zeros(2), process_set=dtrain.ProcessSet([0, 1])))
          for function in (dtrain.allreduce, dtrain.allgather, dtrain.alltoall, dtrain.reducescatter)),
        (dtrain.InvalidArgumentError, "not both",
         lambda: dtrain.allreduce(1.0, average=True, op=dtrain.Sum)),
    ]
    for kind, text, call in wrong:
        try:
            call()
        except kind as error:
            assert text in str(error), error
            assert isinstance(error, dtrain.Error) and error.status.startswith("DTRAIN_ERROR_")
        else:
            raise AssertionError(f"nothing was raised, where {kind.__name__} was expected: {text}")
    dtrain.barrier()


def unequal_data():
    import numpy as np

    import dtrain

    n, me = dtrain.size(), dtrain.rank()
    for _ in range(2):
        for step in range(me):
            left = n - 1 - step
            pending = dtrain.allreduce_async(np.full(5, 2.0), op=dtrain.Sum)
            assert dtrain.allreduce(1.0, op=dtrain.Sum) == left
            assert dtrain.allreduce(np.full(200_000, n))[7] == left
            assert dtrain.allreduce(np.array([n * 3])).tolist() == [left * 3]
            assert (pending.wait() == 2 * left).all()
        assert dtrain.join() == n - 1
        assert dtrain.allreduce(1, op=dtrain.Max) == 1


def allocated():
    import gc

    import numpy as np

    import dtrain

    n = dtrain.size()
    whole = dtrain.alloc((3, 1000), "float64")
    assert whole.shape == (3, 1000) and whole.dtype == "float64" and not whole.any()
    part = whole[1]
    place = whole.ctypes.data
    part[:] = dtrain.rank() + 1
    dtrain.allreduce_(whole, op=dtrain.Sum)
    del whole
    gc.collect()
    # A view keeps it, alone.
    other = dtrain.alloc(3000, np.int64)
    assert other.ctypes.data != place and (part == n * (n + 1) / 2).all()
    try:
        dtrain.shutdown()
        raise AssertionError("the job was left while its memory was in use")
    except dtrain.StateError as error:
        assert "2 of the arrays of dtrain.alloc" in str(error)
    dtrain.barrier()
    del part, other
    again = dtrain.alloc(3000, np.int64)
    assert again.ctypes.data == place and not again.any()
    assert dtrain.alloc(()).shape == () and dtrain.alloc((0, 4), "int8").shape == (0, 4)
    for shape, dtype in [((2, -1), "int32"), (3, object)]:
        try:
            dtrain.alloc(shape, dtype)
            raise AssertionError(f"allocated {shape} of {dtype}")
        except dtrain.InvalidArgumentError:
            pass
    del again
    dtrain.shutdown()
    dtrain.init()


def fake_cupy():
    """A module with the little of CuPy that a job on the CPU backend needs. Its arrays are on no GPU,
    and hide their values as if they were."""
    import sys
    import types

    import numpy as np

    module = types.ModuleType("fake_cupy")

    class ndarray:
        __module__ = "fake_cupy"

        def __init__(self, values):
            self._values = np.array(values)
            for name in ("shape", "dtype", "size", "flags"):
                setattr(self, name, getattr(self._values, name))

        @property
        def __cuda_array_interface__(self):
            return {"data": (id(self), False), "shape": self.shape, "version": 3}

        def get(self):
            return self._values.copy()

        def copy(self, order="C"):
            return ndarray(self._values)

        def astype(self, dtype):
            return ndarray(self._values.astype(dtype))

        def reshape(self, shape):
            return ndarray(self._values.reshape(shape))

        def __getitem__(self, rows):
            return ndarray(self._values[rows])

        def __setitem__(self, where, values):
            assert where is ... and isinstance(values, ndarray)
            self._values[...] = values._values

    module.ndarray = ndarray
    module.asarray = lambda x, dtype=None: x if isinstance(x, ndarray) else ndarray(x)
    sys.modules["fake_cupy"] = module
    return module


def arrays_on_a_gpu():
    """As CuPy has them."""
    import numpy as np

    import dtrain

    cupy, n, me = fake_cupy(), dtrain.size(), dtrain.rank()

    def same(got, right):
        assert type(got) is cupy.ndarray and got.dtype == right.dtype, got
        assert np.array_equal(got.get(), right), got.get()

    total = n * (n + 1) // 2
    for dtype in ("float32", "int32", "int8"):
        mine = cupy.asarray(np.full((n, 2), me + 1, dtype))
        whole = np.full((n, 2), total, dtype)
        same(dtrain.allreduce(mine, op=dtrain.Sum), whole)
        same(dtrain.allreduce(mine, op=dtrain.Sum, prescale_factor=2.0), whole * 2)
        same(dtrain.reducescatter(mine, op=dtrain.Sum), whole[:1])
        gathered = np.repeat(np.arange(1, n + 1).astype(dtype), n * 2).reshape(-1, 2)
        same(dtrain.allgather(mine), gathered)
        same(dtrain.alltoall(mine), gathered[::n])
        same(dtrain.broadcast(mine, 1), np.full((n, 2), 2, dtype))
        same(mine, np.full((n, 2), me + 1, dtype))
        assert dtrain.allreduce_(mine, op=dtrain.Sum) is mine
        same(mine, whole)
        dtrain.broadcast_(mine, 0)
    small = dtrain.allreduce(cupy.asarray(np.ones(3, "float32")),
                             compression=dtrain.Compression.fp16)
    same(small, np.ones(3, "float32"))


# Several in one job: most of the time goes into starting Python and loading numpy.


def on_three_ranks():
    reduce_like_numpy(REDUCED)
    moves_like_numpy(MOVED)
    gathers_unequal_rows()
    deals_unequal_rows()
    deals_out()
    many_at_once()
    unequal_data()
    arrays_on_a_gpu()
    return objects_and_metrics()


def test_types_splits_handles_objects_and_unequal_data(on_ranks):
    assert on_ranks(3, on_three_ranks) == [(r, r, 0, 1, 3) for r in range(3)]


def on_four_ranks():
    some_of_the_ranks()
    different_rows()


def test_process_sets_and_gathered_arrays_that_differ(on_ranks):
    on_ranks(4, on_four_ranks)


def on_two_ranks():
    strange_layouts()
    refused()
    allocated()
    return different_counts()


def test_layouts_memory_and_what_is_refused(on_ranks):
    """Then a mismatch, which is an error on all ranks."""
    results = on_ranks(2, on_two_ranks)
    assert all(result for result in results), results
    assert "MismatchError" in [kind for kind, _ in results], results
