# SPDX-License-Identifier: Apache-2.0
"""HorovodRunner: a training function on local ranks, as a notebook on Databricks starts it."""
import os
import re
import subprocess
import sys
import threading

import pytest

import dtrain
from dtrain import _frames


def runner(np, **options):
    options = {"driver_log_verbosity": "all", "timeout": 120, **options}
    return dtrain.HorovodRunner(np=np, **options)


def train(epochs):
    """What a Keras script with horovod.keras does, on a model of one weight."""
    import dtrain as hvd

    class Model:
        def __init__(self, weight):
            self.weights = {"weight": np.array([weight])}

        def fit(self, batches, epochs, callbacks):
            for callback in callbacks:
                callback.on_train_begin(self)
            for _ in range(epochs):
                for x, y in batches:
                    gradient = 2 * x * (self.weights["weight"] * x - y)
                    self.weights["weight"] -= 0.1 * hvd.allreduce(gradient)

    class BroadcastGlobalVariablesCallback:
        def __init__(self, root_rank):
            self.root_rank = root_rank

        def on_train_begin(self, model):
            hvd.broadcast_parameters(model.weights, root_rank=self.root_rank)

    import numpy as np

    hvd.init()
    model = Model(float(hvd.rank()))
    model.fit([(1.0, 3.0 + hvd.rank())], epochs, [BroadcastGlobalVariablesCallback(0)])
    # Of equal models: the one that all ranks' data ask for.
    assert len(set(hvd.allgather(model.weights["weight"]).tolist())) == 1
    return hvd.size(), round(float(model.weights["weight"][0]), 3)


@pytest.mark.parametrize("np,found", [(-1, 3.0), (-2, 3.5), (4, 4.5)])
def test_a_keras_like_training_returns_what_rank_0_does(np, found):
    pytest.importorskip("numpy", reason="there is no Python package numpy")
    assert runner(np).run(train, epochs=60) == (abs(np), found)


def test_any_keyword_is_for_the_function():
    def echo(**kwargs):
        import os

        return os.environ["DTRAIN_WORLD_SIZE"], kwargs

    words = {"np": 7, "hosts": "a:1", "hostfile": "b", "env": {"c": "d"}, "python": "e", "fn": 2,
             "timeout": 0, "launch_args": ["--f"], "num_proc": 3, "args": (1,), "kwargs": None}
    assert runner(-2).run(echo, **words) == ("2", words)
    assert runner(-1).run(main=lambda x: x, x=1) == 1
    with pytest.raises(TypeError):
        runner(-1).run(echo, 1)
    with pytest.raises(TypeError):
        dtrain.HorovodRunner(2)


def talks(message):
    import os
    import sys

    import dtrain

    print("printed", flush=True)
    print("an error line", file=sys.stderr)
    print("begun", end="")
    sys.stdout.flush()
    dtrain.log_to_driver(message)
    print("[9] as a tag", file=sys.stderr, flush=True)
    return os.environ["DTRAIN_RANK"]


def test_only_what_is_logged_to_the_driver_is_shown(capfd):
    quiet = runner(2, driver_log_verbosity="log_callback_only")
    assert quiet.run(talks, message="loss\n0.5") == "0"
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] 0.5", "[0] loss", "[1] 0.5", "[1] loss"]
    assert "error line" not in err and "as a tag" not in err, err


@pytest.mark.parametrize("np,verbosity", [(2, "all"), (-2, "all"), (-2, "log_callback_only")])
def test_everything_is_shown(capfd, np, verbosity):
    runner(np, driver_log_verbosity=verbosity).run(talks, message=("long " * 2000).strip())
    out, err = capfd.readouterr()
    for rank in range(2):
        for line in ("printed", "begun", "long " * 1999 + "long"):
            assert f"[{rank}] {line}\n" in out, out[:2000]
        assert f"[{rank}] an error line\n" in err


