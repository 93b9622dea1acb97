# SPDX-License-Identifier: Apache-2.0
"""barrier_context(): what Spark's barrier mode offers its tasks. Needs no numpy."""
import os
import subprocess
import sys

import pytest

import dtrain


def run(ranks, function, *args, **options):
    """Without dtrain.init(), which barrier_context() has to do."""
    return dtrain.run(function, *args, np=-ranks, timeout=120, **options)


def as_in_spark(folder):
    import os
    from pathlib import Path

    from dtrain import BarrierTaskContext

    context = BarrierTaskContext.get()
    me, infos = context.partitionId(), context.getTaskInfos()
    ranks = int(os.environ["DTRAIN_WORLD_SIZE"])
    assert me == int(os.environ["DTRAIN_RANK"]) and len(infos) == ranks == context.numPartitions()
    assert [info.address for info in infos] == [os.environ["DTRAIN_ADDRESS"]] * ranks
    assert infos[0].address == os.environ["MASTER_ADDR"]
    assert context.attemptNumber() == context.stageAttemptNumber() == 0
    for round in range(10):
        Path(folder, f"{round}-{me}").touch()
        context.barrier()
        # Nobody passes before all have come.
        assert all(Path(folder, f"{round}-{rank}").exists() for rank in range(ranks))
    assert context.allGather(f"task {me}") == [f"task {rank}" for rank in range(ranks)]
    return me


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_function_for_sparks_barrier_stage_runs(tmp_path, ranks):
    assert run(ranks, as_in_spark, str(tmp_path)) == list(range(ranks))


def plain_names():
    import dtrain

    context = dtrain.barrier_context()
    assert context is dtrain.barrier_context() is dtrain.BarrierTaskContext.get()
    pairs = [("partitionId", "partition_id"), ("numPartitions", "num_partitions"),
             ("attemptNumber", "attempt_number"), ("getTaskInfos", "get_task_infos"),
             ("stageAttemptNumber", "stage_attempt_number"), ("allGather", "all_gather")]
    for theirs, ours in pairs:
        assert getattr(context, theirs) == getattr(context, ours)
    assert "BarrierTaskInfo('" in repr(context.get_task_infos())
    # Of the caller's own list nobody else knows.
    context.get_task_infos().clear()
    assert len(context.get_task_infos()) == context.num_partitions() == 2


def test_it_has_names_in_pythons_style_too():
    run(2, plain_names)


def texts():
    import dtrain

    context = dtrain.barrier_context()
    me, ranks = context.partition_id(), range(context.num_partitions())
    assert context.all_gather() == [""] * len(ranks)
    for text in ["ä€😀", "\0a\nb\r", "\udcff\ud800", " ", "x" * 4097]:
        assert context.all_gather(text * (me + 1)) == [text * (rank + 1) for rank in ranks]
        assert context.all_gather(message=text if me == 1 else "") == ["", text, ""]
    # Of a length, and of rank 2 only: neither way of gathering may cut or mix them.
    large = "ä" * (3 << 20)
    assert context.all_gather(f"{me}{large}") == [f"{rank}{large}" for rank in ranks]
    assert context.all_gather(large if me == 2 else "") == ["", "", large]
    assert context.all_gather(large[: me << 20]) == [large[: rank << 20] for rank in ranks]


def test_any_text_of_any_length_arrives_in_rank_order():
    run(3, texts)


def beside_others():
    import torch
    import torch.distributed

    import dtrain.torch as hvd

    context = hvd.barrier_context()
    torch.distributed.init_process_group("gloo")
    hvd.init()
    ones = torch.ones(3)
    torch.distributed.all_reduce(ones)
    handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum)
    assert context.all_gather(str(hvd.rank())) == ["0", "1"]
    context.barrier()
    assert ones.tolist() == hvd.synchronize(handle).tolist() == [2.0] * 3
    torch.distributed.destroy_process_group()
    return hvd.allgather_object(context.partition_id())


def test_it_works_beside_torch_distributed_and_collectives():
    pytest.importorskip("torch", reason="there is no Python package torch")
    assert run(2, beside_others) == [[0, 1]] * 2


def again_and_again():
    import os

    import dtrain

    dtrain.init()
    first = dtrain.barrier_context()
    first.barrier()
    dtrain.shutdown()
    if os.environ["DTRAIN_RANK"] == "0":
        # A call that fails here must not set this rank apart from the others.
        for call in (first.barrier, first.partition_id):
            try:
                call()
            except dtrain.StateError as error:
                assert "this process is in no job" in str(error)
            else:
                raise AssertionError("it met others without a job")
    second = dtrain.barrier_context()
    assert second is not first and dtrain.is_initialized()
    assert second.all_gather("a") == ["a", "a"] and first.all_gather("b") == ["b", "b"]


def test_it_can_be_left_and_joined_again():
    run(2, again_and_again)


def wrong_messages():
    import dtrain

    context = dtrain.barrier_context()
    if context.partition_id() == 1:
        for wrong in (b"bytes", 7, None, ["x"]):
            try:
                context.all_gather(wrong)
            except TypeError as error:
                assert f"a str, not a {type(wrong).__name__}" in str(error), error
            else:
                raise AssertionError(f"{wrong!r} was sent")
    # Nobody else has noticed, and the ranks still meet.
    return context.all_gather("right")


def test_what_is_no_str_is_an_error_of_that_rank_alone():
    assert run(2, wrong_messages) == [["right"] * 2] * 2


def different_calls():
    import dtrain

    context = dtrain.barrier_context()
    try:
        if context.partition_id() == 2:
            context.all_gather("hello")
        else:
            context.barrier()
    except dtrain.MismatchError as error:
        return str(error)


