# SPDX-License-Identifier: Apache-2.0
"""Commands in the pages, and what the pages say they print.

A block ```console has commands after "$ " (with "> " for further lines) and their output below them. A
comment before a block says what to do with it: `<!-- file: NAME -->` writes the block to NAME,
`<!-- not run: REASON -->` leaves it out."""
import collections
import re
from pathlib import Path

BLOCK = re.compile(r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
                   re.DOTALL | re.MULTILINE)
# Lines in which these alone differ are the same: ids of jobs, serial numbers, numbers other than exit codes, folders, and
# the widths of columns.
VARYING = [(re.compile(r"dtrain-[0-9a-f]{12}"), "JOB"), (re.compile(r"\b(?:[0-9A-F]{2}){17,20}\b"), "SERIAL"),
           (re.compile(r"(?<![\d.])(?<!code )(?<!gpu)\d+(\.\d+)?"), "0"),
           (re.compile(r"/\S*/(tutorial|dtrain-ca)\b"), "DIR"), (re.compile(r" +"), " ")]

Command = collections.namedtuple("Command", "text output")
Step = collections.namedtuple("Step", "file commands reason text")


def commands_of(text):
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command([line[2:]], []))
        elif line.startswith("> ") and found and not found[-1].output:
            found[-1].text.append(line[2:])
        else:
            found[-1].output.append(line)
    return [Command("\n".join(lines), output) for lines, output in found]


def steps_of(page):
    """What a reader of the page does, in order: files to write, blocks to run, blocks to leave out."""
    for match in BLOCK.finditer(Path(page).read_text()):
        note, kind, text = match["note"] or "", match["kind"], match["text"]
        if note.startswith("file: "):
            yield Step(note[len("file: "):], None, None, text)
        elif kind == "console":
            reason = note[len("not run: "):] if note.startswith("not run: ") else None
            yield Step(None, commands_of(text), reason, text)


def unmarked(page):
    """Blocks that may have commands, and are neither run nor say why not."""
    for match in BLOCK.finditer(Path(page).read_text()):
        note, kind, text = match["note"] or "", match["kind"], match["text"]
        if note.startswith("file: ") or re.fullmatch(r"not run: .{10,}", note):
            continue
        # Output, and programs, which have tests of their own.
        if kind == "console" and not note or kind in ("text", "python") and not text.startswith("$ "):
            continue
        yield f"{kind}: {note} {text}"


def plain(line):
    for pattern, word in VARYING:
        line = pattern.sub(word, line)
    return line.rstrip()


def missing(expected, printed):
    """Lines of the page that were not printed, and printed ones that the page does not have. Ranks print
    in any order. "..." in the page stands for any lines."""
    some = "..." in expected
    wanted = collections.Counter(plain(line) for line in expected if line != "...")
    got = collections.Counter(plain(line) for line in printed)
    return [*(wanted - got), *(() if some else (got - wanted))]
