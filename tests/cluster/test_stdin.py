# SPDX-License-Identifier: Apache-2.0
"""What a job takes of the input that it is launched with: what its rank reads, and nothing else. The rest is for
whoever reads next, such as the script that has launched it."""
import hashlib
import random

import pytest

import hosts
import launching
from terminal import Terminal

DTRAIN = str(hosts.bin_dir() / "dtrain")
FACES = ["launch -np 1 --", "torchrun --nproc-per-node 1 --no-python", "horovodrun -np 1", "mpirun -np 1",
         "deepspeed --num_gpus 1 --no_python", "accelerate launch --num_processes 1 --cpu --no_python"]


@pytest.fixture
def head(cluster):
    return cluster.head


def bash(head, script, stdin, timeout=60):
    """Of a shell that runs `script` with that on its standard input: what it prints."""
    return head.run(["bash", "-c", script, DTRAIN], stdin=stdin, timeout=timeout).stdout


@pytest.mark.parametrize("way", ["pipe", "file"])
def test_a_script_on_stdin_goes_on_behind_a_launch(cluster, head, way):
    script = f"echo one\n{DTRAIN} launch -H node0:1 -- true\necho two\n{DTRAIN} launch -np 1 -- true\necho three\n"
    if way == "file":
        (cluster.work() / "script").write_text(script)
        out = bash(head, "bash < /root/work/script", "")
    else:
        out = bash(head, "cat | bash", script)
    assert out == "one\ntwo\nthree\n"


def test_a_script_that_ssh_brings_goes_on(cluster, head):
    script = f"echo one\n{DTRAIN} launch -np 1 -- true\necho two\n"
    assert bash(head, "ssh node0 bash -s", script) == "one\ntwo\n"


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.split()[0])
def test_a_loop_over_lines_has_all_of_them(head, face):
    loop = f'while read -r line; do echo "got $line"; "$0" {face} true 2>&1; done'
    assert [line for line in bash(head, loop, "a\nb\nc\n", 90).splitlines() if line.startswith("got")] == [
        "got a", "got b", "got c"]


@pytest.mark.parametrize("way", ["pipe", "file"])
def test_what_a_rank_leaves_is_the_next_ones(cluster, head, way):
    (cluster.work() / "lines").write_text("a\nb\nc\n")
    script = '{ "$0" launch --tag-output none -np 1 -- sh -c "read -r x; echo got \\$x"; sed "s/^/rest /"; }'
    script += " < /root/work/lines" if way == "file" else ""
    assert bash(head, script, "a\nb\nc\n") == "got a\nrest b\nrest c\n"


@pytest.mark.parametrize("way", ["pipe", "file"])
def test_long_input_arrives_whole(cluster, head, way):
    data = random.Random(7).randbytes(27 << 20)
    (cluster.work() / "data").write_bytes(data)
    script = '"$0" launch --tag-output none -H node0:1 -- sh -c "head -c 100 >/dev/null; md5sum"'
    script = "cat /root/work/data | " + script if way == "pipe" else script + " < /root/work/data"
    assert bash(head, script, "", 120).split()[0] == hashlib.md5(data[100:]).hexdigest()


# A restart: what the first attempt has not read is the second's.
def test_the_next_attempt_has_what_the_last_has_not_read(head):
    script = ('"$0" launch --max-restarts 1 --tag-output none -np 1 -- '
              'sh -c "read -r x; echo got \\$x; exit \\$((1 - DTRAIN_ATTEMPT))"; cat')
    assert bash(head, script, "a\nb\nc\n") == "got a\ngot b\nc\n"


@pytest.fixture
def terminal(cluster):
    made = Terminal(cluster.head)
    yield made
    made.close()


def test_what_is_typed_ahead_is_the_shells(cluster, terminal):
    go = cluster.work() / "go"
    terminal.type(f"{DTRAIN} launch -np 2 -- sh -c 'echo up; until [ -e /root/work/go ]; do sleep 0.05; done'")
    terminal.wait_for(r"\[1\] up")
    terminal.type("echo ahead $((6 * 7))")
    go.touch()
    terminal.wait_for("ahead 42")
    go.unlink()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_asks_is_answered(terminal, ranks):
    ask = 'import os; print("hello", input("name? ") + input()) if os.environ["RANK"] == "0" else None'
    terminal.type(f"{DTRAIN} launch -np {ranks} -- /usr/bin/python3 -c '{ask}'; echo code $?")
    launching.wait_until(lambda: "name? " in terminal.shown or ranks > 1, 30, lambda: terminal.shown)
    terminal.type("bob")
    terminal.type("by")
    terminal.wait_for("hello bobby")
    terminal.wait_for("code 0")
