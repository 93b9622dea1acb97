# SPDX-License-Identifier: Apache-2.0
"""torch tensors and DistributedOptimizer. `import dtrain.torch as hvd` as Horovod's scripts do."""
NEEDS = ("torch", "numpy")


def all_types():
    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
             "float64"]
    for name in names:
        dtype = getattr(torch, name)
        for shape in [(), (0,), (5,), (2, 3)]:
            mine = torch.full(shape, me + 1).to(dtype)
            total = torch.full(shape, n * (n + 1) // 2).to(dtype)
            assert torch.equal(hvd.allreduce(mine, op=hvd.Sum), total), name
            target = mine.clone()
            assert hvd.allreduce_(target, op=hvd.Max) is target
            assert torch.equal(target, torch.full(shape, n).to(dtype)), name
            assert torch.equal(hvd.broadcast(mine, 1), torch.full(shape, 2).to(dtype)), name
            got = hvd.allgather(mine)
            right = [torch.full(shape, r + 1).to(dtype).reshape(shape or (1,)) for r in range(n)]
            assert got.dtype == dtype and torch.equal(got, torch.cat(right)), name
    averages = hvd.allreduce(torch.tensor([me, me + 1]))
    assert averages.tolist() == [(n - 1) // 2, (n + 1) // 2]
    # In memory order other than that of the indices, and with gaps.
    image = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    last = image.contiguous(memory_format=torch.channels_last)
    assert torch.equal(hvd.allreduce(last, op=hvd.Sum), image * n)
    hvd.allreduce_(last[:, 1], op=hvd.Sum)
    assert torch.equal(last[:, 1], image[:, 1] * n) and torch.equal(last[:, 0], image[:, 0])
    pair = hvd.alltoall(torch.arange(n * 2) + 100 * me, splits=torch.full((n,), 2))
    assert pair[1].tolist() == [2] * n and pair[0][-1] == 100 * (n - 1) + 2 * me + 1
    if hvd.Compression.fp16.compress(image)[0].dtype is not torch.float16:
        raise AssertionError("not compressed")
    assert torch.allclose(hvd.allreduce(image, compression=hvd.Compression.fp16), image, 1e-2, 1e-3)


def derivatives():
    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()

    def gradient(function, rows=4):
        x = torch.ones(rows, 2, requires_grad=True)
        (function(x) * (me + 1)).sum().backward()
        return x.grad

    total = n * (n + 1) / 2
    assert torch.equal(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)), torch.full((4, 2), total))
    assert torch.equal(gradient(hvd.allreduce), torch.full((4, 2), total / n))
    assert torch.equal(gradient(hvd.allgather, 2 + me), torch.full((2 + me, 2), total / n))
    got = gradient(lambda x: hvd.broadcast(x, 1))
    assert torch.equal(got, torch.full((4, 2), total / n if me == 1 else 0.0))
    got = gradient(lambda x: hvd.alltoall(x))
    assert got[:, 0].tolist() == [r + 1.0 for r in range(n) for _ in range(4 // n)]
    got = gradient(hvd.reducescatter)
    assert got[:, 0].tolist() == [r + 1.0 for r in range(n) for _ in range(4 // n)]


def make_model(seed):
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def train(n, me, optimizer_of, steps=5, clip=False, passes=1):
    """The parameters after some steps on rank `me`'s share of each batch."""
    import torch

    model = make_model(3)
    optimizer = optimizer_of(model)
    images = torch.randn(steps * passes, 12, 6, generator=torch.Generator().manual_seed(5))
    for step in range(steps):
        optimizer.zero_grad()
        for batch in images[step * passes : (step + 1) * passes]:
            share = batch[me::n]
            (model(share).square().mean() / passes).backward()
        if clip:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def training_alike(options, clip, passes):
    import torch

    import dtrain.torch as hvd

    class Alone:
        """What the training of one process uses instead."""

        def __init__(self, inner):
            self.inner = inner
            self.zero_grad, self.step = inner.zero_grad, inner.step

        def synchronize(self):
            pass

        def skip_synchronize(self):
            import contextlib

            return contextlib.nullcontext()

    def inner(model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def distributed(model):
        return hvd.DistributedOptimizer(inner(model), named_parameters=model.named_parameters(),
                                        **{"backward_passes_per_step": passes, **options})

    alone = train(1, 0, lambda model: Alone(inner(model)), clip=clip, passes=passes)
    ours = train(hvd.size(), hvd.rank(), distributed, clip=clip, passes=passes)
    tolerance = 1e-2 if "compression" in options else 1e-5
    assert torch.allclose(alone, ours, tolerance, tolerance), (alone - ours).abs().max()
    everyones = hvd.allgather(ours.unsqueeze(0))
    assert all(torch.equal(row, ours) for row in everyones), "the replicas differ"


def trainings():
    import dtrain

    training_alike({}, False, 1)
    training_alike({}, True, 1)
    training_alike({}, False, 3)
    training_alike({"gradient_predivide_factor": 2.0}, False, 1)
    training_alike({"compression": dtrain.Compression.fp16}, False, 1)


def unused_parameters():
    import torch

    import dtrain.torch as hvd

    me = hvd.rank()
    used = [torch.nn.Parameter(torch.ones(3)) for _ in range(4)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(used, lr=1.0))
    for _ in range(3):
        # Rank 0 uses the first and third, rank 1 the second and third, nobody the fourth.
        loss = (used[me].sum() + used[2].sum()) * 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [p[0].item() for p in used] == [-2.0, -2.0, -5.0, 1.0]


def closures():
    import torch

    import dtrain.torch as hvd

    for kind in (torch.optim.LBFGS, torch.optim.SGD):
        x = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(kind([x], lr=0.5))
        target = torch.tensor([1.0, 2.0]) * (hvd.rank() + 1)

        def loss():
            optimizer.zero_grad()
            value = (x - target).square().sum()
            value.backward()
            return value

        for _ in range(20):
            optimizer.step(loss)
        assert torch.allclose(x, torch.tensor([1.5, 3.0]), 1e-3), x


def sparse_gradients():
    import torch

    import dtrain.torch as hvd

    table = torch.nn.Embedding(4, 2, sparse=True)
    hvd.broadcast_parameters(table.state_dict())
    before = table.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0),
                                         sparse_as_dense=True)
    table(torch.tensor([hvd.rank()])).sum().backward()
    optimizer.step()
    assert torch.allclose((before - table.weight)[:, 0], torch.tensor([0.5, 0.5, 0.0, 0.0]))


def misuse():
    import torch

    import dtrain.torch as hvd

    model = make_model(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    named = list(model.named_parameters())
    for text, options in [("op=Min", {"op": hvd.Min}), ("Adasum", {"op": hvd.Adasum}),
                          ("not unique", {"named_parameters": named + named[:1]}),
                          ("not among them", {"named_parameters": named[1:]})]:
        try:
            hvd.DistributedOptimizer(sgd, **options)
            raise AssertionError(f"accepted: {options}")
        except hvd.Error as error:
            assert text in str(error), error
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=named)
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    optimizer.zero_grad()
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    extra = torch.nn.Parameter(torch.full((2,), float(hvd.rank())))
    optimizer.add_param_group(param_group={"params": [extra]})
    (extra.sum() * (hvd.rank() + 1)).backward()
    optimizer.step()
    assert torch.allclose(extra.grad, torch.full((2,), 1.5)), extra.grad


def states():
    import torch

    import dtrain.torch as hvd

    me = hvd.rank()
    model = make_model(me)
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    right = make_model(1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), right.parameters()))
    hvd.broadcast_parameters(make_model(me).named_parameters(), root_rank=0)
    for kind in (torch.optim.Adam, torch.optim.SGD):
        optimizer = kind(model.parameters(), lr=0.1 + me)
        if me == 1:
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.param_groups[0]["lr"] == 1.1
        if kind is torch.optim.Adam:
            states = optimizer.state_dict()["state"]
            assert len(states) == 4 and all(float(s["step"]) == 1 for s in states.values())
            mine = torch.cat([s["exp_avg"].flatten() for s in states.values()])
            assert torch.equal(hvd.broadcast(mine, 1), mine) and mine.abs().sum() > 0


def shares():
    import torch

    import dtrain.torch as hvd

    sampler = hvd.DistributedSampler(list(range(10)), seed=4)
    assert isinstance(sampler, torch.utils.data.Sampler)
    sampler.set_epoch(1)
    loader = torch.utils.data.DataLoader(list(range(10)), batch_size=2, sampler=sampler)
    return [int(x) for batch in loader for x in batch]


def unequal_steps():
    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    weights = [torch.nn.Parameter(torch.zeros(count)) for count in (3, 300_000)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0))
    for step in range(1 + me):
        optimizer.zero_grad()
        sum(w.sum() for w in weights).backward()
        optimizer.step()
    assert hvd.join() == n - 1
    # What the rank that came last has: in step s, n - s ranks gave a 1 to the average over n.
    right = -sum((n - step) / n for step in range(n))
    for w in weights:
        last = hvd.broadcast(w.detach(), n - 1)
        assert torch.allclose(last, torch.full_like(last, right)), last


