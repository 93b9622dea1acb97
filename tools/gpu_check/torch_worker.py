# SPDX-License-Identifier: Apache-2.0
"""torch_worker.py CHECK [N]: one rank of a check with PyTorch on CUDA; prints a line for tools/gpu-check."""

import json
import os
import signal
import sys
import time
from pathlib import Path


class Report:
    def __init__(self, part):
        self.fields = {"part": f"torch {part}", "rank": int(os.environ.get("RANK", 0)), "missed": [], "could_not": []}

    def miss(self, why):
        if len(self.fields["missed"]) < 10:
            self.fields["missed"].append(why)

    def print(self):
        print("gpu-check", json.dumps(self.fields), flush=True)


def nccl_files():
    return sorted({line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()
                   if "libnccl.so" in line})


def expected(torch, start, hvd):
    """The sum over the ranks of `values` below."""
    return sum(values(torch, start, rank) for rank in range(hvd.size()))


def values(torch, start, rank, count=10_000):
    return ((torch.arange(count, device="cuda") * 7 + start * 3 + rank * 5) % 23).float()


def compare(report, torch, name, found, wanted):
    if not torch.equal(found, wanted):
        report.miss(f"{name}: {int((found != wanted).sum())} elements are wrong")


def libraries(report, order, hvd=None):
    """Which NCCL is used when torch is imported before, or after, dtrain has begun."""
    if order == "before":
        import torch
    import dtrain
    dtrain.init()
    if order == "after":
        import torch
    torch.ones(1, device="cuda").sum().item()
    report.fields.update(order=order, torch=torch.__version__, torch_nccl=str(torch.cuda.nccl.version()),
                         files=nccl_files(), backend=dtrain.backend())
    if dtrain.backend() != "nccl":
        # Where only torch has one, the loader knows it once torch is there.
        report.fields["could_not"].append(f"without torch before it, dtrain finds no NCCL: it runs on "
                                          f"{dtrain.backend()}")
    if len(nccl_files()) != 1:
        report.miss(f"torch {order} dtrain: {len(nccl_files())} files of NCCL are loaded: {nccl_files()}")
    dtrain.shutdown()


def stream(report, torch, hvd, _):
    """Calls on torch's current stream, whichever that is."""
    for name, where in (("default", torch.cuda.current_stream()), ("own", torch.cuda.Stream())):
        with torch.cuda.stream(where):
            found = hvd.allreduce(values(torch, 1, hvd.rank()), op=hvd.Sum)
            compare(report, torch, f"{name} stream", found, expected(torch, 1, hvd))


def temporaries(report, torch, hvd, times):
    """Buffers that the program lets go at once, and whose memory the allocator hands out again."""
    wrong = 0
    for step in range(int(times or 500)):
        handles = []
        for k in range(4):
            handles.append(hvd.allreduce_async(values(torch, step + k, hvd.rank()) * 1.0, op=hvd.Sum))
            torch.full((10_000,), -1e6, device="cuda")  # where the temporary was, if that is free
        for k, handle in enumerate(handles):
            found = hvd.synchronize(handle)
            wrong += not torch.equal(found, expected(torch, step + k, hvd))
    report.fields["steps"] = int(times or 500)
    if wrong:
        report.miss(f"{wrong} results were wrong")


def two_streams(report, torch, hvd, _):
    """A call on one stream, waited for on another one."""
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    for step in range(50):
        with torch.cuda.stream(one):
            torch.cuda._sleep(1_000_000)
            data = values(torch, step, hvd.rank())
            handle = hvd.allreduce_async_(data, op=hvd.Sum)
        with torch.cuda.stream(two):
            hvd.synchronize(handle)
            copy = data.clone()
            data.fill_(-1e6)
        torch.cuda.synchronize()
        compare(report, torch, f"step {step}", copy, expected(torch, step, hvd))


