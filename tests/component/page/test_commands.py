# SPDX-License-Identifier: Apache-2.0
"""The page of a real launcher, and `dtrain page`."""
import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import types
from pathlib import Path

import pytest

import conftest
from conftest import BIN_DIR, Page, ask, wait_until

SOURCE_DIR = Path(__file__).resolve().parents[3]
DTRAIN = BIN_DIR / "dtrain"
LIVE = "echo up $PMI_RANK; exec sleep 600"


def hashes(text, tag):
    return [f"'sha256-{base64.b64encode(hashlib.sha256(part).digest()).decode()}'"
            for part in re.findall(b"<%s>(.*?)</%s>" % (tag, tag), text, re.DOTALL)]


def test_the_shell_needs_no_token_and_holds_no_data(start_job):
    job = start_job(LIVE)
    status, headers, body = ask(job.port, "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert len(body) <= 120_000
    assert job.id.encode() not in body and job.token.encode() not in body and b"sleep 600" not in body
    policy = headers["Content-Security-Policy"]
    assert policy == (
        f"default-src 'none'; script-src {' '.join(hashes(body, b'script'))}; style-src {hashes(body, b'style')[0]}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"), policy
    for name, value in (("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-store"),
                        ("Cross-Origin-Opener-Policy", "same-origin"), ("Cross-Origin-Resource-Policy", "same-origin"),
                        ("X-Frame-Options", "DENY"), ("Set-Cookie", None)):
        assert headers[name] == value, (name, headers[name])
    head, headers, nothing = ask(job.port, "/", "HEAD")
    assert (head, nothing) == (200, b"") and int(headers["Content-Length"]) == len(body)
    assert ask(job.port, "/", "POST")[0] == 405
    assert ask(job.port, "/", Host="evil.example")[0] == 403
    assert ask(job.port, "/", Sec_Fetch_Site="cross-site")[0] == 200
    good = {"Authorization": f"Bearer {job.token}"}
    assert ask(job.port, "/v1/jobs", **good)[0] == 200
    assert ask(job.port, "/v1/jobs", Sec_Fetch_Site="cross-site", **good)[0] == 403
    assert ask(job.port, "/v1/jobs", Sec_Fetch_Site="same-site", **good)[0] == 403
    assert ask(job.port, f"/v1/jobs/{job.id}/columns")[0] == 401


# What is vendored is what its project has published, and the page's own sources have no way to make
# markup of text.
def test_sources():
    folder = SOURCE_DIR / "launcher/page"
    for line in (folder / "vendor/SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((folder / "vendor" / name).read_bytes()).hexdigest() == digest
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|createContextualFragment|"
                       r"dangerouslySetInnerHTML|DOMParser|setHTMLUnsafe|srcdoc|setTimeout\(['\"`]|localStorage|sessionStorage|"
                       r"document\.cookie|\.href\b|\.src\b")
    sources = sorted(folder.glob("*.js"))
    assert len(sources) >= 8
    for path in sources:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not sinks.search(line), f"{path.name}:{number}: {line}"


def test_a_job_from_start_to_end(start_job, browser):
    job = start_job("echo up $PMI_RANK; echo oops >&2; until [ -e $HOME/go ]; do sleep 0.05; done; "
                    "[ $PMI_RANK = 1 ] && { echo 'Traceback: <b>no</b>' >&2; exit 3; }; exec sleep 600")
    browser.driver.get(job.url)
    browser.wait_for("2 running")
    browser.wait_for("up 0")
    browser.wait_for("oops")
    assert job.id in browser.text and "#" not in browser.driver.current_url
    (job.runtime.parent / "go").touch()
    browser.wait_for("Failed (exit code 3)")
    assert job.process.wait(conftest.DEADLINE) == 3
    for part in ("rank 1 on localhost", "exited with code 3", "Traceback: <b>no</b>", "1 failed", "1 ended by dtrain"):
        browser.wait_for(part)
    wait_until(lambda: re.search(r"ended ([6-9]|\d\d) s ago", browser.text), lambda: browser.text)
    assert "No answer" not in browser.text
    # The page asks for the output of the rank that failed; the launcher may be gone by then.
    told = browser.console()
    assert all("/ranks/1" in line and "ERR_CONNECTION" in line for line in told), told
    browser.shot("real-failed")


def test_a_killed_launcher_is_no_answer(start_job, browser):
    job = start_job(LIVE)
    browser.driver.get(job.url)
    browser.wait_for("2 running")
    job.end(signal.SIGKILL)
    wait_until(lambda: re.search(r"No answer for ([5-9]|\d\d) s", browser.text), lambda: browser.text)
    assert re.search(r"Running, \d+ s ago", browser.text), browser.text
    assert all("ERR_CONNECTION_REFUSED" in line or "ERR_INCOMPLETE_CHUNKED" in line or "ERR_CONNECTION_RESET" in line
               for line in browser.console())


# Another name for the same port, as of a page that has its own name server.
def test_an_evil_host_is_refused(start_job, browser):
    job = start_job(LIVE)
    browser.cdp("Network.enable")
    browser.cdp("Network.setExtraHTTPHeaders", headers={"X-Test": "1"})
    assert ask(job.port, "/", Host=f"evil.example:{job.port}")[0] == 403
    assert ask(job.port, "/v1/jobs", Host=f"evil.example:{job.port}", Authorization=f"Bearer {job.token}")[0] == 403
    # A page of another port, which is another site's for us: none of its requests is answered.
    browser.driver.get(f"http://127.0.0.1:{job.port}/")
    told = browser.run("return fetch(arguments[0]).then((a) => a.status, (e) => e.name)", f"http://localhost:{job.port}/v1/jobs")
    assert told == "TypeError", told
    browser.cdp("Network.setExtraHTTPHeaders", headers={})


def test_dtrain_page_shows_a_job(start_job, browser):
    job = start_job(LIVE)
    page = Page(job, job.id)
    link, port, token = page.link()
    assert token != job.token
    browser.driver.get(link)
    browser.wait_for("2 running")
    browser.wait_for("up 0")
    assert browser.console() == []
    assert ask(port, "/")[0] == 200
    for path in ("/v1/jobs", f"/v1/jobs/{job.id}/columns", "/metrics"):
        assert ask(port, path)[0] == 401
        assert ask(port, path, Authorization=f"Bearer {job.token}")[0] == 401
        assert ask(port, path, Authorization=f"Bearer {token}")[0] == 200, path
    assert ask(port, "/v1/jobs", Authorization=f"Bearer {token}", Host="evil.example")[0] == 403
    for name in ("cmdline", "environ"):
        assert token.encode() not in Path(f"/proc/{page.process.pid}/{name}").read_bytes()
    # The job's end reaches the page through it; then there is nobody to ask any more.
    job.end()
    browser.wait_for("Stopped (exit code 143)")
    status, _, body = ask(port, "/v1/jobs", Authorization=f"Bearer {token}")
    assert status == 502 and b"cannot be reached" in body
    code, err = page.end()
    assert code == 0 and err.startswith(f"dtrain: page of {job.id}; Ctrl-C ends it\n"), err


def test_the_link_is_printed_to_a_terminal_only(start_job):
    job = start_job(LIVE)
    told = subprocess.run([DTRAIN, "page", job.id], env=job.env, capture_output=True, text=True, timeout=conftest.DEADLINE, check=False)
    assert told.returncode == 2 and told.stdout == "" and "printed to a terminal only" in told.stderr, told


def test_open_uses_a_private_file(start_job, tmp_path):
    job = start_job(LIVE)
    script = tmp_path / "browser"
    script.write_text(f"#!/bin/sh\nstat -c %a \"$1\" > {tmp_path}/mode\ncp \"$1\" {tmp_path}/seen\ntr '\\0' '\\n' < /proc/$$/cmdline "
                      f"> {tmp_path}/argv\nmv {tmp_path}/argv {tmp_path}/done\n")
    script.chmod(0o755)
    page = Page(job, "--open", "--listen", "127.0.0.1:0", job.id[:12], BROWSER=str(script))
    link, _, token = page.link()
    wait_until((tmp_path / "done").exists, "the browser")
    assert (tmp_path / "mode").read_text() == "600\n"
    assert f'content="0; url={link}"' in (tmp_path / "seen").read_text()
    assert token not in (tmp_path / "done").read_text()
    assert len(list(job.runtime.glob("*.page-*.html"))) == 1
    assert page.end(signal.SIGTERM)[0] == 0
    assert list(job.runtime.glob("*.page-*.html")) == []


def test_mistakes_are_told(start_job):
    job = start_job(LIVE)
    for flags, code, text in ((["nosuch"], 1, "have no job nosuch"), ([job.id, "--listen", "0.0.0.0:0"], 2, "is not a loopback address"),
                              ([job.id, "--listen", "x"], 2, "write it as PORT"), (["--nosuch"], 2, "--nosuch"),
                              (["-H", "node1"], 2, "add --node")):
        page = Page(job, *flags)
        page.process.wait(conftest.DEADLINE)
        got, err = page.end()
        assert got == code and text in err, (flags, got, err)
    page = Page(job, "--open", job.id, BROWSER="/nonexistent/browser")
    page.link()
    code, err = page.end()
    assert code == 0 and "no browser was opened" in err and ".html" in err, err


# The redirecting file works as a person would use it.
def test_the_file_leads_to_the_page(start_job, browser, tmp_path):
    job = start_job(LIVE)
    page = Page(job, "--open", job.id, BROWSER="true")
    page.link()
    file = conftest.link_file(job.runtime)
    browser.driver.get(f"file://{file}")
    browser.wait_for("2 running")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", browser.driver.current_url)
    assert browser.console() == []
    assert page.end()[0] == 0


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGHUP])
def test_it_ends_while_the_page_follows(start_job, browser, signal_number):
    job = start_job(LIVE)
    page = Page(job, job.id)
    browser.driver.get(page.link()[0])
    browser.wait_for("up 0")
    assert page.end(signal_number)[0] == 0
    browser.wait_for("No answer for ")


