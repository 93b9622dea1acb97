# SPDX-License-Identifier: Apache-2.0
"""Command lines of other launchers, several programs in one job, and what programs are told only on
request: each checked inside the program."""
import importlib.util
import json
import os
import re
import shutil
import subprocess

import pytest

import hosts
import launching

PYTHON = "/usr/bin/python3"
SUM = hosts.HERE / "programs/torch_sum.py"
TF = hosts.HERE / "programs/tf_cluster.py"
JAX = hosts.HERE / "programs/jax_detect.py"

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"),
                                 reason="there is no python3-torch")


def dtrain(cluster, *words, env=None, timeout=120):
    return launching.Launch(cluster.head, [launching.bin_dir() / "dtrain", *words],
                            env=env).wait(timeout)


def names(cluster, count, slots=""):
    return ",".join(f"{node.name}{slots}" for node in cluster.nodes[:count])


def assert_sums(result, world):
    assert result.code == 0, result
    for rank in range(world):
        assert f"rank {rank} of {world} is right" in result.out, result


@needs_torch
def test_torchrun(cluster):
    nodes = 2
    result = dtrain(cluster, "torchrun", "--hosts", names(cluster, 4), f"--nnodes={nodes}",
                    "--nproc_per_node=2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "x:29500",
                    "--role", "trainer", SUM, 2 * nodes, "${local_rank}")
    assert_sums(result, 2 * nodes)
    assert "as trainer on" in result.out and not re.search(r"^\[", result.out, re.M), result
    assert f"on {cluster.nodes[nodes - 1].name}" in result.out
    assert "--rdzv_backend, --rdzv_endpoint ignored" in result.err


@needs_torch
def test_torchrun_starts_on_those_hosts_that_are_there(cluster):
    hosts = names(cluster, 3) + ",nowhere.invalid"
    line = ["torchrun", "--hosts", hosts, "--nproc_per_node=2"]
    cluster.nodes[1].stop_sshd()
    try:
        result = dtrain(cluster, *line, "--nnodes=2:4", SUM, 4)
        refused = dtrain(cluster, *line, "--nnodes=3:4", SUM, 6)
    finally:
        cluster.nodes[1].restart_sshd()
    assert_sums(result, 4)
    assert re.search(r"^node1 is left out \(at least 2 are needed\): .*refused", result.err, re.M), result
    assert "nowhere.invalid is left out" in result.err, result
    assert refused.code == 200 and "of 4 nodes" in refused.err and "nowhere.invalid" in refused.err, refused
    assert "is right" not in refused.out and "is left out" not in refused.err, refused


@needs_torch
def test_torchrun_by_a_link_with_variables_and_files(cluster):
    folder = cluster.work(cluster.head)
    link = folder / "torchrun"
    link.symlink_to(launching.bin_dir() / "dtrain")
    result = launching.Launch(
        cluster.head, [link, "--nnodes", "1:9", "--log_dir", "/root/work/logs", "--redirects", "1:3",
                       "--tee", "0:1", SUM, "4"],
        env={"PET_NPROC_PER_NODE": "2", "DTRAIN_HOSTS": names(cluster, 2)}).wait(120)
    assert result.code == 0, result
    assert "[0] rank 0 of 4 is right" in result.out, result
    assert "rank 1 of 4" not in result.out and "rank 3 of 4" not in result.out, result
    written = {path.parent.name: path.read_text() for path in folder.glob("logs/*/attempt_0/*/stdout.log")}
    assert sorted(written) == ["0", "1", "2", "3"], written
    assert "rank 3 of 4 is right" in written["3"]


@needs_torch
def test_torchrun_without_hosts_is_this_machine(cluster):
    result = dtrain(cluster, "torchrun", "--standalone", "--nproc-per-node", "3", SUM, "3")
    assert_sums(result, 3)
    assert "on localhost" in result.out
    refused = dtrain(cluster, "torchrun", "--nnodes", "2", SUM, "2")
    assert refused.code == 2 and "no hosts are known" in refused.err, refused
    second = dtrain(cluster, "torchrun", "--nnodes", "2", "--node-rank", "1", SUM, "2")
    assert second.code == 2 and "run this line once" in second.err, second


