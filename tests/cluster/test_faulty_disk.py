# SPDX-License-Identifier: Apache-2.0
"""H6: disks that are over a user's quota (EDQUOT) or damaged (EIO), where the agent keeps its state and
the workers' output, and where the launcher writes its files. The rest of H6 is in test_faults_h.py."""
import pytest

import residents
from faulty_disk import DAMAGED, OVER_QUOTA, TOLD_AT_CLOSE, UNREADABLE, UNWRITABLE, FaultyDisk
from test_faults_d import python
from test_faults_h import launch, refuses_until_healed, running_job, serve

pytest.importorskip("fusepy", reason="there is no python3-fusepy to make a disk that fails with")

ERRORS = {"EDQUOT": "Disk quota exceeded", "EIO": "Input/output error"}
HARMS = [pytest.param(OVER_QUOTA, id="quota"), pytest.param(DAMAGED, id="damaged")]
AND_UNREADABLE = [*HARMS, pytest.param(UNREADABLE, id="unreadable")]
AND_AT_CLOSE = [*HARMS, pytest.param(TOLD_AT_CLOSE, id="close")]


def error_of(harm):
    return ERRORS[harm.split()[0]]


@pytest.fixture
def node(make_cluster):
    cluster = make_cluster(1)
    made = cluster.nodes[0]
    made.cluster = cluster
    return made


@pytest.fixture
def agent(node):
    """An agent whose whole state directory, sockets too, lies on a disk that may fail: agent.disk."""
    node.path(residents.STATE).mkdir()
    with FaultyDisk(node, residents.STATE) as disk:
        made = residents.Resident(node).start()
        made.disk = disk
        yield made
        made.stop()


# What cannot be read is refused before the agent is reached: by its bridge, which looks there for it.
@pytest.mark.parametrize("harm, code", [
    pytest.param(OVER_QUOTA, 207, id="quota"), pytest.param(TOLD_AT_CLOSE, 207, id="close"),
    pytest.param(UNWRITABLE, 207, id="unwritable"), pytest.param(DAMAGED, 200, id="damaged")])
def test_h6_state_directory(agent, harm, code):
    said = refuses_until_healed(agent, lambda: agent.disk.fail(harm), code)
    assert error_of(harm) in said, said


@pytest.fixture
def spool(node):
    """Where the agent of the node keeps output."""
    made = residents.Resident(node).start()
    with FaultyDisk(node, "/tmp") as disk:
        made.disk = disk
        yield made
    made.stop()


LINES = 20000
PRINTS = f"""
import os, sys, time
for i in range({LINES}):
    print('%099d' % i)
    if i == 1000:
        sys.stdout.flush()
        while not os.path.exists('/run/go'):
            time.sleep(0.01)
"""


# As H5: what the disk does not take goes to another place. What it has taken and does not give back is awaited;
# nothing is lost, and others are served.
@pytest.mark.parametrize("harm", AND_UNREADABLE)
def test_h6_kept_output(spool, harm):
    node = spool.host
    job = node.cluster.start_launch(["-H", "node0:1", "--tag-output", "none", "--", *python(PRINTS)])
    job.wait_for("%099d" % 999)
    heal = spool.disk.fail(harm)
    node.path("/run/go").touch()
    if harm == UNREADABLE:
        job.wait_for("the output of rank 0 waits", stream="err")
        assert job.process.poll() is None and error_of(harm) in job.err, job.err
        assert launch(spool, "true").code == 0
        heal()
    result = job.wait(60)
    heal()
    node.path("/run/go").unlink()
    assert result.code == 0 and ("waits" in result.err) == (harm == UNREADABLE), result.err
    assert result.out == "".join(f"{i:099d}\n" for i in range(LINES))


# Nobody waits for ever for the output of a job that is over.
def test_h6_kept_output_that_stays_unreadable(spool):
    spool.disk.fail(UNREADABLE)
    # The agent keeps the job for a launcher that might come back, for as long as the lease.
    result = spool.host.cluster.launch(["--lease", "5s", "-H", "node0:1", "--", "echo", "lost"])
    assert result.code == 202 and error_of(UNREADABLE) in result.err, result
    assert "not all of their output has arrived" in result.err, result


# An agent that is started meanwhile cannot serve; the next one finds the job as it was.
@pytest.mark.parametrize("harm", AND_UNREADABLE)
def test_h6_agent_started_on_a_faulty_disk(agent, harm):
    with running_job(agent) as job:
        agent.kill()
        heal = agent.disk.fail(harm)
        code, out = serve(agent.host)
        heal()
        assert code == 207 and error_of(harm) in out and residents.STATE in out, out
        agent.start()
        seen = job.out.count("line")
        job.wait_for("line", count=seen + 5)
        assert launch(agent, "true").code == 0


@pytest.fixture
def work(node):
    """Where the launcher writes its files: /root/work/files of the head."""
    head = node.cluster.head
    node.cluster.work().joinpath("files").mkdir()
    with FaultyDisk(head, "/root/work/files") as made:
        made.host = head
        made.cluster = node.cluster
        yield made


@pytest.mark.parametrize("harm", AND_AT_CLOSE)
def test_h6_log_files(work, harm):
    job = work.cluster.start_launch(
        ["-H", "node0:1", "--log-dir", "/root/work/files/logs", "--", *python(PRINTS)])
    job.wait_for("%099d" % 999)
    work.fail(harm)
    work.cluster.nodes[0].path("/run/go").touch()
    result = job.wait(60)
    work.cluster.nodes[0].path("/run/go").unlink()
    assert result.code == 207, result
    assert result.err.count(error_of(harm)) == 2, result.err  # at once, and at the end
    assert "write the log file /root/work/files/logs/rank-00000.out" in result.err, result.err
    last = result.err.splitlines()[-1]
    assert "output is missing in the log files (--log-dir)" in last and "rank-00000.out lacks " in last, result.err
    assert result.out.count("\n") == LINES


@pytest.mark.parametrize("harm", AND_AT_CLOSE)
def test_h6_result_file(work, harm):
    file = work.host.path("/root/work/files/result.json")
    file.write_text("of the launch before")
    work.fail(harm)
    result = work.cluster.launch(["-H", "node0:1", "--result-json", "/root/work/files/result.json",
                                  "--", "echo", "done"])
    work.heal()
    assert result.code == 207 and result.out == "done\n", result
    assert error_of(harm) in result.err and "/root/work/files/result.json" in result.err, result.err
    assert file.read_text() == "of the launch before"
    assert [path.name for path in file.parent.iterdir()] == ["result.json"]
