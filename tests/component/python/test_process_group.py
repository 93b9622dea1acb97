# SPDX-License-Identifier: Apache-2.0
"""The backend "dtrain" of torch.distributed. Gloo is the referee: the same calls on both give the same tensors."""
import datetime
import gc
import os
import tempfile
import time

import pytest
from conftest import SOURCE_DIR

NEEDS = ("torch",)


def begin():
    """torch.distributed with the backend, and a group of Gloo's with the same ranks."""
    import torch.distributed as dist

    import dtrain.torch  # noqa: F401

    dist.init_process_group("dtrain")
    return dist, dist.new_group(backend="gloo")


def end(dist):
    dist.barrier()
    dist.destroy_process_group()


def values(shape, dtype, seed):
    import torch

    made = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed))
    return made.abs().to(dtype) if dtype in (torch.uint8, torch.bool) else made.to(dtype)


def types():
    import torch

    return [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.int8, torch.uint8]


def reductions():
    import torch

    dist, gloo = begin()
    me, n = dist.get_rank(), dist.get_world_size()
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
    for i, dtype in enumerate(types()):
        for op in ops:
            for shape in [(), (5,), (3, 4), (0,)]:
                x = values(shape, dtype, i * 100 + me)
                got, right = x.clone(), x.clone()
                dist.all_reduce(got, op)
                dist.all_reduce(right, op, group=gloo)
                assert torch.equal(got, right), (dtype, op, shape, got, right)
                got, right = x.clone(), x.clone()
                dist.reduce(got, n - 1, op)
                dist.reduce(right, n - 1, op, group=gloo)
                assert torch.equal(got, right if me == n - 1 else x), (dtype, op, shape)
    # What libdtrain does not have, Gloo does.
    bits = torch.tensor([1 << me, 7])
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    assert bits.tolist() == [(1 << n) - 1, 7]
    mean = torch.full((3,), float(me))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.tolist() == [(n - 1) / 2] * 3
    several = [torch.full((2,), me + 1.0), torch.full((3,), me + 2.0)]
    dist.all_reduce_coalesced(several)
    assert [each[0].item() for each in several] == [sum(range(1, n + 1)), sum(range(2, n + 2))]
    # Types that Gloo does not reduce.
    for dtype, right in ((torch.bool, n > 1), (torch.bfloat16, sum(range(n))), (torch.int16, sum(range(n)))):
        x = torch.full((3,), me).to(dtype)
        dist.all_reduce(x)
        assert x.dtype == dtype and x.tolist() == [right] * 3, (dtype, x)
    complex_ = torch.full((2,), complex(me, 1))
    dist.all_reduce(complex_)
    assert complex_.tolist() == [complex(sum(range(n)), n)] * 2
    # Not dense, and not of the first dimension.
    whole = torch.zeros(4, 6)
    whole.t()[1:3].fill_(me + 1.0)
    dist.all_reduce(whole.t()[1:3])
    assert whole.sum() == 2 * 4 * sum(range(1, n + 1)) and whole[:, 0].abs().sum() == 0
    for dtype in types():
        blocks = [values((2, 3), dtype, me * 10 + r) for r in range(n)]
        right = sum(values((2, 3), dtype, r * 10 + me) for r in range(n)).to(dtype)
        got = torch.empty(2, 3, dtype=dtype)
        dist.reduce_scatter(got, blocks)
        assert torch.equal(got, right), dtype
        got = torch.empty(2, 3, dtype=dtype)
        dist.reduce_scatter_tensor(got, torch.cat(blocks))
        assert torch.equal(got, right), dtype
    end(dist)


