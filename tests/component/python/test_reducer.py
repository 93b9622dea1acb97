# SPDX-License-Identifier: Apache-2.0
"""Gradients are right whatever a program does around backward(): see as_one_process."""
from as_one_process import STEPS, OneProcess, check_all, linear, rows, sgd, train

NEEDS = ("torch",)


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


def by_hand_in_place(hvd, mine):
    """Written into gradients that are zeroed in place, in a step that has had a backward()."""
    import torch

    ends = []
    for op in ("Average", "Sum"):
        model = linear()
        options = {"op": getattr(hvd, op)} if hasattr(hvd, op) else {}
        optimizer = sgd(hvd, model.parameters(), options, lr=0.001)
        for _ in range(STEPS):
            model(mine).square().mean().backward()
            optimizer.zero_grad(set_to_none=False)
            loss = model(mine).abs().mean() if op == "Average" else model(mine).abs().sum()
            for p, grad in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
                p.grad.copy_(grad)
            optimizer.step()
        ends += model.parameters()
    return ends


def adjusted_by_hooks(hvd, mine):
    model = linear()
    model.weight.register_hook(lambda grad: grad * 3)
    optimizer = sgd(hvd, model.parameters())
    model.bias.register_hook(lambda grad: grad * 2)
    train(optimizer, lambda: model(mine).square().mean())
    return model.parameters()


def kept_views(hvd, mine):
    """Gradients of two losses, combined by hand, as PCGrad does; and one that a graph has kept."""
    import torch

    model = linear()
    optimizer = sgd(hvd, model.parameters(), lr=0.01)
    rate = torch.ones((), requires_grad=True)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        model(mine).square().mean().backward()
        kept = [p.grad.view(-1).detach() for p in model.parameters()]
        faster = model.weight - rate * model.weight.grad
        optimizer.zero_grad(set_to_none=True)
        (mine @ faster.t()).abs().mean().backward()
        for p, old in zip(model.parameters(), kept):
            p.grad = old.view_as(p) + (0 if p.grad is None else p.grad)
        optimizer.step()
    return model.parameters()


def gradients_in_one_tensor(hvd, mine):
    """The program has placed them, and clips them there."""
    import torch

    model = linear()
    optimizer = sgd(hvd, model.parameters())
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    parts = flat.split([p.numel() for p in model.parameters()])
    for p, part in zip(model.parameters(), parts):
        p.grad = part.view_as(p)
    for _ in range(STEPS):
        flat.zero_()
        model(mine).square().mean().backward()
        flat.mul_(0.1 / flat.norm())
        optimizer.step()
    return model.parameters()


def gradients_within_others(hvd, mine):
    """Autograd gives parameters views of what it still works with, or the same memory twice."""
    import time

    import torch

    from dtrain import _handles

    class Doubled(torch.autograd.Function):
        """Uses what it gets when collectives that have started before are over."""

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            end = time.monotonic() + 60
            while not all(flight.done() for flight in list(_handles._in_flight.values())):
                assert time.monotonic() < end
            return grad * 2

    shape = 50, 40
    wide, tall, one, other = (torch.nn.Parameter(torch.full(shape, 0.5)) for _ in range(4))
    options = {"op": hvd.Sum} if hasattr(hvd, "Sum") else {}
    optimizer = sgd(hvd, [wide, tall, one, other], options)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        scale = torch.arange(2000.0).view(1, *shape) * mine.square().sum()
        loss = (Doubled.apply(tall).unsqueeze(0) + wide.unsqueeze(0)).mul(scale).sum()
        (loss + (one.view(-1) + other.view(-1)).mul(scale.view(-1)).sum()).mul(1e-5).backward()
        optimizer.step()
    return [wide, tall, one, other]


def of_odd_layouts(hvd, mine):
    """Expanded, conjugated and transposed ones, assigned by hand."""
    import torch

    even, wave = linear(3, 1), torch.nn.Parameter(torch.ones(60, 2, dtype=torch.complex64))
    tall = linear(5, 4)
    optimizer = sgd(hvd, [even.weight, wave, tall.weight])
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        even.weight.grad = mine.mean().reshape(1, 1).expand(1, 3)
        wave.grad = torch.complex(mine.mean(), mine.abs().mean()).expand(60, 2).clone().conj()
        tall.weight.grad = mine.mean(0).outer(torch.arange(5.0)).t().contiguous().t()
        optimizer.step()
        even.weight.grad = None
        (even(mine[:, :3]).mean() + tall(mine.repeat(1, 2)[:, :5]).mean()).backward()
        optimizer.step()
    return [even.weight, torch.view_as_real(wave), tall.weight]


