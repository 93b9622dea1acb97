# SPDX-License-Identifier: Apache-2.0
"""The manual pages, as man and two typesetters read them."""
import re
import subprocess

import pytest

from conftest import BIN_DIR, DTRAIN, SOURCE_DIR


@pytest.fixture
def pages(dtrain, tmp_path):
    """All pages as files, those that are written by hand, too."""
    written = list((SOURCE_DIR / "docs/man").iterdir())
    for name in dtrain("man").split():
        path = tmp_path / f"{name}.1"
        path.write_text(dtrain("man", name))
        written.append(path)
    assert len(written) > 10
    return written


def complaints(command, path):
    done = subprocess.run([*command, path], capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80"})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.needs("groff")
def test_groff_has_no_warning(pages):
    for path in pages:
        text, errors = complaints(["groff", "-ww", "-man", "-Tutf8"], path)
        assert errors == "" and len(text) > 300


@pytest.mark.needs("man")
def test_man_shows_each_page_without_a_warning(pages):
    for path in pages:
        text, errors = complaints(["man", "--warnings", "-l"], path)
        assert errors == ""
        assert path.stem in text.split("SYNOPSIS")[0]


@pytest.mark.needs("mandoc")
def test_mandoc_finds_nothing(pages):
    for path in pages:
        text, errors = complaints(["mandoc", "-T", "lint", "-W", "warning"], path)
        assert text + errors == ""


@pytest.mark.needs("man")
def test_a_flag_is_shown_as_it_is_typed(dtrain, tmp_path):
    path = tmp_path / "dtrain-launch.1"
    path.write_text(dtrain("man", "dtrain-launch"))
    text, _ = complaints(["man", "-l"], path)
    assert "--np, -n, --num-proc N" in text
    assert "~/.config/dtrain/config.toml" in text


@pytest.mark.parametrize("program, page", [
    (BIN_DIR / "dtrain-allreduce", "dtrain-allreduce.1"),
    (BIN_DIR / "dtrain-agent", "dtrain-agent.8"),
    (BIN_DIR / "dtrain-spawner", "dtrain-spawner.8"),
    (SOURCE_DIR / "deploy/pki/dtrain-pki", "dtrain-pki.1")])
def test_a_page_written_by_hand_has_all_words_of_the_usage(program, page):
    done = subprocess.run([program, "--help"], capture_output=True, text=True)
    text = (SOURCE_DIR / "docs/man" / page).read_text().replace("\\-", "-")
    words = re.findall(r"--[a-z-]+|(?<=dtrain-agent )[a-z]+|(?<=^  )[a-z]+(?= [A-Z])",
                       done.stdout + done.stderr, re.MULTILINE)
    assert len(words) >= 3
    for word in words:
        assert word in text


def test_an_unknown_page_is_refused():
    done = subprocess.run([DTRAIN, "man", "dtrain-lunch"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "dtrain man lists them" in done.stderr