def test_ranks_that_make_different_calls_all_learn_it():
    for text in run(3, different_calls):
        assert "rank 0 is in barrier(), rank 2 in all_gather()" in text, text


def one_ends(end, folder):
    import os
    import signal
    import sys
    from pathlib import Path

    import dtrain

    # The job is stopped as soon as rank 1 has ended; the others have time to say what they saw.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        context = dtrain.barrier_context()
        if context.partition_id() == 1:
            if end == "raises":
                raise ValueError("no data here")
            os.kill(os.getpid(), signal.SIGKILL) if end == "is killed" else sys.exit(7)
        context.barrier()
    except dtrain.CollectiveError as error:
        Path(folder, os.environ["DTRAIN_RANK"]).write_text(str(error))
        raise


@pytest.mark.parametrize("end,kind,text", [
    ("raises", dtrain.RemoteError, "rank 1: ValueError: no data here"),
    ("exits", dtrain.RemoteError, "rank 1: SystemExit: 7"),
    ("is killed", dtrain.JobError, "rank 1 on .* was killed by signal 9")])
def test_a_rank_that_ends_in_a_barrier_is_named_by_the_others(tmp_path, end, kind, text):
    with pytest.raises(kind, match=text):
        run(3, one_ends, end, str(tmp_path), launch_args=["--grace", "30s"])
    for rank in (0, 2):
        assert "rank 1" in (tmp_path / f"{rank}").read_text()


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(f"import sys, dtrain\ncontext = dtrain.barrier_context()\n{text}")
    return path


def test_a_rank_that_ends_well_and_too_early_is_named(launch, tmp_path):
    text = "if context.partition_id() == 1:\n    sys.exit(0)\ncontext.barrier()\n"
    code, _, err = launch(3, script(tmp_path, text))
    assert code == 1 and "rank 1 is leaving the job" in err and "barrier_context.1" in err, err


def impatient(folder):
    import signal
    import time
    from pathlib import Path

    import dtrain

    context = dtrain.barrier_context(timeout=5)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context.barrier()
    said = Path(folder, "said")
    while context.partition_id() == 1 and not said.exists():
        time.sleep(0.01)
    try:
        context.barrier()
    except dtrain.JobTimeoutError as error:
        said.write_text(str(error))
        raise


def test_a_rank_that_does_not_come_in_time_is_named(tmp_path):
    with pytest.raises(dtrain.RemoteError, match="rank [01]: (JobTimeout|Network)Error"):
        run(2, impatient, str(tmp_path), launch_args=["--grace", "30s"])
    assert "timed out waiting for rank 1" in (tmp_path / "said").read_text()


def timeouts():
    import dtrain

    for wrong in (0, -1, 1e-9, float("nan"), float("inf"), 31 * 86400):
        try:
            dtrain.barrier_context(timeout=wrong)
        except ValueError as error:
            assert "is not between 0.001 s and 30 days" in str(error), error
        else:
            raise AssertionError(f"{wrong} was taken")
    assert not dtrain.is_initialized()
    dtrain.init()
    for _ in range(2):
        try:
            dtrain.barrier_context(timeout=60)
        except dtrain.StateError as error:
            assert "has joined the job already" in str(error)
        else:
            raise AssertionError("it came too late")
        dtrain.barrier_context().barrier()


def test_a_timeout_is_for_the_call_that_joins():
    run(2, timeouts)


def test_without_a_launcher_it_is_a_world_of_one(tmp_path):
    text = ("context.barrier()\nprint(context.all_gather('alone'), context.get_task_infos(), "
            "context.partition_id(), context.num_partitions(), context.attempt_number())\n")
    done = subprocess.run([sys.executable, script(tmp_path, text)], capture_output=True, text=True,
                          timeout=60)
    assert done.stdout == "['alone'] [BarrierTaskInfo('127.0.0.1')] 0 1 0\n", done.stderr


def test_a_forked_child_meets_nobody(launch, tmp_path):
    text = """
import os
child = os.fork()
if child == 0:
    try:
        dtrain.barrier_context().barrier()
    except dtrain.StateError as error:
        os._exit(0 if str(error).startswith("barrier: this process was forked from rank") else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
context.barrier()
"""
    code, _, err = launch(2, script(tmp_path, text))
    assert code == 0, err


MPI = """
int begun = BEGUN;
int MPI_Initialized(int* flag) { *flag = begun; return 0; }
"""


@pytest.mark.parametrize("name,begun,more,refused", [
    ("libmpich.so.12", 1, "", True), ("libmpi.so.12", 1, "", True),
    ("libmpich.so.12", 0, "", False), ("libmpi.so.40", 1, "int ompi_mpi_comm_world;", False),
    ("libmpi_helper.so", 1, "#define MPI_Initialized another_name", False)])
def test_a_process_whose_pmi_mpich_has_is_refused(launch, tmp_path, name, begun, more, refused):
    """One connection cannot have two clients: MPI_Finalize and the end of dtrain would hang."""
    library = tmp_path / name
    subprocess.run(["cc", "-fPIC", "-shared", f"-DBEGUN={begun}", "-o", library, "-x", "c", "-"],
                   check=True, input=f"{more}\n{MPI}", text=True, timeout=60)
    path = tmp_path / "mpi.py"
    path.write_text(f"import ctypes, dtrain\nctypes.CDLL({str(library)!r})\n"
                    "dtrain.barrier_context().barrier()\nprint('met')\n")
    code, out, err = launch(2, path)
    if refused:
        assert code == 1 and f"this process has called MPI_Init ({library})" in err, err
    else:
        assert code == 0 and out.count("met") == 2, err
