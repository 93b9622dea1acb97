# SPDX-License-Identifier: Apache-2.0
"""What people type from habit: scripts and modules without python3, files of variables, a choice of hosts,
GPUs and ranks, files by pattern."""
import os

import pytest

import hosts

PRINT_WORDS = "import sys; print(sys.orig_argv[1:], flush=False)\n"
GPUS = "".join(f"gpu uuid=GPU-{n} pci=00000000:3{n}:00.0 used=1048576\n" for n in range(4))


def put(cluster, name, text, mode=0o644, on=()):
    """Writes /root/work/NAME on the head, or on the nodes given."""
    for host in on or [cluster.head]:
        path = cluster.work(host) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)


def launch_ok(cluster, args, **options):
    result = cluster.launch(args, **options)
    assert result.code == 0, result
    return result


def tree(cluster, folder):
    root = cluster.work() / folder
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def gpus(cluster):
    """The environment of a launch on the head, which then has four GPUs."""
    put(cluster, "nvml", GPUS)
    library = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
    return {"FAKE_NVML": "/root/work/nvml", "DTRAIN_NVML_LIBRARY": str(library)}


# ---- Python

def test_a_script_that_only_the_nodes_have_is_run_by_python(cluster):
    nodes = cluster.nodes[:2]
    put(cluster, "only/train.py", PRINT_WORDS, on=nodes)
    result = launch_ok(cluster, ["-H", "node0:1,node1:1", "--wdir", "/root/work/only", "train.py", "-m", "a b"])
    assert sorted(result.lines) == [f"[{rank}] ['-u', 'train.py', '-m', 'a b']" for rank in range(2)]


def test_a_script_with_its_own_interpreter_keeps_it(cluster):
    put(cluster, "run.py", "#!/bin/sh\necho shell $1\n", mode=0o755)
    assert launch_ok(cluster, ["-np", 1, "/root/work/run.py", "x"]).out == "shell x\n"
    assert launch_ok(cluster, ["-np", 1, "run.py", "x"], env={"PATH": "/root/work:/usr/bin:/bin"}).out == "shell x\n"


# As on file systems that show every file as executable: the kernel cannot run it, and sh would.
def test_a_script_without_first_line_is_run_by_python_though_it_is_executable(cluster):
    put(cluster, "plain.py", PRINT_WORDS, mode=0o755)
    assert launch_ok(cluster, ["-np", 1, "--wdir", "/root/work", "./plain.py"]).out == "['-u', './plain.py']\n"


def test_a_module_is_run_by_name(cluster):
    put(cluster, "package/train.py", PRINT_WORDS, on=[cluster.nodes[0]])
    result = launch_ok(cluster, ["-H", "node0:1", "--wdir", "/root/work", "-m", "package.train", "--lr", "3"])
    assert result.out == "['-u', '-m', 'package.train', '--lr', '3']\n"


def test_an_interpreter_that_a_node_lacks_is_named_with_the_node(cluster):
    put(cluster, "train.py", PRINT_WORDS, on=[cluster.nodes[0]])
    args = ["-H", "node0:1", "--wdir", "/root/work", "train.py"]
    result = cluster.launch(args, env={"PYTHON_EXEC": "/opt/none/python"})
    assert result.code == 127 and "node0: cannot run /opt/none/python: No such file" in result.err, result
    result = cluster.launch(["-x", "PATH=/nowhere", *args])
    assert result.code == 127 and "python3" in result.err and "the program must exist on every node" in result.err, result


def test_a_script_that_was_written_on_windows_is_told(cluster):
    put(cluster, "windows.sh", "#!/bin/sh\r\necho ran\r\n", mode=0o755, on=[cluster.nodes[0]])
    result = cluster.launch(["-H", "node0:1", "--", "/root/work/windows.sh"])
    assert result.code in (126, 127) and "node0" in result.err and "ran" not in result.out, result
    assert "its first line ends in a carriage return" in result.err, result


# ---- words in the wrong place or form

def test_words_by_which_something_else_would_run_are_refused(cluster):
    ran = cluster.work() / "mistyped"
    for words, said in [(["–np", "2", "touch", "/root/work/mistyped"], "only looks like a dash: type -np"),
                        (["-np", "1", "touch", "/root/work/mistyped", "--dry-run"],
                         "--dry-run stands behind the command, so the job would run")]:
        result = cluster.launch(words)
        assert result.code == 2 and said in result.err and not ran.exists(), result


def test_words_that_do_nothing_are_told(cluster):
    result = launch_ok(cluster, ["-np", "1", "echo", "--grace=3s"], env={"DTRAIN_MAX_RESTART": "3"})
    assert result.out == "--grace=3s\n", result
    assert "dtrain: warning: --grace stands behind the command, so echo gets it" in result.err, result
    assert "DTRAIN_MAX_RESTART means nothing to dtrain; did you mean DTRAIN_MAX_RESTARTS?" in result.err, result


