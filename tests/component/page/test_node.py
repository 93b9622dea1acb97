# SPDX-License-Identifier: Apache-2.0
"""The page of a node in a browser, in front of a stand-in that answers as a test wants it."""
import re

import pytest

from conftest import wait_until
from test_page import CONTRAST, EVIL, wait_for_input

pytest.importorskip("selenium", reason="needs python3-selenium")
from selenium.webdriver.common.keys import Keys  # noqa: E402

GIB = 1 << 30


def make_job(number, **changes):
    return {"id": f"dtrain-{number:012x}", "attempt": 0, "owner": "alice", "uid": 1001, "host": "gpu7", "state": "running",
            "begin_unix_s": 1.7e9, "seconds": 3725.0, "gpus": ["GPU-0", "GPU-1"], "cpus": "0-15",
            "command": ["python3", "train.py", "--epochs", "90"], "node_rank": 0, "nodes": 4, "world_size": 32,
            "ranks": {"waiting": 0, "running": 8, "ended": 0, "failed": 0}, **changes}


def in_name(job):
    return {key: value for key, value in job.items() if key not in ("command", "node_rank", "nodes", "world_size", "ranks")}


def make_gpu(number, **changes):
    return {"index": number, "uuid": f"GPU-{number}", "name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 80 * GIB,
            "memory_used_bytes": 71 * GIB, "utilisation_percent": 97, "temperature_celsius": 61, "uncorrected_ecc_errors": 0,
            **changes}


def make_node(**changes):
    return {"host": "gpu7", "state": "ok", "resident": True, "version": "0.1.0", "build": "0.1.0 abc", "account": "dtrain",
            "hostname": "gpu7", "machine": "x86_64", "kernel": "6.1.0", "load": 12.3, "memory_bytes": 512 * GIB,
            "memory_available_bytes": 402 * GIB, "cpus": "0-63", "cores": 64, "free_cores": 48, "gpu_driver": "535.104.05",
            "started_unix_s": 1.7e9, "now_unix_s": 1.7e9 + 93784, "connections": 3, "gpus": [], "jobs": [], "warnings": [],
            "age_s": 0.01, **changes}


def busy_node(**changes):
    gpus = [make_gpu(0, withheld="held by job dtrain-000000000001 of alice", processes=[
                {"pid": 4711, "name": "python3", "memory_bytes": 71 * GIB, "job": "dtrain-000000000001", "rank": 3}]),
            make_gpu(1, withheld="held by job dtrain-000000000001 of alice"),
            make_gpu(2, memory_used_bytes=0, fault="lost (fallen off the bus)", last_xid=79, uncorrected_ecc_errors=3),
            make_gpu(3, memory_used_bytes=0, utilisation_percent=0, temperature_celsius=34)]
    jobs = [make_job(1), in_name(make_job(2, owner="bob", cpus="", gpus=[], seconds=12)),
            make_job(3, state="away", attempt=2, ranks={"waiting": 0, "running": 0, "ended": 8, "failed": 1})]
    return make_node(gpus=gpus, jobs=jobs, last_crash="signal 11", last_crash_unix_s=1.7e9,
                     warnings=["the limit of locked memory is 64 KiB"], **changes)


def open_page(browser, server, token="secret"):
    browser.driver.get(server.url(token))
    browser.wait_for(server.job["node"]["host"])


def table(browser, name):
    return browser.run("""return [...document.querySelectorAll(`[aria-label="Table of ${arguments[0]}"] tr`)].map(
        (row) => [...row.cells].map((cell) => cell.innerText))""", name)


def problems(browser):
    return [item.text for item in browser.all(".problems li")]


