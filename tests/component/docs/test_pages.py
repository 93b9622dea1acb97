# SPDX-License-Identifier: Apache-2.0
"""Links in the pages lead somewhere, what is drawn from data is drawn from today's, and tools say what they do."""
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def without_code(text):
    return re.sub(r"^( *)```.*?^\1```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """As GitHub makes them from headings."""
    found, seen = set(), {}
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = seen.get(anchor, 0)
        seen[anchor] = number + 1
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def broken_links(page):
    text = without_code(page.read_text())
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{link}: {target.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not list(broken_links(page))


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n[a](#a-page) [b](#b) [c](c.md)\n\n```\n[d](d.md)\n```\n")
    assert list(broken_links(page)) == ["#b: page.md has no such heading", "c.md: there is no such file"]


def test_charts_and_table_are_those_of_the_data():
    done = subprocess.run([ROOT / "tools/charts", "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tool", sorted(path.name for path in (ROOT / "tools").iterdir() if path.is_file()))
def test_tools_say_what_they_do_and_do_nothing(tool):
    asked = subprocess.run([ROOT / "tools" / tool, "--help"], capture_output=True, text=True, timeout=60, check=False)
    first = (asked.stdout + asked.stderr).split("\n")[0]
    assert re.match(rf"(usage: )?(tools/)?{tool}\b", first), first
