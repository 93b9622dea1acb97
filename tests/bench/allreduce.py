# SPDX-License-Identifier: Apache-2.0
"""How fast float32 sums are all-reduced: libdtrain beside Open MPI, MPICH, Gloo and PyTorch on
Gloo, on one host, between two, and with more ranks than cores; peers take turns in every round."""
import json
import os
import shutil
import statistics
import subprocess
import sys

from compare import DTRAIN, HERE, MPIRUN, MPIRUN_LOCAL, hosts, parser, save, table

PEERS = HERE / "peers"
PYTHON = "/usr/bin/python3"
RESNET50 = 102_228_384
SIZES = (4, 1 << 16, 1 << 20, 1 << 24, RESNET50)
# Hosts and ranks on each.
CASES = {"2 ranks, one host": (1, 2), "2 hosts x 1 rank": (2, 1), "4 hosts x 4 ranks": (4, 4)}
KEYS = ("node", "hosts", "cluster")
NAMES = ("dtrain", "Open MPI", "MPICH", "Gloo", "PyTorch")
BUILDS = {
    "Open MPI": ["mpicxx.openmpi", "allreduce_mpi.cc"],
    "MPICH": ["mpicxx.mpich", "allreduce_mpi.cc"],
    "Gloo": ["g++", "allreduce_gloo.cc", "-lgloo", "-pthread"],
    "dtrain": ["g++", "allreduce_dtrain.cc", "-ldtrain"],
}


def arguments():
    options = parser(rounds=5)
    options.add_argument("--sizes", metavar="BYTES,...", default=",".join(map(str, SIZES)))
    options.add_argument("--case", action="append", choices=KEYS,
                         help="only this one: 2 ranks on a host, 2 hosts, or 4 x 4; repeat for more")
    options.add_argument("--peer", action="append", choices=NAMES[1:],
                         help="only these beside dtrain")
    given = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: the hosts are made of namespaces")
    given.sizes = [int(size) for size in given.sizes.split(",")]
    if any(size < 4 or size % 4 for size in given.sizes):
        sys.exit("sizes are bytes of float32: multiples of 4")
    wanted = given.case or KEYS
    given.cases = {name: shape for key, (name, shape) in zip(KEYS, CASES.items()) if key in wanted}
    given.names = ["dtrain", *(given.peer or NAMES[1:])]
    return given


def missing(name):
    """Why this peer cannot take part, or None."""
    if name == "PyTorch":
        found = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False)
        return "there is no python3-torch" if found.returncode else None
    needs = {"Open MPI": ("mpicxx.openmpi", "mpirun.openmpi"),
             "MPICH": ("mpicxx.mpich", "mpiexec.hydra")}.get(name, ("g++",))
    lacking = [need for need in needs if not shutil.which(need)]
    return f"there is no {lacking[0]}" if lacking else None


def build(name, folder):
    if name == "PyTorch":
        return [PYTHON, PEERS / "allreduce_torch.py"]
    compiler, source, *rest = BUILDS[name]
    program = folder / f"allreduce-{name.replace(' ', '')}"
    library = hosts.bin_dir().parent / "lib"
    subprocess.run([compiler, "-std=c++20", "-O2", "-o", program, PEERS / source,
                    f"-I{hosts.HERE / 'programs'}", f"-I{hosts.SOURCE_DIR / 'runtime/include'}",
                    f"-L{library}", f"-Wl,-rpath,{library}", *rest], check=True)
    return [program]