@pytest.mark.parametrize("face", ["mpirun", "mpiexec"])
def test_mpirun_of_open_mpi(cluster, shared_cluster, face):
    nodes = 2
    program = open_mpi(shared_cluster)
    result = dtrain(cluster, face, "--allow-run-as-root", "-np", 2 * nodes, "-H",
                    names(cluster, nodes, ":2"), "--oversubscribe", "-mca", "osc", "sm,pt2pt",
                    "--bind-to", "none", "-x", "LANG", program, 2 * nodes)
    assert result.code == 0, result
    assert f"world {2 * nodes} is right" in result.out, result


def open_mpi(shared_cluster):
    binary = shared_cluster.base / "faces-mpi_world"
    if not binary.exists():
        subprocess.run(["mpicc.openmpi", "-O1", "-o", binary, hosts.HERE / "programs/mpi_world.c"],
                       check=True)
    return binary


def test_mpirun_of_several_programs_is_one_world(cluster, shared_cluster):
    program = open_mpi(shared_cluster)
    show = 'echo "$OMPI_COMM_WORLD_RANK: $MINE on $DTRAIN_HOST" >&2; exec "$@"'
    result = dtrain(cluster, "mpirun", "-np", "1", "-H", "node0:4", "-x", "MINE=a", "-mca", "osc",
                    "sm,pt2pt", "sh", "-c", show, "-", program, "5", ":", "-np", "4", "-H",
                    "node1:2,node2:2", "-x", "MINE=b", "sh", "-c", show, "-", program, "5")
    assert result.code == 0, result
    assert "world 5 is right" in result.out, result
    seen = sorted(line for line in result.err.splitlines() if re.match(r"\d: ", line))
    assert seen == ["0: a on node0", "1: b on node1", "2: b on node1", "3: b on node2",
                    "4: b on node2"], result


def test_hydras_ranks_beyond_ppn_begin_again_with_the_first_host(cluster):
    result = dtrain(cluster, "mpiexec", "-ppn", "1", "-n", "4", "-H", names(cluster, 2, ":2"), "sh", "-c",
                    'echo "$RANK on $DTRAIN_HOST"')
    assert result.code == 0, result
    assert sorted(result.lines) == ["0 on node0", "1 on node1", "2 on node0", "3 on node1"], result


@needs_torch
def test_several_programs_are_one_world(cluster):
    result = cluster.launch([*cluster.hosts_flag(2), "-np", 2, "--wdir", "/tmp", PYTHON, SUM, 7, ":",
                             "-np", 5, "-x", "ROLE_NAME=late", PYTHON, SUM, 7], timeout=120)
    assert_sums(result, 7)
    assert result.out.count("as default") == 2 and result.out.count("as late") == 5, result
    failed = cluster.launch([*cluster.hosts_flag(2), "-np", 1, "sleep", 60, ":", "-np", 1, "sh", "-c",
                             "exit 7"])
    assert failed.code == 7 and "rank 1" in failed.err, failed
    missing = cluster.launch([*cluster.hosts_flag(2), "-np", 3, "true", ":", "-np", 1, "/no/such"])
    assert missing.code == 127 and "/no/such" in missing.err, missing


@needs_torch
def test_deepspeed(cluster):
    file = cluster.hostfile("node0 slots=2\nnode1 slots=1\nnode2 slots=4\n")
    all_hosts = dtrain(cluster, "deepspeed", "--hostfile", file, SUM, 7)
    assert_sums(all_hosts, 7)
    some = dtrain(cluster, "deepspeed", "--hostfile", file, "--num_nodes=2", "--num_gpus", "1", SUM, 2)
    assert_sums(some, 2)
    excluded = dtrain(cluster, "deepspeed", "--hostfile", file, "--exclude", "node0@node2",
                      "--no_local_rank", SUM, 1)
    assert_sums(excluded, 1)
    assert "on node1" in excluded.out
    missing = dtrain(cluster, "deepspeed", "--hostfile", "/no/such", "--num_gpus=2", SUM, 2)
    assert missing.code == 2 and "there is no file /no/such" in missing.err, missing
    assert_sums(dtrain(cluster, "deepspeed", "--hostfile", "none", "--num_gpus=2", SUM, 2), 2)


