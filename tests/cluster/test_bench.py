# SPDX-License-Identifier: Apache-2.0
"""dtrain bench on several hosts: the numbers' shape, and how it ends when something fails."""
import json
import re
import shutil
import signal
import xml.etree.ElementTree

import hosts
import launching

DTRAIN = hosts.bin_dir() / "dtrain"

# A worker in place of dtrain-allreduce: prints what it was called with, and ends as it is told.
FAKE_WORKER = """#!/bin/sh
[ "$RANK" = 0 ] && echo '[{"bytes": 4, "time_us": 1, "algbw_gbs": 1, "busbw_gbs": 1, "wrong": 0},'
[ "$RANK" = 1 ] && exit 7
sleep 60
"""

# One process of a training that tells its steps; the all-reduces are pretended.
TRAINING = """
import json, os
size = int(os.environ["WORLD_SIZE"])
for step in range(4):
    print("dtrain-step", json.dumps({"seconds": 0.1 + 0.02 * (size > 1), "compute": 0.08,
          "allreduce": 0.02 * (size > 1), "optimiser": 0.02, "samples": 32, "bytes": 65536}),
          flush=True)
print("accuracy is great", flush=True)
"""


def bench(cluster, *args, timeout=120):
    return launching.Launch(cluster.head, [DTRAIN, "bench", *args]).wait(timeout)


def numbers(result):
    """The rows of a table: lists of words."""
    return [line.split() for line in result.lines if line and not line.startswith("#")]


def test_allreduce_over_two_hosts(cluster):
    result = bench(cluster, "allreduce", *cluster.hosts_flag(1, cluster.nodes[:2]),
                   "--sizes", "4,4K,102228384")
    assert result.code == 0, result
    rows = numbers(result)
    assert [row[0] for row in rows] == ["4", "4096", "102228384"], result
    assert [row[1] for row in rows] == ["1", "1024", "25557096"], result
    for row in rows:
        assert row[2:4] == ["float32", "sum"] and row[7] == "0", result
        assert float(row[4]) > 0, result
    assert re.search(r"# 2 ranks on 2 nodes. Avg bus bandwidth: [0-9.]+ GB/s", result.out), result


def test_allreduce_as_json_and_as_a_page(cluster):
    cluster.work()
    result = bench(cluster, "allreduce", *cluster.hosts_flag(2, cluster.nodes[:2]), "--json",
                   "--sizes", "8,1M", "--type", "float64", "--op", "max",
                   "--plot", "/root/work/bench.html")
    assert result.code == 0, result
    rows = json.loads(result.out)
    assert [row["bytes"] for row in rows] == [8, 1 << 20]
    for row in rows:
        assert set(row) == {"bytes", "time_us", "algbw_gbs", "busbw_gbs", "wrong", "manner", "memory"}
        assert (row["manner"], row["memory"]) == ("latency", "plain")
        assert row["wrong"] == 0 and row["time_us"] > 0
        # 4 ranks: a ring sends 2 * 3 / 4 of the data.
        assert abs(row["busbw_gbs"] / row["algbw_gbs"] - 1.5) < 0.01
    page = (cluster.work() / "bench.html").read_text()
    assert "4 ranks on 2 nodes" in page and "<script" not in page
    xml.etree.ElementTree.fromstring(page.split("\n", 1)[1])


def test_pipelined_over_two_hosts_in_and_out_of_place(cluster):
    for collective in ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce"):
        result = bench(cluster, "allreduce", *cluster.hosts_flag(2, cluster.nodes[:2]), "--pipelined",
                       "--json", "--sizes", "16,256K", "--collective", collective)
        assert result.code == 0, result
        rows = json.loads(result.out)
        assert [row["bytes"] for row in rows] == [16, 1 << 18], result
        for row in rows:
            assert (row["manner"], row["wrong"]) == ("pipelined", 0) and row["time_us"] > 0, result
            if collective != "alltoall":
                assert row["in_place_wrong"] == 0 and row["in_place_time_us"] > 0, result
    result = bench(cluster, "allreduce", *cluster.hosts_flag(2, cluster.nodes[:2]), "--pipelined",
                   "--sizes", "4K")
    assert "in host memory, pipelined: mean time" in result.out, result
    assert len(numbers(result)[0]) == 12, result


def test_every_pair_of_hosts_by_name(cluster):
    result = bench(cluster, "p2p", *cluster.hosts_flag(1, cluster.nodes[:3]), "--json")
    assert result.code == 0, result
    rows = json.loads(result.out)
    pairs = {(row["from_host"], row["to_host"]) for row in rows}
    three = [node.name for node in cluster.nodes[:3]]
    assert pairs == {(a, b) for a in three for b in three if a != b}
    assert all(row["latency_us"] > 0 and row["bandwidth_gbs"] > 0 for row in rows), result


def test_pairs_are_one_rank_a_host(cluster):
    result = bench(cluster, "p2p", *cluster.hosts_flag(4, cluster.nodes[:2]))
    assert result.code == 0, result
    assert [row[:2] for row in numbers(result)] == [["node0", "node1"], ["node1", "node0"]], result
    assert "# median" in result.out, result


