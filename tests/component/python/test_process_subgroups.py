# SPDX-License-Identifier: Apache-2.0
"""Groups of some of the ranks, of the backend "dtrain" of torch.distributed. Gloo is the referee."""
import datetime
import gc
import os
import threading
import time

import pytest

NEEDS = ("torch",)


def begin():
    import torch.distributed as dist

    import dtrain.torch  # noqa: F401

    dist.init_process_group("dtrain")
    return dist, dist.get_rank(), dist.get_world_size()


def is_in(dist, group):
    return group is not dist.GroupMember.NON_GROUP_MEMBER


def total(dist, group, value):
    import torch

    x = torch.full((5,), float(value))
    dist.all_reduce(x, group=group)
    return x.unique().tolist()


def reductions(dist, group, ranks, me):
    import torch

    ops = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT, dist.ReduceOp.BOR]
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.complex64):
        for op in ops:
            if dtype.is_floating_point and op == dist.ReduceOp.BOR or dtype.is_complex and op != dist.ReduceOp.SUM:
                continue
            for shape in ((), (3, 4), (0,)):
                x = (torch.arange(12) % 3 + me)[:torch.Size(shape).numel()].reshape(shape).to(dtype)
                dist.all_reduce(x, op, group=group)
                yield x
                if not dtype.is_complex:
                    x = torch.full((2,), me + 2).to(dtype)
                    dist.reduce(x, ranks[1], op, group=group)
                    yield x if me == ranks[1] else None
    sparse = torch.sparse_coo_tensor([[ranks.index(me), 0]], [1.0, 2.0], (len(ranks),))
    dist.all_reduce(sparse, group=group)
    yield sparse.to_dense()


def moves(dist, group, ranks, me):
    import torch

    n, mine = len(ranks), torch.arange(6).reshape(2, 3) + 10 * me
    for root in ranks:
        x = mine.clone()
        dist.broadcast(x, root, group=group)
        yield x
        parts = [torch.zeros_like(mine) for _ in ranks] if me == root else None
        dist.gather(mine, parts, root, group=group)
        yield from parts or []
        x = torch.zeros_like(mine)
        dist.scatter(x, [mine + i for i in range(n)] if me == root else None, root, group=group)
        yield x
        gathered = [None] * n if me == root else None
        dist.gather_object({"of": me}, gathered, root, group=group)
        yield gathered
        objects = [me, "x" * me]
        dist.broadcast_object_list(objects, root, group=group)
        yield objects
    parts = [torch.zeros_like(mine) for _ in ranks]
    dist.all_gather(parts, mine, group=group)
    yield from parts
    gathered = [None] * n
    dist.all_gather_object(gathered, ("of", me, "x" * 1000 * me), group=group)
    yield gathered
    dist.barrier(group=group)
    yield (dist.get_rank(group), dist.get_world_size(group), dist.get_global_rank(group, n - 1),
           dist.get_group_rank(group, ranks[-1]), group.rank(), group.size())


def messages(dist, group, ranks, me):
    import torch

    i, n = ranks.index(me), len(ranks)
    got = [torch.zeros(4) for _ in ranks]
    calls = []
    for rank, into in zip(ranks, got):
        if rank != me:
            calls.append(dist.P2POp(dist.isend, torch.full((4,), 10.0 * me + rank), rank, group=group, tag=3))
            calls.append(dist.P2POp(dist.irecv, into, rank, group=group, tag=3))
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    yield from got
    x = torch.zeros(1)
    if i == 0:
        dist.send(torch.full((1,), float(me)), ranks[1], group=group)
        yield sorted(dist.recv(x, group=group) for _ in range(n - 1))
    else:
        if i == 1:
            dist.recv(x, ranks[0], group=group)
            yield x
        dist.send(x, ranks[0], group=group)


