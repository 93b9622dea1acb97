# SPDX-License-Identifier: Apache-2.0
"""The checks for machines with several GPUs, meant for eight: one rank on each, nothing shared."""

import json
import tempfile

from . import processes

MIB = 1 << 20
# Our bandwidth against raw NCCL's, from this size on.
BARS = [(64 * MIB, 0.99), (MIB, 0.97)]


def counts_of_ranks(place):
    return [ranks for ranks in (2, 4, 8) if ranks <= place.gpus]


def every_size_of_job(bench):
    place = bench.place
    small = place.rehearse
    for ranks in counts_of_ranks(place):
        counts = "1,101" if small else "1,1001,1048576"
        bench.job(ranks, ["collectives", "--memory", "device,host", "--counts", counts, "--fused", "1,7,64",
                          "--seconds", "20"], share=False)
        bench.job(ranks, ["collectives", "--memory", "device,host", "--counts", "101", "--mixed"], share=False,
                  name=f"mixed memory, {ranks} ranks")
        bench.job(ranks, ["groups", "--rounds", "20"], share=False)
        bench.job(ranks, ["ordering", "--rounds", "3"], share=False)
        bench.job(ranks, ["graph"], share=False)
        bench.job(ranks, ["abort", "--how", "skip", "--seconds", "2" if small else "5"], share=False)


def sizes(place):
    most = 1 if place.rehearse else 1024
    return [4096, 65536, *(MIB * 4 ** i for i in range(6) if 4 ** i <= most)]


def speed(bench):
    """dtrain bench, and raw NCCL in the same layout, measured in one manner."""
    place, tally = bench.place, bench.tally
    ranks = counts_of_ranks(place)[-1]
    wanted = ",".join(map(str, sizes(place)))
    words = place.launch(ranks, [], share=False)[2:-1]
    # What bench says to launch itself.
    for flag in ("--tag-output", "--stdin"):
        at = words.index(flag)
        del words[at:at + 2]
    ended = processes.run([place.dtrain, "bench", "allreduce", "--pipelined", "--json", "--sizes", wanted, *words],
                          place.env, bench.left(240))
    tally.raw.append({"name": "dtrain bench", **ended.raw()})
    if ended.code != 0:
        tally.miss(f"dtrain bench: {ended.why()}")
        return
    rows = {row["bytes"]: row for row in json.loads(ended.out)}
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        found = bench.job(ranks, ["raw-sizes", "--id", f"{folder}/id", "--sizes", wanted], share=False, most=240)
    if not rows or len(found) < ranks:
        return
    for size in sizes(place):
        theirs = [line.get(f"out_us_{size}") for line in found]
        if None in theirs:
            continue
        ratio = sum(theirs) / len(theirs) / rows[size]["time_us"]
        tally.raw.append({"bytes": size, "ratio": ratio, "busbw_gbs": rows[size]["busbw_gbs"]})
        bar = next((bar for least, bar in BARS if size >= least), None)
        if bar is not None and ratio < bar and not place.rehearse:
            tally.miss(f"{size} bytes: {ratio:.3f} x raw NCCL, less than {bar}")
    if place.rehearse:
        tally.skip("the bars: times of a rehearsal say nothing")


def fault_loop(bench):
    place = bench.place
    ranks = counts_of_ranks(place)[-1]
    for round_ in range(2 if place.rehearse else 100):
        if bench.left() <= 1:
            bench.tally.skip(f"time for {round_} faults only")
            break
        bench.job(ranks, ["abort", "--how", "kill", "--seconds", "2"], share=False, lines=ranks - 1, most=30,
                  name=f"fault {round_}")


def mixed_memory(bench):
    bench.job(counts_of_ranks(bench.place)[-1], ["mixed-memory"], share=False, most=60)


def threads(bench):
    bench.job(counts_of_ranks(bench.place)[-1], ["threads", "--seconds", "5"], share=False, most=60)


def by_hand(bench):
    bench.tally.skip("not automated: docs/gpu.md says what to run")


# Number, title, seconds, function.
CHECKS = [
    (21, "jobs of 2, 4, 8 GPUs", 400, every_size_of_job),
    (22, "speed against raw NCCL", 500, speed),
    (23, "training against PyTorch DDP", 10, by_hand),
    (24, "a late rank is named", 10, by_hand),
    (25, "fault loop", 900, fault_loop),
    (26, "registered and plain buffers", 60, mixed_memory),
    (27, "groups of several threads", 90, threads),
]
