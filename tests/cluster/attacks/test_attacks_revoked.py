# SPDX-License-Identifier: Apache-2.0
"""Mallory's certificate is taken back: it counts nowhere any more, also where the list of what is
revoked is lost afterwards. Alice's job beside it counts lines, and loses none."""
import signal

import hosts
from certificates import pki
from launching import wait_until
from test_attacks_crowds import PORT, TLS, attacked  # noqa: F401 - a fixture
from test_identity import node  # noqa: F401 - a fixture

READ, KEPT = "were reloaded", "keeping the old configuration"


def reload(agent, wanted):
    """What the agent says to it."""
    before = len(agent.log)
    agent.signal(signal.SIGHUP)
    wait_until(lambda: READ in agent.log[before:] or KEPT in agent.log[before:], 20,
               lambda: agent.log)
    assert wanted in agent.log[before:], agent.log
    return agent.log[before:]


def as_mallory(attacked, *words):  # noqa: F811
    return ["--agent", "tcp", "--tls-dir", TLS, "--wdir", "/", "--bind", "none", "--lease", "3s",
            "-H", f"{attacked.node.address}:1", "--", *words]


def revoke(attacked):  # noqa: F811
    pki("revoke", attacked.authority.folder, "user:mallory")
    crl = (attacked.authority.folder / "crl.pem").read_bytes()
    (attacked.node_tls / "crl.pem").write_bytes(crl)


def is_refused(attacked):  # noqa: F811
    result = attacked.node.cluster.launch(as_mallory(attacked, "echo", "ran"), timeout=60)
    assert "ran" not in result.out or result.code == 0, result
    return result.code == 206


def test_a_list_that_is_gone_lets_nobody_in(attacked):  # noqa: F811
    agent = attacked.agent
    assert not is_refused(attacked)
    revoke(attacked)
    reload(agent, READ)
    assert is_refused(attacked)
    crl = attacked.node_tls / "crl.pem"
    kept = crl.read_bytes()
    crl.unlink()
    assert "crl.pem" in reload(agent, KEPT)
    assert is_refused(attacked)
    # Nor does another agent begin without it.
    told = attacked.node.run([hosts.bin_dir() / "dtrain-agent", "serve", *agent.flags, "--state-dir",
                              "/run/another"], check=False)
    assert told.returncode == 206 and "crl.pem" in told.stderr and "missing" in told.stderr, told
    crl.write_bytes(kept)
    reload(agent, READ)
    agent.restart()
    assert is_refused(attacked)


# Who says that nothing is ever revoked has said so.
def test_a_node_may_do_without_a_list(attacked):  # noqa: F811
    (attacked.node_tls / "crl.pem").unlink()
    reload(attacked.agent, KEPT)
    attacked.agent.flags += ["--tls-crl", "none"]
    attacked.agent.restart()
    assert not is_refused(attacked)


def test_connections_that_stand_end(attacked):  # noqa: F811
    """And with them her job, as that of any launcher that is not heard from."""
    agent = attacked.agent
    launch = attacked.node.cluster.start_launch(as_mallory(attacked, "sh", "-c", "echo up; sleep 600"))
    launch.wait_for("up")
    reload(agent, READ)  # while it counts
    assert "its certificate" not in agent.log, agent.log
    revoke(attacked)
    reload(agent, READ)
    wait_until(lambda: "is revoked" in agent.log or "was revoked" in agent.log, 20,
               lambda: agent.log)
    result = launch.wait(40)
    assert result.code == 206 and "revoked" in result.err, result
    wait_until(lambda: len(agent.jobs()) == 1, 30, agent.jobs)
