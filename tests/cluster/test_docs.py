# SPDX-License-Identifier: Apache-2.0
"""A reader who types what README, the tutorial and the how-to guides say sees what they say."""
import importlib.util
import re
import shutil

import pytest

import hosts
import page_commands
import podman
import readers

ROOT = hosts.SOURCE_DIR


def absent(*names):
    """Why a page cannot be followed here: the first of these programs, files or modules that there is not."""
    for name in names:
        if not shutil.which(name) and not importlib.util.find_spec(name.partition(".")[0]):
            return f"there is no {name}"
    return None


# The pages with commands to type: who types them, and why that may be impossible here.
PAGES = {"README.md": (readers.ssh_alone, None),
         "examples/README.md": (readers.in_the_repository, absent("torch", "sklearn", "mpiexec.hydra")),
         "docs/bench.md": (readers.in_the_repository, absent("numpy")),
         "docs/coming-from.md": (readers.ssh_alone, None),
         "docs/containers.md": (readers.with_podman, podman.missing()),
         "docs/frameworks.md": (readers.in_the_repository, absent("mpicc.openmpi")),
         "docs/operations.md": (readers.with_certificates, absent("curl")),
         "docs/pki.md": (readers.with_agents, None),
         "docs/schedulers.md": (readers.with_slurm, absent("salloc", "slurmctld", "munged")),
         "docs/tutorial.md": (readers.ssh_alone, absent("torch"))}
# None of their commands can be run on the hosts of the tests.
NOTHING_TO_TYPE = ["docs/detached.md", "docs/gpu.md", "docs/install.md", "docs/page.md", "docs/staging.md"]


@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_the_page_says(make_cluster, page):
    reader, why_not = PAGES[page]
    if why_not:
        pytest.skip(why_not)
    with reader(make_cluster) as typing:
        typed = typing.type(list(page_commands.steps_of(ROOT / page)))
    wrong = []
    for command, output in typed:
        for line in page_commands.missing(command.output, output.splitlines()):
            wrong.append(f"$ {command.text}\n  {line}\n  printed: {output}")
    assert typed and not wrong, "\n".join(wrong)


def test_every_page_to_follow_is_here():
    """Those that the map calls tutorial or how-to."""
    text = (ROOT / "docs/README.md").read_text().split("## Reference")[0]
    named = {f"docs/{page}".replace("docs/../", "") for page in re.findall(r"\]\((\S+?\.md)\)", text)}
    assert named | {"README.md"} == {*PAGES, *NOTHING_TO_TYPE}


@pytest.mark.parametrize("page", [*PAGES, *NOTHING_TO_TYPE])
def test_each_block_is_run_or_says_why_not(page):
    wrong = list(page_commands.unmarked(ROOT / page))
    assert not wrong, "\n".join(wrong)
    steps = list(page_commands.steps_of(ROOT / page))
    assert any(step.commands and not step.reason for step in steps) == (page in PAGES)


def test_a_block_that_nobody_runs_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\nls\n```\n```text\n$ ls\n```\n<!-- not run: no -->\n```console\n$ ls\n```\n"
                    "<!-- not run: needs a GPU -->\n```console\n$ ls\n```\n```python\n1\n```\n")
    assert [line.split(":")[0] for line in page_commands.unmarked(page)] == ["sh", "text", "console"]


def test_a_line_that_the_page_does_not_have_is_found():
    expected = ["[0] loss 0.5", "[1] loss 0.7"]
    assert not page_commands.missing(expected, ["[1] loss 0.71", "[0] loss 12"])
    assert page_commands.missing(expected, ["[0] loss 1", "[1] loss 1", "oh"]) == ["oh"]
    assert page_commands.missing(expected, ["[0] loss 1"]) == ["[0] loss 0"]
    assert page_commands.missing(["exit code 3"], ["exit code 4"]) == ["exit code 3", "exit code 4"]
    assert not page_commands.missing(["...", "[0] loss 1"], ["oh", "[0] loss 1"])
