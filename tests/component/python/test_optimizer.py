# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer and its state, as Horovod has them."""
NEEDS = ("torch",)


def expect(kind, text, call):
    """call() raises `kind`, and says `text`."""
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing was raised, where {kind.__name__} was expected: {text}")


def weights(count):
    import torch

    return [torch.nn.Parameter(torch.ones(3)) for _ in range(count)]


def sgd(parameters, **options):
    import torch

    import dtrain.torch as hvd

    return hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), **options)


def order_of_the_first_step():
    """Rank 0's decides, and a gradient starts when those before it are there."""
    import re

    import torch

    import dtrain.torch as hvd
    from dtrain._library import library

    functions, started = library()._functions, []
    real = library().function("dtrain_allreduce_async")

    def noted(*arguments):
        """The name is in the options, which are the last but one."""
        options = getattr(arguments[-2], "_obj", arguments[-2])
        name = re.fullmatch(r"(optimizer \d+: )?(w\d)", (options.name or b"").decode())
        if name:
            started.append(name[2])
        return real(*arguments)

    functions["dtrain_allreduce_async"] = noted

    class Seen(torch.autograd.Function):
        """How many had started when the gradient of this one was made."""

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(len(started))
            return gradient

    def step(order):
        started.clear(), seen.clear()
        loss = 0.0
        for i in reversed(order):
            loss = Seen.apply(ws[i].sum() + loss * 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    ws, seen = weights(4), []
    optimizer = sgd(ws, named_parameters=[(f"w{i}", w) for i, w in enumerate(ws)],
                    groups=[[w] for w in ws])
    first = [2, 0, 3, 1]
    step(first if hvd.rank() == 0 else first[::-1])
    assert started == ["w2", "w0", "w3", "w1"] and not any(seen), (started, seen)
    step(first)
    assert started == ["w2", "w0", "w3", "w1"] and seen == [0, 1, 2, 3], (started, seen)
    # One that comes late holds up the others.
    step([0, 3, 1, 2])
    assert started == ["w2", "w0", "w3", "w1"] and not any(seen), (started, seen)
    assert all(torch.equal(w, torch.full((3,), -2.0)) for w in ws), ws
    # After a join() the ranks agree again: one that has just begun an epoch knows no order.
    hvd.join()
    step([1, 0, 3, 2])
    assert started == ["w1", "w0", "w3", "w2"], started
    functions["dtrain_allreduce_async"] = real


def groups():
    import warnings

    import torch

    import dtrain.torch as hvd

    n = hvd.size()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sgd(weights(1), num_groups=1)
    assert [w.category for w in caught] == [DeprecationWarning], caught
    total = n * (n + 1) / 2
    for choose in (lambda ws: 2, lambda ws: 9, lambda ws: [[ws[0], ws[3]], [ws[1]]]):
        ws = weights(5)
        optimizer = sgd(ws, groups=choose(ws))
        for _ in range(2):
            optimizer.zero_grad()
            # Of a group some gradients are missing; rank 0 makes only two.
            sum(w.sum() * (hvd.rank() + 1) for w in ws[: 2 + hvd.rank()]).backward()
            optimizer.step()
            for i, w in enumerate(ws):
                without = sum(r + 1 for r in range(n) if i >= 2 + r)
                if without == total:  # as in one process
                    assert w.grad is None, (i, w.grad)
                    continue
                assert torch.allclose(w.grad, torch.full((3,), (total - without) / n)), (i, w.grad)
    for wrong in (0, -1, "two", [[1]], [[ws[0]], [ws[0]]]):
        expect(ValueError, "groups", lambda: sgd(ws, groups=wrong))


def names():
    import torch

    import dtrain.torch as hvd

    a, b = weights(2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=1))
    assert list(optimizer._parameter_names.values()) == ["allreduce.noname.0.0",
                                                         "allreduce.noname.1.0"]
    for text, options in [("pairs", {"named_parameters": [a, b]}),
                          ("not unique: x", {"named_parameters": [("x", a), ("x", b)]}),
                          ("1 of the optimizer's", {"named_parameters": [("a", a)]}),
                          ("Adasum", {"op": hvd.Adasum}),
                          ("at least 1", {"backward_passes_per_step": 0}),
                          ("needs op=Average", {"op": hvd.Sum, "gradient_predivide_factor": 2.0})]:
        expect(ValueError, text, lambda: sgd([a, b], **options))