def test_it_shows_the_node(browser, stand):
    server = stand({"node": busy_node()})
    open_page(browser, server)
    browser.wait_for("live")
    text = browser.text
    for part in ("takes jobs, and has problems", "agent 0.1.0, up for 1 d 2 h, since 2023-11-", "x86_64, Linux 6.1.0", "64 cores, 48 free",
                 "512 GiB of memory, 402 available", "load 12.30", "NVIDIA driver 535.104.05", "4 GPUs, 1 free", "3 jobs"):
        assert part in text, (part, text)
    assert browser.driver.title == "gpu7 · takes jobs, and has problems · dtrain"
    head, *rows = table(browser, "GPUs")
    assert head == ["GPU", "Name", "Memory", "Utilisation", "Temperature", "ECC errors", "Last Xid", "Used by"]
    assert rows[0][1:7] == ["NVIDIA H100 80GB HBM3", "71 of 80 GiB", "97 %", "61 °C", "0", "–"]
    assert rows[0][7].split("\n") == ["held by job dtrain-000000000001 of alice", "python3 (rank 3 of dtrain-000000000001, pid 4711, 71 GiB)"]
    assert rows[2][5:] == ["3", "79", "lost (fallen off the bus)"] and rows[3][6:] == ["–", "free"]
    head, *rows = table(browser, "jobs")
    assert head == ["Job", "Owner", "State", "Ranks here", "Since", "Cores", "GPUs"]
    assert rows[0][0].split("\n") == ["dtrain-000000000001", "python3 train.py --epochs 90", "dtrain status -H gpu7 dtrain-000000000001 Copy"]
    assert rows[0][1:4] == ["alice", "running", "8 running\nof 32 on 4 nodes"] and rows[0][5:] == ["0-15", "2"]
    assert re.fullmatch(r"2023-11-1\d [0-9:]{8}\n1 h 02 min", rows[0][4]), rows[0]
    # Of someone else's there is only the name.
    assert rows[1][:4] == ["dtrain-000000000002", "bob", "running", "not for you to see"] and rows[1][5:] == ["–", "–"]
    assert rows[2][2:4] == ["launcher is away\nattempt 2", "8 ended, 1 failed\nof 32 on 4 nodes"]
    said = problems(browser)
    assert said[:3] == ["GPU 2: lost (fallen off the bus)", "GPU 2 has reported errors since the agent started, last Xid 79",
                        "GPU 2 has had 3 uncorrected ECC errors since its driver was loaded"], said
    assert said[3].startswith("An earlier agent crashed at 2023-11-") and said[3].endswith(": signal 11"), said
    assert said[4] == "the limit of locked memory is 64 KiB"
    assert set(server.asked) == {"/v1/node"}
    assert browser.console() == []
    browser.shot("node")
    browser.look(1280, 900, dark=True)
    browser.shot("node-dark")


def test_a_node_without_gpus_says_so(browser, stand):
    server = stand({"node": make_node(gpu_driver="")})
    open_page(browser, server)
    for part in ("This node has no GPUs.", "No job runs on this node.", "None are reported."):
        browser.wait_for(part)
    assert browser.all("table") == []
    server.job["node"] = make_node(gpu_error="the driver hangs")
    browser.wait_for("It is not known which GPUs this node has.")
    assert problems(browser) == ["The GPUs could not be listed: the driver hangs"]
    # What no GPU reports has no column.
    server.job["node"] = make_node(gpus=[{"index": 0, "uuid": "GPU-0", "name": "T4", "memory_total_bytes": 0, "memory_used_bytes": 0}])
    browser.wait_for("1 GPU, 1 free")
    assert table(browser, "GPUs") == [["GPU", "Name", "Used by"], ["0", "T4", "free"]]
    assert browser.console() == []


def test_states_of_a_node(browser, stand):
    server = stand({"node": make_node(state="quarantined", quarantine="process 7 cannot be killed", why="process 7 cannot be killed")})
    open_page(browser, server)
    browser.wait_for("quarantined")
    assert problems(browser) == ["The node takes no jobs: process 7 cannot be killed"]
    why = "no resident agent of this build runs there; the node was queried without one"
    node = make_node(state="no agent", why=why, resident=False)
    del node["started_unix_s"]
    server.job["node"] = node
    browser.wait_for("no resident agent")
    browser.wait_for("Only a resident agent knows which jobs run on this node.")
    assert problems(browser) == [why] and "asked by dtrain 0.1.0 ·" in browser.text, browser.text
    assert browser.console() == []


def test_jobs_come_and_go(browser, stand):
    server = stand({"node": make_node()})
    open_page(browser, server)
    browser.wait_for("No job runs on this node.")
    server.job["node"] = make_node(jobs=[make_job(1), make_job(2)])
    browser.wait_for("2 jobs")
    # Of an element that stays, a selection stays, too.
    browser.run("document.querySelector('tbody tr:nth-child(2)').dataset.mine = 'yes'")
    server.job["node"] = make_node(jobs=[make_job(2, state="ending")])
    browser.wait_for("1 job\n")
    assert [row.get_attribute("data-mine") for row in browser.all("tbody tr")] == ["yes"]
    browser.wait_for("ending")
    server.job["node"] = make_node()
    browser.wait_for("No job runs on this node.")
    assert browser.console() == []


# ---- Silence ----

