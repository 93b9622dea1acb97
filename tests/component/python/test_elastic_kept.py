# SPDX-License-Identifier: Apache-2.0
"""State that the next attempt of a job continues from: what is written, what is read, and what is not."""
import errno
import os
import resource
import signal
import threading

import pytest

NEEDS = ("torch",)
NEVER = "100000"  # seconds: what is kept is kept at the end


def folder(tmp_path, host="node0"):
    """DIR/JOB/HOST."""
    return str(tmp_path / "dir" / "dtrain-job" / host)


def variables(path, seconds="0", attempt=0):
    return {"DTRAIN_STATE_FOLDER": path, "DTRAIN_STATE_SECONDS": seconds, "DTRAIN_ATTEMPT": str(attempt)}


# ---- In a job ----


def steps(until, dies_at=None):
    """The steps at which train() began and ended, and what was added up."""
    import dtrain
    from dtrain import elastic

    begins = []

    @elastic.run
    def train(state):
        begins.append(state.step)
        while state.step < until:
            state.step += 1
            state.sum += dtrain.allreduce(state.step, op=dtrain.Sum) / dtrain.size()
            state.commit()
            if state.step == dies_at:
                raise KeyError("no such thing")

    resets = []
    state = elastic.ObjectState(step=0, sum=0.0)
    state.register_reset_callbacks([lambda: resets.append(dtrain.size())])
    try:
        train(state)
    except KeyError:
        assert dies_at
    return begins, state.step, state.sum, resets


def test_another_attempt_goes_on_with_another_number_of_ranks(on_ranks, tmp_path):
    path = folder(tmp_path)
    first = on_ranks(2, steps, 9, 5, env=variables(path, NEVER))
    assert first == [([0], 5, 15.0, [])] * 2
    assert os.listdir(path) == ["state-1"]
    assert all(os.stat(each).st_mode & 0o777 == 0o700 for each in (path, os.path.dirname(path)))
    assert os.stat(f"{path}/state-1").st_mode & 0o777 == 0o600
    second = on_ranks(3, steps, 9, env=variables(path, attempt=1))
    assert second == [([5], 9, 45.0, [3])] * 3
    # The first attempt of a job continues nothing.
    assert on_ranks(1, steps, 1, env=variables(folder(tmp_path / "other"))) == [([0], 1, 1.0, [])]
    assert on_ranks(1, steps, 2, env=variables(folder(tmp_path / "other"))) == [([0], 2, 3.0, [])]
    # And what it kept is the state at its end: nothing is left to do.
    assert on_ranks(1, steps, 9, env=variables(path, attempt=2)) == [([9], 9, 45.0, [1])]


def steps_of_uneven_nodes(until):
    """Rank 1's node can have no folder."""
    import dtrain

    if dtrain.rank() == 1:
        os.environ["DTRAIN_STATE_FOLDER"] = "none"
    return steps(until)


def test_a_node_without_a_folder_takes_part(on_ranks, tmp_path):
    path = folder(tmp_path)
    on_ranks(2, steps, 9, 5, env=variables(path, NEVER))
    assert on_ranks(2, steps_of_uneven_nodes, 9, env=variables(path, attempt=1)) == [([5], 9, 45.0, [2])] * 2
    # On no node: nothing is lost but the state.
    assert on_ranks(2, steps, 3, env=variables("none", attempt=1)) == [([0], 3, 6.0, [])] * 2


def test_without_a_folder_nothing_is_kept(on_ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("DTRAIN_STATE_FOLDER", folder(tmp_path))  # of another job: not forwarded
    assert on_ranks(1, steps, 3) == [([0], 3, 6.0, [])]
    assert os.listdir(tmp_path) == []


def torch_steps(until):
    import torch

    import dtrain.torch as hvd

    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    sampler = hvd.elastic.ElasticSampler(range(12), shuffle=False)

    @hvd.elastic.run
    def train(state):
        state.begun = state.batch, len(sampler), [list(w) for w in model.weight.tolist()]
        while state.batch < until:
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            sampler.record_batch(0, 1)
            state.batch += 1
            state.commit()
        momentum = [s["momentum_buffer"].tolist() for s in optimizer.state_dict()["state"].values()]
        return state.begun, model.weight.tolist(), momentum

    return train(hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, batch=0, begun=None))


def test_models_optimizers_and_samplers(on_ranks, tmp_path):
    whole = on_ranks(2, torch_steps, 4)
    path = folder(tmp_path)
    half = on_ranks(2, torch_steps, 2, env=variables(path))
    rest = on_ranks(2, torch_steps, 4, env=variables(path, attempt=1))
    for one, two, both in zip(half, rest, whole):
        # Two batches of one sample on each of two ranks; the weights of one attempt are those of the other.
        assert two[0] == (2, 4, one[1]), (one, two)
        assert two[1:] == both[1:]


