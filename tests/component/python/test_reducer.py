# SPDX-License-Identifier: Apache-2.0
"""Gradients are right whatever a program does around backward(): see as_one_process."""
from as_one_process import STEPS, OneProcess, check, linear, rows

NEEDS = ("torch",)


def sgd(hvd, parameters, options={}, **own):
    import torch

    return hvd.DistributedOptimizer(torch.optim.SGD(parameters, **{"lr": 0.1, **own}), **options)


def train(optimizer, loss, steps=STEPS, **zero):
    for _ in range(steps):
        optimizer.zero_grad(**zero)
        loss().backward()
        optimizer.step()


# ---- Between backward() and step() ----


def scaled_and_clipped(hvd, mine):
    import torch

    model = linear()
    optimizer = sgd(hvd, model.parameters(), momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (1e3 * model(mine).square().mean()).backward()
        for p in model.parameters():
            p.grad = p.grad * 2
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.3)
        optimizer.step()
    return model.parameters()


def scaled_losses(hvd, mine):
    """As GradScaler does it: steps whose gradients are not finite are left out."""
    import torch

    model, taken = linear(), 0
    optimizer = sgd(hvd, model.parameters())
    spoilt = torch.equal(mine[0], rows(1)[0])
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(mine).square().mean() * 1024
        if step == 1 and spoilt:
            loss = loss * float("inf")
        loss.backward()
        for p in model.parameters():
            p.grad.div_(1024)
        if all(torch.isfinite(p.grad).all() for p in model.parameters()):
            optimizer.step()
            taken += 1
    assert taken == STEPS - 1, taken
    return model.parameters()


def kept_gradients(hvd, mine):
    """Momentum by hand: the gradients of the last step stay as they were."""
    model = linear()
    optimizer = sgd(hvd, model.parameters())
    for in_place in (False, True):
        before = None
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=not in_place)
            model(mine).square().mean().backward()
            now = [p.grad.clone() if in_place else p.grad for p in model.parameters()]
            if before is not None:
                for p, old in zip(model.parameters(), before):
                    p.grad = p.grad + 0.5 * old
            optimizer.step()
            before = now
    return model.parameters()


def by_hand(hvd, mine):
    """Gradients that autograd.grad() has made, as those of torch.func are."""
    import torch

    model = linear()
    optimizer = sgd(hvd, model.parameters())
    for _ in range(STEPS):
        made = torch.autograd.grad(model(mine).square().mean(), list(model.parameters()))
        for p, grad in zip(model.parameters(), made):
            p.grad = grad
        optimizer.step()
        optimizer.zero_grad()
    return model.parameters()


def adjusted_by_hooks(hvd, mine):
    model = linear()
    model.weight.register_hook(lambda grad: grad * 3)
    optimizer = sgd(hvd, model.parameters())
    model.bias.register_hook(lambda grad: grad * 2)
    train(optimizer, lambda: model(mine).square().mean())
    return model.parameters()


# ---- Calls of backward() ----


def several_losses(hvd, mine):
    """One after the other, of some or all of the parameters; and gradients that nobody zeroes."""
    ends = []
    for zeroed in (True, False):
        first, second = linear(), linear()
        optimizer = sgd(hvd, [*first.parameters(), *second.parameters()])
        for step in range(STEPS):
            if zeroed:
                optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss = first(mine).square().mean()
            loss.backward(retain_graph=True)
            second(mine).abs().mean().backward()
            (0.1 * loss).backward()
            optimizer.step()
        ends += [*first.parameters(), *second.parameters()]
    return ends


def accumulated(hvd, mine):
    """Three batches a step, of which backward_passes_per_step makes windows of two and one."""
    ends = []
    for options in ({}, {"backward_passes_per_step": 2}, {"backward_passes_per_step": 3}):
        model = linear()
        optimizer = sgd(hvd, model.parameters(), options)
        for _ in range(STEPS):
            optimizer.zero_grad()
            for i in range(3):
                model(mine * (i + 1)).square().mean().backward()
            optimizer.step()
        ends += model.parameters()
    return ends


def parts_of_a_window(hvd, mine):
    """Batches that use other parameters each, of which only the last is synchronized."""
    import contextlib

    ends = []
    for without_sync in (False, True):
        models = [linear() for _ in range(3)]
        parameters = [p for model in models for p in model.parameters()]
        passes = {"backward_passes_per_step": 1 if without_sync else 3}
        optimizer = sgd(hvd, parameters, passes, weight_decay=0.1)
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            for i in range(3):
                paused = without_sync and i < 2 and hvd is not OneProcess
                with optimizer.no_sync() if paused else contextlib.nullcontext():
                    models[(step + i) % 3](mine * (i + 1)).square().mean().backward()
            optimizer.step()
        ends += parameters
    return ends


