# SPDX-License-Identifier: Apache-2.0
"""Programs that others reported about process groups, on the backend "dtrain". Numbers alone are pytorch/pytorch's."""
import datetime
import gc
import os
import threading
from pathlib import Path

import pytest

NEEDS = ("torch",)


def begin():
    import torch.distributed as dist

    import dtrain.torch  # noqa: F401

    dist.init_process_group("dtrain")
    return dist, dist.get_rank(), dist.get_world_size()


def end(dist):
    dist.barrier()
    dist.destroy_process_group()


def begun_again():
    """#55967: the second one found the store of the first, on Gloo too, which was about to end or had its keys."""
    import torch

    for _ in range(4):
        dist, me, n = begin()
        pair = dist.new_group([0, 1])
        for group, ranks in ((pair, [0, 1]), (None, range(n))):
            if me in ranks:
                total = torch.full((3,), me)
                dist.all_reduce(total, group=group)
                assert total.tolist() == [sum(ranks)] * 3
        del group, pair
        gc.collect()
        dist.destroy_process_group()
    dist.init_process_group("gloo")
    assert dist.get_backend() == "gloo"
    end(dist)


def strange_tensors():
    import torch

    dist, me, n = begin()
    ranks, of = range(n), [torch.arange(24.0).reshape(2, 3, 2, 2) + 100 * rank for rank in range(n)]

    # Channels last: #163483, #74809, #158902. Gloo gathers them wrong.
    def last(x):
        return x.to(memory_format=torch.channels_last)

    got = last(of[me])
    dist.all_reduce(got)
    assert torch.equal(got, sum(of)) and got.is_contiguous(memory_format=torch.channels_last)
    parts = [last(torch.zeros_like(of[0])) for _ in ranks]
    dist.all_gather(parts, last(of[me]))
    assert all(map(torch.equal, parts, of))
    parts = [last(torch.zeros_like(of[0])) for _ in ranks] if me == 1 else None
    dist.gather(last(of[me]), parts, 1)
    assert me != 1 or all(map(torch.equal, parts, of))
    got = last(torch.zeros_like(of[0]))
    dist.scatter(got, [last(each) for each in of] if me == 1 else None, 1)
    assert torch.equal(got, of[me])

    # Without elements: #85234. Gloo ends by a signal.
    parts = [torch.zeros(1, 0, 2) for _ in ranks]
    dist.all_gather(parts, torch.ones(1, 0, 2))
    assert [part.shape for part in parts] == [(1, 0, 2)] * n

    # Tensors of inference mode, also when another thread completes the call: #126032.
    with torch.inference_mode():
        for finish in (lambda work: work.wait(), lambda work: work.get_future().wait()):
            got, parts, small = torch.full((2,), me), [torch.zeros(2) for _ in ranks], torch.ones(3, dtype=torch.uint8)
            finish(dist.all_reduce(got, async_op=True))
            finish(dist.all_gather(parts, torch.full((2,), float(me)), async_op=True))
            finish(dist.all_reduce(small, async_op=True))
            assert got.tolist() == [sum(ranks)] * 2 and small.tolist() == [n] * 3
            assert [part.tolist() for part in parts] == [[rank] * 2 for rank in ranks]

    # Parameters, without no_grad(): #181774.
    def parameter(value, count=3):
        return torch.nn.Parameter(torch.full((count,), float(value)))

    got = parameter(me)
    dist.all_reduce(got)
    assert got.tolist() == [sum(ranks)] * 3
    parts, whole = [parameter(0) for _ in ranks], torch.zeros(3 * n)
    dist.all_gather(parts, parameter(me))
    assert [part.tolist() for part in parts] == [[rank] * 3 for rank in ranks]
    dist.all_gather(list(whole.chunk(n)), parameter(me))
    assert whole.tolist() == [rank for rank in ranks for _ in range(3)]
    dist.all_gather_into_tensor(whole, parameter(me + 1))
    assert whole.tolist() == [rank + 1 for rank in ranks for _ in range(3)]
    got = parameter(0)
    dist.reduce_scatter_tensor(got, parameter(me, 3 * n))
    assert got.tolist() == [sum(ranks)] * 3
    got = parameter(0, n)
    dist.all_to_all_single(got, parameter(me, n))
    assert got.tolist() == list(ranks)
    end(dist)