@needs_torch
def test_accelerate_launch(cluster):
    nodes = 2
    config = cluster.work(cluster.head) / "accelerate.yaml"
    config.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\n"
                      f"mixed_precision: bf16\nnum_machines: {nodes}\nnum_processes: {2 * nodes}\n")
    face = ["accelerate", "launch", "--hosts", names(cluster, 4, ":2"), "--config_file",
            "/root/work/accelerate.yaml", "--mixed_precision", "fp16"]
    result = dtrain(cluster, *face, SUM, 2 * nodes)
    assert_sums(result, 2 * nodes)
    shown = dtrain(cluster, *face, "--no_python", "env")
    assert shown.code == 0, shown
    assert shown.out.count("ACCELERATE_MIXED_PRECISION=fp16") == 2 * nodes, shown
    assert shown.out.lower().count("accelerate_use_cpu=true") == 2 * nodes, shown


# `accelerate config` has written it long ago, and no flag names it.
def test_what_the_default_file_of_accelerate_says_has_its_source(cluster):
    path = "root/.cache/huggingface/accelerate/default_config.yaml"
    file = cluster.head.base / path
    file.parent.mkdir(parents=True)
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\n"
    face = ["accelerate", "launch", "--no_python"]
    try:
        file.write_text(f"{text}num_machines: 1\nnum_processes: 2\n")
        result = dtrain(cluster, *face, "echo", "ran")
        assert result.code == 0 and result.out.count("ran") == 2, result
        assert f"dtrain: 2 processes, from /{path}\n" in result.err, result
        file.write_text(f"{text}num_machines: 2\nnum_processes: 3\n")
        refused = dtrain(cluster, *face, "echo", "ran")
        assert refused.code == 2 and f"; what no flag says is from /{path}" in refused.err, refused
    finally:
        shutil.rmtree(cluster.head.base / "root/.cache/huggingface")


@needs_torch
def test_fabric_run(cluster):
    nodes = 2
    face = ["fabric", "run", "--hosts", names(cluster, 4), f"--num_nodes={nodes}"]
    result = dtrain(cluster, *face, SUM, "--accelerator", "cpu", 2 * nodes, "--devices=2")
    assert_sums(result, 2 * nodes)
    assert f"on {cluster.nodes[nodes - 1].name}" in result.out
    told = cluster.work(cluster.head) / "told.py"
    told.write_text("import os\nprint(sorted(v for v in os.environ.items() if v[0].startswith('LT_')))\n")
    told.chmod(0o644)
    told = dtrain(cluster, "fabric", "run", "/root/work/told.py", "--strategy", "ddp", "--devices", 2)
    assert told.code == 0, told
    assert told.lines == [str([("LT_CLI_USED", "1"), ("LT_DEVICES", "2"), ("LT_NUM_NODES", "1"),
                               ("LT_STRATEGY", "ddp")])] * 2, told


def test_horovodrun(cluster):
    nodes = 2
    show = 'echo "$HOROVOD_FUSION_THRESHOLD $HOROVOD_CYCLE_TIME"; exec "$@"'
    result = dtrain(cluster, "horovodrun", "-np", 2 * nodes, "-H", names(cluster, nodes, ":2"),
                    "--fusion-threshold-mb", "32", "--cycle-time-ms", "3.5", "--output-filename",
                    "/root/work/out", "sh", "-c", show, "-", PYTHON, "-S",
                    hosts.HERE / "programs/horovod_rank.py", "1")
    assert result.code == 0, result
    assert len(re.findall(rf"met {2 * nodes} ", result.out)) == 2 * nodes, result
    assert result.out.count("33554432 3.5") == 2 * nodes, result
    written = cluster.work(cluster.head).glob("out/rank.*/stdout")
    assert sorted(path.parent.name for path in written) == [f"rank.{n}" for n in range(2 * nodes)]


