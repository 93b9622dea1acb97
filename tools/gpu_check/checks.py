# SPDX-License-Identifier: Apache-2.0
"""The twenty checks for a machine with one GPU (docs/gpu.md). Each takes a Bench, which has the place and
the check's tally and deadline."""

import os
import signal
import tempfile
import time
from pathlib import Path

from . import processes
from .outcomes import Tally

INVALID_USAGE = 5


class Bench:
    """One check in the making."""

    def __init__(self, place, seconds):
        self.place, self.tally = place, Tally()
        # A rehearsal's calls are the processor's to make, which others use as well.
        self.patience = 10 if place.rehearse else 1
        self.deadline = time.monotonic() + seconds * self.patience

    def left(self, most=600.0):
        return max(1.0, min(most, self.deadline - time.monotonic()))

    def alone(self, words, most=600.0, name=None):
        """One process of gpu_check, without a launcher."""
        ended = processes.run([self.place.gpu_check, *words], self.place.env, self.left(most))
        return self.tally.take(ended, 1, name or words[0])

    def job(self, ranks, words, most=600.0, name=None, lines=None, share=True, export=None):
        """gpu_check as the workers of a job."""
        if export is None:
            export = self.place.sharing(ranks) if share else ()
        argv = self.place.launch(ranks, [self.place.gpu_check, *words], share=share, export=export)
        ended = processes.run(argv, self.place.env, self.left(most))
        name = name or f"{words[0]} with {ranks} rank{'s' if ranks > 1 else ''}"
        return self.tally.take(ended, ranks if lines is None else lines, name)

    def torch(self, words, ranks=1, most=600.0, lines=None):
        """torch_worker.py as the workers of a job, where there is PyTorch with CUDA."""
        if self.place.torch is None:
            self.tally.skip(self.place.no_torch)
            return []
        program = [self.place.torch, Path(__file__).with_name("torch_worker.py"), *words]
        argv = self.place.launch(ranks, program, export=self.place.sharing(ranks))
        # The one that torch has loaded counts.
        env = {key: value for key, value in self.place.env.items() if key != "DTRAIN_NCCL_LIBRARY"}
        return self.tally.take(processes.run(argv, env, self.left(most)), lines or ranks, f"torch {words[0]}")


def libraries(bench):
    place, tally = bench.place, bench.tally
    if place.smi is None:
        tally.skip(place.no_smi())
    else:
        ended = processes.run([place.smi, "-L"], place.env, 20)
        tally.raw.append({"name": "nvidia-smi -L", **ended.raw()})
        tally.raw.append({"driver": place.smi_query("driver_version,name,memory.total,mig.mode.current")})
        if ended.code != 0:
            tally.miss(f"nvidia-smi -L: {ended.why()}")
    tally.raw.append({"nccl_file": place.nccl_file})
    for found in bench.alone(["libraries"]):
        place.gpus = int(found.get("gpus", 0))
    for order in ("before", "after"):
        bench.torch(["libraries", order])


def collectives_of_one(bench):
    counts = "0,1,1001" if bench.place.rehearse else "0,1,1001,262144"
    bench.alone(["collectives", "--counts", counts, "--seconds", "20"])
    bench.torch(["stream"])


def two_ranks_on_one_gpu(bench):
    tally = bench.tally
    bench.job(2, ["init", "--limit", "10"], most=30)
    bench.job(2, ["init", "--refused"], most=20, name="two ranks that did not ask for one GPU", export=())
    raw(bench, "own host ids", [{"NCCL_HOSTID": "a"}, {"NCCL_HOSTID": "b"}], lambda code, rank, version: code == 0)
    same = raw(bench, "as they are", [{}, {}], as_documented)
    version = max([int(line.get("nccl", 0)) for line in same], default=0)
    if version >= 23003:
        one = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
        raw(bench, "with the variable alone", [one, one], lambda code, rank, version: code == 0)
    elif version > 0:
        tally.raw.append({"name": "NCCL_MULTI_RANK_GPU_ENABLE", "why": f"not in NCCL {version}"})


def as_documented(code, rank, version):
    """What raw NCCL should answer to two ranks on one GPU. From 2.30.3 to 2.30.4 only the host's first rank
    hears of it and the other waits."""
    if 23003 <= version <= 23004 and rank == 1:
        return code is None or code == INVALID_USAGE
    return code == INVALID_USAGE


