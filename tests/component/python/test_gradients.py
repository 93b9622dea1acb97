# SPDX-License-Identifier: Apache-2.0
"""Optimizers, states and handles as people use them, compared with one process that sees the whole batch."""
from as_one_process import STEPS, check, linear, rows

NEEDS = ("torch",)


def scheduler_before_wrapping(hvd, mine):
    import warnings

    import torch

    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(mine).square().mean().backward()
            optimizer.step()
            scheduler.step()
    assert abs(optimizer.param_groups[0]["lr"] - 0.1**STEPS) < 1e-9, optimizer.param_groups
    return model.parameters()


def states_of_new_optimizers(hvd, mine):
    import torch

    ends = []
    for kind, options in [(torch.optim.Adam, {"lr": 0.1}), (torch.optim.RAdam, {"lr": 0.1}),
                          (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1})]:
        model = linear()
        optimizer = hvd.DistributedOptimizer(kind(model.parameters(), **options))
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert not optimizer.state_dict()["state"], kind
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(mine).square().mean().backward()
            optimizer.step()
        ends += model.parameters()
    return ends


def two_models_of_the_same_names(hvd, mine):
    import torch

    models = linear(), linear()
    with torch.no_grad():
        models[1].weight *= 2
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                           named_parameters=model.named_parameters())
                  for model in models]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        # A joint loss; then each by itself, as in a GAN.
        if step % 2 == 0:
            (models[0](mine).square().mean() + models[1](mine).abs().mean()).backward()
        else:
            for model in models:
                model(mine).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return [*models[0].parameters(), *models[1].parameters()]


def gan(hvd, mine):
    import torch

    maker, judge = linear(4, 4), linear(4, 1)
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                           named_parameters=model.named_parameters())
                  for model in (maker, judge)]
    for _ in range(STEPS):
        optimizers[1].zero_grad()
        (judge(mine).mean() - judge(maker(mine).detach()).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        for p in judge.parameters():
            p.requires_grad_(False)
        judge(maker(mine)).mean().backward()
        optimizers[0].step()
        for p in judge.parameters():
            p.requires_grad_(True)
    return [*maker.parameters(), *judge.parameters()]


def wrapped_without_gradients(hvd, mine):
    import torch

    model = linear()
    with torch.no_grad():
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(mine).square().mean().backward()
        optimizer.step()
    return model.parameters()


def loaded_with_gradients_in_flight(hvd, mine):
    import torch

    model = linear()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for step in range(STEPS):
        optimizer.zero_grad()
        model(mine).square().mean().backward()
        optimizer.step()
        if step == 1:
            model(mine).square().mean().backward()
            optimizer.load_state_dict(optimizer.state_dict())
    return model.parameters()


def sparse_and_unused_at_first(hvd, mine):
    """In the first step only the first half of the rows, which rank 0 has, looks anything up."""
    import torch

    torch.manual_seed(3)
    table, model = torch.nn.Embedding(5, 4, sparse=True), linear()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([*table.parameters(), *model.parameters()], lr=0.1))
    half = len(rows(12)) // 2
    where = [i for i in range(2 * half) if any(torch.equal(row, rows(12)[i]) for row in mine)]
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(mine).square().mean()
        seen = torch.tensor([i % 5 for i in where if step > 0 or i < half])
        if len(seen):
            loss = loss + table(seen).square().sum() / len(mine)
        loss.backward()
        optimizer.step()
    return [*table.parameters(), *model.parameters()]


def as_one_process():
    for program in (scheduler_before_wrapping, states_of_new_optimizers, two_models_of_the_same_names,
                    gan, wrapped_without_gradients, loaded_with_gradients_in_flight,
                    sparse_and_unused_at_first):
        check(program)


def test_programs_train_as_one_process(on_ranks):
    on_ranks(2, as_one_process)


