#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Which suites the changes since a commit can break: for tools/test --changed and for .ci/run.

A folder's own tests and those of all that is built on it are known from build/<preset>/needs.txt, which CMake writes.
Of the cluster suites, which run the whole programs, a change of the product needs the smoke set, and those that the
table below names for the folder. A file that is not known here needs everything.

changed.py              prints the files that have changed since main.
changed.py BUILD PREFIX prints the names of needs.txt that begin with PREFIX and are made from such files.
"""
import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVERYTHING = ["@unit", "@component", "@cluster"]
# A submission is tested with its session's commits on top of what has landed; these are never older.
AGE_OF_WHAT_HAS_LANDED = "5 hours"
PRODUCT = r"(agent|common|launcher|proto|rendezvous|runtime|shepherd|spawner)/"

# A pattern of changed files: the suites, or labels (@smoke), that they need besides those of their folder.
TABLE = [
    (PRODUCT, ["@smoke", "component.installed.version", "unit_architecture", "unit_reference"]),
    (r"(agent|common|launcher|shepherd|spawner)/[^/]*\.(cc|h)$", ["@cluster"]),
    (r"(proto|rendezvous|common/(base|os|loop|link|rpc)|launcher/job|agent/(session|shepherd|roles))/", ["@cluster"]),
    (r"(launcher|agent)/stage/|common/manifest/", ["cluster.*stage*", "cluster.kept_state"]),
    (r"launcher/(migrate|detached|journal|story|history)/",
     ["cluster.migrate", "cluster.detach*", "cluster.away", "cluster.supervised", "cluster.successors", "cluster.walk",
      "cluster.power_cut", "cluster.stalling_home"]),
    (r"agent/containers/|.*container", ["cluster.container"]),
    (r"launcher/elastic/", ["cluster.elastic", "cluster.restarts", "cluster.scale_up", "cluster.horovod"]),
    (r"launcher/bench/", ["cluster.bench"]),
    (r"launcher/faces/", ["cluster.faces", "cluster.flags"]),
    (r"launcher/(hosts|plan|cli|discovery)/",
     ["cluster.flags", "cluster.faults_a", "cluster.slurm", "cluster.kubernetes", "cluster.nodes"]),
    (r"launcher/(transport|nodes)/",
     ["cluster.faults_[abc]", "cluster.faults_tls", "cluster.dns", "cluster.network", "cluster.ipv6", "cluster.silence"]),
    (r"launcher/(output|report)/|launcher/status/", ["cluster.faults_[ijk]", "cluster.status", "cluster.spool"]),
    (r"launcher/page/", ["component.page.*"]),
    (r"(launcher|common)/.*http|agent/answers/|common/(http|view)/",
     ["cluster.http_abuse", "cluster.node_http", "component.page.*"]),
    (r"agent/(auth|spawn)/|spawner/|common/tls/|deploy/pki/",
     ["cluster.attacks_*", "cluster.spawner", "cluster.trespass", "cluster.secrets", "cluster.login_sessions",
      "cluster.fork_bombs", "cluster.abuse", "cluster.faults_tls", "cluster.reload", "component.pki.*"]),
    (r"agent/(pmix|stores)/",
     ["cluster.open_mpi", "cluster.agent_store", "cluster.programs", "cluster.collectives"]),
    (r"(agent/(shepherd|session)|common/(os|loop)|runtime|tests/support/old_kernel)/", ["old-kernel"]),
    (r"agent/inventory/", ["cluster.gpu*", "cluster.hung_nvml", "cluster.reservations"]),
    (r"runtime/", ["component.python.*", "component.gpu_check", "cluster.collectives", "cluster.python",
                   "cluster.elastic", "cluster.horovod", "cluster.kept_state"]),
    (r"(tests/gpu|tests/support/fake_n\w+)", ["component.gpu_check", "gpu_runtime", "component_runtime"]),
    (r"tools/gpu.check", ["component.gpu_check"]),
    (r"(docs|examples)/|.*\.md$", ["component.docs.*", "cluster.docs", "cluster.examples", "unit_reference"]),
    (r"deploy/|tools/(package|check-portable|glibc)|cmake/(Portable|Install|glibc)|docs/man/",
     ["component.installed.*", "cluster.package"]),
    (r"deploy/(?!pki/)|tools/package|cmake/Install",
     ["cluster.package_agent", "cluster.installing", "cluster.service", "cluster.attacks_sealed"]),
    (r"tools/(package|check-portable|glibc)|cmake/(Portable|Toolchain|glibc)",
     ["cluster.installing", "cluster.debian11", "cluster.aarch64"]),
    (r"tools/arm64.root|cmake/aarch64", ["cluster.aarch64"]),
    (r"tests/cluster/(packages|portable|chroot)\.py$", ["cluster.package*", "cluster.installing", "cluster.debian11"]),
    (r"tests/cluster/test_(\w+)\.py$", [r"cluster.\1", "component.runner.smoke"]),
    (r"tests/cluster/attacks/test_(\w+)\.py$", [r"cluster.\1", "component.runner.smoke"]),
    (r"tests/cluster/CMakeLists", ["component.runner.smoke"]),
    (r"tests/cluster/attacks/(?!test_)", ["cluster.attacks_*"]),
    (r"tests/cluster/(hosts|hostinit|conftest|leftovers|launching)\.py$", ["@cluster"]),
    (r"tests/cluster/(?!attacks/|test_)", ["@smoke", "@cluster"]),
    (r"tests/(unit|component)/(\w+)/.*\.(cc|h|c)$", [r"\1_\2"]),
    (r"tests/component/(\w+)/.*(\.py|CMakeLists\.txt|\.ini)$", [r"component?\1*"]),
    (r"tests/(fuzz|sim)/", ["unit_fuzz_seeds", "unit_sim"]),
    (r"tests/support/|tests/CMakeLists|tests/component/CMakeLists", ["@unit", "@component"]),
    (r"tests/chaos/|tools/chaos", ["component.chaos.*", "cluster.kill_series", "cluster.random_kills"]),
    (r"tests/(run|changed)\.py|tools/(test|build)", ["component.runner.*", "unit_base"]),
    (r"CMakeLists|CMakePresets|cmake/|tools/(build|install-deps)", ["@unit", "@component", "@smoke"]),
    (r"tools/|\.ci/|tests/(bench|suites)|\.git|\.clang|LICENSE", ["unit_architecture"]),
]
# Suites, and tests, that tools/test and .ci/run run only when a change needs them: they test what seldom changes, or
# what others go through, too. Of NCCL's versions the newest always runs. A cluster suite runs only for a file for which
# the table names it: @cluster is for --changed. cluster.installing takes three minutes, cluster.package_agent two and
# a half and cluster.debian11 one, but no other suite installs each kind of package, upgrades an agent under systemd
# while jobs run, or runs the programs with an old glibc. cluster.aarch64 is not here: it needs a build that CI lacks.
ONLY_WHEN_CHANGED = ["component.docs.*", "component.page.*", "component.installed.*", "component.pki.*",
                     "component.gpu_check", "cluster.docs", "cluster.examples", "cluster.package*",
                     "cluster.installing", "cluster.service", "cluster.debian11", "FakeNccl*", "FakeCuda*",
                     "*/fake_nccl_*", "*/CpuHugeTest.*", "*.on_linux_*"]


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=False).stdout.strip()


def base():
    """The commit to compare with: the newest of main before these changes. In CI the changes are on main already, and
    only the age of its commits tells them apart."""
    landed = git("merge-base", "HEAD", "origin/main")
    if landed and (os.environ.get("CI") != "true" or landed != git("rev-parse", "HEAD")):
        return landed
    return git("rev-list", "-1", f"--before={AGE_OF_WHAT_HAS_LANDED} ago", "HEAD")


def files_since(commit):
    """Paths that differ from that commit, also those not committed; None if the commit is not known."""
    if not commit or not git("rev-parse", "--verify", f"{commit}^{{commit}}"):
        return None
    names = git("diff", "--name-only", "--no-renames", commit) + "\n" + git("ls-files", "--others", "--exclude-standard")
    return sorted({name for name in names.splitlines() if name})


def read_needs(path):
    """{name: what it is made from} of needs.txt."""
    return {name: needed.split() for name, _, needed in
            (line.partition(":") for line in Path(path).read_text().splitlines() if line)}


def built_on(folder, needs):
    """All names that are made from this folder, by whatever way."""
    found, left = set(), [folder]
    while left:
        name = left.pop()
        for other, needed in needs.items():
            if name in needed and other not in found:
                found.add(other)
                left.append(other)
    return found


def folder_of(file, needs):
    """The innermost folder around a file from which something is made; "." if there is none."""
    folder, mentioned = str(Path(file).parent), set(needs) | {name for needed in needs.values() for name in needed}
    while folder != "." and folder not in mentioned:
        folder = str(Path(folder).parent)
    return folder


def suites_for(file, needs):
    """Names, patterns and @labels of the suites that a change of this file can break."""
    # Nothing is compiled from the Python package.
    built = set() if re.match(r"runtime/python/.*\.py$", file) else built_on(folder_of(file, needs), needs)
    wanted = {name for name in built if re.match(r"(unit|component)_", name)}
    known = bool(wanted)
    for pattern, suites in TABLE:
        match = re.match(pattern, file)
        if match:
            known = True
            wanted |= {match.expand(suite) if "\\" in suite else suite for suite in suites}
    return wanted if known else set(EVERYTHING)


def suites_since(commit, needs):
    """(files, suites) of the changes since that commit; everything if it is not known."""
    files = files_since(commit)
    if files is None:
        return None, set(EVERYTHING)
    return files, set().union(*(suites_for(file, needs) for file in files)) if files else set()


def is_wanted(names, labels, wanted):
    """Whether these names, patterns and labels have a test of those names and labels."""
    return any(each[1:] in labels if each.startswith("@") else any(fnmatch.fnmatchcase(name, each) for name in names)
               for each in wanted)


def main(build="", prefix=""):
    files = files_since(base())
    if files is None:
        files = git("ls-files").splitlines()
    if not build:
        print("\n".join(files))
        return
    needs = read_needs(Path(build, "needs.txt"))
    made = set().union(*(built_on(folder_of(file, needs), needs) for file in files))
    print("\n".join(sorted(name for name in made if name.startswith(prefix))))


if __name__ == "__main__":
    main(*sys.argv[1:])
