# SPDX-License-Identifier: Apache-2.0
"""What a timeline costs: 2 ranks on this machine sum 1 MiB again and again, with --timeline and
without, in turn. The ratio of each pair of neighbours counts, so that a machine whose speed changes
meets both."""
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from compare import DTRAIN, HERE, hosts, parser, save, table, verdict

BYTES = 1 << 20


def build(folder):
    program = folder / "timeline_worker"
    library = hosts.bin_dir().parent / "lib"
    subprocess.run(["g++", "-std=c++20", "-O2", "-o", program, HERE / "peers/timeline_worker.cc",
                    f"-I{hosts.SOURCE_DIR / 'runtime/include'}", f"-L{library}",
                    f"-Wl,-rpath,{library}", "-ldtrain"], check=True)
    return program


def microseconds(program, calls, flags):
    """Of one all-reduce."""
    done = subprocess.run([DTRAIN, "launch", "-np", "-2", *flags, "--tag-output", "none", "--", program,
                           str(BYTES), str(calls)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"a launch ended with {done.returncode}: {done.stderr}")
    return float(done.stdout) / calls * 1e6


def main():
    options = parser(rounds=20)
    options.add_argument("--calls", type=int, default=10000, help="all-reduces of each launch")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        trace = Path(folder) / "trace.json"
        ways = {"without": [], "with": ["--timeline", str(trace)]}
        times = {way: [] for way in ways}
        for r in range(options.rounds):
            # The one that goes first takes turns, too.
            for way in list(ways)[:: 1 if r % 2 == 0 else -1]:
                times[way].append(microseconds(program, options.calls, ways[way]))
        recorded = trace.read_text().count('"allreduce"')
    ratios = [after / before for before, after in zip(times["without"], times["with"])]
    table(f"1 MiB, 2 ranks, one host: {options.rounds} rounds of {options.calls} calls",
          ("", "median us", "min", "max"),
          [(way, f"{statistics.median(t):.1f}", f"{min(t):.1f}", f"{max(t):.1f}")
           for way, t in times.items()])
    print(f"  {recorded} all-reduces are on the last timeline")
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"  with / without: quartiles {low:.4f} and {high:.4f}")
    checks = [verdict("with / without, median of the rounds", statistics.median(ratios), 1.01)]
    save(options, {"times_us": times, "ratios": ratios, "checks": checks})


main()
