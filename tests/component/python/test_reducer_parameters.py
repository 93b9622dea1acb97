# SPDX-License-Identifier: Apache-2.0
"""Gradients are right whatever a program does with parameters and optimizers: see as_one_process."""
from as_one_process import STEPS, check_all, linear, rows, sgd, train

NEEDS = ("torch",)


def gan(hvd, mine):
    """The maker's loss makes gradients of the judge, too, which are zeroed before they are used."""
    maker, judge = linear(4, 4), linear(4, 1)
    of_maker, of_judge = sgd(hvd, maker.parameters()), sgd(hvd, judge.parameters())
    for _ in range(STEPS):
        of_judge.zero_grad()
        (judge(mine).mean() - judge(maker(mine).detach()).mean()).backward()
        of_judge.step()
        of_maker.zero_grad()
        judge(maker(mine)).square().mean().backward()
        of_maker.step()
    return [*maker.parameters(), *judge.parameters()]


def unfrozen_added_and_converted(hvd, mine):
    import torch

    model, more = linear(), linear()
    model.bias.requires_grad_(False)
    optimizer = sgd(hvd, model.parameters(), momentum=0.9)

    def loss():
        x = mine.to(model.weight.dtype)
        return (model(x) + more(x)).square().mean()

    train(optimizer, loss, steps=2)
    model.bias.requires_grad_(True)
    optimizer.add_param_group({"params": more.parameters(), "lr": 0.01})
    train(optimizer, loss, steps=2)
    model.double(), more.double()
    optimizer.state.clear()
    train(optimizer, loss, steps=2)
    model.float(), more.float()
    optimizer.state.clear()
    loss().backward()
    optimizer.step()
    assert model.weight.dtype is torch.float32
    return [*model.parameters(), *more.parameters()]