def moves():
    import torch
    import torch.distributed.nn.functional as functional

    dist, gloo = begin()
    me, n = dist.get_rank(), dist.get_world_size()
    for i, dtype in enumerate([*types(), torch.bool, torch.int16, torch.complex64, torch.bfloat16]):
        for shape in [(), (5,), (3, 5), (0, 2)]:
            mine, of = values(shape, dtype, i * 100 + me), [values(shape, dtype, i * 100 + r) for r in range(n)]
            for root in range(n):
                got = mine.clone()
                dist.broadcast(got, root)
                assert torch.equal(got, of[root]), (dtype, shape, root)
                parts = [torch.empty_like(mine) for _ in range(n)] if me == root else None
                dist.gather(mine, parts, root)
                assert me != root or all(map(torch.equal, parts, of)), (dtype, shape, root)
                got = torch.empty_like(mine)
                dist.scatter(got, [each.clone() for each in of] if me == root else None, root)
                assert torch.equal(got, of[me]), (dtype, shape, root)
            parts = [torch.empty_like(mine) for _ in range(n)]
            dist.all_gather(parts, mine)
            assert all(map(torch.equal, parts, of)), (dtype, shape)
            got = torch.empty((n, *shape), dtype=dtype)
            dist.all_gather_into_tensor(got, mine)
            assert torch.equal(got, torch.stack(of)), (dtype, shape)
    parts = [torch.empty(r, 2) for r in range(n)]
    dist.all_gather(parts, torch.full((me, 2), float(me)))
    assert all(torch.equal(part, torch.full((r, 2), float(r))) for r, part in enumerate(parts)), parts
    # As many elements, in another shape on one rank only.
    parts = [torch.empty(*((6,) if me == 0 else (2, 3))) for _ in range(n)]
    dist.all_gather(parts, torch.full((2, 3), float(me)))
    assert [part.unique().tolist() for part in parts] == [[r] for r in range(n)], parts
    several = [[torch.empty(2), torch.empty(3)] for _ in range(n)]
    dist.all_gather_coalesced(several, [torch.full((2,), float(me)), torch.full((3,), me + 0.5)])
    assert [[each[0].item() for each in of_rank] for of_rank in several] == [[r, r + 0.5] for r in range(n)]

    def column(value):
        """Every other element of its memory."""
        return torch.tensor([value, value + 0.5]).repeat_interleave(2).reshape(2, 2)[:, 0]

    # What Gloo gets wrong: pytorch/pytorch#192920, #24836.
    got, root = column(me), n - 1
    dist.broadcast(got, root)
    assert torch.equal(got, column(root))
    dist.scatter(got, [column(r) for r in range(n)] if me == root else None, root)
    assert torch.equal(got, column(me))
    dist.reduce(got, root)
    assert torch.equal(got, sum(map(column, range(n))) if me == root else column(me))
    parts = [column(9) for _ in range(n)]
    dist.gather(column(me), parts if me == root else None, root)
    assert me != root or all(torch.equal(part, column(r)) for r, part in enumerate(parts))
    # Derivatives whose gradients are expanded: #73515.
    weight = torch.ones(2, requires_grad=True)
    for call in (lambda: torch.cat(functional.all_gather(weight)), lambda: functional.all_reduce(weight)):
        weight.grad = None
        call().sum().backward()
        assert weight.grad.tolist() == [n, n]

    # Rank r has r + t rows for rank t.
    rows = [me + t for t in range(n)]
    source = torch.cat([torch.full((me + t, 2), 10 * me + t) for t in range(n)])
    got = torch.empty(sum(rows), 2, dtype=source.dtype)
    dist.all_to_all_single(got, source, [r + me for r in range(n)], rows)
    right = torch.cat([torch.full((r + me, 2), 10 * r + me) for r in range(n)])
    assert torch.equal(got, right)
    parts = [torch.empty(r + me, 2, dtype=source.dtype) for r in range(n)]
    dist.all_to_all(parts, list(source.split(rows)))
    assert torch.equal(torch.cat(parts), right)
    got = torch.empty(n, dtype=torch.int64)
    # Some ranks give no splits.
    dist.all_to_all_single(got, torch.arange(n) + 100 * me, *([[1] * n, [1] * n] if me == 0 else []))
    assert got.tolist() == [100 * r + me for r in range(n)]

    gathered = [None] * n
    dist.all_gather_object(gathered, {"rank": me, "text": "x" * 7 * me})
    assert gathered == [{"rank": r, "text": "x" * 7 * r} for r in range(n)]
    objects = [f"object of {me}", me]
    dist.broadcast_object_list(objects, n - 1)
    assert objects == [f"object of {n - 1}", n - 1]
    scattered = [None]
    dist.scatter_object_list(scattered, [r * "s" for r in range(n)], 0)
    assert scattered == [me * "s"]
    end(dist)


