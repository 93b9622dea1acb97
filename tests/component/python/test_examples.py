# SPDX-License-Identifier: Apache-2.0
"""The examples learn, alone and with several ranks, and the page about Python tells the truth."""
import os
import re
import subprocess
import sys

import pytest
from conftest import SOURCE_DIR

NEEDS = ("numpy", "sklearn", "torch")
EXAMPLES = SOURCE_DIR / "examples"


def accuracy(out):
    return float(re.search(r"accuracy ([0-9.]+)", out).group(1))


@pytest.mark.parametrize("ranks", [1, 2])
def test_softmax_regression_with_numpy_learns(launch, tmp_path, ranks):
    file = tmp_path / "weights.npz"
    code, out, err = launch(ranks, EXAMPLES / "softmax_numpy.py", "--checkpoint", file)
    assert code == 0, err
    assert accuracy(out) > 0.9 and f"ranks {ranks} " in out, out
    assert file.stat().st_size > 65 * 10 * 8


def test_cnn_with_torch_learns_and_resumes_from_rank_0s_checkpoint(launch, tmp_path):
    file = tmp_path / "checkpoint.pt"
    command = [EXAMPLES / "cnn_torch.py", "--checkpoint", file, "--fp16"]
    code, out, err = launch(1, *command, "--epochs", 2)
    assert code == 0 and "epoch 1 " in out, err
    code, out, err = launch(2, *command, "--epochs", 4)
    assert code == 0, err
    assert "epoch 1 " not in out and "epoch 2 " in out
    assert accuracy(out) > 0.85 and "ranks 2 " in out, out


def test_allreduce_in_python(launch):
    code, out, err = launch(2, EXAMPLES / "allreduce.py")
    assert code == 0 and out.count("sum of all ranks 1") == 2, f"{out}\n{err}"


def test_torch_distributed_without_ddp(launch):
    code, out, err = launch(2, EXAMPLES / "plain_torch.py")
    assert code == 0 and "ranks 2 error 0.00" in out, f"{out}\n{err}"


def test_horovod_script_on_dtrain_torch_under_horovods_name(launch, tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/__init__.py").touch()
    (tmp_path / "horovod/torch.py").write_text("from dtrain.torch import *  # noqa: F403\n")
    code, out, err = launch(2, EXAMPLES / "horovod_torch.py",
                            env={"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"})
    assert code == 0 and "ranks 2 loss 0.00" in out, f"{out}\n{err}"


@pytest.mark.parametrize("name", ["accelerate_digits.py", "jax_sum.py", "tensorflow_workers.py"])
def test_what_cannot_be_run_here_is_valid_python(name):
    compile((EXAMPLES / name).read_text(), name, "exec")


@pytest.mark.parametrize("language,name", [("c", "allreduce.c"), ("c++", "groups.cc")])
def test_compiled_examples(tmp_path, language, name):
    binary = tmp_path / "example"
    library = os.path.dirname(os.path.realpath(os.environ["DTRAIN_LIBRARY"]))
    subprocess.run(
        ["c++" if language == "c++" else "cc", "-Wall", "-Werror", "-o", binary, EXAMPLES / name,
         "-I", SOURCE_DIR / "runtime/include", f"-L{library}", "-ldtrain", f"-Wl,-rpath,{library}"],
        check=True, timeout=120)
    environment = {**os.environ, "ASAN_OPTIONS": "verify_asan_link_order=0"}
    done = subprocess.run([os.environ["DTRAIN_BIN"], "launch", "-np", "-4", "--", binary],
                          capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0 and done.stdout, done.stderr


def snippets():
    page = (SOURCE_DIR / "docs/python.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def starts_a_job(text):
    return "dtrain.run(" in text or "HorovodRunner(" in text


RUN_EACH = """
for text in {texts!r}:
    exec(compile(text, "snippet", "exec"), {{"__name__": "__main__"}})
"""


def test_every_snippet_of_the_page_for_workers_runs(launch, tmp_path):
    """In one job, each with names of its own: most import torch, which takes seconds."""
    texts = [text for text in snippets() if not starts_a_job(text)]
    script = tmp_path / "snippets.py"
    script.write_text(RUN_EACH.format(texts=texts))
    code, out, err = launch(2, script)
    assert code == 0, f"{out}\n{err}"
    for line in re.findall(r"# prints: (.*)", "".join(texts)):
        assert line in out, out


@pytest.mark.parametrize("text", list(filter(starts_a_job, snippets())))
def test_every_snippet_of_the_page_that_starts_a_job_runs(tmp_path, text):
    script = tmp_path / "snippet.py"
    script.write_text(text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    for line in re.findall(r"# prints: (.*)", text):
        assert line in done.stdout, done.stdout