def frozen_when_wrapped(hvd, mine):
    import torch

    model = linear().requires_grad_(False)
    optimizer = sgd(hvd, model.parameters())
    model.requires_grad_(True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(mine).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model.parameters()


def unused(hvd, mine):
    """A parameter that nobody uses, in a step or ever, is none that weight decay moves."""
    import torch

    model, other, never = linear(), linear(), linear()
    optimizer = sgd(hvd, [*model.parameters(), *other.parameters(), *never.parameters()],
                    weight_decay=0.1, momentum=0.5)
    first = torch.equal(mine[0], rows(1)[0])
    for step in range(2 * STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = model(mine).square().mean()
        if 2 <= step < 5 and first:
            # By one rank, so that it does not depend on how many there are.
            loss = loss + other(rows(6)).square().sum() / len(mine)
        loss.backward()
        optimizer.step()
    assert all(p.grad is None for p in never.parameters())
    return [*model.parameters(), *other.parameters(), *never.parameters()]


def tied_copied_and_of_odd_types(hvd, mine):
    """Tied weights, a moving average of copies, complex numbers, and another memory order."""
    import copy

    import torch

    first, second = linear(4, 4), linear(4, 4)
    second.weight = first.weight
    conv = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
    wave = torch.nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
    model = torch.nn.ModuleList([first, second, conv])
    optimizer = sgd(hvd, [*model.parameters(), wave], foreach=True)
    average = copy.deepcopy(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        image = mine[:, :2].reshape(-1, 2, 1, 1) * torch.ones(2, 3, 3)
        loss = second(first(mine).tanh()).square().mean() + conv(image).square().mean()
        (loss + (mine[:, :1] * wave).abs().square().mean()).backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(average.parameters(), model.parameters()):
                p.lerp_(q, 0.3)
    assert model[2].weight.stride() == conv.weight.stride()
    return [*model.parameters(), *average.parameters(), torch.view_as_real(wave)]


def shared_by_two_optimizers(hvd, mine):
    base, heads = linear(4, 4), (linear(), linear())
    optimizers = [sgd(hvd, [*base.parameters(), *head.parameters()]) for head in heads]
    for step in range(STEPS):
        for head, optimizer in zip(heads, optimizers):
            optimizer.zero_grad()
            head(base(mine)).square().mean().backward()
            optimizer.step()
    # And wrapped anew.
    optimizer = sgd(hvd, base.parameters(), {"backward_passes_per_step": 2}, lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        for head in heads:
            head(base(mine)).square().mean().backward()
        optimizer.step()
        optimizers[0].zero_grad()
        heads[0](base(mine)).square().mean().backward()
        optimizers[0].step()
    return [*base.parameters(), *heads[0].parameters(), *heads[1].parameters()]


def two_in_one_backward(hvd, mine):
    """Two optimizers, whose losses the ranks compute in different order."""
    import torch

    models = linear(), linear(4, 1)
    optimizers = [sgd(hvd, model.parameters()) for model in models]
    order = 1 if torch.equal(mine[0], rows(1)[0]) else -1
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sum([model(mine).square().mean() for model in models[::order]]).backward()
        for optimizer in optimizers:
            optimizer.step()
    return [p for model in models for p in model.parameters()]


def states_of_other_kinds(hvd, mine):
    """foreach, and a state that is factored, as Adafactor's."""
    import torch

    class Factored(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                if p.grad is None or p.dim() < 2:
                    continue
                state = self.state[p]
                square = p.grad.square()
                for name, dim in (("row", 1), ("column", 0)):
                    state[name] = 0.9 * state.get(name, 0.0) + square.mean(dim)
                scale = torch.outer(state["row"], state["column"]) / state["row"].mean()
                p.add_(p.grad / (scale.sqrt() + 1e-3), alpha=-0.1)

    ends = []
    for make in (Factored, lambda ps: torch.optim.Adam(ps, lr=0.1, foreach=True),
                 lambda ps: torch.optim.NAdam(ps, lr=0.1)):
        model = linear()
        optimizer = hvd.DistributedOptimizer(make(list(model.parameters())))
        train(optimizer, lambda: model(mine).square().mean(), set_to_none=True)
        ends += model.parameters()
    return ends


def assigned_for_either_of_two(hvd, mine):
    """Two optimizers of the same parameters, whose gradients are made by hand."""
    import torch

    model = linear()
    first, second = sgd(hvd, model.parameters()), sgd(hvd, model.parameters(), lr=0.05)
    for optimizer in (first, first, second, first, second):
        grads = torch.autograd.grad(model(mine).square().mean(), list(model.parameters()))
        for p, grad in zip(model.parameters(), grads):
            p.grad = grad
        optimizer.step()
    return model.parameters()


PROGRAMS = [
    gan, unfrozen_added_and_converted, frozen_when_wrapped, unused,
    tied_copied_and_of_odd_types, shared_by_two_optimizers, two_in_one_backward, states_of_other_kinds,
    assigned_for_either_of_two,
]


def test_programs_train_as_one_process(on_ranks):
    on_ranks(2, check_all, PROGRAMS)


def test_programs_train_as_one_process_in_small_buckets(on_ranks):
    on_ranks(3, check_all, PROGRAMS, 1)


# ---- What cannot be right ----


def fails(kind, call, *texts):
    try:
        call()
    except kind as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def mistakes():
    import torch

    import dtrain.torch as hvd

    me = hvd.rank()

    # Other parameters on another rank.
    model = torch.nn.Linear(4, 2 + me)
    optimizer = sgd(hvd, model.parameters(), {"named_parameters": model.named_parameters()})
    fails(hvd.MismatchError, lambda: model(rows(2)).sum().backward(),
          "rank 0 has weight (float32 (2, 4)) where rank 1 has weight (float32 (3, 4))")
    layers = [linear() for _ in range(1 + me)]
    optimizer = sgd(hvd, [layer.weight for layer in layers])
    fails(hvd.MismatchError, optimizer.step, "no more parameters where rank 1 has allreduce.noname.0.1")

    # A backward() more on one rank.
    model = linear()
    optimizer = sgd(hvd, model.parameters())
    train(optimizer, lambda: model(rows(2)).sum())
    model(rows(2)).sum().backward()
    if me == 1:
        optimizer.step()
    fails(hvd.MismatchError, lambda: model(rows(2)).sum().backward(),
          f"rank 0 reduces gradients for time 2 of step {STEPS + 1}",
          f"rank 1 for time 1 of step {STEPS + 2}", "equally often")
    # The job goes on.
    optimizer = sgd(hvd, model.parameters())
    train(optimizer, lambda: model(rows(2)).sum())

    # Another optimizer's gradients on another rank.
    models = linear(), linear()
    optimizers = [sgd(hvd, each.parameters()) for each in models]
    fails(hvd.MismatchError, lambda: models[me](rows(2)).sum().backward(),
          "rank 0 reduces gradients of optimizer ", ", rank 1 of optimizer ", "for the same optimizers in the same order")
    del optimizers

    # A backward() that fails, when gradients have been sent.
    from dtrain.torch import _buckets

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("of the program")

    _buckets._FIRST_BUCKET = 1
    first, last = linear(4, 4), linear()
    optimizer = sgd(hvd, [*first.parameters(), *last.parameters()])
    train(optimizer, lambda: last(first(rows(2))).sum())
    failing = me == 0
    if failing:
        fails(KeyError, lambda: last(Fails.apply(first(rows(2)))).sum().backward(), "of the program")
        fails(hvd.StateError, lambda: last(first(rows(2))).sum().backward(), "synchronize() after it")
        optimizer.synchronize()
    else:
        last(first(rows(2))).sum().backward()
    optimizer.step()
    train(optimizer, lambda: last(first(rows(2))).sum())
    everyones = hvd.allgather(last.weight.detach().reshape(1, -1))
    assert torch.equal(everyones[0], everyones[1])


def joined_between_calls():
    """Two calls of backward() for each step; who has joined adds zeros to averages."""
    import torch

    import dtrain.torch as hvd

    me = hvd.rank()
    for op, factor in ((hvd.Average, 1 / 2), (hvd.Sum, 1)):
        p = torch.nn.Parameter(torch.ones(2))
        optimizer = sgd(hvd, [p], {"op": op})
        for i in range(2 + 2 * me):
            optimizer.zero_grad(set_to_none=True)
            (p * (me + 1)).sum().backward()
            (p * 10 * (me + 1)).sum().backward()
            ranks = 3 if i < 2 else 2
            assert torch.allclose(p.grad, torch.full((2,), 11.0 * ranks * factor)), (op, i, p.grad)
            optimizer.step()
        hvd.join()
        # The next epoch: all know the same of each other.
        optimizer.zero_grad()
        for factor in (1, 10):
            (p * factor * (me + 1)).sum().backward()
        assert hvd.allgather(p.grad).tolist() == [33.0 / (2 if op is hvd.Average else 1)] * 4


def sums_that_one_rank_adds_to():
    import torch

    import dtrain.torch as hvd

    me = hvd.rank()
    p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = sgd(hvd, [p, q], {"op": hvd.Sum})
    for _ in range(3):
        optimizer.zero_grad()
        ((p.sum() if me == 0 else 0) + q.sum()).backward()
        ((p * 10).sum() + q.sum()).backward()
        assert p.grad.tolist() == [21.0] * 2 and q.grad.tolist() == [4.0] * 2, (p.grad, q.grad)
        optimizer.step()


def dropped():
    """What nobody has any more is freed, and reduces nothing."""
    import gc
    import weakref

    import torch

    import dtrain.torch as hvd

    for op in (hvd.Average, hvd.Sum):
        seen = []
        for _ in range(3):
            model = torch.nn.Linear(300, 300)
            optimizer = sgd(hvd, model.parameters(), {"op": op})
            train(optimizer, lambda: model(torch.ones(1, 300)).sum(), steps=1)
            seen.append(weakref.ref(model.weight))
        del model, optimizer
        gc.collect()
        assert not any(ref() is not None for ref in seen), "models are kept"
    # Of two optimizers that share a parameter the one that is left reduces it.
    shared, mine = linear(), linear()
    left = sgd(hvd, [*shared.parameters(), *mine.parameters()])
    other = sgd(hvd, shared.parameters())
    left.step(), other.step()
    gc.disable()
    third = sgd(hvd, shared.parameters())
    del other
    for p in shared.parameters():
        p.grad = torch.full_like(p, hvd.rank() + 1.0)
    left.step()
    assert torch.allclose(shared.bias.grad, torch.full((2,), 1.5)), shared.bias.grad
    del third
    gc.enable()
    for _ in range(2):
        left.zero_grad()
        (shared(rows(2)).sum() + mine(rows(2)).sum()).mul(1.0 + hvd.rank()).backward()
        assert torch.allclose(shared.bias.grad, torch.full((2,), 3.0)), shared.bias.grad
        left.step()
    # Without one, backward() waits for nobody.
    del left
    gc.collect()
    if hvd.rank() == 0:
        shared(rows(2)).sum().backward()


def cycles_and_options():
    import torch

    import dtrain.torch as hvd

    a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    first, second = sgd(hvd, [a]), sgd(hvd, [a, b])
    first.add_param_group({"params": [b]})
    (a + b).sum().backward()
    first.step(), second.step()

    class Scaled(torch.optim.SGD):
        """As the GradScaler's."""

        def step(self, closure=None, *, grad_scaler=None):
            assert grad_scaler == "one"
            return super().step(closure)

    optimizer = hvd.DistributedOptimizer(Scaled([a], lr=0.1))
    a.sum().backward()
    optimizer.step(grad_scaler="one")
    # Pruned.
    model = linear()
    optimizer = sgd(hvd, model.parameters())
    train(optimizer, lambda: model(rows(2)).sum())
    model.weight.data, model.bias.data = model.weight.data[:1].clone(), model.bias.data[:1].clone()
    model.weight.grad = model.bias.grad = None
    train(optimizer, lambda: model(rows(2)).mul(hvd.rank()).sum())
    assert model.weight.grad.shape == (1, 4) and model.bias.grad.item() == 1.0


def mistakes_joins_and_ends():
    mistakes()
    joined_between_calls()
    sums_that_one_rank_adds_to()
    dropped()
    cycles_and_options()


def test_mistakes_are_named_and_what_is_dropped_is_freed(on_ranks):
    on_ranks(2, mistakes_joins_and_ends)