def training(dist, group, ranks, me):
    import torch
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel as DDP

    def model():
        torch.manual_seed(me)  # DDP broadcasts the first member's
        layers = torch.nn.Linear(6, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
        return torch.nn.Sequential(*layers)

    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
        net = DDP(model(), process_group=group, bucket_cap_mb=0.0001, **options)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        for i in range(6):
            apart = i % 3 == 1 and "static_graph" not in options  # which torch 1.13 cannot
            with net.no_sync() if apart else torch.enable_grad():
                net(torch.randn(5, 6)).square().mean().backward()
            if not apart:
                optimizer.step()
                optimizer.zero_grad()
        yield from (each.detach() for each in [*net.parameters(), *net.buffers()])
    net = DDP(model(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
    with Join([net, optimizer]):
        for _ in range(3 + ranks.index(me)):
            net(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    yield from (each.detach() for each in net.parameters())
    for i, rank in enumerate(ranks):
        optimizer.consolidate_state_dict(to=i)
        if rank == me:
            states = optimizer.state_dict()["state"]
            yield from (states[at][name] for at in sorted(states) for name in sorted(states[at]))


def alike(got, right):
    import torch

    if isinstance(right, torch.Tensor):
        return got.dtype == right.dtype and got.shape == right.shape and torch.allclose(got, right, atol=1e-5)
    return got == right


def as_on_gloo(all_ranks):
    import torch

    import dtrain.torch._process_group as backend

    dist, me, _ = begin()
    made = [(ranks, dist.new_group(ranks), dist.new_group(ranks, backend="gloo")) for ranks in all_ranks]
    for ranks, ours, gloo in made:
        assert is_in(dist, ours) == (me in ranks)
        if me not in ranks:
            continue
        assert isinstance(ours, backend._ProcessGroup) and ours._ours.ranks == ranks
        for calls in (reductions, moves, messages, training):
            got, right = list(calls(dist, ours, ranks, me)), list(calls(dist, gloo, ranks, me))
            assert len(got) == len(right)
            for i, pair in enumerate(zip(got, right)):
                assert alike(*pair), (calls.__name__, i, ranks, pair)
        # What Gloo does not have.
        n, mine = len(ranks), ranks.index(me)
        x = torch.zeros(n)
        dist.all_to_all_single(x, torch.arange(n) + 10.0 * me, group=ours)
        assert x.tolist() == [10.0 * rank + mine for rank in ranks]
        x = torch.zeros(2)
        dist.reduce_scatter_tensor(x, torch.arange(2.0 * n) + me, group=ours)
        assert x.tolist() == [n * at + sum(ranks) for at in (2.0 * mine, 2.0 * mine + 1)]
    dist.barrier()
    dist.destroy_process_group()


def in_any_order():
    """Groups that overlap, each used in its own order and by its own thread; one that is made beside collectives."""
    import torch

    dist, me, n = begin()
    pairs = [(ranks, dist.new_group(ranks)) for ranks in ([0, 1], [1, 2])]
    mine = [(ranks, group) for ranks, group in pairs if me in ranks]
    pending = []
    for i in range(50):
        for ranks, group in mine[:: 1 if i % 2 else -1]:
            x = torch.full((4,), me + i)
            pending.append((x, sum(ranks) + 2 * i, dist.all_reduce(x, group=group, async_op=True)))
    for x, right, work in pending[:: 1 if me else -1]:
        work.wait()
        assert x.unique().tolist() == [right]

    # Left before its calls are over, and beside one of all ranks that some start later than they make the next group.
    for i in range(6):
        left, everyone, works = dist.new_group([0, 1]), torch.full((4,), me), []
        if me < 2:
            sums = [torch.full((1000,), me + k) for k in range(5)]
            works = [dist.all_reduce(x, group=left, async_op=True) for x in sums]
            dist.destroy_process_group(left)
            works.append(dist.all_reduce(everyone, async_op=True))
        del left
        gc.collect()
        dist.destroy_process_group(dist.new_group([[0, 1], [0, 2]][i % 2]))
        for work in works or [dist.all_reduce(everyone, async_op=True)]:
            work.wait()
        assert everyone.unique().tolist() == [sum(range(n))]
        assert me > 1 or [x.unique().tolist() for x in sums] == [[1 + 2 * k] for k in range(5)]

    failures, made = [], []

    def beside(function, *args):
        def run():
            try:
                function(*args)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def use(ranks, group, times):
        for _ in range(times):
            assert total(dist, group, me) == [sum(ranks)]

    def make():
        for ranks in ([0, 2], [1, n - 1]):
            made.append(dist.new_group(ranks))
            if me in ranks:
                use(ranks, made[-1], 20)

    threads = [beside(use, *pair, 100) for pair in mine] + [beside(make)]
    use(range(n), None, 100)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures and len(made) == 2, failures
    dist.barrier()
    dist.destroy_process_group()


def mistakes():
    """What torch forbids is an error on every rank, which names it; the job goes on. On Gloo it hangs, or mixes groups."""
    dist, me, n = begin()

    def refused(ranks, words):
        with pytest.raises((RuntimeError, ValueError), match=words):
            dist.new_group(ranks)

    # Each rank makes its own groups only: pytorch/pytorch#25390, #38375, #130102.
    refused([0, 1] if me < 2 else [2], r"rank 0 makes a group of ranks \[0, 1\], rank 2 one of ranks \[2\]: every rank must")
    for ranks in [[0, 1], [1, 2]][:: -1 if me == 1 else 1]:
        refused(ranks, "in the same order")
    refused([0, 0], r"\[0, 0\]")
    # Made and left again and again, by some ranks later than by others: nothing stays. #40400
    kept, before = [], None
    for i in range(12):
        ranks = [[0, 1], [0, 2], [1, 2], [0, 1, 2]][i % 4]
        group = dist.new_group(ranks)
        if me in ranks:
            assert total(dist, group, me) == [sum(ranks)]
            dist.destroy_process_group(group)
            kept = [group] if me == i % 2 else []
        del group
        gc.collect()
        dist.barrier()
        now = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        before = before if i > 3 else now
        assert all(a <= b + 12 for a, b in zip(now, before)), (i, now, before)
    del kept
    assert total(dist, None, me) == [sum(range(n))]
    # Only the members make it: all ranks hear of it once each waits for something. The last, as
    # torch itself counts groups.
    if me < 2:
        refused([0, 1], "ranks 0, 1 for .*torch.distributed.new_group.*; rank 2 for barrier")
    else:
        with pytest.raises(RuntimeError, match="ranks 0, 1 for .*torch.distributed.new_group"):
            dist.barrier()


def times_out():
    """A timeout= is of that group."""
    dist, me, n = begin()
    brief, unheard = (dist.new_group([0, 2], timeout=datetime.timedelta(seconds=1)) for _ in range(2))
    other = dist.new_group([0, 1])

    def fails(group):
        with pytest.raises(RuntimeError, match="timed out waiting for rank 2.*; only this group has failed"):
            total(dist, group, me)

    if me == 0:
        began = time.monotonic()
        fails(brief)
        assert 1 <= time.monotonic() - began < 60
        fails(unheard)
    dist.barrier()
    if me == 2:
        fails(brief)
    # They are left, also by a rank that has not heard of the failure.
    if me != 1:
        dist.destroy_process_group(brief)
        dist.destroy_process_group(unheard)
    del brief, unheard
    gc.collect()
    for ranks, group in (([0, 1], other), (range(n), None), ([0, 2], dist.new_group([0, 2]))):
        if me in ranks:
            assert total(dist, group, me) == [sum(ranks)]
    dist.barrier()
    dist.destroy_process_group()


def a_member_ends(how):
    dist, me, _ = begin()
    group = dist.new_group([0, 2])
    if me == 1:  # not in it: the others go on
        return
    assert total(dist, group, me) == [2]
    if me == 2:
        if how == "dies":
            os._exit(0)
        return
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 2"):
        total(dist, group, me)
    assert time.monotonic() - began < 60
    print("the end was noticed", flush=True)
    os._exit(9)


def test_groups_of_some_ranks_do_as_gloos(on_ranks):
    on_ranks(3, as_on_gloo, [[0, 2], [1, 2]])
    on_ranks(4, as_on_gloo, [[1, 2, 3], [0, 3]])


def test_groups_that_overlap_are_used_in_any_order_and_made_in_a_thread(on_ranks):
    on_ranks(4, in_any_order)


def test_groups_that_the_ranks_make_differently_are_refused(on_ranks):
    on_ranks(3, mistakes)


def test_a_timeout_is_of_the_group(on_ranks):
    on_ranks(3, times_out)


@pytest.mark.parametrize("how", ["dies", "is done"])
def test_a_member_that_ends_is_an_exception_on_the_others(on_ranks, capfd, how):
    import dtrain

    with pytest.raises(dtrain.JobError):
        on_ranks(3, a_member_ends, how)
    assert "the end was noticed" in capfd.readouterr().out
