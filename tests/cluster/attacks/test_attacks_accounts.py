# SPDX-License-Identifier: Apache-2.0
"""Accounts that may run no jobs try to, by TLS and from the node: each is told which rule it is and what to do,
and nothing of theirs is started. Alice's job beside them counts lines. The rules one by one are in
tests/unit/spawner/policy_test.cc, PAM's words in tests/component/spawner/spawner_test.cc."""
import subprocess

import pytest

from guarded import alices_job, guarded  # noqa: F401 - fixtures

HERS = {"text": True, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
TOUCH = ["sh", "-c", "touch /tmp/ran-$(id -u)"]


def expect_refused(place, user, *words, ways=("tls", "there")):
    refusals = place.spawner.log.count("audit: refused: stage 6, ")
    for way in ways:
        if way == "tls":
            result = place.launch_by_tls(user, *TOUCH)
            code, told = result.code, result.err
        else:
            code, _, told = place.launch_there(user, *TOUCH, **HERS)
        assert code == 206, (way, code, told)
        for word in ("dtrain-spawner refuses", *words):
            assert word in told, (way, word, told)
    assert place.spawner.log.count("audit: refused: stage 6, ") == refusals + len(ways), place.spawner.log
    assert not place.pids_of(user) and not place.node.path(f"/tmp/ran-{place.ids[user]}").exists()


def expect_admitted(place, user, ways):
    for way in ways:
        if way == "tls":
            result = place.launch_by_tls(user, "id", "-un")
            code, said = result.code, result.out
        else:
            code, said, _ = place.launch_there(user, "id", "-un", **HERS)
        assert code == 0 and user in said, (way, code, said)


# Each beside one whom the same rule admits.
@pytest.mark.parametrize("user, words", [
    ("shut", ["/usr/sbin/nologin, is not in /etc/shells", "chsh"]),
    ("late", ["PAM (service dtrain) refuses late", "has expired", "/etc/pam.d/dtrain"]),
    ("system", ["uid 999, below min-uid 1000", "lower min-uid"])])
def test_an_account_that_may_not_is_told_the_rule(guarded, alices_job, user, words):  # noqa: F811
    expect_admitted(guarded, "mallory", ["tls", "there"])
    expect_refused(guarded, user, *words)


def test_pam_may_deny_everyone_and_running_jobs_go_on(guarded, alices_job):  # noqa: F811
    expect_admitted(guarded, "mallory", ["tls", "there"])
    guarded.etc("pam.d/dtrain").write_text("account required pam_deny.so\n")
    expect_refused(guarded, "mallory", "PAM (service dtrain) refuses mallory", "/etc/pam.d/dtrain")


# Who is connected is known from the kernel, and needs no line.
def test_a_strict_map_admits_by_certificate_only_whom_it_names(guarded, alices_job):  # noqa: F811
    guarded.etc("dtrain/accounts").write_text("alice = alice\n")
    guarded.configure("map = strict\n")
    expect_refused(guarded, "mallory", "/etc/dtrain/accounts does not name mallory", "map = strict",
                   "add a line", ways=["tls"])
    expect_admitted(guarded, "mallory", ["there"])
    guarded.etc("dtrain/accounts").write_text("alice = alice\nm@lab = mallory\n")
    expect_admitted(guarded, "mallory", ["tls"])
