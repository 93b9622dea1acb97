# SPDX-License-Identifier: Apache-2.0
"""tests/run.py with ctest itself, on small projects; tests/changed.py on the folders of this build."""
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tests"))
import changed  # noqa: E402
import run as runner  # noqa: E402

# Fails whenever it runs for the first time.
FAILS_ONCE = """
    def once(name):
        from pathlib import Path
        mark = Path(__file__).with_name(name)
        if not mark.exists():
            mark.touch()
            assert False, f"{name} came too late"
"""


@pytest.fixture
def project(tmp_path):
    """Makes a project of pytest files and commands, all of which ctest runs: project({"two": source}, {"unit": cmd})."""
    def make(files, commands=(), labels="component"):
        tests = tmp_path / "tests"
        tests.mkdir()
        for name in ("run.py", "changed.py"):
            (tests / name).write_text((SOURCE / "tests" / name).read_text())
        lines = ["cmake_minimum_required(VERSION 3.23)", "project(Suites NONE)", "enable_testing()"]
        for name, source in files.items():
            file = tmp_path / f"test_{name}.py"
            file.write_text(textwrap.dedent(FAILS_ONCE) + textwrap.dedent(source))
            lines.append(f'add_test(NAME component.{name} COMMAND {sys.executable} -m pytest -v -p no:cacheprovider "{file}")')
            lines.append(f'set_tests_properties(component.{name} PROPERTIES LABELS {labels} SKIP_RETURN_CODE 77)')
        for name, command in dict(commands).items():
            lines.append(f"add_test(NAME {name} COMMAND sh -c [[{command}]])")
        (tmp_path / "CMakeLists.txt").write_text("\n".join(lines) + "\n")
        (tmp_path / "build/release").mkdir(parents=True)
        (tmp_path / "build/release/needs.txt").touch()
        subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build/release"], check=True, capture_output=True)
        return tmp_path
    return make


def command(project, *words):
    return [sys.executable, "-B", project / "tests/run.py", project / "build/release", *words]


def ours():
    return {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}


def run(project, *words, **environment):
    return subprocess.run(command(project, *words), env={**ours(), **environment}, text=True, cwd=project,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100)


def test_a_green_run_says_what_it_runs_and_counts(project):
    ended = run(project({"two": "def test_a(): pass\ndef test_b(): pass"}, {"Unit.case": "true"}))
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"^release: 2 tests \(1 component, 1 other\); about \d+ s", ended.stdout, re.M), ended.stdout
    assert ended.stdout.endswith("2 passed, 0 failed, 0 skipped\n")


def test_what_fails_once_is_flaky_and_runs_again_alone_without_the_rest_of_its_file(project):
    made = project({"three": """
        from pathlib import Path
        def test_good(): Path(__file__).with_name("runs").open("a").write("x")
        def test_racy(): once("a cut")
        """}, {"Some.case": "test -e mark || { touch mark; echo 'x.cc:1: Failure'; echo 'these are not equal:'; echo '  1'; echo '  2'; echo more; false; }"})
    ended = run(made)
    assert ended.returncode == 0, ended.stdout
    assert "flaky: component.three::test_racy, AssertionError: a cut came too late\n" in ended.stdout
    assert "flaky: Some.case, these are not equal: 1 2\n" in ended.stdout
    assert ended.stdout.endswith("2 passed, 0 failed, 0 skipped\n")
    assert (made / "runs").read_text() == "x"
    assert "a cut came too late" in (made / "build/flaky.log").read_text()


def test_what_fails_twice_is_red_and_shows_how(project):
    ended = run(project({"bad": "def test_bad(): assert 1 == 2"}, {"Bad.case": "echo a clue; exit 3", "Good.case": "true"}))
    assert ended.returncode == 1
    assert "failed twice: component.bad::test_bad\n" in ended.stdout and "failed twice: Bad.case\n" in ended.stdout
    assert "assert 1 == 2" in ended.stdout and "a clue" in ended.stdout
    assert ended.stdout.endswith("1 passed, 2 failed, 0 skipped\n")


