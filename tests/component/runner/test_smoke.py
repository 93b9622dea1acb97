# SPDX-License-Identifier: Apache-2.0
"""What the smoke set of the cluster suites (tests/cluster/CMakeLists.txt) has to cross, and the case that does."""
import os
import re
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("DTRAIN_BIN_DIR", SOURCE / "build/release/bin")).parent
sys.path.insert(0, str(SOURCE / "tests"))
import changed  # noqa: E402
import run as runner  # noqa: E402

# SUITE::words of the case's name. Where most cases cross a folder, one that fails when the folder is wrong.
FOLDERS = {
    "agent/answers": "cluster.node_http::answers_are_as_the_api_says",
    "agent/auth": "cluster.tcp::an_observer_may_not_launch",
    "agent/containers": "smoke.container::each_rank_is_in_a_container",
    "agent/inventory": "cluster.launch::slots_come_from_the_cores",
    "agent/pmix": "smoke.open_mpi::the_world_is_whole",
    "agent/roles": "cluster.launch::sixteen_ranks",
    "agent/session": "cluster.resident::jobs_outlive_their_agents",
    "agent/shepherd": "cluster.launch::exit_code_is_the_workers",
    "agent/spawn": "cluster.spawner::workers_have_a_cgroup",
    "agent/stage": "smoke.stage::all_hosts_have_all_files",
    "agent/stores": "smoke.elastic::all_is_well",
    "launcher/bench": "smoke.bench::allreduce_over_two_hosts",
    "launcher/cli": "cluster.launch::config_file_and_environment_variables",
    "launcher/detached": "smoke.detached::the_launch_returns",
    "launcher/discovery": "smoke.elastic::as_horovodrun",
    "launcher/elastic": "smoke.elastic::a_rank_that_is_killed_takes_its_host_along",
    "launcher/env": "smoke.container::dry_run_and_env",
    "launcher/faces": "smoke.elastic::as_horovodrun",
    "launcher/history": "smoke.detach::the_terminal_is_given_back",
    "launcher/hosts": "cluster.launch::rankfile_places_each_rank",
    "launcher/job": "smoke.restarts::followed_by_another_attempt",
    "launcher/journal": "smoke.detached::a_killed_launcher_costs_no_worker",
    "launcher/migrate": "smoke.migrate::there_and_back",
    "launcher/nodes": "cluster.secrets::tokens_of_http",
    "launcher/output": "cluster.launch::tags_name_rank_or_host",
    "launcher/page": "smoke.walk::a_night",
    "launcher/plan": "cluster.launch::map_by_node",
    "launcher/report": "cluster.launch::result_file_tells_how_it_ended",
    "launcher/self": "smoke.bench::allreduce_over_two_hosts",
    "launcher/stage": "smoke.stage::all_hosts_have_all_files",
    "launcher/status": "cluster.status::ps_and_status_tell",
    "launcher/story": "smoke.walk::a_night",
    "launcher/subcommands": "cluster.status::mistakes_are_told",
    "launcher/transport": "cluster.launch::ssh_config_file_and_port",
}
# Folders of commands that reach no host: the suite that a change of theirs needs.
WITHOUT_HOSTS = {
    "launcher/reference": "unit_reference",
    "launcher/version": "component.installed.version",
}
SCENES = {
    "a job over ssh": "cluster.launch::sixteen_ranks",
    "resident agents over TLS": "cluster.faults_tls::d1_one_rank_fails",
    "a crash": "smoke.faults_d::d2_signal_is_named",
    "a launcher that is killed": "cluster.resident::a_launcher_that_is_killed",
    "an agent that is killed": "cluster.resident::jobs_outlive_their_agents",
    "a shepherd that is killed": "cluster.resident::a_shepherd_that_is_killed",
    "a cut": "smoke.restarts::a_host_that_is_cut_off",
    "Ctrl-C": "cluster.faults_tls::k1_one_interrupt",
    "output": "cluster.faults_tls::j1_flood",
    "PMI": "cluster.programs::mpich_allreduce_over_pmi1",
    "PMIx": "smoke.open_mpi::the_world_is_whole",
    "torch": "cluster.programs::pytorch_ddp_trains",
    "a restart": "smoke.restarts::followed_by_another_attempt",
    "a spare": "smoke.restarts::a_spare_takes_the_place",
    "elastic, with a script that lists hosts": "smoke.elastic::as_horovodrun",
    "a detached job": "smoke.detached::the_launch_returns",
    "another launcher for it": "smoke.detached::a_killed_launcher_costs_no_worker",
    "one that goes on without its terminal": "smoke.detach::the_terminal_is_given_back",
    "staging": "smoke.stage::all_hosts_have_all_files",
    "the page": "smoke.walk::a_night",
    "dtrain env": "smoke.container::dry_run_and_env",
}


@pytest.fixture(scope="module")
def smoke():
    """{suite: {words of its -k expression, or "": the cases that they match}}"""
    return {test.suite: cases_of(test.command) for test in runner.list_tests(str(BUILD), ["-L", "smoke"])}


def cases_of(command):
    cases = re.findall(r"^def (test_\w+)", Path(command[-1]).read_text(), re.M)
    expression = command[command.index("-k") + 1] if "-k" in command else ""
    assert re.fullmatch(r"(\w+( or \w+)*)?", expression), f"other than words joined by `or`: {expression}"
    return {words: [case for case in cases if words in case] for words in expression.split(" or ")}


def not_in(smoke, table):
    """The rows that name a suite outside the set, or none of the cases that it runs there."""
    rows = {key: row.split("::") for key, row in table.items()}
    return [f"{key}: {suite}::{words}" for key, (suite, words) in rows.items()
            if not any(words in case for cases in smoke.get(suite, {}).values() for case in cases)]


def test_each_part_of_an_expression_matches_a_case(smoke):
    assert len(smoke) > 20
    assert not [f"{suite}: {words}" for suite, parts in smoke.items() for words, cases in parts.items() if not cases]


def test_each_folder_is_crossed(smoke):
    folders = {str(each.relative_to(SOURCE)) for top in ("agent", "launcher") for each in (SOURCE / top).iterdir()
               if each.is_dir()}
    assert {*FOLDERS, *WITHOUT_HOSTS} == folders
    assert not not_in(smoke, FOLDERS)
    needs = changed.read_needs(BUILD / "needs.txt")
    assert not [folder for folder, suite in WITHOUT_HOSTS.items()
                if suite not in changed.suites_for(f"{folder}/any.cc", needs)]


def test_each_scene_is_there(smoke):
    assert not not_in(smoke, SCENES)


def test_none_is_left_out_when_files_have_not_changed(smoke):
    assert not [suite for suite in smoke if changed.is_wanted([suite], [], changed.ONLY_WHEN_CHANGED)]


@pytest.mark.parametrize("row", ["cluster.a::bad", "cluster.b::good", "smoke.a::good", "smoke.c::other"])
def test_a_wrong_row_is_found(row):
    assert not_in({"cluster.a": {"": ["test_good"]}, "smoke.c": {"part": ["test_part"]}}, {"x": row}) == [f"x: {row}"]


def test_an_expression_chooses_among_the_cases(tmp_path):
    (tmp_path / "test_x.py").write_text("def test_one(): pass\ndef helper(): pass\ndef test_two(a): pass\n")
    run = ["python3", "-m", "pytest", "-v"]
    assert cases_of([*run, tmp_path / "test_x.py"]) == {"": ["test_one", "test_two"]}
    assert cases_of([*run, "-k", "one or three", tmp_path / "test_x.py"]) == {"one": ["test_one"], "three": []}
