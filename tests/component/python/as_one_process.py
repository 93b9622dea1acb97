# SPDX-License-Identifier: Apache-2.0
"""Programs as people write them train as one process does that sees the whole batch: the same weights
after some steps, to the rounding of the type. Each is a function of `hvd` and `mine`: with dtrain.torch
and the rows of a rank, and with a stand-in that does nothing and all rows."""

STEPS = 4


class OneProcess:
    """In place of dtrain.torch."""

    @staticmethod
    def DistributedOptimizer(optimizer, **_):
        return optimizer

    @staticmethod
    def broadcast_optimizer_state(*_, **__):
        pass

    broadcast_parameters = broadcast_optimizer_state

    class SyncBatchNorm:
        @staticmethod
        def convert_sync_batchnorm(module):
            return module


def rows(count):
    """So many random inputs of a linear()."""
    import torch

    return torch.randn(64, 4, generator=torch.Generator().manual_seed(1))[:count]


def linear(inputs=4, outputs=2):
    import torch

    torch.manual_seed(2)
    return torch.nn.Linear(inputs, outputs)


def sgd(hvd, parameters, options={}, **own):
    import torch

    return hvd.DistributedOptimizer(torch.optim.SGD(parameters, **{"lr": 0.1, **own}), **options)


def train(optimizer, loss, steps=STEPS, **zero):
    for _ in range(steps):
        optimizer.zero_grad(**zero)
        loss().backward()
        optimizer.step()


def check(program):
    """The weights that `program` returns, against those of one process. A program may have a `tolerance`."""
    import torch

    import dtrain.torch as hvd

    n, me = hvd.size(), hvd.rank()
    whole = rows(6 * n)
    got = program(hvd, whole[6 * me : 6 * (me + 1)])
    want = program(OneProcess, whole)
    rtol, atol = getattr(program, "tolerance", (1e-5, 1e-6))
    for i, (weight, right) in enumerate(zip(got, want)):
        assert torch.allclose(weight, right, rtol=rtol, atol=atol), (program.__name__, i, weight, right)


def check_all(programs, octets=None):
    """octets: of a bucket, so that gradients start within backward()."""
    from dtrain.torch import _buckets

    if octets:
        _buckets._FIRST_BUCKET = _buckets._BUCKET = _buckets._ALONE_ON_CPU = octets
    for program in programs:
        check(program)
