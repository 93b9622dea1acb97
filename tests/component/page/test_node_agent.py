# SPDX-License-Identifier: Apache-2.0
"""`dtrain page --node` in front of a real agent, with GPUs that a stand-in of NVML makes up."""
import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import types
from pathlib import Path

import pytest

import conftest
from conftest import BIN_DIR, Job, Page, ask, wait_until

NVML = BIN_DIR.parent / "lib/fake_nvml/libnvidia-ml.so.1"
GPUS = """driver 535.104.05
gpu uuid=GPU-a pci=00000000:3B:00.0 name=NVIDIA_H100 memory=85899345920 used=1073741824 mig=0 utilisation=97 temperature=61 ecc=2
gpu uuid=GPU-b pci=00000000:3C:00.0 name=NVIDIA_H100 memory=85899345920 used=0 mig=0 utilisation=0 temperature=34 ecc=0
"""


class Agent:
    """A resident agent with a state directory of its own, where the `dtrain` of tests finds it."""

    def __init__(self, folder, gpus):
        self.gpus = folder / "gpus"
        self.gpus.write_text(gpus)
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder), "DTRAIN_AGENT_STATE": str(folder / "agent"),
                    "DTRAIN_NVML_LIBRARY": str(NVML), "FAKE_NVML": str(self.gpus)}
        self.log = open(folder / "agent.log", "wb+")
        self.process = None

    def start(self):
        said = self.said.count("serving on")
        self.process = subprocess.Popen([BIN_DIR / "dtrain-agent", "serve", "--state-dir", self.env["DTRAIN_AGENT_STATE"]], env=self.env,
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        wait_until(lambda: self.said.count("serving on") > said, lambda: f"an agent: {self.said}")
        return self

    @property
    def said(self):
        return os.pread(self.log.fileno(), 1 << 20, 0).decode(errors="replace")

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(conftest.DEADLINE)


@pytest.fixture
def run(tmp_path):
    """Agents, jobs and pages of one test, in a folder whose name is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="dtn"))
    made = []

    def keep(thing):
        made.append(thing)
        return thing

    def node(gpus=GPUS):
        return keep(Agent(folder, gpus)).start()

    def job(script, **options):
        return keep(Job(folder, script, env=made[0].env, **options))

    def page(*flags, **env):
        return keep(Page(made[0], "--node", *flags, **env))
    yield types.SimpleNamespace(node=node, job=job, page=page, folder=folder)
    for thing in reversed(made):
        thing.end()
    subprocess.run(["rm", "-r", folder], check=True)


def of_node(port, token):
    status, _, body = ask(port, "/v1/node", Authorization=f"Bearer {token}")
    assert status == 200, (status, body)
    return json.loads(body)


def test_the_page_of_this_machine(run, browser):
    agent = run.node()
    page = run.page()
    link, port, token = page.link()
    browser.driver.get(link)
    for part in ("localhost", "takes jobs", "live", "2 GPUs, 2 free", "NVIDIA H100", "1.0 of 80 GiB", "97 %", "61 °C",
                 "NVIDIA driver 535.104.05", "No job runs on this node.", "GPU 0 has had 2 uncorrected ECC errors"):
        browser.wait_for(part)
    assert "#" not in browser.driver.current_url
    assert browser.console() == []
    # It says what `dtrain nodes` says, and how old it is.
    told = subprocess.run([BIN_DIR / "dtrain", "nodes", "--json"], env=agent.env, capture_output=True, text=True, check=True)
    [listed] = json.loads(told.stdout)["nodes"]
    node = of_node(port, token)
    assert node.pop("age_s") < 5
    changing = {"load", "memory_available_bytes", "now_unix_s", "connections"}
    assert set(node) == set(listed)
    assert {key: node[key] for key in node if key not in changing} == {key: listed[key] for key in listed if key not in changing}
    # It only reads, and only with the token.
    status, headers, body = ask(port, "/")
    assert status == 200 and b'data-shows="node"' in body[:100] and len(body) <= 120_000
    assert "require-trusted-types-for 'script'" in headers["Content-Security-Policy"]
    for path in ("/v1/node", "/v1/jobs", "/metrics"):
        assert ask(port, path)[0] == 401, path
        assert ask(port, path, Authorization="Bearer " + "0" * 64)[0] == 401, path
    good = {"Authorization": f"Bearer {token}"}
    assert ask(port, "/v1/jobs", **good)[0] == 404
    assert ask(port, "/v1/node", "POST", **good)[0] == 405
    for name, value in (("Host", "evil.example"), ("Origin", "http://evil.example"), ("Sec_Fetch_Site", "cross-site")):
        assert ask(port, "/v1/node", **good, **{name: value})[0] == 403, name
    for name in ("cmdline", "environ"):
        assert token.encode() not in Path(f"/proc/{page.process.pid}/{name}").read_bytes()
    browser.shot("node-real")
    code, err = page.end()
    assert code == 0 and err.startswith("dtrain: page of node localhost; Ctrl-C ends it\n"), err


def test_a_job_comes_and_goes(run, browser):
    agent = run.node()
    browser.driver.get(run.page().link()[0])
    browser.wait_for("No job runs on this node.")
    job = run.job("echo up; exec sleep 600", ranks=2, flags=("--gpus-per-rank", "1"))
    browser.wait_for(job.id)
    browser.wait_for("2 running\nof 2 on 1 node")
    browser.wait_for(f"held by job {job.id} of root" if os.geteuid() == 0 else f"held by job {job.id}")
    browser.wait_for("2 GPUs, 0 free")
    assert f"dtrain status {job.id}" in browser.text
    # What computes on a GPU is a rank of it.
    good = {"Authorization": f"Bearer {job.token}"}
    pid = json.loads(ask(job.port, f"/v1/jobs/{job.id}/ranks/1", **good)[2])["pid"]
    agent.gpus.write_text(GPUS + f"process {pid} 1073741824\n")
    browser.wait_for(f"sleep (rank 1 of {job.id}, pid {pid}, 1.0 GiB)")
    browser.shot("node-job")
    # The command that it offers shows the job.
    told = subprocess.run([BIN_DIR / "dtrain", "status", job.id], env=agent.env, capture_output=True, text=True, check=True)
    assert job.id in told.stdout
    agent.gpus.write_text(GPUS)
    job.end()
    browser.wait_for("No job runs on this node.")
    browser.wait_for("2 GPUs, 2 free")
    assert browser.console() == []


def test_an_agent_that_is_killed_and_comes_back(run, browser):
    agent = run.node()
    page = run.page()
    link, port, token = page.link()
    browser.driver.get(link)
    job = run.job("exec sleep 600")
    browser.wait_for("2 running")
    agent.end(signal.SIGKILL)
    browser.wait_for("No answer for ")
    # Another agent that was started to answer knows of no job: it is not believed.
    browser.wait_for("the resident agent there no longer answers")
    browser.wait_for("Trying again in")
    assert job.id in browser.text and "2 running" in browser.text
    told = of_node(port, token)
    assert told["age_s"] >= 5 and told["no_answer"]["retry_s"] <= 15, told
    # A page that is opened now has what was last heard, and its age.
    browser.driver.get("about:blank")
    browser.driver.get(link)
    browser.wait_for("2 running")
    browser.wait_for("No answer for")
    browser.shot("node-agent-killed")
    agent.start()
    browser.wait_for("live")
    browser.wait_for("2 running")
    assert "No answer" not in browser.text
    assert browser.console() == []


def test_a_stopped_agent_holds_nobody_up(run, browser):
    agent = run.node()
    page = run.page("--connect-timeout", "3s")
    link, port, token = page.link()
    browser.driver.get(link)
    browser.wait_for("live")
    agent.process.send_signal(signal.SIGSTOP)
    try:
        browser.wait_for("No answer for ")
        browser.wait_for("no answer within 3 s")
        begin = time.monotonic()
        assert of_node(port, token)["age_s"] >= 5
        assert time.monotonic() - begin < 3
        # Nor up from ending, with a question on its way.
        other = run.page()
        _, port, token = other.link()
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=conftest.DEADLINE)
        asking.request("GET", "/v1/node", headers={"Authorization": f"Bearer {token}"})
        wait_until(lambda: len(list(Path(f"/proc/{other.process.pid}/task/{other.process.pid}/children").read_text().split())) > 0, "a question")
        begin = time.monotonic()
        assert other.end()[0] == 0
        assert time.monotonic() - begin < 3
    finally:
        agent.process.send_signal(signal.SIGCONT)
    browser.wait_for("live")
    assert browser.console() == []


# Each answer of the agent has a time of its own.
def test_many_readers_are_one_question_a_second(run):
    run.node()
    _, port, token = run.page().link()
    begin = time.monotonic()
    times, answers, lock = set(), [], threading.Lock()

    def read():
        while time.monotonic() - begin < 3:
            now = of_node(port, token)["now_unix_s"]
            with lock:
                times.add(now)
                answers.append(now)
    readers = [threading.Thread(target=read) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    took = time.monotonic() - begin
    assert 2 <= len(times) <= took + 1, (len(times), took)
    assert len(answers) > 20


def test_a_node_without_an_agent(run, browser):
    agent = run.node("gpu uuid=GPU-a pci=00000000:3B:00.0\n")
    agent.end()
    page = run.page()
    browser.driver.get(page.link()[0])
    for part in ("no resident agent", "Only a resident agent knows which jobs run on this node.", "the node was queried without one"):
        browser.wait_for(part)
    assert browser.console() == []
    # One that is started later is found.
    agent.start()
    browser.wait_for("takes jobs")


# By a command instead of ssh, which runs here what is meant for there.
def test_a_node_with_a_name(run, browser):
    agent = run.node()
    rsh = run.folder / "rsh"
    rsh.write_text("#!/bin/sh\n[ $1 = gpu7 ] || { echo \"no way to $1\" >&2; exit 9; }\nshift\nexec sh -c \"$*\"\n")
    rsh.chmod(0o755)
    page = run.page("gpu7", "--rsh", str(rsh))
    browser.driver.get(page.link()[0])
    browser.wait_for("gpu7")
    browser.wait_for("takes jobs")
    assert browser.console() == []
    assert page.end() == (0, "dtrain: page of node gpu7; Ctrl-C ends it\n")
    # One of the hosts of a file.
    (run.folder / "hosts").write_text("gpu7\ngpu8\n")
    page = run.page("gpu8", "--rsh", str(rsh), "--hostfile", str(run.folder / "hosts"))
    browser.driver.get(page.link()[0])
    browser.wait_for("gpu8: ")
    browser.wait_for("no way to gpu8")
    browser.wait_for("Trying again")
    assert all("502" in line for line in browser.console())
    assert agent.process.poll() is None


def test_mistakes_are_told(run):
    run.node()
    (run.folder / "hosts").write_text("gpu7\ngpu8\n")
    hosts = str(run.folder / "hosts")
    for flags, code, text in ((["--hostfile", hosts], 2, "2 hosts are named or configured; name one: dtrain page --node gpu7"),
                              (["-H", "gpu7,gpu8"], 2, "a page shows one node"), (["gpu[1-2]"], 2, "a page shows one node"),
                              (["gpu9", "--hostfile", hosts], 1, "gpu9 is not among the hosts"), (["a", "b"], 2, "unexpected \"b\""),
                              (["a b"], 2, "--node"), (["--listen", "0.0.0.0:0"], 2, "is not a loopback address"),
                              (["--json"], 2, "--json")):
        page = run.page(*flags)
        page.process.wait(conftest.DEADLINE)
        got, err = page.end()
        assert got == code and text in err, (flags, got, err)


def test_open_uses_a_private_file(run):
    run.node()
    page = run.page("--open", BROWSER="true")
    link = page.link()[0]
    file = conftest.link_file(run.folder / "dtrain", "node-localhost")
    assert oct(file.stat().st_mode)[-3:] == "600" and link in file.read_text()
    assert page.end(signal.SIGTERM)[0] == 0
    assert not file.exists()
