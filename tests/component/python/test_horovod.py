# SPDX-License-Identifier: Apache-2.0
"""What Horovod 0.28 promises of its functions for PyTorch, of dtrain.torch."""
NEEDS = ("torch", "numpy")


def expect(kind, text, call):
    """call() raises `kind`, and says `text`."""
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing was raised, where {kind.__name__} was expected: {text}")


def factors():
    """Integers: multiplied as float64 before the sum and after it, and cut off both times."""
    import numpy as np
    import torch

    import dtrain
    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    numbers = [-101, -7, 0, 3, 99]
    everyones = np.array([numbers]) + np.arange(n)[:, None]
    for dtype in (torch.int32, torch.int64):
        mine = torch.tensor(numbers, dtype=dtype) + me
        before = mine.clone()
        right = np.trunc(np.trunc(everyones * 0.37).sum(0) * 2.6)
        options = {"op": hvd.Sum, "prescale_factor": 0.37, "postscale_factor": 2.6}
        for function in (hvd.allreduce, hvd.allreduce_):
            got = function(mine.clone(), **options)
            assert got.dtype == dtype and got.tolist() == right.tolist(), (got, right)
        assert dtrain.allreduce(mine.numpy(), **options).tolist() == right.tolist()
        assert torch.equal(mine, before), "the input was changed"
        got = hvd.allreduce(mine, postscale_factor=3.0)
        assert got.tolist() == np.trunc(everyones.sum(0) * (3.0 / n)).tolist()
        got = hvd.allreduce(mine)
        assert got.tolist() == np.trunc(everyones.sum(0) / n).tolist()
    # Half a precision: multiplied in float32.
    half = torch.tensor([1001.0, 3.0]).half()
    right = (half.float() * 0.3).half() * n
    assert torch.equal(hvd.allreduce(half, op=hvd.Sum, prescale_factor=0.3), right)
    assert np.array_equal(dtrain.allreduce(half.numpy(), op=hvd.Sum, prescale_factor=0.3), right)


def uneven_rows():
    """2n + 1 rows: the first rank gets one more than the others."""
    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    rows = torch.arange((2 * n + 1) * 3).reshape(-1, 3)
    first, last = (0, 3) if me == 0 else (2 * me + 1, 2 * me + 3)
    for dtype in (torch.int32, torch.float32):
        mine = (rows * (me + 1)).to(dtype)
        total = n * (n + 1) // 2
        right = (rows * total).to(dtype)[first:last]
        assert torch.equal(hvd.reducescatter(mine, op=hvd.Sum), right)
        scaled = sum((rows * (r + 1) * 0.5).to(dtype) for r in range(n))
        got = hvd.reducescatter(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=0.25)
        assert got.dtype == dtype and torch.allclose(got, (scaled * 0.25).to(dtype)[first:last])
        several = hvd.grouped_reducescatter([mine, mine[:n]], op=hvd.Sum, name="several")
        assert torch.equal(several[0], right) and several[1].shape == (1, 3)
    expect(ValueError, "a number", lambda: hvd.reducescatter(torch.tensor(1.0)))
    expect(ValueError, "a number",
           lambda: hvd.grouped_reducescatter([torch.zeros(n), torch.tensor(1.0)]))
    expect(RuntimeError, "no Adasum", lambda: hvd.reducescatter(rows, op=hvd.Adasum))


def several_at_once():
    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    mine = [torch.full((me + 1, 2), me + k) for k in range(3)]
    for got in (hvd.grouped_allgather(mine), hvd.grouped_allgather(mine, name="g"),
                hvd.synchronize(hvd.grouped_allgather_async(mine, name="g"))):
        for k, rows in enumerate(got):
            right = torch.cat([torch.full((r + 1, 2), r + k) for r in range(n)])
            assert torch.equal(rows, right)
    expect(ValueError, "not both", lambda: hvd.grouped_allreduce(mine, average=True, op=hvd.Sum))