def others():
    """Messages, smaller groups, handles and futures."""
    import torch

    import dtrain.torch

    dist, gloo = begin()
    me, n = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "dtrain"
    to, of = (me + 1) % n, (me - 1) % n
    got = torch.empty(3)
    dist.isend(torch.full((3,), float(me)), to)  # which Gloo itself takes back, as nobody waits for it
    dist.irecv(got, of).wait()
    assert got.tolist() == [of] * 3
    pair = dist.new_group([0, n - 1])
    alike = dist.new_group()
    if me in (0, n - 1):
        both = torch.ones(1)
        dist.all_reduce(both, group=pair)
        assert both.item() == 2
    # Groups of all ranks, in another order on each rank.
    first, second = torch.ones(10), torch.ones(20)
    starts = [lambda: dist.all_reduce(first, group=alike, async_op=True), lambda: dist.all_reduce(second, async_op=True)]
    for call in [start() for start in starts[:: 1 if me else -1]]:
        call.wait()
        assert call.is_completed()
    assert first.sum() == 10 * n and second.sum() == 20 * n
    future = dist.all_reduce(torch.full((4,), float(me)), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert doubled.wait().tolist() == [n * (n - 1.0)] * 4
    waited = dist.all_reduce(torch.ones(2), async_op=True)
    waited.wait()
    assert waited.get_future().value()[0].tolist() == [n, n]
    sparse = torch.sparse_coo_tensor([[me, 0]], [1.0, 2.0], (n,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [2.0 * n + 1] + [1.0] * (n - 1)
    # Works that are over have filled their outputs, also before wait().
    mine, total, small = torch.full((2,), me + 1.0), torch.full((5,), me + 1.0), torch.full((3,), me + 1, dtype=torch.uint8)
    whole = torch.full((4, 3), me + 1.0)
    parts, gathered = ([torch.zeros(2) for _ in range(n)] for _ in range(2))
    dealt = torch.zeros(n)
    works = [
        dist.all_gather(parts, mine, async_op=True),
        dist.gather(mine, gathered if me == 0 else None, 0, async_op=True),
        dist.reduce(total, 0, async_op=True),
        dist.all_to_all_single(dealt, torch.full((n,), me + 1.0), async_op=True),
        dist.all_reduce(small, async_op=True),
        dist.all_reduce(whole[:, 0], async_op=True),
    ]
    deadline = time.monotonic() + 60
    while not all([work.is_completed() for work in works]):
        assert time.monotonic() < deadline
    every = [r + 1.0 for r in range(n)]
    assert [part.tolist() for part in parts] == [[each] * 2 for each in every], parts
    assert me != 0 or [part.tolist() for part in gathered] == [[each] * 2 for each in every], gathered
    assert total.tolist() == [sum(every) if me == 0 else me + 1.0] * 5, total
    assert dealt.tolist() == every, dealt
    assert small.tolist() == [sum(every)] * 3, small
    assert whole[:, 0].tolist() == [sum(every)] * 4 and whole[:, 1].tolist() == [me + 1.0] * 4, whole
    # Handles that nobody waits for.
    dropped = [torch.ones(100) for _ in range(600)]
    for each in dropped:
        dist.all_reduce(each, async_op=True)
    dist.barrier()
    assert all(each[0] == n for each in dropped)
    with pytest.raises(ValueError, match="outputs are not"):
        dist.all_gather([torch.empty(2)] * n, torch.empty(3))
    for wrong in (n - 1, n + 1):
        if me == 0:
            with pytest.raises(ValueError, match=f"gather: rank 0 must give .* each of 3 ranks; it gives {wrong} tensors"):
                dist.gather(torch.zeros(2), [torch.zeros(2)] * wrong)
            with pytest.raises(ValueError, match=f"scatter: rank 0 must give .* each of 3 ranks; it gives {wrong} tensors"):
                dist.scatter(torch.zeros(2), [torch.zeros(2)] * wrong)
    # What one rank gives alike, and other ranks otherwise.
    with pytest.raises(RuntimeError, match=r"rank 0 for .* of shape \(2,\); rank 1 for .* of shape \(3,\)"):
        dist.reduce_scatter(torch.zeros(2 + me), [torch.zeros(2 + me)] * n)
    with torch.profiler.profile() as profile:
        beyond = dist.all_reduce(torch.ones(100), async_op=True)  # over when the profile is
        work = dist.all_gather_into_tensor(torch.empty(n), torch.ones(1), async_op=True)
        dist.broadcast(torch.ones(100), 0)
        work.wait()
    beyond.wait()
    shown = {event.name: event.thread for event in profile.events() if event.name.startswith("dtrain:")}
    assert set(shown) == {"dtrain:all_reduce", "dtrain:all_gather", "dtrain:all_gather wait", "dtrain:broadcast",
                          "dtrain:broadcast wait"}, shown
    assert len(set(shown.values())) == 1, shown  # a span that ends in another thread corrupts memory (torch 1.13)
    if me != n - 1:
        late = dist.all_reduce(torch.ones(1), async_op=True)
        with pytest.raises(RuntimeError, match="wait timeout after 10ms"):
            late.wait(datetime.timedelta(milliseconds=10))
        dist.send(torch.ones(1), n - 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "sleep", None)  # it does not look again and again
            assert late.wait(datetime.timedelta(seconds=100))
    else:
        for r in range(n - 1):
            dist.recv(torch.ones(1), r)
        dist.all_reduce(torch.ones(1))
    got = torch.empty(2)
    both = [dist.P2POp(dist.isend, torch.full((2,), float(me)), to), dist.P2POp(dist.irecv, got, of)]
    for each in dist.batch_isend_irecv(both):
        each.wait()
    assert got.tolist() == [of] * 2
    # A callback that waits for another one's future.
    nested = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(
        lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0])
    assert nested.wait().item() == n * n
    try:
        dist.all_reduce(torch.ones(2 + me))
    except RuntimeError as error:
        assert "rank" in str(error)
    else:
        raise AssertionError("shapes that differ are an error on all ranks")
    # Again and again in the same process, which leaves nothing behind.
    threads = None
    for _ in range(6):
        again = dist.new_group()
        dist.all_reduce(torch.ones(1), group=again, async_op=True).get_future().wait()
        dist.destroy_process_group(again)
        del again
        gc.collect()
        dist.barrier()
        now = len(os.listdir("/proc/self/task"))
        threads = threads or now
        assert now <= threads + 2, (threads, now)
    end(dist)
    with tempfile.TemporaryDirectory() as mine:
        folder = dtrain.torch.broadcast_object(mine)
        dist.init_process_group("dtrain", f"file://{folder}/store", rank=me, world_size=n)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == n
        end(dist)
        dtrain.torch.barrier()


def wrapped():
    """DDP with hooks, with join() and unused parameters, and an optimizer with parts of its state on each rank."""
    import copy

    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist, gloo = begin()
    me = dist.get_rank()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.unused = torch.nn.Linear(20, 50), torch.nn.Linear(50, 3), torch.nn.Linear(9, 9)
            self.norm = torch.nn.BatchNorm1d(50)

        def forward(self, x):
            return self.b(self.norm(self.a(x)).relu())

    torch.manual_seed(me)  # DDP broadcasts rank 0's
    made = Net()

    def train(group, hook=None, power=False, zero=False, steps=4, join=None, sparse=False, **options):
        torch.manual_seed(7 + me)
        net = copy.deepcopy(made)
        if sparse:
            net.a = torch.nn.Sequential(torch.nn.Embedding(30, 20, sparse=True), torch.nn.Flatten(), torch.nn.Linear(60, 50))
        if power:
            # It starts collectives in callbacks, at any time beside those that DDP itself starts, on Gloo as well.
            del net.unused
            model = DDP(net, process_group=group, **options)
        else:
            model = DDP(net, process_group=group, bucket_cap_mb=0.004, find_unused_parameters=True, **options)
        if hook is not None:
            model.register_comm_hook(group, hook)
        if power:
            model.register_comm_hook(powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
        parameters = list(model.parameters())
        if sparse:
            optimizer = torch.optim.SGD(parameters, lr=0.01)
        else:
            optimizer = (ZeroRedundancyOptimizer(parameters, torch.optim.Adam, process_group=group, lr=0.01) if zero
                         else torch.optim.Adam(parameters, lr=0.01))
        with model.join(**(join or {})):
            for i in range(steps):
                with model.no_sync() if i == 1 else torch.enable_grad():
                    batch = torch.randint(30, (8, 3)) if sparse else torch.randn(8, 20)
                    model(batch).square().sum().backward()
                if i != 1:
                    optimizer.step()
                    optimizer.zero_grad()
        return [each.detach() for each in [*model.parameters(), *model.buffers()]]

    # What Gloo refuses.
    odd = torch.nn.Linear(3, 3).to(torch.bfloat16)
    odd.register_buffer("mask", torch.tensor([me == 0, True, False]))
    model = DDP(odd)
    model(torch.full((2, 3), 1.0 + me, dtype=torch.bfloat16)).sum().backward()
    seen = odd.weight.grad.unique().tolist(), odd.mask.tolist()
    assert seen == ([3.0], [True, True, False]), seen

    world = dist.group.WORLD
    for options in ({}, {"hook": default_hooks.fp16_compress_hook}, {"gradient_as_bucket_view": True}, {"steps": 4 + me},
                    {"steps": 4 + me, "join": {"divide_by_initial_world_size": False}}, {"sparse": True}, {"power": True}):
        got, right = train(world, **options), train(gloo, **options)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, right)), options
    group = dist.new_group()
    got, right = train(group, zero=True), train(gloo, zero=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, right))
    end(dist)


