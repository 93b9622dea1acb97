# SPDX-License-Identifier: Apache-2.0
"""A reader who types what README and the tutorial say sees what they say."""
import importlib.util
import shlex
import uuid

import pytest

import hosts
import page_commands

ROOT = hosts.SOURCE_DIR
ALIASES = {"gpu01": 0, "gpu02": 1}


@pytest.fixture
def reader(make_cluster):
    """Two hosts under the names that the pages use, and scp to them."""
    cluster = make_cluster(2)
    config = cluster.head.base / "root/.ssh/config"
    for alias, index in ALIASES.items():
        node = cluster.nodes[index]
        with config.open("a") as file:
            file.write(f"Host {alias}\n  HostName {node.address}\n  HostKeyAlias {node.name}\n")
        node.restart_sshd("Subsystem sftp internal-sftp\n")
    return cluster


def run_as_one_shell(cluster, steps):
    """[(command, its output)] of all steps that can be run, in one shell, in /root/work of the head."""
    mark = uuid.uuid4().hex
    script, ran = [], []
    for step in steps:
        if step.file:
            script.append(f"printf %s {shlex.quote(step.text)} >/root/work/{step.file}")
            continue
        for command in step.commands if not step.reason else ():
            # The exit code of each is there for the next one to ask for.
            script.append(f"{{ {command.text}\n}} 2>&1; code=$?; printf '\\n{mark}\\n'; (exit $code)")
            ran.append(command)
    cluster.work()
    done = cluster.head.run(["bash", "-c", "\n".join(script)], timeout=240, check=False, cwd="/root/work",
                            env={"PATH": f"{hosts.bin_dir()}:/usr/sbin:/usr/bin:/sbin:/bin"})
    outputs = done.stdout.split(f"\n{mark}\n")
    assert len(outputs) == len(ran) + 1, f"{done.stdout}\n{done.stderr}"
    return list(zip(ran, outputs))


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="there is no python3-torch")
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_commands_print_what_the_page_says(reader, page):
    steps = list(page_commands.steps_of(ROOT / page))
    wrong = []
    for command, output in run_as_one_shell(reader, steps):
        printed = output.splitlines()
        for line in page_commands.missing(command.output, printed):
            wrong.append(f"$ {command.text}\n  {line}\n  printed: {output}")
    assert not wrong, "\n".join(wrong)


def test_each_block_that_is_not_run_says_why():
    for page in ("README.md", "docs/tutorial.md"):
        steps = [step for step in page_commands.steps_of(ROOT / page) if not step.file]
        assert any(not step.reason for step in steps), page
        assert all(step.reason is None or len(step.reason) > 10 for step in steps), page


def test_a_line_that_the_page_does_not_have_is_found():
    expected = ["[0] loss 0.5", "[1] loss 0.7"]
    assert not page_commands.missing(expected, ["[1] loss 0.71", "[0] loss 12"])
    assert page_commands.missing(expected, ["[0] loss 1", "[1] loss 1", "oh"]) == ["oh"]
    assert page_commands.missing(expected, ["[0] loss 1"]) == ["[0] loss 0"]
    assert page_commands.missing(["exit code 3"], ["exit code 4"]) == ["exit code 3", "exit code 4"]
    assert not page_commands.missing(["...", "[0] loss 1"], ["oh", "[0] loss 1"])
