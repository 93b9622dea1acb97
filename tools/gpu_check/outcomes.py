# SPDX-License-Identifier: Apache-2.0
"""What a check found, the table for people, and the file with the raw numbers."""

import json
import platform
import time

MET, MISSED, COULD_NOT = "met", "missed", "could not run"
# What a process's line always has. One with nothing else has not begun.
ALWAYS = {"part", "rank", "missed", "could_not"}


class Tally:
    """Parts of one check. Missed when one of them is; else met only when all of them ran."""

    def __init__(self):
        self.missed, self.could_not, self.ran, self.raw = [], [], 0, []

    def miss(self, why):
        if why not in self.missed:
            self.missed.append(why)

    def skip(self, why):
        if why not in self.could_not:
            self.could_not.append(why)

    def met(self, **numbers):
        """A part that ran and was as it should be."""
        self.ran += 1
        if numbers:
            self.raw.append(numbers)

    def take(self, ended, lines, name):
        """The lines of a program's processes; `lines` of them have to be there."""
        self.raw.append({"name": name, **ended.raw()})
        found = ended.lines()
        for each in found:
            for why in each.get("missed", []):
                self.miss(f"{name}: {why}")
            for why in each.get("could_not", []):
                self.skip(why)
        if len(found) < lines:
            self.miss(f"{name}: {len(found)} of {lines} processes reported; {ended.why()}")
        elif not any(each.get("missed") for each in found) and any(set(each) - ALWAYS for each in found):
            self.ran += 1
        return found

    def verdict(self):
        if self.missed:
            return MISSED, "; ".join(self.missed)
        if self.could_not or self.ran == 0:
            rest = "; the rest was met" if self.ran else ""
            return COULD_NOT, "; ".join(self.could_not or ["nothing of it ran"]) + rest
        return MET, ""


class Outcome:
    def __init__(self, number, title, seconds, tally):
        self.number, self.title, self.seconds = number, title, seconds
        self.verdict, self.why = tally.verdict()
        self.raw = tally.raw

    def json(self):
        return {"check": self.number, "title": self.title, "seconds": round(self.seconds, 2),
                "verdict": self.verdict, "why": self.why, "raw": self.raw}


def line(outcome):
    text = f"{outcome.number:>4}  {outcome.title:<34} {outcome.seconds:6.1f}  {outcome.verdict}"
    return text + (f": {outcome.why[:400]}" if outcome.why else "")


HEAD = f"{'#':>4}  {'check':<34} {'s':>6}  verdict"


def summary(outcomes):
    counts = {verdict: sum(each.verdict == verdict for each in outcomes) for verdict in (MET, MISSED, COULD_NOT)}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def write(path, outcomes, facts):
    document = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "host": platform.node(),
                "python": platform.python_version(), "libc": " ".join(platform.libc_ver()), **facts,
                "summary": summary(outcomes), "checks": [outcome.json() for outcome in outcomes]}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all.
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.replace(path)