def test_flags_that_cannot_be_kept_are_named(cluster):
    for words, name in [(["mpirun", "--preload-binary", "a"], "--preload-binary"),
                        (["torchrun", "--logs-specs", "x", "a"], "--logs-specs"),
                        (["deepspeed", "--elastic_training", "a"], "--elastic_training")]:
        result = dtrain(cluster, *words)
        assert result.code == 2 and f"{words[0]}: {name} is not supported" in result.err, result
    unknown = dtrain(cluster, "mpirun", "--hostfle", "x", "a")
    assert unknown.code == 2 and "did you mean --hostfile?" in unknown.err, unknown
    page = dtrain(cluster, "torchrun", "--help")
    assert page.code == 0 and "--nproc-per-node" in page.out, page


@pytest.mark.parametrize("layout, types", [
    ("worker", ["worker"] * 4),
    ("chief,worker", ["chief"] + ["worker"] * 3),
    ("ps:1,worker,evaluator", ["ps", "worker", "worker", "evaluator"])])
def test_tensorflows_cluster(cluster, layout, types):
    result = cluster.launch(["-H", names(cluster, 2, ":2"), "--tf-config", layout, "--",
                             PYTHON, TF, *types], env={"TF_CONFIG": "{}"})
    assert result.code == 0, result
    assert result.out.count("is right") == 4, result


@pytest.mark.parametrize("where", ["node0:3", "node0:2,node1:1", "node0,node1,node2,node3"])
def test_jax_finds_its_coordinator(cluster, where):
    world = 4 if "node3" in where else 3
    result = cluster.launch(["-H", where, "-np", world, "--", PYTHON, JAX, world])
    assert result.code == 0, result
    assert result.out.count("is right") == world, result


def test_contracts_are_what_was_asked_for(cluster):
    def variables(*flags):
        result = cluster.launch(["-H", "node0:1,node1:1", "--tag-output", "none", *flags, "--", PYTHON,
                                 "-c", "import json, os; print(json.dumps(dict(os.environ)))"])
        assert result.code == 0, result
        each = [json.loads(line) for line in result.out.splitlines()]
        return sorted(each, key=lambda env: env["DTRAIN_RANK"])

    none = variables("--contract", "none")[1]
    theirs = re.compile(r"^(RANK|MASTER_|PMI|OMPI_|HOROVOD_|JAX_|NCCL_|TORCH|LOCAL_|SLURM|PET_)")
    assert not [name for name in none if theirs.match(name)], none
    assert none["DTRAIN_WORLD_SIZE"] == "2"
    slurm = variables("--contract", "torch", "--emulate", "slurm,sagemaker")
    assert [env["SLURM_PROCID"] for env in slurm] == ["0", "1"]
    assert [env["SLURM_NTASKS_PER_NODE"] for env in slurm] == ["1", "1"]
    assert slurm[1]["SLURM_STEP_NODELIST"] == "node0,node1" and slurm[1]["SLURM_NODEID"] == "1"
    assert json.loads(slurm[0]["SM_HOSTS"]) == ["node0", "node1"]
    assert json.loads(slurm[1]["SM_TRAINING_ENV"])["current_host"] == "node1"
    assert "OMPI_COMM_WORLD_RANK" not in slurm[0] and slurm[1]["RANK"] == "1"
    agents = variables("--contract", "auto,torchrun-agent")
    assert [env["PET_NODE_RANK"] for env in agents] == ["0", "1"]
    assert agents[1]["PET_MASTER_PORT"] == agents[0]["MASTER_PORT"]


@needs_torch
@pytest.mark.parametrize("contract", [[], ["--contract", "auto,torchrun-agent"]], ids=["seen", "told"])
def test_one_torchrun_on_each_node_is_one_job(cluster, contract):
    """python3-torch's own torchrun is broken on Python 3.11; its module with redirects is not."""
    result = cluster.launch(["-H", "node0:1,node1:1", *contract, "--", PYTHON,
                             "-m", "torch.distributed.run", "--nproc_per_node", 2, "-r", 1, "-t", 1,
                             "--log_dir", "/root/work/elastic",
                             SUM, 4], timeout=240)
    assert result.code == 0, result
    for rank in range(4):
        assert f"rank {rank} of 4 is right" in result.out, result
    assert "will not be one job" not in result.err, result


def test_launchers_that_each_rank_runs_are_not_one_job_and_the_user_is_told(cluster):
    result = cluster.launch(["-H", "node0:1,node1:1", "--", "mpirun", "--version"])
    assert "use `dtrain mpirun ...` with the same arguments" in result.err, result