def the_scheduler_goes_on_after_a_restored_state():
    """Also on the ranks that get the state: its optimizer is the one that was wrapped."""
    import torch

    import dtrain.torch as hvd

    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 + hvd.rank(), momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    if hvd.rank() == 0:  # as if from a checkpoint
        model(rows(2)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for wrong in ({"process_set": hvd.ProcessSet([0])}, {"groups": "two"}):  # nobody added the set
        try:
            hvd.DistributedOptimizer(optimizer, **wrong)
        except ValueError:
            assert type(optimizer) is torch.optim.SGD, wrong
        else:
            raise AssertionError(f"wrapped with {wrong}")
    wrapped = hvd.DistributedOptimizer(optimizer)
    assert wrapped is optimizer
    hvd.broadcast_optimizer_state(wrapped, root_rank=0)
    assert len(wrapped.state_dict()["state"]) == 2
    # PyTorch 2 would run step hooks twice: it has wrapped the step() of SGD.
    assert "step" not in vars(type(wrapped)) and torch.optim.SGD.step.hooked
    wrapped.step()
    scheduler.step()
    assert hvd.allgather_object(wrapped.param_groups[0]["lr"]) == [0.5, 0.5]
    try:
        hvd.DistributedOptimizer(wrapped)
    except ValueError as error:
        assert "one already" in str(error), error
    else:
        raise AssertionError("wrapped twice")


def bfloat16_is_not_made_float16():
    import torch

    import dtrain.torch as hvd

    p = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), compression=hvd.Compression.fp16)
    (p * 1e5).sum().backward()
    optimizer.step()
    assert torch.isfinite(p).all() and p[0] < -9e4, p


def threads_wait_for_one_handle():
    import threading

    import torch

    import dtrain.torch as hvd

    for handle in (hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="both"),
                   hvd.grouped_allreduce_async([torch.ones(3)], op=hvd.Sum)):
        results, begin = [], threading.Barrier(4)

        def wait():
            begin.wait(30)
            try:
                results.append(hvd.synchronize(handle))
            except Exception as error:
                results.append(error)

        threads = [threading.Thread(target=wait) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join(60) for thread in threads]
        assert len(results) == 4 and all(r is results[0] for r in results), results
        assert "2., 2., 2." in str(results[0]), results


def dropped_handles_free_what_they_held():
    import gc
    import time
    import weakref

    import torch

    import dtrain.torch as hvd

    tensors = [torch.ones(1000) for _ in range(8)]
    seen = [weakref.ref(t) for t in tensors]
    for i, tensor in enumerate(tensors):
        hvd.allreduce_async_(tensor, name=f"dropped.{i}")
    del tensor, tensors
    end = time.monotonic() + 60
    kept = 1.0
    while kept > 0:  # on any rank: all make the same calls
        assert time.monotonic() < end, "the tensors of collectives that are over are kept"
        gc.collect()
        kept = hvd.allreduce(torch.tensor([float(sum(ref() is not None for ref in seen))]), op=hvd.Sum).item()
    # The names are free.
    hvd.allreduce(torch.ones(1), name="dropped.0")


def handles_and_types():
    the_scheduler_goes_on_after_a_restored_state()
    bfloat16_is_not_made_float16()
    threads_wait_for_one_handle()
    dropped_handles_free_what_they_held()


def test_schedulers_types_and_handles(on_ranks):
    on_ranks(2, handles_and_types)


def the_rows_of_a_loader():
    """Workers of a DataLoader, which are forks, ask for the rank."""
    import torch

    import dtrain.torch as hvd

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            assert hvd.is_initialized()
            hvd.init()
            where = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()
            for call in (lambda: hvd.allreduce(torch.ones(1)), hvd.barrier, hvd.join,
                         lambda: hvd.broadcast_object(1), lambda: hvd.add_process_set([0])):
                try:
                    call()
                except hvd.StateError as error:
                    assert "fork" in str(error), error
                else:
                    raise AssertionError("a collective in a fork")
            hvd.shutdown()
            return torch.tensor(where)

    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=1,
                                         multiprocessing_context="fork")
    (batch,) = list(loader)
    here = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()
    assert batch.tolist() == [list(here)] * 2, batch
    hvd.barrier()


def test_workers_of_a_loader_know_the_rank(on_ranks):
    on_ranks(2, the_rows_of_a_loader)