def logs_from_children():
    import os
    import threading

    import dtrain

    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            dtrain.log_to_driver(f"{child}" * 20000)
            os._exit(0)
        children.append(pid)
    threads = [threading.Thread(target=dtrain.log_to_driver, args=(letter * 20000,))
               for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    dtrain.log_to_driver("")
    dtrain.log_to_driver(["no", "text"])


def test_texts_of_threads_and_children_stay_whole(capfd):
    runner(1, driver_log_verbosity="log_callback_only").run(logs_from_children)
    out = capfd.readouterr().out
    said = [re.sub(r"^\[0\] ", "", line) for line in out.splitlines()]
    texts = [letter * 20000 for letter in "0123abcd"]
    assert sorted(said) == sorted([*texts, "", "['no', 'text']"])


def test_elsewhere_a_text_is_printed(launch, tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import dtrain\ndtrain.log_to_driver('a text')\n")
    code, out, err = launch(2, path)
    assert code == 0 and sorted(out.splitlines()) == ["[0] a text", "[1] a text"], err
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert done.stdout == "a text\n", done.stderr


def size():
    import os

    return int(os.environ["DTRAIN_WORLD_SIZE"])


def test_np_0_is_all_slots_and_deprecated():
    with pytest.warns(DeprecationWarning, match="np=0") as caught:
        made = runner(0, hosts="localhost:3")
    assert len(caught) == 1 and made.run(size) == 3


def test_more_ranks_than_slots_are_refused(capfd):
    with pytest.raises(dtrain.JobError) as caught:
        runner(5, hosts="localhost:2", driver_log_verbosity="log_callback_only").run(size)
    assert caught.value.exit_code == 2
    # The launcher's own words are shown whatever is hidden of the ranks.
    assert "5" in capfd.readouterr().err


def test_bad_arguments_are_refused_before_anything_starts():
    for wrong in ("2", 1.5, None):
        with pytest.raises(ValueError, match="whole number of ranks"):
            dtrain.HorovodRunner(np=wrong)
    with pytest.raises(ValueError, match="driver_log_verbosity='some'"):
        dtrain.HorovodRunner(np=1, driver_log_verbosity="some")
    with pytest.raises(ValueError, match="'train' is not a function"):
        runner(-1).run("train")


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()
    with pytest.raises(ValueError, match="run: lock= cannot be sent to the ranks: .*lock"):
        runner(-1).run(size, lock=lock, fine=1)
    with pytest.raises(ValueError, match="run: a= and b= cannot be sent"):
        runner(-1).run(size, a=lock, b=[lock])
    with pytest.raises(ValueError, match="run: main cannot be sent to the ranks: .*lock"):
        runner(-1).run(lambda: lock)


def returns_a_lock_on(rank):
    import os
    import threading

    return threading.Lock() if int(os.environ["DTRAIN_RANK"]) == rank else "picklable"


def test_only_rank_0s_value_need_be_picklable():
    assert runner(-2).run(returns_a_lock_on, rank=1) == "picklable"
    with pytest.raises(dtrain.RemoteError, match="rank 0: .*lock") as caught:
        runner(-2).run(returns_a_lock_on, rank=0)
    assert caught.value.rank == 0


def ends_on_1(how):
    import sys

    import dtrain as hvd

    hvd.init()
    if hvd.rank() == 1:
        sys.exit(3) if how == "exits" else [][0]
    hvd.barrier()


@pytest.mark.parametrize("how,kind,text", [
    ("raises", dtrain.RemoteError, "rank 1: IndexError"),
    ("exits", dtrain.RemoteError, "rank 1: SystemExit: 3")])
@pytest.mark.parametrize("verbosity", ["all", "log_callback_only"])
def test_a_rank_that_fails_is_told(capfd, how, kind, text, verbosity):
    with pytest.raises(kind, match=text) as caught:
        runner(2, driver_log_verbosity=verbosity).run(ends_on_1, how=how)
    assert caught.value.exit_code == (1 if how == "raises" else 3)
    assert "rank 1 on" in capfd.readouterr().err


# ---- The parts, without a job ----


def test_a_quiet_collector_keeps_texts_and_results_only():
    marker = "\x1edtrain-0123"
    said = "".join(f"{tag}{line.decode()}" for tag, who, text in [
        ("[1] ", _frames.speaker(1, 70), b"x" * 9000), ("", _frames.speaker(0, 80), b"one\ntwo"),
        ("[1] unfinished", _frames.speaker(1, 71), b"three")]
        for line in _frames.lines(marker, who, text))
    frames = "".join(f"[1] {line.decode()}" for line in _frames.lines(marker, 1, b"result"))
    text = f"[0] before\n{said}[0] between\n{frames}[0] after\rand after\nunfinished".encode()
    for cut in (1, 7, 4096, len(text)):
        collector = _frames.Collector(marker, quiet=True)
        shown = b"".join(collector.feed(text[i : i + cut]) for i in range(0, len(text), cut))
        shown += collector.finish()
        assert shown == b"[1] " + b"x" * 9000 + b"\none\ntwo\n[1] three\n"
        assert collector.results == {1: b"result"}


def test_the_launchers_lines_are_told_from_the_ranks():
    text = (b"dtrain: rank 3 said\n[0] hidden\n[12] hidden\r[node-2:7] hidden\n  [3] shown\n"
            b"[x] shown\n2026-01-31T12:00:00.123 [3] hidden\n[3]shown\n[2] hidden")
    for cut in (1, 7, len(text)):
        lines = _frames.LaunchersLines()
        shown = b"".join(lines.feed(text[i : i + cut]) for i in range(0, len(text), cut))
        assert shown + lines.finish() == b"dtrain: rank 3 said\n  [3] shown\n[x] shown\n[3]shown\n"