def made_and_assigned(hvd, mine):
    """Some by backward(), others by hand after it."""
    import torch

    made, assigned = linear(), linear()
    optimizer = sgd(hvd, [*made.parameters(), *assigned.parameters()])
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        made(mine).square().mean().backward()
        grads = torch.autograd.grad(assigned(mine).abs().mean(), list(assigned.parameters()))
        for p, grad in zip(assigned.parameters(), grads):
            p.grad = grad
        optimizer.step()
    return [*made.parameters(), *assigned.parameters()]


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
    for reentrant, op in ((True, "Average"), (False, "Average"), (True, "Sum")):
        first, second = linear(4, 4), linear(4, 4)
        options = {"op": getattr(hvd, op)} if hasattr(hvd, op) else {}
        optimizer = sgd(hvd, [*first.parameters(), *second.parameters()], options)

        def run(function, x):
            return checkpoint(function, x, use_reentrant=reentrant)

        def loss():
            x = mine.clone().requires_grad_()
            x = run(first, x).tanh()
            x = run(lambda y: run(second, y).tanh() * 2, x)
            x = run(first, x).square()
            return x.mean() if op == "Average" else x.sum() * 1e-3

        loss().backward()
        loss().backward()
        optimizer.step()
        train(optimizer, loss)
        if hvd is not OneProcess:
            loss().backward()
            assert optimizer._dtrain_reducer._round == 1, "for each backward() of a checkpoint"
        if op == "Average":
            train(optimizer,
                  lambda: run(first, run(second, mine.clone().requires_grad_())).square().mean())
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

def sums_of_discarded_and_scaled(hvd, mine):
    """op=Sum: a batch whose gradients are thrown away, and reduced ones that are replaced."""
    options = {"op": hvd.Sum} if hasattr(hvd, "Sum") else {}
    ends = []
    for zero in ("optimizer", "model"):
        model, other = linear(), linear(4, 1)
        optimizer = sgd(hvd, [*model.parameters(), *other.parameters()],
                        {**options, "backward_passes_per_step": 2}, lr=0.001)
        for _ in range(STEPS):
            (model(mine).abs().sum() + other(mine).sum()).backward()
            (optimizer if zero == "optimizer" else model).zero_grad()
            model(mine).square().sum().backward()
            for p in model.parameters():
                p.grad = p.grad * 2
            if zero == "optimizer":
                other(mine).square().sum().backward()
            optimizer.step()
        ends += [*model.parameters(), *other.parameters()]
    return ends


def sums_of_what_changes_by_hand(hvd, mine):
    """op=Sum: gradients that the program zeroes or writes in place, and that are not made each time."""
    import torch

    options = {"op": hvd.Sum} if hasattr(hvd, "Sum") else {}
    ends = []
    for sparse in (False, True):
        table = torch.nn.Embedding(18, 4, sparse=sparse, _weight=rows(18).clone())
        model, other, once = linear(), linear(4, 1), linear(4, 1)
        # Of a rank's own rows, for one process all.
        seen = [i for i in range(18) if any(torch.equal(row, rows(18)[i]) for row in mine)]
        seen = torch.tensor(seen)
        optimizer = sgd(hvd, [*model.parameters(), *other.parameters(), *once.parameters(),
                              *table.parameters()], options, lr=0.001)
        first = torch.equal(mine[0], rows(1)[0])
        for step in range(STEPS):
            loss = model(mine).square().sum() + table(seen).square().sum()
            if step == 1 and first:
                loss = loss + once(rows(6)).square().sum()
            loss.backward()
            (model(mine).abs().sum() + table(seen).sum() + other(mine).sum()).backward()
            if step == 2:
                for p in other.parameters():
                    p.grad.zero_()
                model(mine).sum().backward()
            optimizer.step()
            grads = torch.autograd.grad(other(mine).square().sum(), list(other.parameters()))
            for p, grad in zip(other.parameters(), grads):
                p.grad.copy_(grad)
            optimizer.step()
            if step % 2:
                optimizer.zero_grad()
        ends += [*model.parameters(), *other.parameters(), *once.parameters(), *table.parameters()]
    return ends


def losses_as_numbers(hvd, mine):
    import torch

    model, mine = linear().double(), mine.double()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, tolerance_change=0.05))

    def closure():
        optimizer.zero_grad()
        loss = (model(mine) - mine[:, :2].cos()).pow(4).mean()
        loss.backward()
        return loss.item()

    for _ in range(3):
        optimizer.step(closure)
    return model.parameters()


PROGRAMS = [
    scaled_and_clipped, scaled_losses, kept_gradients, kept_views, gradients_in_one_tensor, by_hand, by_hand_in_place,
    gradients_within_others, of_odd_layouts, made_and_assigned, adjusted_by_hooks, several_losses, accumulated, parts_of_a_window, sums,
    sums_of_discarded_and_scaled, sums_of_what_changes_by_hand, checkpoints, penalty, line_search, losses_as_numbers,
]


def test_programs_train_as_one_process(on_ranks):
    on_ranks(2, check_all, PROGRAMS)


def test_programs_train_as_one_process_in_small_buckets(on_ranks):
    on_ranks(3, check_all, PROGRAMS, 1)