def ordering(report, torch, hvd, _):
    """The call comes behind a long kernel; its input is overwritten behind it."""
    for step in range(10):
        data = torch.full((10_000,), -1e6, device="cuda")
        torch.cuda._sleep(400_000_000)
        data.copy_(values(torch, step, hvd.rank()))
        handle = hvd.allreduce_async(data, op=hvd.Sum)
        found = hvd.synchronize(handle)
        data.fill_(-1e6)
        torch.cuda.synchronize()
        compare(report, torch, f"step {step}", found, expected(torch, step, hvd))


def expandable(report, torch, hvd, _):
    """Memory of expandable segments; PYTORCH_CUDA_ALLOC_CONF is set in main."""
    found = hvd.allreduce(values(torch, 3, hvd.rank(), 5_000_000), op=hvd.Sum)
    wanted = sum(values(torch, 3, rank, 5_000_000) for rank in range(hvd.size()))
    compare(report, torch, "expandable segments", found, wanted)


def ragged(report, torch, hvd, _):
    """Rows of each rank's own number, from and to a stream that is not the default one."""
    side = torch.cuda.Stream()
    ranks, me = range(hvd.size()), hvd.rank()

    def rows(step, rank):
        return values(torch, step, rank, 1000 * (rank + 1 + step % 3)).reshape(-1, 10)

    for step in range(20):
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)
            gathering = hvd.allgather_async(rows(step, me) * 1.0)
            # Each rank keeps its first rows, and gives the rest to the next one.
            mine = rows(step, me)
            splits = [len(mine) - 50 if rank == me else 50 if rank == (me + 1) % len(ranks) else 0 for rank in ranks]
            dealing = hvd.alltoall_async(in_order(torch, mine, splits, me), splits)
            torch.full((20_000,), -1e6, device="cuda")  # where the temporary was, if that is free
            gathered, (dealt, _) = hvd.synchronize(gathering), hvd.synchronize(dealing)
            compare(report, torch, f"gather {step}", gathered, torch.cat([rows(step, rank) for rank in ranks]))
            wanted = {me: mine[:-50], (me - 1) % len(ranks): rows(step, (me - 1) % len(ranks))[-50:]}
            compare(report, torch, f"all-to-all {step}", dealt, torch.cat([wanted[rank] for rank in sorted(wanted)]))


def in_order(torch, mine, splits, me):
    """The first rows for this rank, the last 50 for the next one, in the order of the ranks."""
    return torch.cat([mine[:-50] if rank == me else mine[-50:] for rank, rows in enumerate(splits) if rows])


def train(report, torch, hvd, make, convert=lambda model: model, mixed=False, tolerance=1e-4):
    """A model that trains on each rank's part of the batches, beside one that sees all of them."""
    import copy
    torch.manual_seed(1)
    alone = make(torch).cuda()
    shared = convert(copy.deepcopy(alone))
    sgd = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
    together = hvd.DistributedOptimizer(torch.optim.SGD(shared.parameters(), **sgd), shared.named_parameters())
    runs = [(alone, torch.optim.SGD(alone.parameters(), **sgd), slice(None)),
            (shared, together, slice(16 * hvd.rank(), 16 * (hvd.rank() + 1)))]
    scalers = [torch.cuda.amp.GradScaler(init_scale=1024.0, enabled=mixed) for _ in runs]
    for step in range(30):
        inputs = torch.randn(16 * hvd.size(), 32, generator=torch.Generator().manual_seed(step)).cuda()
        targets = inputs.sin().sum(1, keepdim=True)
        for (model, optimizer, part), scaler in zip(runs, scalers):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=mixed):
                loss = (model(inputs[part]).float() - targets[part]).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    worst = 0.0
    for (name, one), (_, other) in zip(alone.state_dict().items(), shared.state_dict().items()):
        worst = max(worst, float((one.float() - other.float()).abs().max()))
        everyones = hvd.allgather(other.reshape(1, -1), name=name)
        if not torch.equal(everyones, other.reshape(1, -1).expand_as(everyones)):
            report.miss(f"{name} is not the same on all ranks")
    report.fields.update(worst_difference=worst, loss=float(loss))
    if not worst <= tolerance:
        report.miss(f"after 30 steps a weight differs by {worst:.3g} from that of one process, more than {tolerance}")