def raw(bench, name, environments, expected):
    """Raw NCCL between processes that share nothing but a file; each is ended after a while."""
    tally, lines, good = bench.tally, [], True
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        running = [processes.Running([bench.place.gpu_check, "raw-init", "--id", f"{folder}/id", "--rank", rank,
                                      "--ranks", len(environments)],
                                     {"NCCL_SOCKET_IFNAME": "lo", **bench.place.env, **extra})
                   for rank, extra in enumerate(environments)]
        firsts = [each.first_line(bench.left(12)) or {} for each in running]
        ends = [each.wait(time.monotonic() - each.start + 3) for each in running]
    tally.raw += [{"name": f"raw NCCL, {name}", **each.raw()} for each in ends]
    version = max(int(line.get("nccl", 0)) for line in firsts)
    for rank, line in enumerate(firsts):
        lines.append(line)
        code = int(line["code"]) if "code" in line else None
        if line.get("could_not"):
            tally.skip("; ".join(line["could_not"]))
            good = False
        elif not expected(code, rank, version):
            tally.miss(f"raw NCCL, {name}: rank {rank} "
                       + ("had no answer" if code is None else f"got {line.get('error')}"))
            good = False
    if good:
        tally.met()
    return lines


def collectives_of_several(bench):
    counts = "1,101" if bench.place.rehearse else "1,1001,131072"
    # Ranks that share a GPU take turns, some milliseconds each.
    for ranks in (2, 4):
        bench.job(ranks, ["collectives", "--memory", "device", "--counts", counts, "--fused", "1,2,7,64",
                          "--seconds", 10 * bench.patience])
    bench.job(2, ["collectives", "--memory", "device,host", "--counts", counts, "--mixed",
                  "--seconds", 7 * bench.patience],
              name="host memory on one rank, the GPU's on the other")


def training(bench):
    for part in ("optimizer", "amp", "batch-norm"):
        bench.torch([part], ranks=2, most=25)


def ragged(bench):
    bench.torch(["ragged"], ranks=2)


def groups(bench):
    bench.job(4, ["groups", "--rounds", "20"])


def temporaries(bench):
    bench.torch(["temporaries", "500"])
    bench.torch(["two-streams"])


def ordering(bench):
    bench.job(2, ["ordering", "--rounds", "3" if bench.place.rehearse else "10"])
    if not bench.place.rehearse:
        bench.torch(["ordering"])


def overlap(bench):
    bench.torch(["overlap"])


def abort(bench, how, ranks, lines):
    seconds = 2 if bench.place.rehearse else 5
    found = bench.job(ranks, ["abort", "--how", how, "--seconds", seconds], most=2 * seconds + 20, lines=lines,
                      name=f"abort ({how})")
    statuses = {line.get("status") for line in found} - {"the culprit"}
    if len(statuses) > 1:
        bench.tally.miss(f"abort ({how}): the ranks got different causes: {', '.join(sorted(map(str, statuses)))}")


def first_abort(bench):
    abort(bench, "first", 3, 2)


def aborts(bench):
    for how, ranks, lines in (("skip", 2, 2), ("kill", 3, 2), ("leave", 2, 2), ("init", 2, 2)):
        abort(bench, how, ranks, lines)
    busy = bench.place.smi_query("utilization.gpu")
    if busy is None:
        bench.tally.skip(bench.place.no_smi())
        return
    time.sleep(2)  # it is a mean over the last second
    busy = bench.place.smi_query("utilization.gpu")
    bench.tally.raw.append({"utilisation": busy})
    if busy and busy[0].strip() not in ("0", "[N/A]"):
        bench.tally.miss(f"a kernel is left on the GPU: utilisation {busy[0]} %")


def late_graph(bench):
    bench.job(2, ["graph", "--outstanding", "--replays", "10"], name="a capture behind outstanding work")


def graphs(bench):
    for words in (["graph"], ["graph", "--free-first"]):
        bench.job(2, words, most=25, name=" ".join(words))


def latency(bench):
    rehearse = bench.place.rehearse
    bench.alone(["latency", "--calls", "1000" if rehearse else "10000", *(["--no-bars"] if rehearse else [])])


def where(bench):
    bench.alone(["where"])
    bench.torch(["expandable"])


def memcheck(bench):
    place, tally = bench.place, bench.tally
    if place.sanitizer is None:
        tally.skip("compute-sanitizer: not in a rehearsal" if place.rehearse else "no compute-sanitizer")
        return
    tool = [place.sanitizer, "--tool", "memcheck", "--error-exitcode", "99"]
    runs = [("collectives", [place.gpu_check, "collectives", "--memory", "device", "--counts", "101",
                             "--seconds", "15"])]
    if place.torch is None:
        tally.skip(place.no_torch)
    else:
        worker = Path(__file__).with_name("torch_worker.py")
        runs.append(("temporaries", [place.torch, worker, "temporaries", "20"]))
    for name, words in runs:
        ended = processes.run([*tool, *words], place.env, bench.left(30))
        tally.take(ended, 1, name)
        if ended.code == 99:
            tally.miss(f"{name}: compute-sanitizer found something: {ended.why()}")