def sums(hvd, mine):
    """op=Sum, of losses that are sums; with gradients that are zeroed, forgotten, or go on growing."""
    ends = []
    options = {"op": hvd.Sum} if hasattr(hvd, "Sum") else {}
    for zero in ({}, {"set_to_none": True}, None):
        model, other = linear(), linear(4, 1)
        optimizer = sgd(hvd, [*model.parameters(), *other.parameters()], options, lr=0.001)
        for step in range(STEPS):
            if zero is not None:
                optimizer.zero_grad(**zero)
            model(mine).square().sum().backward()
            (model(mine).abs().sum() + (other(mine).abs().sum() if step else 0)).backward()
            optimizer.step()
        ends += [*model.parameters(), *other.parameters()]
    return ends


def checkpoints(hvd, mine):
    """A layer that is used in two of them; checkpoints within checkpoints."""
    from torch.utils.checkpoint import checkpoint

    ends = []
    for reentrant in (True, False):
        first, second = linear(4, 4), linear(4, 4)
        optimizer = sgd(hvd, [*first.parameters(), *second.parameters()])

        def run(function, x):
            return checkpoint(function, x, use_reentrant=reentrant)

        def loss():
            x = mine.clone().requires_grad_()
            x = run(first, x).tanh()
            x = run(lambda y: run(second, y).tanh() * 2, x)
            return run(first, x).square().mean()

        train(optimizer, loss)
        if hvd is not OneProcess:
            loss().backward()
            assert optimizer._dtrain_reducer._round == 1, "for each backward() of a checkpoint"
        train(optimizer, lambda: run(first, run(second, mine.clone().requires_grad_())).square().mean())
        ends += [*first.parameters(), *second.parameters()]
    return ends


def penalty(hvd, mine):
    """Of large gradients: backward() through those of a backward() before."""
    model = linear()
    optimizer = sgd(hvd, model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        model(mine).pow(3).mean().backward(create_graph=True)
        sum(p.grad.square().sum() for p in model.parameters()).backward()
        optimizer.step()
    return model.parameters()


def line_search(hvd, mine):
    """An optimizer that compares losses, which differ between ranks."""
    import torch

    model, mine = linear().double(), mine.double()  # it makes much of rounding
    optimizer = hvd.DistributedOptimizer(
        torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe"))

    def closure():
        optimizer.zero_grad()
        loss = (model(mine) - mine[:, :2].cos()).pow(4).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return model.parameters()


# ---- Parameters ----


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


PROGRAMS = [
    scaled_and_clipped, scaled_losses, kept_gradients, by_hand, adjusted_by_hooks, several_losses,
    accumulated, parts_of_a_window, sums, checkpoints, penalty, line_search, gan, unfrozen_added_and_converted,
    frozen_when_wrapped, unused, tied_copied_and_of_odd_types, shared_by_two_optimizers, states_of_other_kinds,
]


def as_one_process():
    for program in PROGRAMS:
        check(program)


def in_small_buckets():
    """Of a gradient each, so that they start within backward()."""
    from dtrain.torch import _reducer

    _reducer._FIRST_BUCKET = _reducer._CPU_BUCKET = 1
    as_one_process()


def test_programs_train_as_one_process(on_ranks):
    on_ranks(2, as_one_process)


def test_programs_train_as_one_process_in_small_buckets(on_ranks):
    on_ranks(3, in_small_buckets)


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

    # A backward() that fails, when gradients have been sent.
    from dtrain.torch import _reducer

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("of the program")

    _reducer._FIRST_BUCKET = 1
    first, last = linear(4, 4), linear()
    optimizer = sgd(hvd, [*first.parameters(), *last.parameters()])
    train(optimizer, lambda: last(first(rows(2))).sum())
    failing = me == 0
    if failing:
        fails(KeyError, lambda: last(Fails.apply(first(rows(2)))).sum().backward(), "of the program")
        fails(hvd.StateError, lambda: last(first(rows(2))).sum().backward(), "step() for it")
    else:
        last(first(rows(2))).sum().backward()
    optimizer.step()
    train(optimizer, lambda: last(first(rows(2))).sum())
    everyones = hvd.allgather(last.weight.detach().reshape(1, -1))
    assert torch.equal(everyones[0], everyones[1])


def test_mistakes_are_named(on_ranks):
    on_ranks(2, mistakes)