def test_the_agents_silence_is_told_with_its_age_and_ends(browser, stand):
    server = stand({"node": busy_node()})
    open_page(browser, server)
    browser.wait_for("live")
    silent = {"why": "the resident agent there no longer answers", "retry_s": 3.5}
    server.job["node"] = busy_node() | {"age_s": 0.5, "no_answer": silent}
    # A moment is nothing to tell.
    asked = len(server.asked)
    wait_until(lambda: len(server.asked) > asked + 1, "the page asks")
    assert "No answer" not in browser.text and "live" in browser.text
    server.job["node"] = busy_node() | {"age_s": 61.2, "no_answer": silent}
    browser.wait_for("No answer for 1 min 01 s: the resident agent there no longer answers. Trying again in 4 s.")
    assert "has problems, 1 min 01 s ago" in browser.text and "live" not in browser.text
    assert len(table(browser, "jobs")) == 4  # as last heard
    browser.shot("node-silent")
    server.job["node"] = busy_node()
    browser.wait_for("live")
    assert "No answer" not in browser.text
    assert browser.console() == []


def test_the_servers_silence_is_told_and_ends(browser, stand):
    server = stand({"node": busy_node()})
    open_page(browser, server)
    browser.wait_for("live")
    server.is_silent.set()
    browser.wait_for("No answer for ")
    assert re.search(r"has problems, \d+ s ago", browser.text)
    server.is_silent.clear()
    browser.wait_for("live")


def test_a_node_that_was_never_heard_of(browser, stand):
    server = stand({"node": busy_node()})
    server.is_silent.set()
    browser.driver.get(server.url("secret"))
    browser.wait_for("No answer from dtrain. Trying again")
    server.is_silent.clear()
    browser.wait_for("takes jobs")


# ---- The token ----

def test_a_wrong_token_is_asked_for_again(browser, stand):
    server = stand({"node": busy_node()})
    browser.driver.get(server.url("wrong"))
    browser.wait_for("This token is wrong")
    assert browser.driver.current_url == server.url()
    assert "Show the node" in browser.text and "dtrain page --node" in browser.text
    wait_for_input(browser)
    browser.press("secret", Keys.ENTER)
    browser.wait_for("takes jobs")
    server.token = "another"
    browser.wait_for("This token is wrong, or no longer valid.")
    assert "gpu7" not in browser.text
    kept = browser.run("return [document.cookie, localStorage.length, sessionStorage.length, location.hash]")
    assert kept == ["", 0, 0, ""]
    assert not any("secret" in path for path in server.asked), server.asked


# ---- Hostile text ----

def test_hostile_names_stay_text(browser, stand):
    evil = " ".join(EVIL)
    gpu = make_gpu(0, uuid=evil, name=evil, withheld=EVIL[0], fault="",
                   processes=[{"pid": evil, "name": evil, "job": EVIL[1], "rank": 1}])
    jobs = [make_job(1, id=name, owner=EVIL[1], state=EVIL[2], cpus=EVIL[3], command=EVIL) for name in
            (EVIL[0], EVIL[1], "x; rm -rf ~", "$(reboot)", "-H", "a\nreboot")]
    server = stand({"node": make_node(
        host=EVIL[0], state=EVIL[1], machine=evil, kernel=evil, version=evil, gpu_driver=evil, gpus=[gpu, gpu], jobs=jobs,
        last_crash=evil, last_crash_unix_s="x", quarantine=evil, gpu_error=evil, warnings=EVIL,
        no_answer={"why": evil, "retry_s": 1}, age_s=70)})
    browser.driver.get(server.url("secret"))
    browser.wait_for("6 jobs")
    browser.wait_for("No answer for 1 min")
    tags = browser.run("return [...new Set([...document.querySelectorAll('#app *')].map((e) => e.localName))].sort()")
    assert set(tags) <= set("b button caption code div h1 h2 header li main p section span table tbody td th thead tr ul".split()), tags
    assert browser.run("return window.pwned") is None
    assert browser.run("""return [...document.querySelectorAll('#app *')].flatMap((e) => [...e.attributes])
        .filter((a) => /^on/.test(a.name) || a.name === 'href' || a.name === 'src').length""") == 0
    text = browser.text
    for part in (EVIL[0], EVIL[1], "a\\u202eb\\u2066c", "\\x00\\x07\\x7f", "${window.pwned=1}", "&lt;b&gt;"):
        assert part in text, (part, text)
    for sign in "\x1b\x07\x00\x9b\u202e\u2066":
        assert sign not in text + browser.driver.title, repr(sign)
    # Nobody is offered to paste such a name into a shell.
    assert browser.all("th button") == [] and "dtrain status" not in text
    assert browser.console() == []
    browser.shot("node-hostile")