def allocated():
    import torch

    import dtrain.torch as hvd

    n = hvd.size()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        whole = hvd.alloc((2, 1000), dtype)
        assert whole.dtype == dtype and whole.shape == (2, 1000) and not whole.any()
        row = whole[1]
        row += 1
        place = whole.data_ptr()
        hvd.allreduce_(whole, op=hvd.Sum)
        del whole
        other = hvd.alloc(7)
        assert other.data_ptr() != place and (row == n).all()
        del row, other
        assert hvd.alloc((2, 1000), dtype).data_ptr() == place
    assert hvd.alloc((0, 3)).shape == (0, 3)
    # On CPUs there is nothing to register, and programs need not know.
    whole = hvd.alloc(8, registered=True)
    assert hvd.register(whole) is False
    assert (hvd.allreduce(whole + 1, op=hvd.Sum) == n).all()
    hvd.deregister(whole)


# Several in one job, because each import of torch takes seconds.


def on_three_ranks():
    all_types()
    trainings()
    unequal_steps()


def test_tensors_of_every_type_and_training_as_of_one_process(on_ranks):
    """Also with clipped, accumulated, predivided and compressed gradients, and unequal steps."""
    on_ranks(3, on_three_ranks)


def on_two_ranks():
    derivatives()
    allocated()
    unused_parameters()
    closures()
    sparse_gradients()
    misuse()
    states()
    return shares()