def pinning(bench):
    place, tally = bench.place, bench.tally
    uuids = place.smi_query("uuid")
    if uuids is None:
        tally.skip(place.no_smi())
        return
    narrowed = [("as it is", None, uuids[0]), ("by index", "0", uuids[0]), ("by UUID", uuids[-1], uuids[-1])]
    if len(uuids) > 1:
        narrowed += [("the last one", str(len(uuids) - 1), uuids[-1]), ("reordered", "1,0", uuids[1])]
    else:
        tally.raw.append({"name": "reordered", "why": "one GPU has one order"})
    for name, visible, expected in narrowed:
        env = dict(place.env)
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        argv = place.launch(1, [place.gpu_check, "device"], share=False)
        plan = processes.run([*argv[:2], "--dry-run", *argv[2:]], env, bench.left(20))
        tally.raw.append({"name": f"plan, {name}", **plan.raw()})
        found = tally.take(processes.run(argv, env, bench.left(20)), 1, f"GPU {name}")
        if found and found[0].get("uuid") != expected.strip():
            tally.miss(f"GPU {name}: the worker used {found[0].get('uuid')}, not {expected.strip()}")


def wait_for_free(bench):
    """A worker that held memory is killed: the launch ends when the GPU's memory is free again."""
    place, tally = bench.place, bench.tally
    before = place.smi_query("memory.used")
    if before is None:
        tally.skip(place.no_smi())
        return
    job = processes.Running(place.launch(1, [place.gpu_check, "hold", "--gib", "20"], share=False), place.env)
    line = job.first_line(bench.left(20))
    held = place.smi_query("memory.used")
    if line is None:
        tally.take(job.wait(1), 1, "hold")
        return
    start = time.monotonic()
    kill(int(line["pid"]))
    ended = job.wait(bench.left(20))
    seconds = time.monotonic() - start
    after = place.smi_query("memory.used")
    tally.raw.append({"before": before, "held": held, "after": after, "seconds": seconds, **ended.raw()})
    if ended.timed_out:
        tally.miss(f"after the worker was killed, {ended.why()}")
    elif after and float(after[0]) > 1.05 * float(before[0]) + 64:
        tally.miss(f"the launch ended with {after[0]} MiB in use, {before[0]} MiB before")
    bench.job(1, ["device"], share=False, name="the next job")


def kill(pid):
    """Of a worker that this run has started."""
    if pid in processes.pids_of_this_run():
        os.kill(pid, signal.SIGKILL)


def nvml(bench):
    place, tally = bench.place, bench.tally
    if place.rehearse:
        tally.skip("NVML: not in a rehearsal")
        return
    words = [place.gpu_check, "ordering", "--rounds", "30"]  # six seconds
    job = processes.Running(place.launch(1, words), place.env)
    time.sleep(2)  # until it works
    bench.alone(["nvml"], most=10)
    tally.take(job.wait(bench.left()), 1, "the job beside it")


# Number, title, seconds, function. What has never been seen on a GPU, and matters most, comes first; what
# has one rank, and so says little of NCCL, last. All of it fits into ten minutes.
CHECKS = [
    (1, "libraries and GPU", 30, libraries),
    (3, "two ranks on one GPU", 45, two_ranks_on_one_gpu),
    (17, "training as in one process", 60, training),
    (18, "ragged gathers on a side stream", 20, ragged),
    (19, "an abort in the first collective", 20, first_abort),
    (20, "a capture behind outstanding work", 15, late_graph),
    (4, "collectives of several ranks", 48, collectives_of_several),
    (5, "groups", 25, groups),
    (7, "ordering", 15, ordering),
    (9, "aborts", 55, aborts),
    (10, "graphs", 25, graphs),
    (2, "collectives of one rank", 35, collectives_of_one),
    (6, "temporaries and streams", 20, temporaries),
    (8, "overlap", 20, overlap),
    (11, "added latency", 22, latency),
    (12, "kinds of memory", 15, where),
    (13, "memcheck", 40, memcheck),
    (14, "pinning by UUID", 22, pinning),
    (15, "waiting for a GPU to be free", 25, wait_for_free),
    (16, "NVML beside a job", 12, nvml),
]