@pytest.mark.parametrize("odd", [[], {"host": "gpu7"}, make_node(gpus={"x": 1}, jobs="x", warnings=7, load="x", cores=None),
                                 make_node(gpus=[None, 3, [], {}], jobs=[None, 3, [], {}, {"ranks": 7, "world_size": 1, "command": "x"}]),
                                 make_node(started_unix_s=1e300, now_unix_s=None, age_s="x", no_answer="x")])
def test_answers_of_odd_shapes_break_nothing(browser, stand, odd):
    server = stand({"node": busy_node()})
    open_page(browser, server)
    browser.wait_for("3 jobs")
    server.job["node"] = odd
    browser.wait_for_gone("3 jobs")
    server.job["node"] = busy_node()
    browser.wait_for("3 jobs")
    assert browser.console() == []


# ---- For everybody ----

def test_keyboard_only(browser, stand):
    server = stand({"node": busy_node()})
    open_page(browser, server)
    browser.wait_for("3 jobs")
    seen = []
    for _ in range(5):
        browser.press(Keys.TAB)
        seen.append(browser.run("const e = document.activeElement; return e.getAttribute('aria-label') || e.localName"))
        assert browser.run("const e = document.activeElement; return e === document.body || getComputedStyle(e).outlineStyle !== 'none'")
    assert seen[:4] == ["Table of GPUs", "Table of jobs", "Copy the command that shows dtrain-000000000001",
                        "Copy the command that shows dtrain-000000000003"], seen
    # What was refreshed has kept the focus.
    browser.run("document.querySelector('th button').focus()")
    asked = len(server.asked)
    wait_until(lambda: len(server.asked) > asked + 1, "the page asks")
    browser.cdp("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.press(Keys.ENTER)
    browser.wait_for("Copied")
    assert browser.run("return navigator.clipboard.readText()") == "dtrain status -H gpu7 dtrain-000000000001"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_contrast_and_width(browser, stand, dark, width):
    browser.look(width, 900, dark)
    server = stand({"node": busy_node()})
    browser.driver.get(server.url("wrong"))
    browser.wait_for("This token is wrong")
    looked, bad = browser.run(CONTRAST)
    assert looked > 5 and not bad, bad
    wait_for_input(browser)
    browser.press("secret", Keys.ENTER)
    browser.wait_for("3 jobs")
    for node in (busy_node(), busy_node() | {"age_s": 61, "no_answer": {"why": "no answer within 10 s", "retry_s": 5}},
                 make_node(state="no agent", why="x" * 300, resident=False)):
        server.job["node"] = node
        browser.wait_for("No answer for" if "no_answer" in node else "live")
        browser.wait_for("3 jobs" if node["jobs"] else "no resident agent")
        looked, bad = browser.run(CONTRAST)
        assert looked > (60 if node["jobs"] else 10) and not bad, (looked, bad)
        assert browser.run("return document.scrollingElement.scrollWidth") <= width
        browser.shot(f"node-{width}-{'dark' if dark else 'light'}-{'silent' if 'no_answer' in node else node['state'][:2]}")
    assert all("401" in line for line in browser.console())


# As axe would: what can be used has a name, there is one main heading, landmarks are told apart.
def test_names_and_roles(browser, stand):
    server = stand({"node": busy_node()})
    open_page(browser, server)
    browser.wait_for("3 jobs")
    nodes = browser.cdp("Accessibility.getFullAXTree")["nodes"]
    told = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    for role, name in told:
        if role in ("button", "region", "table"):
            assert name.strip(), (role, told)
    roles = [role for role, _ in told]
    assert {"main", "banner", "table", "list"} <= set(roles), sorted(set(roles))
    assert len({name for role, name in told if role == "region"}) == roles.count("region")
    assert browser.run("return document.querySelectorAll('h1').length") == 1
    ids = browser.run("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids)), ids
    assert browser.run("return [document.querySelectorAll('thead th[scope=col]').length, document.querySelectorAll('tbody th[scope=row]').length]") == [15, 7]


def test_many_gpus_and_jobs(browser, stand):
    server = stand({"node": make_node(gpus=[make_gpu(n) for n in range(16)], jobs=[make_job(n) for n in range(200)])})
    open_page(browser, server)
    browser.wait_for("200 jobs")
    assert len(table(browser, "GPUs")) == 17 and len(table(browser, "jobs")) == 201
    assert browser.console() == []