def lost():
    """A rank that dies is an exception on the others, in a backward() too."""
    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist, _ = begin()
    model = DDP(torch.nn.Linear(1000, 100))
    if dist.get_rank() == 1:
        os._exit(0)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 1"):
        model(torch.ones(1, 1000)).sum().backward()
    assert time.monotonic() - began < 60
    print("the loss was noticed", flush=True)
    os._exit(9)


def group_times_out():
    """It raises in time and names who did not come; all else goes on."""
    import torch

    dist, gloo = begin()
    late, other = dist.get_world_size() - 1, dist.new_group()
    brief = dist.new_group(timeout=datetime.timedelta(seconds=1))

    def times_out():
        with pytest.raises(RuntimeError, match=f"timed out waiting for rank {late}.*; only this group has failed"):
            dist.barrier(group=brief)

    if dist.get_rank() != late:
        began = time.monotonic()
        times_out()
        assert 1 <= time.monotonic() - began < 60
    dist.barrier()
    times_out()  # the late rank, too
    dist.destroy_process_group(brief)
    del brief
    gc.collect()
    for group in (other, gloo, dist.new_group(), dist.new_group(timeout=datetime.timedelta(seconds=60))):
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        assert total.item() == late + 1
    end(dist)


def default_group_times_out(folder, *timeout):
    """The job breaks with it, and is joined again by the next init_process_group()."""
    import torch
    import torch.distributed as dist

    import dtrain.torch

    me, n = dtrain.torch.rank(), dtrain.torch.size()

    def init(number, **options):
        dist.init_process_group("dtrain", f"file://{folder}/{number}", rank=me, world_size=n, **options)

    def times_out():
        with pytest.raises(RuntimeError, match=f"timed out waiting for rank {n - 1}"):
            dist.barrier()

    store = dist.FileStore(f"{folder}/store", n)
    store.set(f"ready {me}", "")  # they have to meet in that time, too
    store.wait([f"ready {r}" for r in range(n)], datetime.timedelta(seconds=60))
    init(1, **({"timeout": datetime.timedelta(seconds=timeout[0])} if timeout else {}))
    others = [f"rank {r}" for r in range(n - 1)]
    if me == n - 1:
        store.wait(others, datetime.timedelta(seconds=60))
    times_out()
    store.set(f"rank {me}", "has seen it")
    with pytest.raises(RuntimeError, match="broken"):
        dist.new_group()
    dist.destroy_process_group()
    store.wait([*others, f"rank {n - 1}"], datetime.timedelta(seconds=60))
    init(2)
    total = torch.ones(1)
    dist.all_reduce(total, group=dist.new_group())
    assert total.item() == n == dtrain.torch.allreduce(torch.ones(1), op=dtrain.torch.Sum).item()
    end(dist)