def test_scaling_from_one_rank_here_to_two_hosts(cluster):
    (cluster.work() / "train.py").write_text(TRAINING)
    for node in cluster.nodes[:2]:
        (cluster.work(node) / "train.py").write_text(TRAINING)
    result = bench(cluster, "scaling", "--np", "-1,2", *cluster.hosts_flag(1, cluster.nodes[:2]),
                   "--json", "--", "/usr/bin/python3", "-I", "/root/work/train.py")
    assert result.code == 0, result
    one, two = json.loads(result.out)
    assert (one["ranks"], one["local"], two["ranks"], two["local"]) == (1, True, 2, False)
    assert one["steps"] == two["steps"] == 3
    assert abs(two["speed_up"] - 2 * 0.1 / 0.12) < 0.001 and abs(two["efficiency"] - 0.8333) < 0.001
    assert two["predicted_allreduce_s"] > 0 and one["predicted_allreduce_s"] is None
    # 2.5 ms a sample; 2 / (2.5 b + 40) > 1 / (2.5 b + 20): always.
    assert two["pays_from_samples"] == 0
    assert one["startup_s"] > 0 and one["run_s"] > 0
    # The program's own words do not mix with ours.
    assert result.err.count("accuracy is great") == 3 and "accuracy" not in result.out, result


def test_mistakes_on_the_command_line_end_with_2(cluster):
    for args, text in [((), "say what to measure"), (("bandwidth",), "unknown tool"),
                       (("allreduce", "--sizes", "many"), "--sizes"),
                       (("allreduce", "--no-such-flag"), "unknown flag --no-such-flag"),
                       (("allreduce", "-np", "many"), "--np"),
                       (("allreduce", "-H", "node0:1", "--hostfile", "x"), "contradict"),
                       (("allreduce", "--plot", "/no/such/folder/x.svg"), "--plot"),
                       (("scaling", "--np", "1"), "no command")]:
        result = bench(cluster, *args)
        assert result.code == 2 and text in result.err, result
        assert result.out == "", result


def test_a_workers_exit_code_is_benchs(cluster):
    script = cluster.work() / "worker.sh"
    script.write_text(FAKE_WORKER)
    script.chmod(0o755)
    result = bench(cluster, "allreduce", "-np", "-2", "--worker", "/root/work/worker.sh")
    assert result.code == 7, result
    assert "rank 1" in result.err, result


def test_a_worker_that_is_missing_on_a_host_is_explained(cluster):
    result = bench(cluster, "allreduce", *cluster.hosts_flag(1, cluster.nodes[:2]),
                   "--worker", "/opt/no/dtrain-allreduce")
    assert result.code == 127, result
    assert "--worker PATH" in result.err, result


# As with a wheel or a folder of a user's, which the hosts know nothing of.
def test_the_worker_travels_to_hosts_without_dtrain(cluster):
    own = cluster.head.path("/root/own dtrain")
    shutil.rmtree(own, ignore_errors=True)
    (own / "bin").mkdir(parents=True)
    (own / "lib").mkdir()
    for name in ("dtrain", "dtrain-agent", "dtrain-allreduce"):
        shutil.copy(hosts.bin_dir() / name, own / "bin")
    shutil.copy(hosts.bin_dir().parent / "lib/libdtrain.so.0", own / "lib")
    try:
        result = launching.Launch(cluster.head, ["/root/own dtrain/bin/dtrain", "bench", "allreduce",
                                                 *cluster.hosts_flag(1, cluster.nodes[1:3]), "--sizes", "4,4K"]).wait(120)
        assert result.code == 0 and [row[0] for row in numbers(result)] == ["4", "4096"], result
    finally:
        shutil.rmtree(own)


def test_scaling_stops_at_the_run_that_failed(cluster):
    result = bench(cluster, "scaling", "--np", "-1,-2,-3", "--",
                   "sh", "-c", "exit $((WORLD_SIZE * 3 - 3))")
    assert result.code == 3, result
    assert len(numbers(result)) == 1, result


def start_and_wait_until_it_runs(cluster):
    """bench with workers that never end, on two hosts."""
    for node in cluster.nodes[:2]:
        path = cluster.work(node) / "worker.sh"
        path.write_text("#!/bin/sh\necho running >&2\nexec sleep 600\n")
        path.chmod(0o755)
    launch = launching.Launch(cluster.head, [
        DTRAIN, "bench", "allreduce", *cluster.hosts_flag(1, cluster.nodes[:2]),
        "--worker", "/root/work/worker.sh"])
    launch.wait_for("running", stream="err", count=2)
    return launch


def test_ctrl_c_ends_the_launch_and_leaves_nothing(cluster):
    launch = start_and_wait_until_it_runs(cluster)
    launch.signal(signal.SIGINT)
    assert launch.wait(30).code == 130


def test_kill_9_of_bench_leaves_nothing(cluster):
    start_and_wait_until_it_runs(cluster).kill()
