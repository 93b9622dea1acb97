# SPDX-License-Identifier: Apache-2.0
"""Techniques that training programs use give the weights of one process: see as_one_process."""
from as_one_process import STEPS, check_all, linear, rows, sgd, train

NEEDS = ("torch",)


def functional(hvd, mine):
    """torch.func: gradients of a function of the parameters, for the batch, and for each row, clipped alone."""
    import torch

    try:
        from torch.func import grad, vmap
    except ImportError:  # before PyTorch 2
        from functorch import grad, vmap

    def loss(parameters, x):
        weight, bias = parameters
        return (x @ weight.t() + bias).square().mean()

    def clipped(of_rows):
        norms = sum(each.flatten(1).square().sum(1) for each in of_rows).sqrt()
        factors = (0.5 / norms).clamp(max=1.0)
        return [(each * factors.view(-1, *[1] * (each.dim() - 1))).mean(0) for each in of_rows]

    model = linear()
    optimizer = sgd(hvd, model.parameters(), momentum=0.9)
    for step in range(2 * STEPS):
        parameters = tuple(p.detach() for p in model.parameters())
        if step % 2:
            made = clipped(vmap(grad(loss), in_dims=(None, 0))(parameters, mine))
        else:
            made = grad(loss)(parameters, mine)
        for p, each in zip(model.parameters(), made):
            p.grad = each
        optimizer.step()
    return model.parameters()


def autocast(hvd, mine):
    import torch

    model = torch.nn.Sequential(linear(4, 8), torch.nn.Tanh(), linear(8, 2))
    optimizer = sgd(hvd, model.parameters())

    def loss():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = model(mine)
            assert made.dtype is torch.bfloat16, made.dtype
            return made.float().square().mean()

    train(optimizer, loss)
    assert all(p.grad.dtype is torch.float32 for p in model.parameters())
    return model.parameters()


autocast.tolerance = 1e-2, 1e-2  # of bfloat16; gradients that are not reduced differ by ten times as much


def sharpness_aware(hvd, mine):
    """Two gradients a step: the first one says where to compute the second one (SAM)."""
    import torch

    model = linear()
    optimizer = sgd(hvd, model.parameters(), momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(mine).square().mean().backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moves = [p.grad * (0.05 / norm) for p in model.parameters()]
            for p, move in zip(model.parameters(), moves):
                p.add_(move)
        optimizer.zero_grad()
        model(mine).square().mean().backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves):
                p.sub_(move)
        optimizer.step()
    return model.parameters()


def windows_that_an_epoch_cuts(hvd, mine):
    """Five batches an epoch, and a step after every second one: the last one's gradients stay for the next epoch."""
    model = linear()
    optimizer = sgd(hvd, model.parameters(), {"backward_passes_per_step": 2}, lr=0.01)
    for _ in range(3):
        for i in range(5):
            (model(mine * (i + 1)).square().mean() / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
    return model.parameters()


def batch_norms(hvd, mine):
    """Converted when the optimizer is there; used by two names, twice in one backward(), on permuted inputs, with an
    average of the weights whose statistics are made anew, and in evaluation by one rank alone."""
    import torch
    from torch import nn

    torch.manual_seed(3)
    norm = nn.BatchNorm1d(6, momentum=None)
    flat = nn.Sequential(nn.Linear(4, 6), norm, nn.Tanh(), nn.Linear(6, 6), norm, nn.Linear(6, 4))
    images = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, affine=False), nn.Conv2d(3, 2, 1),
                           nn.BatchNorm2d(2, eps=1e-3, track_running_stats=False))
    volumes = nn.Sequential(nn.BatchNorm3d(2, momentum=0.3), nn.Conv3d(2, 1, 1))
    model = nn.ModuleList([flat, images, volumes]).double()
    optimizer = sgd(hvd, model.parameters(), lr=0.05)
    assert hvd.SyncBatchNorm.convert_sync_batchnorm(model) is model
    averaged = torch.optim.swa_utils.AveragedModel(flat)
    batch = mine.double()

    def loss():
        pixels = images(batch.view(-1, 2, 1, 2).permute(0, 3, 1, 2))
        voxels = volumes(batch.view(-1, 2, 1, 1, 2))
        return ((flat(batch) - batch.cos()).square().mean() + flat(2 * batch + 1).sin().mean()
                + (pixels - 0.5).cos().mean() + voxels.square().mean())

    for _ in range(STEPS):
        train(optimizer, loss, steps=1)
        averaged.update_parameters(flat)
    torch.optim.swa_utils.update_bn([batch, 2 * batch], averaged)
    model.eval(), averaged.eval()
    first = torch.equal(mine[0], rows(1)[0])
    made = [each(rows(6).double()) for each in (flat, averaged)] if first else []
    return [*model.parameters(), *model.buffers(), *averaged.parameters(), *averaged.buffers(), *made]


PROGRAMS = [functional, autocast, sharpness_aware, windows_that_an_epoch_cuts, batch_norms]


def test_programs_train_as_one_process(on_ranks):
    on_ranks(2, check_all, PROGRAMS)


def test_programs_train_as_one_process_in_small_buckets(on_ranks):
    on_ranks(3, check_all, PROGRAMS, 1)