def wrong_world():
    import torch.distributed as dist

    import dtrain.torch  # noqa: F401

    if os.environ["RANK"] == "1":
        return
    with tempfile.TemporaryDirectory() as folder, pytest.raises(
            ValueError, match="rank 0 of 1 there, and rank 0 of 2 of the job: start each worker by dtrain launch"):
        dist.init_process_group("dtrain", f"file://{folder}/store", rank=0, world_size=1)


@pytest.mark.parametrize("ranks", [1, 3])
def test_reductions_are_gloos(on_ranks, ranks):
    on_ranks(ranks, reductions)


@pytest.mark.parametrize("ranks", [1, 3])
def test_moves_bring_what_each_rank_has(on_ranks, ranks):
    on_ranks(ranks, moves)


def test_messages_groups_handles_and_futures(on_ranks):
    on_ranks(3, others)


def test_what_wraps_models_and_optimizers_trains_as_on_gloo(on_ranks):
    on_ranks(2, wrapped)


def test_a_rank_that_dies_is_an_exception_on_the_others(on_ranks, capfd):
    import dtrain

    with pytest.raises(dtrain.JobError):
        on_ranks(2, lost)
    assert "the loss was noticed" in capfd.readouterr().out


def test_a_timeout_is_of_its_group(on_ranks):
    on_ranks(3, group_times_out)