def any_moment():
    """Gradients are reduced when backward() is over, so that nothing is too early or too late."""
    import warnings

    import torch

    import dtrain.torch as hvd

    mean = (hvd.size() + 1) / 2
    w, = weights(1)

    def backward():
        (w * (hvd.rank() + 1)).sum().backward()

    def holds(value):
        assert torch.equal(w.grad, torch.full((3,), value)), (w.grad, value)

    optimizer = sgd([w], backward_passes_per_step=2)
    backward()
    holds(hvd.rank() + 1.0)
    optimizer.zero_grad()
    backward()
    holds(mean)
    # A window of one, which step() ends.
    backward()
    holds(mean + hvd.rank() + 1)
    optimizer.step()
    holds(2 * mean)
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    for i in range(3):
        backward()
        holds(mean * (i + 1))
    with optimizer.no_sync():
        backward()
        holds(3 * mean + hvd.rank() + 1)
    optimizer.synchronize()
    holds(4 * mean)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        with optimizer.skip_synchronize():
            optimizer.step()
    assert torch.equal(w, torch.full((3,), 1 - 2 * mean - 8 * mean)), w
    optimizer.load_state_dict(optimizer.state_dict())
    holds(4 * mean)
    # A sum has once what all have in common already.
    w, = weights(1)
    optimizer = sgd([w], op=hvd.Sum)
    total = hvd.size() * mean
    for i in range(3):
        backward()
        holds(total * (i + 1))
    optimizer.step()
    holds(total * 3)


def compressed_once():
    """A compression of the program's own."""
    import torch

    import dtrain.torch as hvd

    class Halved:
        calls = 0

        @classmethod
        def compress(cls, tensor):
            cls.calls += 1
            return tensor / 2, "context"

        @staticmethod
        def decompress(tensor, context):
            assert context == "context"
            return tensor * 2

    ws = weights(3)
    optimizer = sgd(ws, compression=Halved)
    for step in range(3):
        optimizer.zero_grad()
        sum(w.sum() * (hvd.rank() + 1) for w in ws).backward()
        optimizer.step()
        assert Halved.calls == 3 * (step + 1), Halved.calls
        mean = (hvd.size() + 1) / 2
        assert all(torch.allclose(w.grad, torch.full((3,), mean)) for w in ws)


def states():
    import contextlib
    import inspect

    import torch

    import dtrain.torch as hvd

    me = hvd.rank()
    options = {"momentum": 0.9, "weight_decay": 0.1, "amsgrad": True, "centered": True}
    kinds = [kind for kind in vars(torch.optim).values() if inspect.isclass(kind)
             and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
             and kind not in (torch.optim.LBFGS, torch.optim.SparseAdam)]
    assert len(kinds) > 8
    for kind in kinds:
        known = inspect.signature(kind.__init__).parameters
        own = {k: v for k, v in options.items() if k in known}
        for distributed in (False, True):
            model = torch.nn.Linear(2, 2)
            frozen = torch.nn.Parameter(torch.ones(1, dtype=torch.int32), requires_grad=False)
            optimizer = kind([*model.parameters(), frozen], lr=0.1 + me, **own)
            if distributed:
                optimizer = hvd.DistributedOptimizer(optimizer)
            before = model.weight.detach().clone()
            if me == 1:
                torch.manual_seed(1)
                with optimizer.no_sync() if distributed else contextlib.nullcontext():
                    model(torch.ones(1, 2)).sum().backward()
                kind.step(optimizer)
                before = model.weight.detach().clone()
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
            assert torch.equal(model.weight, before), f"{kind.__name__} changed the parameters"
            assert frozen.grad is None and (me == 1 or model.weight.grad is None)
            assert optimizer.param_groups[0]["lr"] == 1.1
            text = str([sorted(s.items()) for s in optimizer.state_dict()["state"].values()])
            assert len(set(hvd.allgather_object(text))) == 1, kind
    # That of a first step with a sparse gradient, and of one that looks back at several steps.
    table, model = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 2)
    for optimizer in (torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9),
                      torch.optim.SparseAdam(list(table.parameters())),
                      torch.optim.LBFGS(model.parameters())):
        if me == 0:
            loss = table(torch.tensor([1])).sum() + model(torch.ones(1, 2)).square().sum()
            loss.backward()
            optimizer.step(lambda: loss.detach())
        hvd.broadcast_optimizer_state(optimizer, 0, model=table)
        state = str(sorted(optimizer.state_dict()["state"][0].items()))
        assert len(set(hvd.allgather_object(state))) == 1, state
    # Parameters alone, pairs, or a dictionary.
    for give in (lambda: list(model.parameters()), lambda: list(model.named_parameters()),
                 model.named_parameters, model.state_dict):
        with torch.no_grad():
            model.weight += me
        hvd.broadcast_parameters(give(), 1)
        assert torch.equal(hvd.broadcast(model.weight.detach(), 1), model.weight)
    assert hvd.broadcast_object(None if me else {}, 0, name="nothing") == {}


def on_two_ranks():
    order_of_the_first_step()
    groups()
    names()
    any_moment()
    compressed_once()
    states()


def test_order_groups_names_warnings_compression_and_states(on_ranks):
    on_ranks(2, on_two_ranks)


def on_three_ranks():
    groups()
    order_of_the_first_step()


def test_order_and_groups_of_three_ranks(on_ranks):
    on_ranks(3, on_three_ranks)