class Case:
    """One placement of ranks, and how each peer is started on it in its best setting."""

    def __init__(self, cluster, nodes, ranks):
        self._cluster = cluster
        self._nodes = [node.name for node in cluster.nodes[:nodes]]
        self._ranks = ranks
        self._local = nodes == 1
        # Ranks that wait must let the others run, where there are more of them than cores.
        self._crowded = nodes * ranks > os.cpu_count()
        self._runs = 0

    def argv(self, name, program, sizes):
        return [*self._start(name), *program, *map(str, sizes)]

    def _start(self, name):
        total = len(self._nodes) * self._ranks
        if name == "Open MPI":
            hosts_flag = [] if self._local else ["-H", self._with_slots()]
            crowded = ["--mca", "mpi_yield_when_idle", "1", "--bind-to", "none"]
            return [*(MPIRUN_LOCAL if self._local else MPIRUN), *hosts_flag, "-np", str(total),
                    *(crowded if self._crowded else [])]
        if name == "MPICH":
            if self._local:
                return ["mpiexec.hydra", "-n", str(total)]
            return ["mpiexec.hydra", "-launcher", "ssh", "-localhost", self._cluster.head.address,
                    "-iface", "eth0", "-hosts", ",".join(self._nodes), "-ppn", str(self._ranks),
                    "-n", str(total), "-genv", "SKIP_FINALIZE", "1"]
        where = ["-np", f"-{total}"] if self._local else ["-H", self._with_slots()]
        return [DTRAIN, "launch", "--quiet", "--tag-output", "none", "--oversubscribe", *where,
                *self._variables(name), "--"]

    def _with_slots(self):
        return ",".join(f"{name}:{self._ranks}" for name in self._nodes)

    def _variables(self, name):
        if name == "dtrain":
            return []
        # Each run of Gloo's program meets in a folder of its own.
        self._runs += 1
        store = self._cluster.base / f"store-{id(self)}-{self._runs}"
        store.mkdir()
        interface = ["-x", "GLOO_SOCKET_IFNAME=lo"] if self._local else []
        return ["-x", f"STORE={store}", *interface]

    def run(self, name, program, sizes):
        """What rank 0 printed: a row for each size, kind of memory and way."""
        argv = self.argv(name, program, sizes)
        process = self._cluster.head.run(argv, timeout=1200, check=False)
        rows = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
        if {row["bytes"] for row in rows} != set(sizes):
            sys.exit(f"{name} ended with {process.returncode}: {' '.join(map(str, argv))}\n"
                     f"{process.stdout}{process.stderr}")
        if bad := [row["bytes"] for row in rows if row["wrong"]]:
            sys.exit(f"{name} gave wrong sums at {bad} bytes")
        return rows


def link_speed(cluster, seconds=2.0):
    """GB/s of one TCP connection, each way, both ways at once: what a ring of two can use."""
    first, second = cluster.nodes[:2]
    server = first.popen([PYTHON, "-I", PEERS / "link.py", "listen", first.address, "5201"],
                         stdout=subprocess.PIPE, text=True)
    server.stdout.readline()
    out = second.run([PYTHON, "-I", PEERS / "link.py", "connect", first.address, "5201", str(seconds)],
                     timeout=60).stdout
    server.wait(30)
    return float(out) / 1e9


def bus_bandwidth(nbytes, seconds, ranks):
    return nbytes / seconds / 1e9 * 2 * (ranks - 1) / ranks


