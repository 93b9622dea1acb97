# SPDX-License-Identifier: Apache-2.0
"""What a training step costs: a ResNet-18 on 2 ranks, on one host and on two, with
dtrain.torch.DistributedOptimizer, with PyTorch's DistributedDataParallel on the backend "dtrain" and on
Gloo, and without any communication, in turn."""
import json
import os
import statistics
import sys

from compare import DTRAIN, HERE, hosts, parser, save, table, verdict

OURS, PEER = ("dtrain", "ddp-dtrain"), "ddp-gloo"
WAYS = (*OURS, PEER, "alone")
CASES = {"one host": (1, 0.75), "2 hosts": (2, 0.8)}


def run(cluster, nodes, way, options):
    names = [node.name for node in cluster.nodes[:nodes]]
    where = ",".join(f"{name}:{2 // nodes}" for name in names)
    argv = [DTRAIN, "launch", "--quiet", "--tag-output", "none", "-H", where,
            "-x", f"PYTHONPATH={hosts.SOURCE_DIR / 'runtime/python'}",
            "-x", f"DTRAIN_LIBRARY={hosts.bin_dir().parent / 'lib/libdtrain.so'}", "--",
            "/usr/bin/python3", "-B", HERE / "peers/train_torch.py", way,
            *map(str, (options.steps, options.batch, options.side))]
    done = cluster.head.run(argv, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f"{way} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main():
    options = parser(rounds=5)
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--batch", type=int, default=8, help="images of each rank and step")
    options.add_argument("--side", type=int, default=32, help="of an image, in pixels")
    options = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: the hosts are made of namespaces")
    numbers, checks = {}, []
    with hosts.Cluster(2) as cluster:
        for title, (nodes, limit) in CASES.items():
            runs = {way: [] for way in WAYS}
            for r in range(options.rounds):
                for way in WAYS[:: 1 if r % 2 == 0 else -1]:
                    runs[way].append(run(cluster, nodes, way, options))
            losses = {round(row["loss"], 3) for way in (*OURS, PEER) for row in runs[way]}
            if len(losses) != 1:
                sys.exit(f"the ways of training end with different losses: {losses}")
            table(f"ResNet-18, 2 ranks, {title}, {options.batch} images of {options.side}²: "
                  f"{options.rounds} rounds of {options.steps} steps",
                  ("", "median ms", "min", "max"),
                  [(way, *(f"{f(row['seconds'] for row in rows) * 1e3:.1f}"
                           for f in (statistics.median, min, max))) for way, rows in runs.items()])
            for way in OURS:
                ratios = [ours["seconds"] / theirs["seconds"] for ours, theirs in zip(runs[way], runs[PEER])]
                checks.append(verdict(f"{title}: {way} / {PEER}, median of the rounds", statistics.median(ratios), limit))
            numbers[title] = runs
    save(options, {"runs": numbers, "checks": checks})


main()