def test_a_timeout_of_the_default_group_is_over_with_the_next_one(on_ranks, tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "of the job").mkdir()
    on_ranks(2, default_group_times_out, str(tmp_path / "given"), 8)
    on_ranks(2, default_group_times_out, str(tmp_path / "of the job"), env={"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS": "5"})


def test_a_program_for_gloo_trains_unchanged(launch, tmp_path):
    code, out, err = launch(2, "-m", "dtrain.torch", SOURCE_DIR / "examples/plain_torch.py")
    assert code == 0 and "ranks 2 error 0.00" in out, f"{out}\n{err}"
    (tmp_path / "asks.py").write_text(
        "import sys, torch.distributed as dist\n"
        "from torch.distributed import init_process_group\n"
        "init_process_group(backend='GLOO')\n"
        "dist.monitored_barrier()\n"
        "dist.monitored_barrier(dist.GroupMember.NON_GROUP_MEMBER)\n"
        "print(dist.get_backend(), dist.get_backend(dist.new_group(backend='gloo')), __name__, sys.argv[1:])\n")
    for program in ([tmp_path / "asks.py"], ["-m", "asks"]):
        code, out, err = launch(1, "-m", "dtrain.torch", *program, "--rate", "1",
                                env={"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"})
        assert code == 0 and "dtrain dtrain __main__ ['--rate', '1']" in out, f"{out}\n{err}"
    code, out, err = launch(1, "-m", "dtrain.torch")
    assert code == 1 and "python3 -m dtrain.torch SCRIPT" in err, f"{out}\n{err}"


def test_a_world_that_is_not_the_jobs_is_named(on_ranks):
    on_ranks(2, wrong_world)