def two_calls(dies):
    from dtrain import elastic

    def train(state):
        began = state.step
        while state.step < 3:
            state.step += 1
            state.commit()
            if dies and state.name == "second" and state.step == 2:
                raise KeyError
        return began

    begun = []
    for name in ("first", "second"):
        try:
            begun.append(elastic.run(train)(elastic.ObjectState(step=0, name=name)))
        except KeyError:
            pass
    return begun


def test_each_call_of_run_has_its_own(on_ranks, tmp_path):
    path = folder(tmp_path)
    assert on_ranks(1, two_calls, True, env=variables(path)) == [[0]]
    assert sorted(os.listdir(path)) == ["state-1", "state-2"]
    assert on_ranks(1, two_calls, False, env=variables(path, attempt=1)) == [[3, 2]]


SCRIPT = """
import sys
import threading
import dtrain
from dtrain import elastic

class Mine(elastic.State):
    value, saved = 0, 0
    def save(self): self.saved = self.value
    def restore(self): self.value = self.saved
    def sync(self): self.value = dtrain.broadcast_object(self.value)

class Keeps(Mine):
    def kept(self): return self.saved
    def take_kept(self, kept): self.value = self.saved = kept

class Broken(Keeps):
    def take_kept(self, kept): raise KeyError("a name of yesterday")

class Odd(Keeps):
    def kept(self): return lambda: 0 if sys else (_ for _ in ())

class Odder(Keeps):
    def kept(self): return threading.Lock()  # nor has cloudpickle a way

dtrain.init()

@elastic.run
def train(state):
    print("begins at", state.value)
    for _ in range(3):
        state.value += 1
        state.commit()

train(globals()[sys.argv[1]]())
print("done")
"""


@pytest.fixture
def script(launch, tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)

    def run(kind, path, ranks=2, **more):
        flags = [word for name, value in variables(path, **more).items() for word in ("-x", f"{name}={value}")]
        return launch(ranks, file, kind, flags=flags)

    return run


def test_states_of_the_users_own(script, tmp_path):
    path = folder(tmp_path)
    code, out, err = script("Mine", path)
    assert code == 0 and err.count("Mine does not implement kept() and take_kept()") == 1, err
    assert not os.path.exists(path)
    code, out, err = script("Keeps", path)
    assert code == 0 and "begins at 0" in out and err == "", err
    code, out, err = script("Keeps", path, ranks=1, attempt=1)
    assert code == 0 and "begins at 3" in out, err
    assert f"dtrain: rank 0: the training continues from commit 3, found by rank 0 in {path}/state-1\n" in err
    # Never from zero in silence.
    code, out, err = script("Broken", path, attempt=2)
    assert code == 1 and "begins" not in out, out
    assert f"{path}/state-1 cannot be restored: KeyError: 'a name of yesterday'; remove the file" in err, err


def test_what_cannot_be_kept_is_reported_once(script, tmp_path):
    path = folder(tmp_path)
    code, out, err = script("Odder", path)
    assert code == 0 and out.count("done") == 2, err
    assert err.count("cannot be kept for a restart: TypeError: ") == 1, err
    assert os.listdir(path) == []
    (tmp_path / "file").write_text("")
    code, out, err = script("Keeps", str(tmp_path / "file/dtrain-job/node0"))
    assert code == 0 and err.count("cannot be kept for a restart: NotADirectoryError: ") == 1, err


def test_nothing_found(script, tmp_path):
    path = folder(tmp_path)
    code, _, err = script("Keeps", path, attempt=1)
    assert code == 0 and err.count("attempt 1 begins from the start: no node has kept a state (here: in ") == 1, err
    code, _, err = script("Keeps", path, seconds="soon")
    assert code == 1 and "DTRAIN_STATE_SECONDS=soon: not a number of seconds" in err, err


# ---- The files ----


def write(path, number, value="x", name="state-1"):
    from dtrain import _kept

    _kept._write(path, name, number, value)
    return os.path.join(path, name)


def best(path):
    """The number of the commit that is chosen."""
    from dtrain import _kept

    found = _kept._best_here(path, "state-1")
    if found is None:
        return None
    found.file.close()
    return found.number