def test_more_than_three_flakes_are_red(project):
    flaky = {f"Case.number{i}": f"test -e mark{i} || {{ touch mark{i}; false; }}" for i in range(4)}
    ended = run(project({}, flaky))
    assert ended.returncode == 1 and "4 flaky tests are more than 3: an error" in ended.stdout, ended.stdout


def test_tests_get_nothing_of_a_launcher_or_a_proxy_around_them(project):
    made = project({}, {"Some.case": 'test -n "$HOME" && test -z "$RANK$SLURM_JOB_ID$DTRAIN_TIMEOUT$http_proxy"'})
    ended = run(made, RANK="3", SLURM_JOB_ID="7", DTRAIN_TIMEOUT="3", http_proxy="http://127.0.0.1:9")
    assert ended.returncode == 0, ended.stdout


def test_what_does_not_end_is_ended_with_what_it_started(project):
    made = project({}, {"Slow.case": "sleep 987 & echo $! >>started; wait"})
    with (made / "CMakeLists.txt").open("a") as file:
        file.write("set_tests_properties(Slow.case PROPERTIES TIMEOUT 1)\n")
    subprocess.run(["cmake", made / "build/release"], check=True, capture_output=True)
    ended = run(made)
    assert ended.returncode == 1 and "no end after 1 s" in ended.stdout, ended.stdout
    pids = next(made.rglob("started")).read_text().split()
    assert len(pids) == 2
    end = time.monotonic() + 20
    while Path(f"/proc/{pids[1]}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{pids[1]}").exists()