# ---- A job that has ended ----

@pytest.fixture
def ended_job(tmp_path):
    """Of two ranks, launched with -d, which has failed: its folder is all that there is."""
    folder = Path(tempfile.mkdtemp(prefix="dtp"))
    env = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}
    env.pop("XDG_STATE_HOME", None)
    script = ("echo up $PMI_RANK; echo '<b>no</b>' >&2; "
              "[ $PMI_RANK = 1 ] && { sleep 0.3; echo 'last words of rank 1'; exit 3; }; exec sleep 600")

    def run(*argv, **options):
        return subprocess.run([DTRAIN, *argv], env=env, capture_output=True, text=True, timeout=conftest.DEADLINE, **options)

    started = run("launch", "-d", "-np", "2", "--oversubscribe", "--grace", "1s", "--", "sh", "-c", script, check=True)
    job = types.SimpleNamespace(id=started.stdout.strip(), env=env, run=run, folder=folder)
    assert run("wait", job.id, check=False).returncode == 3
    # Its launcher is there for another moment, and would answer.
    wait_until(lambda: not list(folder.glob("dtrain/*.sock")), "the end of the launcher")
    yield job
    subprocess.run(["rm", "-r", folder], check=True)


def test_the_page_of_a_job_that_has_ended(ended_job, browser):
    page = Page(ended_job, ended_job.id)
    link, port, token = page.link()
    browser.driver.get(link)
    browser.wait_for("Failed (exit code 3)")
    for part in (ended_job.id, "rank 1 on localhost", "exited with code 3", "1 failed", "1 ended by dtrain", "<b>no</b>",
                 "last words of rank 1", "complete"):
        browser.wait_for(part)
    assert re.search(r"ended \d+ s ago", browser.text), browser.text
    # Of any rank there is the output.
    browser.one("input.rank").clear()
    browser.one("input.rank").send_keys("0\n")
    browser.wait_for("up 0")
    assert browser.console() == []
    browser.shot("ended-job")
    good = {"Authorization": f"Bearer {token}"}
    assert ask(port, "/v1/jobs")[0] == 401
    [view] = json.loads(ask(port, "/v1/jobs", **good)[2])["jobs"]
    assert view["from_folder"] and view["ranks"] == {"waiting": 0, "running": 0, "ended": 2, "failed": 2}, view
    path = f"/v1/jobs/{ended_job.id}"
    ranks = json.loads(ask(port, f"{path}/ranks", **good)[2])["ranks"]
    assert [rank.get("exit_code") for rank in ranks][1] == 3, ranks
    assert ask(port, f"{path}/ranks/1/log?stream=stdout", **good)[2] == b"up 1\nlast words of rank 1\n"
    assert ask(port, f"{path}/ranks/1/log?stream=stdout&follow=true&offset=5", **good)[2] == b"last words of rank 1\n"
    for wrong, status in ((f"{path}/ranks/2", 404), (f"{path}/ranks/1/log?stream=x", 400), ("/v1/jobs/other", 404),
                          (f"{path}/nothing", 404), (f"{path}/columns?since=x", 400)):
        assert ask(port, wrong, **good)[0] == status, wrong
    assert page.end()[0] == 0


