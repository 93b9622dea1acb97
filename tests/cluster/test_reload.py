# SPDX-License-Identifier: Apache-2.0
"""SIGHUP of a resident agent: its configuration and account map are read again, whole or not at all."""
import signal

import pytest

import hosts
from launching import wait_until
from test_identity import IDS, REPORT, node  # noqa: F401 - a fixture
from test_tcp import Tcp

MAP, CONFIG = "/root/work/map", "/root/work/agent.conf"
READ, KEPT = "were reloaded", "keeping the old configuration"


class Reloaded:
    """An agent with a configuration and a map, and carol, who has no account of that name."""

    def __init__(self, node, folder):  # noqa: F811
        self.node = node
        self.tcp = Tcp(node, folder)
        self.agent = self.tcp.agent
        self.agent.flags += ["--config", CONFIG]
        self.write(MAP, "alice = alice\n")
        self.write(CONFIG, f'account-map = "{MAP}"\n')
        self.tcp.authority.user("carol")
        self.tcp.become("user:carol")
        self.agent.start()

    def write(self, path, text):
        self.node.path(path).write_text(text)

    def reload(self, wanted):
        """What the agent says to it."""
        before = len(self.agent.log)
        self.agent.signal(signal.SIGHUP)
        wait_until(lambda: READ in self.agent.log[before:] or KEPT in self.agent.log[before:], 20,
                   lambda: self.agent.log)
        said = self.agent.log[before:]
        assert wanted in said, said
        return said

    def is_alice(self):
        """Whether carol is let in as alice, and not refused for want of an account."""
        result = self.tcp.launch("/usr/bin/python3", "-I", "-c", REPORT)
        if result.code == 0:
            assert result.lines.count(IDS) == 2, result
            return True
        assert result.code == 206 and "carol" in result.err and not result.out, result
        return False


@pytest.fixture
def reloaded(node, tmp_path):  # noqa: F811
    made = Reloaded(node, tmp_path)
    yield made
    made.agent.stop()


def test_a_map_that_was_changed_counts_for_who_comes_next(reloaded):
    assert not reloaded.is_alice()
    reloaded.write(MAP, "# of the university\ncarol = alice\n")
    assert not reloaded.is_alice()  # not yet
    reloaded.reload(READ)
    assert reloaded.is_alice()
    reloaded.write(MAP, "")
    reloaded.reload(READ)
    assert not reloaded.is_alice()


# Who is in it runs on.
def test_a_job_outlives_the_map_that_let_it_in(reloaded):
    reloaded.write(MAP, "carol = alice\n")
    reloaded.reload(READ)
    job = reloaded.node.cluster.start_launch(
        [*reloaded.tcp.flags(), "sh", "-c", "echo up; until [ -e /run/go ]; do sleep 0.01; done"])
    job.wait_for("up", count=2)
    reloaded.write(MAP, "")
    reloaded.reload(READ)
    reloaded.node.path("/run/go").touch()
    assert job.wait(30).code == 0
    reloaded.node.path("/run/go").unlink()


@pytest.mark.parametrize("line", ["carol alice", "dave = ", "carol = alice", "x = y = z"])
def test_a_broken_map_is_refused_whole(reloaded, line):
    reloaded.write(MAP, "carol = alice\n")
    reloaded.reload(READ)
    # Without its second line it would let in carol no more.
    reloaded.write(MAP, f"carol = nosuch\n{line}\n")
    said = reloaded.reload(KEPT)
    assert f"{MAP}: line 2" in said, said
    assert reloaded.is_alice()
    reloaded.node.path(MAP).unlink()
    assert MAP in reloaded.reload(KEPT)
    assert reloaded.is_alice()
    reloaded.write(MAP, "carol = nosuch\n")
    reloaded.reload(READ)
    assert not reloaded.is_alice()


@pytest.mark.parametrize("line", ["no-such-flag = 1", 'allow-root = "perhaps"', "account-map"])
def test_a_broken_configuration_is_refused_whole(reloaded, line):
    reloaded.write(MAP, "carol = alice\n")
    reloaded.reload(READ)
    reloaded.write("/root/work/other", "carol = nosuch\n")
    reloaded.write(CONFIG, f'# which names lead where\naccount-map = "/root/work/other"\n{line}\n')
    said = reloaded.reload(KEPT)
    assert f"{CONFIG}:3: " in said, said
    assert reloaded.is_alice()
    reloaded.write(CONFIG, 'account-map = "/root/work/other"\n')
    reloaded.reload(READ)
    assert not reloaded.is_alice()


@pytest.mark.parametrize("text, said", [
    (None, "No such file or directory"), ("lisen = '[::]:9000'\n", ":1: unknown key lisen; did you mean listen?"),
    ("[agent]\n\nlisten = '[::]:9000'\n", ":3: unknown section [agent]"),
    ("allow-root = true\nallow-root = true\n", ":2: ")],
    ids=["missing", "key", "section", "twice"])
def test_an_agent_does_not_start_on_a_broken_configuration(cluster, text, said):
    host = cluster.nodes[0]
    path = cluster.work(host) / "broken.conf"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    ended = host.run([hosts.bin_dir() / "dtrain-agent", "serve", "--config", "/root/work/broken.conf"], check=False)
    assert ended.returncode == 2 and "/root/work/broken.conf" in ended.stderr and said in ended.stderr, ended
