# SPDX-License-Identifier: Apache-2.0
"""TORCHELASTIC_ERROR_FILE: what PyTorch's `record` writes is in the report of the failure."""
import importlib.util
import json

import pytest

import hosts

PYTHON = "/usr/bin/python3"
SCRIPT = hosts.HERE / "programs/record_error.py"

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("torch"),
                                reason="there is no python3-torch")


def launch(cluster, *arguments):
    path = cluster.base / "result.json"
    result = cluster.launch(["--result-json", path, "-H", "node0:1,node1:1",
                             "--", PYTHON, SCRIPT, *arguments], timeout=120)
    assert result.code == 1, result
    ranks = json.loads(path.read_text())["ranks"]
    path.unlink()
    return result, [rank.get("error") for rank in ranks]


def test_an_exception_on_another_host_is_named_and_its_traceback_shown_once(cluster):
    result, errors = launch(cluster, "1")
    assert "dtrain: rank 1 on node1" in result.err, result
    report = result.err[result.err.index("dtrain: rank 1 on node1"):]
    assert "exited with code 1 after" in report, result
    assert " s: FloatingPointError: loss is nan in step 17; the end of its stderr:\n" in report
    assert "its traceback" not in report and report.count("in give_up") == 1, result
    assert errors[0] is None, errors
    assert errors[1]["message"] == "FloatingPointError: loss is nan in step 17"
    assert "in give_up" in errors[1]["traceback"] and errors[1]["unix_seconds"] > 0


def test_a_traceback_that_is_not_on_stderr_is_shown(cluster):
    result, errors = launch(cluster, "1", "quiet")
    head, _, rest = result.err.partition("dtrain: its traceback:\n")
    assert " s: FloatingPointError: loss is nan in step 17\n" in head, result
    lines = rest.split("\n")
    assert lines[0] == "  | Traceback (most recent call last):", result
    assert "  |     raise FloatingPointError(f\"loss is {loss} in step 17\")" in lines, result
    assert "the end of its stderr" not in rest, result