def layers(torch, norm=False):
    middle = [torch.nn.BatchNorm1d(64)] if norm else []
    return torch.nn.Sequential(torch.nn.Linear(32, 64), *middle, torch.nn.Tanh(), torch.nn.Linear(64, 1))


def optimizer(report, torch, hvd, _):
    train(report, torch, hvd, layers)


def amp(report, torch, hvd, _):
    train(report, torch, hvd, layers, mixed=True, tolerance=2e-2)


def batch_norm(report, torch, hvd, _):
    train(report, torch, hvd, lambda torch: layers(torch, norm=True), hvd.SyncBatchNorm.convert_sync_batchnorm,
          tolerance=1e-3)


def overlap(report, torch, hvd, _):
    """An all-reduce beside matrix products: on its own stream, and at the same time."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    data = torch.ones(1 << 27, device="cuda")  # 512 MiB: on one rank a copy
    products = 20

    def compute():
        b = a
        for _ in range(products):
            b = a @ b
        return b

    def begin():
        return [hvd.allreduce_async(data, op=hvd.Sum) for _ in range(8)]

    def end(handles):
        for handle in handles:
            hvd.synchronize(handle)

    def timed(what):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            what()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / 10

    def communicate():
        end(begin())

    def both():
        handles = begin()
        compute()
        end(handles)

    for warm in (compute, communicate, both):
        warm()
    # As long as each other, so that there is something to gain.
    products = max(1, int(products * timed(communicate) / timed(compute)))
    alone = timed(compute), timed(communicate)
    together = timed(both)
    report.fields.update(compute_s=alone[0], allreduce_s=alone[1], both_s=together)
    if together > 0.8 * sum(alone):
        report.miss(f"together {together * 1e3:.1f} ms, one after the other {sum(alone) * 1e3:.1f} ms")
    share, streams = intersection(torch, both)
    report.fields.update(intersection=share, streams=streams)
    if share < 0.5:
        report.miss(f"only {share:.0%} of the all-reduces' time on the GPU is beside computing")


def intersection(torch, both):
    """The part of NCCL's and the copies' time during which a kernel of torch's ran, from a trace."""
    import tempfile
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            both()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    spans = {"ours": [], "theirs": []}
    streams = {"ours": set(), "theirs": set()}
    for event in events:
        if event.get("cat") not in ("kernel", "gpu_memcpy"):
            continue
        name = event.get("name", "").lower()
        whose = "ours" if "nccl" in name or event["cat"] == "gpu_memcpy" else "theirs"
        spans[whose].append((event["ts"], event["ts"] + event["dur"]))
        streams[whose].add(str(event.get("args", {}).get("stream")))
    total = sum(end - begin for begin, end in spans["ours"])
    both_ran = sum(max(0, min(end, other[1]) - max(begin, other[0]))
                   for begin, end in spans["ours"] for other in spans["theirs"])
    return (both_ran / total if total else 0.0), {whose: sorted(which) for whose, which in streams.items()}


def main(what, argument=None):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report = Report(what)
    try:
        if what == "libraries":
            libraries(report, argument)
        else:
            if what == "expandable":
                os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
            import torch

            import dtrain.torch as hvd
            torch.cuda.set_device(int(os.environ.get("DTRAIN_DEVICE", 0)))
            torch.zeros(1, device="cuda")
            hvd.init()
            if hvd.backend() != "nccl":
                raise RuntimeError(f"the job runs on {hvd.backend()}, not on NCCL")
            CHECKS[what](report, torch, hvd, argument)
            hvd.shutdown()
    except Exception as error:
        report.miss(f"{type(error).__name__}: {error}")
    report.print()


CHECKS = {"stream": stream, "temporaries": temporaries, "two-streams": two_streams, "ordering": ordering,
          "expandable": expandable, "overlap": overlap, "ragged": ragged, "optimizer": optimizer, "amp": amp,
          "batch-norm": batch_norm}

if __name__ == "__main__":
    main(*sys.argv[1:])