def test_the_latest_that_is_whole(tmp_path, capfd):
    here = folder(tmp_path)
    assert best(here) is None
    write(here, 7)
    torn = write(folder(tmp_path, "node1"), 9, "y" * 5000)
    write(folder(tmp_path, "node2"), 8)
    write(folder(tmp_path, "node2"), 99, name="state-2")
    assert best(here) == 9
    for damage in (lambda data: data[:-1], lambda data: data + b"z", lambda data: data[:-2] + b"zz"):
        whole = open(torn, "rb").read()
        with open(torn, "wb") as file:
            file.write(damage(whole))
        assert best(here) == 8
        assert f"{torn} is ignored: it is torn or damaged" in capfd.readouterr().err
        with open(torn, "wb") as file:
            file.write(whole)
    for strange in (b"", whole[:40], b"dtrain state 2\n" + whole[15:]):
        with open(torn, "wb") as file:
            file.write(strange)
        assert best(here) == 8
        assert f"{torn} is ignored: it is not of this version of dtrain, or torn" in capfd.readouterr().err


def others(path):
    """Ways in which somebody else may have had to do with a file or folder of ours."""
    yield lambda: os.chmod(path, 0o620), "can be written by others"
    if os.geteuid() == 0:
        yield lambda: (os.chmod(path, 0o600), os.chown(path, 12345, 12345)), "belongs to another user (id 12345)"


def test_files_of_others_are_not_read(tmp_path, capfd):
    here = folder(tmp_path)
    file = write(here, 7)
    for spoil, why in others(file):
        spoil()
        assert best(here) is None
        assert f"{file} is ignored: " in (err := capfd.readouterr().err) and why in err, err
    os.unlink(file)
    elsewhere = write(folder(tmp_path / "other"), 8)
    os.symlink(elsewhere, file)
    assert best(here) is None
    os.unlink(file)
    os.mkfifo(file)  # nobody writes to it
    os.chmod(file, 0o600)
    assert best(here) is None
    err = capfd.readouterr().err
    assert "it is not a regular file" in err and os.strerror(errno.ELOOP) in err, err


def test_folders_of_others_are_not_used(tmp_path, capfd):
    here = folder(tmp_path)
    job = os.path.dirname(here)
    # Somebody has guessed the job's id: a link to a folder of ours with a state in it, and to an empty one.
    write(folder(tmp_path / "other"), 8)
    os.makedirs(os.path.dirname(job))
    os.symlink(os.path.dirname(folder(tmp_path / "other")), job)
    assert best(here) is None
    assert f"kept state is ignored: {job} is a link, or not a folder" in capfd.readouterr().err
    with pytest.raises(NotADirectoryError, match="is a link, or not a folder"):
        write(folder(tmp_path, "node7"), 1)
    assert os.listdir(tmp_path / "other/dir/dtrain-job") == ["node0"]
    os.unlink(job)
    write(here, 9)
    for path in (job, here):
        for spoil, why in others(path):
            spoil()
            assert best(here) is None
            with pytest.raises(PermissionError) as refused:
                write(here, 10)
            assert why in str(refused.value)
            if os.geteuid() == 0:
                os.chown(path, 0, 0)
            os.chmod(path, 0o700)
    assert best(here) == 9


class _Dies:
    """Ends the process when it is pickled."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_as_it_writes(tmp_path):
    here = folder(tmp_path)
    write(here, 7)
    child = os.fork()
    if child == 0:
        write(here, 8, ["x" * (1 << 22), _Dies()])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert sorted(os.listdir(here)) == ["state-1", "state-1.new"]
    assert best(here) == 7
    write(here, 9)
    assert os.listdir(here) == ["state-1"] and best(here) == 9


def test_a_full_disk_leaves_the_last_good_file(tmp_path):
    here = folder(tmp_path)
    write(here, 7)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError):
            write(here, 8, "x" * (1 << 22))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(here) == ["state-1"] and best(here) == 7


# A commit that waits gives way to a later one; the end of the call waits for the last.
def test_commits_in_between_are_left_out(tmp_path, monkeypatch):
    from dtrain import _job, _kept

    written, may_go_on = [], threading.Event()

    def slowly(path, name, number, value):
        written.append((number, value))
        assert may_go_on.wait(60)

    class State:
        def kept(self):
            return f"value {keeper._number}"

    monkeypatch.setattr(_kept, "_write", slowly)
    monkeypatch.setattr(_job, "in_job", lambda: True)
    monkeypatch.setattr(_job, "local_rank", lambda: 0)
    keeper = _kept.Keeper(folder(tmp_path), 1, 3600)
    keeper.committed(State())
    while not written:
        pass
    for _ in range(3):
        keeper.committed(State())
    may_go_on.set()
    keeper.finish()
    assert written == [(1, "value 1"), (4, "value 4")]
    keeper.finish()
    keeper.committed(State())
    keeper.finish()
    assert written[2:] == [(5, "value 5")]