def test_mistakes_in_a_configuration_file_have_their_line(cluster):
    for text, said in [("[lanch]\nnp = 2\n", ":2: unknown section [lanch] of np; did you mean [launch]?"),
                       ("np = 1\nppm = 2\n", ":2: unknown key ppm; did you mean "),
                       ("np = 1\nnp = 2\n", ":2: "), ("lease = 20s  # long\n", ":1: ")]:
        put(cluster, "dtrain.toml", text)
        result = cluster.launch(["--config", "/root/work/dtrain.toml", "--", "echo", "ran"])
        assert result.code == 2 and f"/root/work/dtrain.toml{said}" in result.err and not result.out, (text, result)


# ---- variables

def test_variables_of_files_reach_the_workers(cluster):
    put(cluster, "a.env", "# mine\nQUOTED='a \"b\" # c'\nOWN\nUNSET_HERE\nTWICE=a\nRANK=7\nEMPTY=\n")
    put(cluster, "b.env", "TWICE=b\nGIVEN=file\n")
    show = 'echo "$QUOTED|$OWN|${UNSET_HERE-unset}|$TWICE|$GIVEN|$RANK|${EMPTY-unset}"'
    result = launch_ok(cluster, ["-H", "node0:1", "-x", "GIVEN=flag", "--env-file", "/root/work/a.env",
                                 "--env-file", "/root/work/b.env", "--", "sh", "-c", show],
                       env={"OWN": "my own"})
    assert result.out == "'a \"b\" # c'|my own|unset|b|flag|7|\n"


def test_a_broken_file_of_variables_is_named_by_its_line_and_shows_no_secret(cluster):
    put(cluster, "bad.env", "KEY=-----BEGIN KEY-----\nMIIE SECRET\n")
    result = cluster.launch(["-np", 1, "--env-file", "/root/work/bad.env", "true"])
    assert result.code == 2 and "--env-file: /root/work/bad.env:2: " in result.err, result
    assert "SECRET" not in result.err
    result = cluster.launch(["-np", 1, "--env-file", "/root/work/none.env", "true"])
    assert result.code == 2 and "/root/work/none.env: No such file" in result.err, result


# A FIFO that nobody writes to would hold the launch.
def test_a_file_of_variables_that_is_a_fifo_does_not_hold_the_launch(cluster):
    os.mkfifo(cluster.work() / "fifo.env")
    result = cluster.launch(["-np", 1, "--env-file", "/root/work/fifo.env", "true"], timeout=10)
    assert result.code == 2 and "it is a named pipe" in result.err, result


# ---- hosts and GPUs

SHOW_GPUS = ["sh", "-c", 'echo "$LOCAL_RANK $CUDA_VISIBLE_DEVICES"']


def test_workers_see_the_included_gpus_in_their_order(cluster, gpus):
    result = launch_ok(cluster, ["--include", "localhost:2,0", "--", *SHOW_GPUS], env=gpus)
    assert sorted(result.lines) == ["[0] 0 GPU-2,GPU-0", "[1] 1 GPU-2,GPU-0"]
    result = launch_ok(cluster, ["--include", "localhost:1-3", "--gpus-per-rank", 3, "--", *SHOW_GPUS], env=gpus)
    assert result.lines == ["0 GPU-1,GPU-2,GPU-3"]


def test_workers_do_not_see_excluded_gpus(cluster, gpus):
    result = launch_ok(cluster, ["--exclude", "localhost:1", "--gpu-bind", "rank", "--", *SHOW_GPUS], env=gpus)
    assert sorted(result.lines) == ["[0] 0 GPU-0", "[1] 1 GPU-2", "[2] 2 GPU-3"]


def test_a_gpu_that_is_not_there_is_named_before_anything_starts(cluster, gpus):
    result = cluster.launch(["--include", "localhost:0,4", "--", "echo", "ran"], env=gpus)
    assert result.code == 2 and "localhost has no GPU 4, which --include names: it has GPUs 0-3" in result.err
    assert "ran" not in result.out
    result = cluster.launch(["--include", "localhost:0", "--", "echo", "ran"])
    assert result.code == 2 and "localhost has no GPU 0" in result.err and "ran" not in result.out, result
    result = cluster.launch(["-np", 3, "--include", "localhost:0,1", "--", "true"], env=gpus)
    assert result.code == 2 and "-np 3 needs 1 more than the 2 slots" in result.err, result
    result = cluster.launch(["--gpu-bind", "none", "--include", "localhost:0", "--", "true"], env=gpus)
    assert result.code == 2 and "--gpu-bind none leaves them to the program" in result.err, result