def test_the_page_of_an_ended_job_tells_ends_as_that_of_a_running_one(ended_job, browser):
    path = Path(json.loads(ended_job.run("show", "--json", ended_job.id, check=True).stdout)["folder"]) / "summary.json"
    summary = json.loads(path.read_text())
    del summary["ranks"][0]["signal"]
    summary["ranks"][0].update(exit_code=0, told_to_stop=False, abort_code=5)
    summary["ranks"][1].update(out_of_memory=True, memory_limit_bytes=1 << 30)
    path.write_text(json.dumps(summary))
    page = Page(ended_job, ended_job.id)
    link, port, token = page.link()
    browser.driver.get(link)
    for part in ("2 failed", "called abort with code 5", "out of memory"):
        browser.wait_for(part)
    columns = json.loads(ask(port, f"/v1/jobs/{ended_job.id}/columns", Authorization=f"Bearer {token}")[2])
    assert columns["rank"]["state"] == "ff" and columns["ranks"]["failed"] == 2, columns
    assert page.end()[0] == 0


def test_a_folder_that_is_damaged_is_told(ended_job):
    summary = Path(json.loads(ended_job.run("show", "--json", ended_job.id, check=True).stdout)["folder"]) / "summary.json"
    summary.write_text("[1")
    page = Page(ended_job, ended_job.id)
    page.process.wait(conftest.DEADLINE)
    code, err = page.end()
    assert code == 207 and "summary.json is no JSON object" in err, (code, err)
    # Whatever stands in it, the page is a page.
    summary.write_text(json.dumps({"exit_code": "x", "ranks": [{"rank": -1, "node": 7}, 3], "nodes": [[]], "phases": [1],
                                   "warnings": [2], "attempts": [0, 1], "verdict": 5}))
    page = Page(ended_job, ended_job.id)
    _, port, token = page.link()
    good = {"Authorization": f"Bearer {token}"}
    for path in ("", "/columns", "/events", "/events?follow=true", "/series", "/gpus", "/ranks", "/ranks/0"):
        assert ask(port, f"/v1/jobs/{ended_job.id}{path}", **good)[0] == 200, path
    assert page.end()[0] == 0