def test_derivatives_memory_optimizer_state_misuse_and_sampler(on_ranks):
    first, second = on_ranks(2, on_two_ranks)
    assert sorted(first + second) == list(range(10)) and first != sorted(first)


OVERLAP = """
import torch, dtrain.torch as hvd
from dtrain import _handles
hvd.init()
layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=1.0), groups=4)
seen = []
layers[0].weight.register_hook(lambda gradient: seen.append(len(_handles._in_flight)))
for step in range(2):  # the order is that of the first step, at whose end they all start
    optimizer.zero_grad()
    layers(torch.ones(1, 8)).sum().backward()
    optimizer.step()
assert seen == [0, 3], seen
assert not _handles._in_flight
print("overlapped")
"""


BOTH = """
import {first}
import {second}
import torch, dtrain.torch as hvd
import torch.distributed as dist
hvd.init()
dist.init_process_group("gloo", init_method="env://")
x = torch.ones(1000) * hvd.rank()
y = x.clone()
assert torch.equal(hvd.allreduce(x, op=hvd.Sum), torch.ones(1000))
dist.all_reduce(y)
assert torch.equal(y, torch.ones(1000))
dist.destroy_process_group()
hvd.shutdown()
print("both")
"""


HOROVOD = """
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(42)
model = torch.nn.Linear(4, 2)
lr_scaler = hvd.size()
if hvd.nccl_built() and False:
    lr_scaler = hvd.local_size()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * lr_scaler, momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
compression = hvd.Compression.none
optimizer = hvd.DistributedOptimizer(optimizer,
                                     named_parameters=model.named_parameters(),
                                     compression=compression,
                                     op=hvd.Adasum if False else hvd.Average,
                                     gradient_predivide_factor=1.0)
dataset = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
sampler = torch.utils.data.distributed.DistributedSampler(
    dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler)

def metric_average(val, name):
    tensor = torch.tensor(val)
    avg_tensor = hvd.allreduce(tensor, name=name)
    return avg_tensor.item()

for epoch in range(2):
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
print("loss", metric_average(loss.item(), "avg_loss"))
"""


def script_with_both(first, second):
    load = "dtrain; dtrain.library_version()"
    return BOTH.format(first=first.replace("dtrain", load), second=second.replace("dtrain", load))


def test_torchs_own_gloo_in_the_same_process_after_libdtrain(launch, tmp_path):
    """Both have connections, threads and a watch on the other ranks; neither may disturb the other's."""
    script = tmp_path / "both.py"
    script.write_text(script_with_both("dtrain", "torch"))
    code, out, err = launch(2, script)
    assert code == 0 and out.count("both") == 2, out + err


def test_torchs_own_gloo_before_it_and_scripts_as_users_write_them(launch, tmp_path):
    """A Horovod script needs its import line changed only, and all-reduces start while backward
    goes on."""
    horovod = HOROVOD.replace("import horovod.torch as hvd", "import dtrain.torch as hvd")
    script = tmp_path / "scripts.py"
    texts = [script_with_both("torch", "dtrain"), OVERLAP, horovod]
    script.write_text(f"for text in {texts!r}:\n    exec(text, {{}})\n")
    code, out, err = launch(2, script)
    assert code == 0, out + err
    for word in ("both", "overlapped", "loss"):
        assert out.count(word) == 2, out + err