def gradients():
    """Of a sum over the ranks' outputs, each times its number and one."""
    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    mean = (n + 1) / 2

    def of(function, rows=(2 * n,), **options):
        xs = [torch.ones(r, 2, requires_grad=True) for r in rows]
        results = function(xs, **options)
        sum(result.sum() for result in results).mul(me + 1).backward()
        return [x.grad for x in xs]

    def same(got, *values):
        for gradient, value in zip(got, values, strict=True):
            assert torch.allclose(gradient, torch.full_like(gradient, value)), (gradient, value)

    same(of(hvd.grouped_allreduce, (2, 3), op=hvd.Sum), mean * n, mean * n)
    same(of(hvd.grouped_allreduce, (2, 3), prescale_factor=2.0, postscale_factor=3.0),
         6 * mean, 6 * mean)
    # Average over the ranks of the gradients, of which a rank takes those of its own rows.
    same(of(hvd.grouped_allgather, (me + 1, 2)), mean, mean)
    same(of(lambda xs: [hvd.allgather(xs[0])], (me + 1,)), mean)
    same(of(lambda xs: [hvd.broadcast(xs[0], 1)]), mean if me == 1 else 0.0)
    for op, factor in ((hvd.Average, 1), (hvd.Sum, n)):
        options = {"op": op, "prescale_factor": 2.0, "postscale_factor": 0.5}
        for got in (of(hvd.grouped_reducescatter, (n, 2 * n), **options),
                    of(lambda xs, **o: [hvd.reducescatter(xs[0], **o)], (n,), **options)):
            for gradient in got:
                rows = len(gradient) // n
                right = [(r + 1.0) * factor for r in range(n) for _ in range(rows)]
                assert gradient[:, 0].tolist() == right, (gradient, right)
    small = of(hvd.grouped_allreduce, (2,), compression=hvd.Compression.fp16)
    assert small[0].dtype == torch.float32
    same(small, mean)


def sparse():
    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    dense = torch.zeros(5, 2)
    dense[me] = 1.0
    dense[4] = 2.0
    for mine, right in ((dense, hvd.allreduce(dense, op=hvd.Sum)),
                        (dense * (me == 0), hvd.broadcast(dense, 0))):
        for op, factor in ((hvd.Sum, 1), (hvd.Average, n)):
            begun = hvd.sparse_allreduce_async(mine.to_sparse(), "sparse", op)
            assert callable(begun)
            assert torch.allclose(begun().to_dense(), right / factor)
    for as_dense in (False, True):
        for kind in (torch.optim.SparseAdam, torch.optim.SGD):
            table = torch.nn.Embedding(8, 2, sparse=True)
            hvd.broadcast_parameters(table.state_dict(), 0)
            before = table.weight.detach().clone()
            optimizer = hvd.DistributedOptimizer(kind(list(table.parameters()), lr=1.0),
                                                 sparse_as_dense=as_dense)
            for _ in range(2):
                optimizer.zero_grad()
                # The last rank sees none in the second step.
                seen = [me, 6] if table.weight.grad is None or me < n - 1 else []
                table(torch.tensor(seen, dtype=torch.long)).sum().backward()
                optimizer.synchronize()
                assert table.weight.grad.is_sparse
                with optimizer.skip_synchronize():
                    optimizer.step()
            moved = (before - table.weight).abs()[:, 0] > 0.01
            assert moved.tolist() == [r < n or r == 6 for r in range(8)]
            assert torch.equal(hvd.broadcast(table.weight.detach(), 0), table.weight)