def unequal_parts():
    import torch

    dist, me, n = begin()
    ranks = range(n)
    # #82924: a reduce_scatter of parts of several sizes, one of them empty.
    parts = [torch.full((rank, 2), me + 1) for rank in ranks]
    got = torch.zeros(me, 2, dtype=parts[0].dtype)
    dist.reduce_scatter(got, parts)
    assert got.tolist() == [[sum(range(n + 1))] * 2] * me
    with pytest.raises(ValueError, match=rf"output is \(5,\), torch.float32, on rank {me}, whose part is \({me},\)"):
        dist.reduce_scatter(torch.zeros(5), [torch.zeros(rank) for rank in ranks])
    # #146468: only one rank sends something.
    sent = torch.arange(2.0 * n).reshape(-1, 1) if me == 1 else torch.zeros(0, 1)
    got = torch.zeros(2, 1)
    dist.all_to_all_single(got, sent, [2 * (rank == 1) for rank in ranks], [2 * (me == 1)] * n)
    assert got.flatten().tolist() == [2 * me, 2 * me + 1]
    # #101380: splits that do not fit are an error, not other rows.
    for rows, given, taken, words in (
            (2 * n + 1, [], [], f"all_to_all_single: {2 * n + 1} rows cannot be split evenly"),
            (n, [2] * n, [1] * n, r"output_split_sizes .* are not the 3 rows of output"),
            (n, [1] * n, [1] * n + [0], "splits .* do not deal out 3 rows"),
            (n, [2, 0, 1], [1] * n, f"rank {me} got 1 rows from rank 0, not 2; 1 rows from rank 1, not 0"),
            (2 * n, [1] * n, [2] * n, "rank 0, not 1; 2 rows from rank 1, not 1; 2 rows from rank 2, not 1")):
        outputs = n if rows < 2 * n or given else rows
        with pytest.raises((ValueError, RuntimeError), match=words):
            dist.all_to_all_single(torch.zeros(outputs), torch.zeros(rows), given, taken)
    for outputs, words in (([2] * n, "1 elements from rank 0, not 2"), ([1] * (n - 1), "3 inputs and 2 outputs for 3 ranks")):
        with pytest.raises((ValueError, RuntimeError), match=words):
            dist.all_to_all([torch.zeros(size) for size in outputs], [torch.zeros(1) for _ in ranks])
    end(dist)


def peers():
    import torch

    dist, me, n = begin()
    # pytorch/gloo#344: Gloo ends by a signal. PyTorch 2 itself refuses the first.
    for call, words in ((dist.send, f"rank {me} cannot send to itself|should not be the same"),
                        (dist.recv, f"rank {me} cannot receive from itself|should not be the same")):
        with pytest.raises(ValueError, match=words):
            call(torch.zeros(1), me)
    # #54879, #83289: who did not come.
    pair = dist.new_group([0, 2])
    dist.monitored_barrier()
    if me != 1:
        dist.monitored_barrier(pair)
    if me == 0:
        with pytest.raises(RuntimeError, match="Ranks 1, 2 failed to pass monitoredBarrier"):
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=1), wait_all_ranks=True)
    dist.barrier()
    # #175145: messages in one thread, collectives of the same and of other groups in another.
    failures, second = [], dist.new_group([0, 1])

    def talk():
        try:
            for i in range(100):
                x = torch.full((100,), float(i))
                if me == 0:
                    dist.send(x, 1, group=second)
                    dist.recv(x, 1, group=second)
                elif me == 1:
                    dist.recv(x.zero_(), 0, group=second)
                    dist.send(x + 1, 0, group=second)
                assert x[0] == i + (me == 0) or me > 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=talk)
    thread.start()
    for _ in range(100):
        for group, ranks in ((None, range(n)), (second, [0, 1]), (pair, [0, 2])):
            if me in ranks:
                x = torch.full((7,), me)
                dist.all_reduce(x, group=group)
                assert x.unique().tolist() == [sum(ranks)]
    thread.join(60)
    assert not thread.is_alive() and not failures, failures
    end(dist)


@pytest.mark.parametrize("flags", [[], ["--agent-store"]])
def test_the_default_group_can_be_made_again(launch, flags):
    code, out, err = launch(3, "-c", "import test_process_group_reports as reports; reports.begun_again()", flags=flags,
                            env={"PYTHONPATH": f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"})
    assert code == 0, f"{out}\n{err}"


def test_tensors_that_other_backends_refuse_or_mix_up(on_ranks):
    on_ranks(3, strange_tensors)


def test_parts_of_unequal_sizes(on_ranks):
    on_ranks(3, unequal_parts)


def test_messages_and_who_did_not_come(on_ranks):
    on_ranks(3, peers)