def test_the_state_of_the_source_is_that_of_new_files_too(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(runner, "SUITES", tmp_path / "tests/suites.txt")
    states = [runner.source_state()]
    for text in ("a", "b"):
        (tmp_path / "new").write_text(text)
        states.append(runner.source_state())
    assert len(set(states)) == 3


def test_a_file_that_ends_without_naming_a_case_runs_again_as_a_whole(project):
    ended = run(project({"crash": "import os\ndef test_a(): os.kill(os.getpid(), 9)\ndef test_b(): pass"}))
    assert ended.returncode == 1 and "failed twice: component.crash\n" in ended.stdout, ended.stdout


def test_a_file_without_tests_is_red(project):
    ended = run(project({"empty": "", "good": "def test_a(): pass"}))
    assert ended.returncode == 1 and "component.empty" in ended.stdout


def test_a_shrunken_suite_is_told_and_green(project):
    made = project({"two": "def test_a(): pass\ndef test_b(): pass"})
    (made / "tests/suites.txt").write_text("component.two 3 1.5\n")
    ended = run(made)
    assert ended.returncode == 0 and "component.two has 2 tests, 3 before\n" in ended.stdout, ended.stdout
    assert run(made, "--write").returncode == 0
    assert (made / "tests/suites.txt").read_text().startswith("component.two 2 ")


def test_a_skip_is_an_error_in_ci_only(project):
    made = project({}, {"Some.case": "true"})
    (made / "CMakeLists.txt").open("a").write("set_tests_properties(Some.case PROPERTIES SKIP_RETURN_CODE 0)\n")
    subprocess.run(["cmake", made / "build/release"], check=True, capture_output=True)
    assert run(made).returncode == 0
    ended = run(made, CI="true")
    assert ended.returncode == 1 and "skipped, an error in CI: Some.case" in ended.stdout, ended.stdout


def test_what_seldom_changes_is_left_out_until_it_does(project):
    made = project({}, {"component.page.look": "true", "Some.case": "true"})
    (made / ".gitignore").write_text("build\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "all"],
                  ["update-ref", "refs/remotes/origin/main", "HEAD"]):
        subprocess.run(["git", *words], cwd=made, check=True)
    ended = run(made)
    assert ended.stdout.endswith("1 passed, 0 failed, 0 skipped\n") and "left out: 1 test" in ended.stdout, ended.stdout
    assert run(made, "-R", "page").stdout.endswith("1 passed, 0 failed, 0 skipped\n")
    assert run(made, CI="true").stdout.endswith("2 passed, 0 failed, 0 skipped\n"), "all of its commits are new"
    (made / "launcher/page").mkdir(parents=True)
    (made / "launcher/page/page.js").touch()
    assert run(made).stdout.endswith("2 passed, 0 failed, 0 skipped\n")


ALWAYS = {"unit_job": ["unit"], "cluster.launch": ["cluster", "smoke"]}
SELDOM = {"component.page.page": ["component"],
          **{f"cluster.{name}": ["cluster"] for name in ("docs", "package", "package_agent", "installing", "debian11")}}
WITH_ALL = {"cluster.container": ["cluster"], "cluster.aarch64": ["cluster"]}


@pytest.mark.parametrize("file, added", [
    ("deploy/systemd/setup", {"cluster.package", "cluster.package_agent", "cluster.installing"}),
    ("deploy/pki/dtrain-pki", {"cluster.package"}),
    ("docs/man/dtrain-agent.8", {"cluster.package", "cluster.docs"}),
    ("tools/package", {"cluster.package", "cluster.package_agent", "cluster.installing", "cluster.debian11"}),
    ("cmake/glibc/x86_64.list", {"cluster.package", "cluster.installing", "cluster.debian11", "component.page.page"}),
    ("tests/cluster/test_package_agent.py", {"cluster.package_agent"}),
    ("tests/cluster/conftest.py", set()),
    ("launcher/main.cc", set()),
    ("agent/containers/podman.cc", set()),
])
def test_a_run_in_ci_has_suites_of_packages_and_pages_only_for_their_files(tmp_path, monkeypatch, file, added):
    (tmp_path / "needs.txt").touch()
    monkeypatch.setattr(changed, "base", lambda: "abc")
    monkeypatch.setattr(changed, "files_since", lambda _: [file])
    tests = [runner.Test(1, {"name": name, "properties": [{"name": "LABELS", "value": labels}]})
             for name, labels in {**ALWAYS, **SELDOM, **WITH_ALL}.items()]
    chosen = runner.choose(tests, tmp_path, *runner.parse([str(tmp_path)]), in_ci=True)
    assert {test.name for test in chosen} == {*ALWAYS, *added}


def test_a_suite_that_is_not_known_is_expected_to_take_the_mean_of_its_kind():
    known = {"cluster.a": (4, 30.0), "cluster.b": (2, 10.0), "smoke.a": (4, 3.0), "component.page.a": (5, 7.0),
             "unit_a": (10, 1.0), "unit_b": (90, 4.0), "component_a": (2, 4.0)}

    def of(suite, slots=1):
        command = ["python3", "-m", "pytest", "test_x.py"] if "." in suite else [f"/bin/{suite}"]
        test = runner.Test(1, {"name": suite, "command": command,
                               "properties": [{"name": "PROCESSORS", "value": slots}]})
        return runner.seconds_of([test], known)[suite]

    assert of("cluster.new") == 20 and of("cluster.new", slots=2) == 40 and of("cluster.a") == 30
    assert of("smoke.new") == 3 and of("component.new.a") == 7
    assert of("unit_new") == 0.05 and of("unit_a") == 0.1 and of("component_new") == 2
    assert of("gpu_new") == runner.SECONDS_OF_A_TEST


def test_a_stopped_run_goes_on_with_what_has_not_passed(project):
    made = project({}, {"A.case": "echo a >>ran", "B.case": "echo b >>ran; test -e go || { touch waits; sleep 60; }"})
    with subprocess.Popen(command(made), env=ours(), cwd=made, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          start_new_session=True) as running:
        end = time.monotonic() + 60
        passed = made / "build/release/tests-passed.txt"
        while not (list(made.rglob("waits")) and "A.case" in passed.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGINT)
        assert "--resume goes on" in running.communicate(timeout=60)[0] and running.returncode == 130
    ran = next(made.rglob("ran"))
    (ran.parent / "go").touch()
    assert "a" in ran.read_text()
    ended = run(made, "--resume")
    assert ended.returncode == 0 and "1 have passed before" in ended.stdout, ended.stdout
    assert sorted(ran.read_text().split()) == ["a", "b", "b"]


def test_a_program_whose_tests_did_not_run_this_time_is_not_empty():
    listed = [runner.Test(1, {"name": "A.case", "command": ["/bin/unit_full"]})]
    assert runner.count(listed, {}, {"unit_full", "unit_empty"}) == {"unit_full": (1, 0), "unit_empty": (0, 0)}


NEEDS = {"common/os": ["common/base"], "launcher/job": ["launcher/plan"], "launcher/status": ["launcher/job"],
         "unit_job": ["tests/unit/job", "launcher/job"], "unit_status": ["tests/unit/status", "launcher/status"],
         "unit_plan": ["tests/unit/plan", "launcher/plan"], "component_os": ["tests/component/os", "common/os"]}


@pytest.mark.parametrize("file, wanted, unwanted", [
    ("launcher/status/json.cc", ["unit_status", "@smoke"], ["unit_job", "component_os", "@cluster"]),
    ("launcher/job/core.cc", ["unit_status", "unit_job", "@cluster"], ["unit_plan", "component_os"]),
    ("launcher/main.cc", ["@cluster"], ["unit_job"]),
    ("tests/unit/job/core_test.cc", ["unit_job"], ["unit_status", "@smoke"]),
    ("tests/cluster/test_launch.py", ["cluster.launch"], ["@smoke"]),
    ("tests/cluster/attacks/test_attacks_reuse.py", ["cluster.attacks_reuse"], ["@smoke"]),
    ("docs/launch.md", ["component.docs.*", "cluster.docs"], ["@unit", "@smoke"]),
    ("agent/containers/podman.cc", ["cluster.container", "@smoke"], ["@unit"]),
    ("CMakeLists.txt", ["@unit", "@component", "@smoke"], ["@cluster"]),
    ("a/new/place.txt", ["@unit", "@component", "@cluster"], []),
])
def test_a_change_needs_what_it_can_break(file, wanted, unwanted):
    found = changed.suites_for(file, NEEDS)
    assert not set(wanted) - found and not found & set(unwanted), found


def test_every_file_of_the_repository_is_known():
    """What is not takes every suite: a new kind of file should get a line in the table."""
    needs = changed.read_needs(Path(os.environ.get("DTRAIN_BIN_DIR", SOURCE / "build/release/bin")).with_name("needs.txt"))
    files = subprocess.run(["git", "ls-files"], cwd=SOURCE, stdout=subprocess.PIPE, text=True).stdout.split("\n")
    unknown = [file for file in files if file and changed.suites_for(file, needs) == set(changed.EVERYTHING)]
    assert not unknown


def test_tests_with_two_labels_keep_their_other_properties():
    """CMake's discovery takes no list: what stands behind one was lost, ThreadSanitizer's suppressions among it."""
    build = Path(os.environ.get("DTRAIN_BIN_DIR", SOURCE / "build/release/bin")).parent
    hostile = [test for test in runner.list_tests(build, ["-L", "sanitized"]) if test.suite == "component_rpc"]
    assert hostile and all(set(test.labels) == {"component", "sanitized"} and test.timeout < 1500 for test in hostile)


def test_the_table_names_tests_that_there_are():
    build = Path(os.environ.get("DTRAIN_BIN_DIR", SOURCE / "build/release/bin")).parent
    tests = runner.list_tests(build, [])
    suites = {line.split()[0] for line in (SOURCE / "tests/suites.txt").read_text().splitlines()}
    suites |= {test.suite for test in tests}
    named = [suite for _, suites in changed.TABLE for suite in suites if not suite.startswith("@") and "\\" not in suite]
    missing = [name for name in named if not any(changed.is_wanted([suite], [], [name]) for suite in suites)]
    missing += [name for name in changed.ONLY_WHEN_CHANGED
                if not any(changed.is_wanted([test.suite, test.name], [], [name]) for test in tests)]
    assert not missing