def number(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def by_kind(runs, size):
    """{(memory, way): seconds} at this size, of several runs the median."""
    rows = [row for run in runs for row in run if row["bytes"] == size]
    kinds = dict.fromkeys((row["memory"], row["way"]) for row in rows)
    return {kind: statistics.median(row["seconds"] for row in rows
                                    if (row["memory"], row["way"]) == kind) for kind in kinds}


def show(title, results, sizes, ranks, rounds):
    """Times, bus bandwidths and how many times as fast as the best peer we are; each with the
    memory and way that are fastest at that size. Then what each of them gives."""
    kinds = {name: {size: by_kind(runs, size) for size in sizes}
             for name, runs in results.items()}
    middle = {name: {size: min(kinds[name][size].values()) for size in sizes} for name in kinds}
    peers = [name for name in middle if name != "dtrain"]
    rows = []
    for size in sizes:
        best = min(peers, key=lambda name, size=size: middle[name][size], default=None)
        ratio = middle[best][size] / middle["dtrain"][size] if best else 0
        rows.append((size, *(number(middle[name][size] * 1e6) for name in middle),
                     *(number(bus_bandwidth(size, middle[name][size], ranks)) for name in middle),
                     f"{ratio:.2f}" if best else "", best or ""))
    table(f"{title}, {rounds} rounds: time in us, then bus bandwidth in GB/s",
          ("bytes", *(f"{name} us" for name in middle), *(f"{name}" for name in middle),
           "x best", "best peer"), rows)
    rows = [(size, name, kind, way, number(seconds * 1e6), number(bus_bandwidth(size, seconds, ranks)))
            for size in sizes for name in middle if len(kinds[name][size]) > 1
            for (kind, way), seconds in kinds[name][size].items()]
    if rows:
        table("by memory and way", ("bytes", "library", "memory", "way", "us", "GB/s"), rows)
    return middle


def note(what, value, limit):
    word = "met   " if value >= limit else "MISSED"
    print(f"  {word}  {what}: {value:.2f}, to reach: at least {limit:g}")
    return {"what": what, "value": value, "limit": limit, "met": value >= limit}


def targets(title, middle, sizes):
    """What to reach in this case; only where the peers and sizes that it is about took part."""
    def speed_up(size, names):
        names = [name for name in names if name in middle]
        return min(middle[name][size] for name in names) / middle["dtrain"][size] if names else None
    wanted = []
    for size in sizes:
        if title == "2 ranks, one host" and size >= 1 << 24:
            wanted.append((size, "the best peer", NAMES[1:], 1.5))
        elif title == "2 ranks, one host" and size <= 1 << 16:
            wanted.append((size, "Open MPI", ["Open MPI"], 1))
        elif title == "2 hosts x 1 rank":
            wanted.append((size, "the best peer", NAMES[1:], 1))
        elif title == "4 hosts x 4 ranks" and size >= 1 << 20:
            wanted.append((size, "the best peer", NAMES[1:], 2))
    checks = []
    for size, against, names, limit in wanted:
        value = speed_up(size, names)
        if value is not None:
            checks.append(note(f"{title}, {size} B, x {against}", value, limit))
    return checks


def link_targets(title, runs, links, sizes, ranks):
    """What part of a connection's rate the largest all-reduces reach, each round against its own."""
    checks = []
    for size in (size for size in sizes if size >= 1 << 24):
        parts = [bus_bandwidth(size, min(by_kind([run], size).values()), ranks) / link for run, link in zip(runs, links)]
        checks.append(note(f"{title}, {size} B, x one TCP connection", statistics.median(parts), 0.95))
    return checks


def main():
    options = arguments()
    numbers = {"cases": {}, "checks": []}
    with hosts.Cluster(4) as cluster:
        names = []
        for name in options.names:
            if why := missing(name):
                print(f"without {name}: {why}", flush=True)
            else:
                names.append(name)
        programs = {name: build(name, cluster.base) for name in names}
        for title, (nodes, ranks) in options.cases.items():
            case = Case(cluster, nodes, ranks)
            results = {name: [] for name in programs}
            links = []
            for _ in range(options.rounds):
                for name, program in programs.items():
                    results[name].append(case.run(name, program, options.sizes))
                if nodes > 1:
                    links.append(link_speed(cluster))
            middle = show(title, results, options.sizes, nodes * ranks, options.rounds)
            if links:
                print("  one TCP connection between two hosts, both ways at once: "
                      f"{statistics.median(links):.2f} GB/s each way")
            print()
            numbers["checks"] += targets(title, middle, options.sizes)
            if nodes * ranks == 2 and links and "dtrain" in results:
                numbers["checks"] += link_targets(title, results["dtrain"], links, options.sizes,
                                                  nodes * ranks)
            numbers["cases"][title] = {"runs": results, "link_gbs": links}
    save(options, numbers)


main()