def batch_norm():
    """As of one process that has all ranks' batches, which are of unequal size."""
    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    generator = torch.Generator().manual_seed(1)
    for shape, affine, tracked, momentum in (((4, 5), True, True, 0.1), ((4,), True, True, None),
                                             ((4, 2, 3), False, True, 0.1), ((4, 5), True, False, None)):
        batches = [torch.randn(r + 2, *shape, generator=generator) for r in range(n)]
        weights = [torch.randn(r + 2, *shape, generator=generator) for r in range(n)]
        options = {"momentum": momentum, "affine": affine, "track_running_stats": tracked}
        ours = hvd.SyncBatchNorm(4, **options)
        kind = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm2d}
        alone = kind[len(shape)](4, **options)
        first = sum(map(len, batches[:me]))
        part = slice(first, first + len(batches[me]))

        def evaluated_alike():
            ours.eval(), alone.eval()
            assert torch.allclose(ours(batches[me]), alone(batches[me]), atol=1e-5)
            ours.train(), alone.train()

        evaluated_alike()
        for _ in range(2):
            mine = batches[me].clone().requires_grad_()
            whole = torch.cat(batches).requires_grad_()
            out, right = ours(mine), alone(whole)
            assert torch.allclose(out, right[part], atol=1e-5)
            (out * weights[me]).sum().backward()
            (right * torch.cat(weights)).sum().backward()
            assert torch.allclose(mine.grad, whole.grad[part], atol=1e-5)
        if tracked:
            assert torch.allclose(ours.running_mean, alone.running_mean, atol=1e-6)
            assert torch.allclose(ours.running_var, alone.running_var, atol=1e-6)
            assert ours.num_batches_tracked == 2
        for p, q in zip(ours.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(hvd.allreduce(p.grad, op=hvd.Sum), q.grad, atol=1e-4)
        evaluated_alike()
        # As programs switch the statistics off.
        for change in ({"track_running_stats": False}, {"running_mean": None, "running_var": None}):
            for layer in (ours, alone):
                for name, value in change.items():
                    setattr(layer, name, value)
            assert torch.allclose(ours(batches[me]), alone(torch.cat(batches))[part], atol=1e-5)
            evaluated_alike()
            if tracked and ours.running_mean is not None:
                assert torch.allclose(ours.running_mean, alone.running_mean, atol=1e-6)
    x = torch.randn(3, 4, 5, generator=generator)
    half, full = hvd.SyncBatchNorm(4, dtype=torch.bfloat16), hvd.SyncBatchNorm(4)
    out = half(x.bfloat16())
    assert out.dtype is torch.bfloat16 and torch.allclose(out.float(), full(x), atol=0.05)
    assert torch.allclose(half.running_var.float(), full.running_var, atol=0.02)
    out.sum().backward()
    assert half.weight.grad.dtype is torch.bfloat16
    x.requires_grad_()
    slope, = torch.autograd.grad(full(x).pow(3).sum(), x, create_graph=True)
    expect(RuntimeError, "once_differentiable", lambda: slope.sum().backward())
    expect(ValueError, "dimensions", lambda: hvd.SyncBatchNorm(4)(torch.zeros(4)))


def converted_batch_norm():
    """A layer keeps all that it has, and its places."""
    import copy
    import pickle

    import torch
    from torch import nn

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    convert = hvd.SyncBatchNorm.convert_sync_batchnorm
    norm, calls = nn.BatchNorm2d(3, eps=1e-3, momentum=None).double().eval(), []
    norm.weight.requires_grad_(False)
    norm.num_batches_tracked += 7
    norm.register_forward_hook(lambda *_: calls.append(1))
    model = nn.ModuleDict({"two": norm, "again": norm, "one": nn.BatchNorm1d(3, affine=False),
                           "three": nn.BatchNorm3d(3, track_running_stats=False), "lazy": nn.LazyBatchNorm1d(),
                           "pytorchs": nn.SyncBatchNorm(3), "other": nn.InstanceNorm1d(3)})
    before = list(model.state_dict(keep_vars=True).items())
    assert convert(model) is model and convert(model) is model
    after = list(model.state_dict(keep_vars=True).items())
    assert all(a == b and x is y for (a, x), (b, y) in zip(before, after, strict=True)), (before, after)
    assert model["two"] is model["again"] is norm
    assert all(type(model[name]) is hvd.SyncBatchNorm for name in ("two", "one", "three", "pytorchs"))
    assert type(model["other"]) is nn.InstanceNorm1d
    assert norm.eps == 1e-3 and norm.momentum is None and norm.weight.dtype is torch.float64
    assert model["one"].weight is None and model["three"].running_mean is None
    assert not norm.training and model["one"].training
    assert not norm.weight.requires_grad and norm.bias.requires_grad
    import warnings

    class Activated(nn.BatchNorm1d):  # as in timm
        def forward(self, x):
            return super().forward(x).relu()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert type(convert(nn.Sequential(Activated(2)))[0]) is Activated
    assert ["Activated has its own forward()" in str(each.message) for each in told] == [True]
    norm(torch.zeros(1, 3, 1, 1, dtype=torch.float64))
    assert calls == [1] and norm.num_batches_tracked == 7
    lazy = model["lazy"]
    lazy(torch.full((2, 4), float(me)))
    assert type(lazy) is hvd.SyncBatchNorm and lazy.num_features == 4
    assert torch.allclose(lazy.running_mean, torch.full((4,), 0.1 * (n - 1) / 2)), lazy.running_mean
    # Among some of the ranks.
    pair = hvd.split(me // 2)
    layer, x = convert(nn.BatchNorm1d(2), pair), torch.full((3, 2), float(me), requires_grad=True)
    layer(x).sum().backward()
    right = 0.1 * sum(pair.ranks) / len(pair.ranks)
    assert torch.allclose(layer.running_mean, torch.full((2,), right)), layer.running_mean
    assert copy.deepcopy(layer).process_set is pair
    expect(ValueError, "not added", lambda: pickle.loads(pickle.dumps(layer))(x))
    assert pickle.loads(pickle.dumps(hvd.SyncBatchNorm(2))).process_set is hvd.global_process_set
    expect(ValueError, "give a ProcessSet", lambda: convert(model, [0, 1]))
    hvd.remove_process_set(pair)


def misuse():
    """Mistakes of this rank alone are a ValueError at once, and disturb nobody."""
    import warnings

    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    x = torch.ones(3)
    if me == 0:
        expect(ValueError, "root", lambda: hvd.broadcast(x, n))
        expect(ValueError, "splits", lambda: hvd.alltoall(x, [1, 1]))
        expect(ValueError, "splits", lambda: hvd.alltoall(x, [0.5] * n))
        expect(ValueError, "not added", lambda: hvd.allreduce(x, process_set=hvd.ProcessSet([0])))
        expect(ValueError, "list of ranks", lambda: hvd.ProcessSet("ab"))
        expect(ValueError, "no Adasum", lambda: hvd.allreduce(x, op=hvd.Adasum))
        expect(RuntimeError, "no Adasum", lambda: hvd.allreduce(x, op=hvd.Adasum))
        expect(ValueError, "broadcast_parameters", lambda: hvd.broadcast_parameters(3, 0))
    pending = hvd.allreduce_async(x * me, name="twice", op=hvd.Sum) if me == 0 else None
    if me == 0:
        expect(ValueError, '"twice" is in flight', lambda: hvd.allreduce_async(x, name="twice"))
    else:
        pending = hvd.allreduce_async(x * me, name="twice", op=hvd.Sum)
    assert pending.wait()[0] == n * (n - 1) / 2
    # The name is free again.
    assert hvd.allreduce(x, name="twice", op=hvd.Sum)[0] == n
    assert hvd.synchronize(None) is None and hvd.synchronize(17) is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert hvd.allreduce(x, average=False)[0] == n
        hvd.grouped_allreduce_([x.clone()], average=True)
        hvd.allreduce(x)
    assert [w.category for w in caught] == [DeprecationWarning] * 2, caught


def sets_later():
    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    for _ in range(2):
        last = hvd.ProcessSet([n - 1])
        assert last.size() is None and last.rank() is None
        assert hvd.add_process_set(last) is last and last.size() == 1
        assert isinstance(last.process_set_id, int) and last.included() == (me == n - 1)
        expect(ValueError, "already", lambda: hvd.add_process_set([n - 1]))
        expect(ValueError, "already", lambda: hvd.add_process_set(range(n)))
        if last.included():
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=last) == 1
        assert hvd.remove_process_set(last) and not hvd.remove_process_set(last)
        assert not hvd.remove_process_set(hvd.global_process_set)
        assert last.process_set_id is None
    hvd.shutdown()
    given = hvd.ProcessSet([0])
    hvd.init(process_sets=[given])
    assert given.size() == 1
    hvd.shutdown()
    assert given.size() is None
    expect(ValueError, "unknown word", lambda: hvd.init(process_sets="static"))
    hvd.init(process_sets="dynamic")


def timeline():
    import json
    import os
    import tempfile

    import torch

    import dtrain.torch as hvd

    os.environ.pop("HOROVOD_TIMELINE", None)
    expect(ValueError, "HOROVOD_TIMELINE=DYNAMIC", lambda: hvd.start_timeline("x"))
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    with tempfile.TemporaryDirectory() as folder:
        for cycles in (True, False):
            path = os.path.join(folder, f"{cycles}.json")
            hvd.start_timeline(os.path.join(folder, "given up"))
            hvd.start_timeline(path, mark_cycles=cycles)
            hvd.allreduce(torch.ones(3), name="loss")
            hvd.allgather(torch.ones(3))
            hvd.stop_timeline()
            hvd.allreduce(torch.ones(3), name="later")
            assert os.path.exists(path) == (hvd.rank() == 0)
            if hvd.rank() == 0:
                text = open(path).read()
                events = json.loads(text)
                for word in ("allreduce.loss", "start_time_since_epoch_in_micros", "ALLGATHER"):
                    assert word in text, text
                assert ("CYCLE_START" in text) == cycles and "later" not in text
                begun = [e["name"] for e in events if e["ph"] == "B"]
                assert begun[:2] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"]
                assert len(begun) == sum(e["ph"] == "E" for e in events)
    hvd.shutdown()
    expect(ValueError, "init", lambda: hvd.start_timeline("x"))
    expect(ValueError, "init", hvd.stop_timeline)
    hvd.init()


# Several in one job, because each import of torch takes seconds.


def on_two_ranks():
    factors()
    uneven_rows()
    several_at_once()
    gradients()
    sparse()
    misuse()


def on_four_ranks():
    uneven_rows()
    gradients()
    sparse()
    batch_norm()
    converted_batch_norm()
    sets_later()
    timeline()


def test_factors_rows_groups_gradients_sparse_tensors_and_misuse(on_ranks):
    on_ranks(2, on_two_ranks)


def test_gradients_batch_norm_sets_and_timeline_of_four_ranks(on_ranks):
    on_ranks(4, on_four_ranks)