def test_hosts_that_are_left_out_are_not_contacted(cluster):
    hostfile = cluster.hostfile("nowhere slots=2\nnode0 slots=2\nnode1 slots=2\n", "some")
    for choice in (["--include", "node1@node0"], ["--exclude", "nowhere"]):
        result = launch_ok(cluster, ["--hostfile", hostfile, *choice, "--", "sh", "-c", "echo $RANK $(hostname)"])
        assert sorted(result.lines) == ["[0] 0 node0", "[1] 1 node0", "[2] 2 node1", "[3] 3 node1"]
    result = launch_ok(cluster, ["--hostfile", hostfile, "--exclude", "nowhere", "-N", 1, "--", "hostname"])
    assert sorted(result.lines) == ["[0] node0", "[1] node0"]
    result = cluster.launch(["--hostfile", hostfile, "--include", "node7", "--", "true"])
    assert result.code == 2 and 'host is not in the host list: "node7"' in result.err, result


# ---- what is shown

def test_only_the_ranks_that_are_chosen_are_shown_and_all_are_kept(cluster):
    worker = ["sh", "-c", "echo out $RANK; echo err $RANK >&2"]
    result = launch_ok(cluster, ["--show-ranks", "1,3-3", "--log-dir", "/root/work/shown",
                                 "-H", "node0:2,node1:2", "--", *worker])
    assert sorted(result.lines) == ["[1] out 1", "[3] out 3"]
    assert sorted(result.err.splitlines()) == ["[1] err 1", "[3] err 3"]
    assert tree(cluster, "shown") == {
        f"rank-0000{rank}.{name}": f"{name} {rank}\n" for rank in range(4) for name in ("out", "err")}


def test_the_report_has_the_last_lines_of_a_rank_that_is_not_shown(cluster):
    result = cluster.launch(["--show-ranks", "0", "-H", "node0:2", "--", "sh", "-c",
                             '[ "$RANK" = 0 ] && exec sleep 60; echo cause >&2; exit 7'])
    assert result.code == 7 and "[1] cause" not in result.err, result
    assert "dtrain: rank 1 on node0" in result.err and "  | cause" in result.err, result


def test_ranks_to_show_that_do_not_exist_are_a_warning(cluster):
    result = launch_ok(cluster, ["-np", 2, "--show-ranks", "0,5", "--", "echo", "x"])
    assert result.out == "[0] x\n"
    assert result.err == "dtrain: warning: --show-ranks: the job has no rank 5, only 0 to 1\n"
    result = cluster.launch(["-np", 2, "--show-ranks", "0-", "--", "true"])
    assert result.code == 2 and '--show-ranks: "0-" is not' in result.err, result


# ---- files by pattern

def test_files_are_named_by_the_pattern(cluster):
    worker = ["sh", "-c", "echo out $RANK; echo err $RANK >&2"]
    launch_ok(cluster, ["--output", "/root/work/named/%h/%R-%n-%l.%s", "-H", "node1:1,node0:2", "--", *worker])
    places = ["node1/0-0-0", "node0/1-1-0", "node0/2-1-1"]
    assert tree(cluster, "named") == {f"{place}.std{name}": f"{name} {rank}\n"
                                      for rank, place in enumerate(places) for name in ("out", "err")}


def test_both_streams_share_a_file_by_whole_lines(cluster):
    worker = ["sh", "-c", "for i in $(seq 500); do printf 'out '; printf 'err %s\\n' $i >&2; echo $i; done"]
    launch_ok(cluster, ["--output", "/root/work/both/%r", "-H", "node0:1", "--", *worker])
    lines = tree(cluster, "both")["0"].splitlines()
    for name in ("out", "err"):
        assert [line for line in lines if line.startswith(name)] == [f"{name} {i}" for i in range(1, 501)]
    assert len(lines) == 1000


def test_ranks_that_would_share_a_file_do_not_start(cluster):
    (cluster.work() / "clash").mkdir()
    for flags in ([], ["--dry-run"]):
        result = cluster.launch([*flags, "--output", "/root/work/clash/%h.log", "-H", "node0:2", "--",
                                 "touch", "/root/work/ran"])
        assert result.code == 2 and "ranks 0 and 1 would both write to /root/work/clash/node0.log" in result.err
    assert not (cluster.work(cluster.nodes[0]) / "ran").exists()
    assert tree(cluster, "clash") == {}
    launch_ok(cluster, ["--output", "/root/work/clash/%h.log", "-H", "node0:1,node1:1", "--", "echo", "x"])
    assert tree(cluster, "clash") == {"node0.log": "x\n", "node1.log": "x\n"}


def test_a_place_that_cannot_be_written_to_is_told_before_a_host_is_asked(cluster):
    put(cluster, "file", "x")
    result = cluster.launch(["--output", "/root/work/file/%r", "-H", "nowhere:2", "--", "true"])
    assert result.code == 200 and "--output: make the directory /root/work/file: Not a directory" in result.err, result
    assert "nowhere" not in result.err
