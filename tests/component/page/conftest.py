# SPDX-License-Identifier: Apache-2.0
"""A browser, a launcher with a page, and the page in front of a stand-in of the launcher. DTRAIN_PAGE_SHOTS=FOLDER keeps
screenshots, to look at: nothing compares them."""
import http.client
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stand_in  # noqa: E402

BIN_DIR = Path(os.environ.get("DTRAIN_BIN_DIR") or Path(__file__).resolve().parents[3] / "build/release/bin").resolve()
IN_CI = os.environ.get("CI") == "true"
CTEST_SKIPPED = 77
# Of everything that a test waits for, on a machine that has other work, too.
DEADLINE = 30
# Slower, and without a word more: nothing but this machine's own loopback is ever looked up or asked.
FLAGS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--window-size=1280,900",
         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE evil.example"]


def pytest_sessionfinish(session, exitstatus):
    skipped = session.config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    if skipped and exitstatus == 0:
        session.exitstatus = 1 if IN_CI else CTEST_SKIPPED


def link_file(folder, name="*"):
    """What --open makes once it has printed the link, written whole."""
    def read():
        return [file for file in folder.glob(f"{name}.page-*.html") if file.read_text().endswith(">\n")]
    [file] = wait_until(read, f"a file in {folder}")
    return file


def wait_until(condition, what, timeout=DEADLINE):
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what() if callable(what) else what}")
        time.sleep(0.02)


class Browser:
    """Chromium, and what the tests want of a page in it."""

    def __init__(self, folder):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
        options = webdriver.ChromeOptions()
        for flag in [*FLAGS, f"--user-data-dir={folder}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
        self.driver.set_script_timeout(DEADLINE)

    def reset(self):
        self.driver.get("about:blank")
        self.console()
        self.look(1280, 900)

    def look(self, width, height, dark=False):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.cdp("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def cdp(self, method, **arguments):
        return self.driver.execute_cdp_cmd(method, arguments)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        [found] = self.all(selector)
        return found

    @property
    def text(self):
        return self.run("return document.body.innerText")

    def wait_for(self, text):
        wait_until(lambda: text in self.text, lambda: f"{text!r} in {self.text!r}")

    def wait_for_gone(self, text):
        wait_until(lambda: text not in self.text, lambda: f"no {text!r} in {self.text!r}")

    def press(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains
        ActionChains(self.driver).send_keys(*keys).perform()

    def console(self):
        """What stands in the console since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def shot(self, name):
        folder = os.environ.get("DTRAIN_PAGE_SHOTS")
        if folder:
            self.driver.save_screenshot(f"{folder}/{name}.png")


@pytest.fixture(scope="session")
def one_browser():
    pytest.importorskip("selenium", reason="needs python3-selenium")
    for program in ("/usr/bin/chromedriver", "/usr/bin/chromium"):
        if not os.path.exists(program):
            pytest.skip(f"needs {program}: Debian's chromium and chromium-driver")
    with tempfile.TemporaryDirectory(prefix="dtrain-page-", ignore_cleanup_errors=True) as folder:
        made = Browser(folder)
        yield made
        made.driver.quit()


@pytest.fixture
def browser(one_browser):
    one_browser.reset()
    yield one_browser
    one_browser.driver.get("about:blank")  # its requests end


class Job:
    """A launch on this machine, with a page."""

    def __init__(self, folder, script, ranks=2, flags=(), env=None):
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder), **(env or {})}
        self.runtime = folder / "dtrain"
        self.log = open(folder / "launch.log", "wb+")
        self.process = subprocess.Popen(
            [BIN_DIR / "dtrain", "launch", "-np", str(ranks), "--oversubscribe", "--grace", "1s", "--status-listen", "0", *flags,
             "--", "sh", "-c", script],
            env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)
        match = wait_until(lambda: re.search(r"http://(127.0.0.1:(\d+))/v1/jobs/(\S+), token in (\S+)", self.said),
                           lambda: f"a status line: {self.said}")
        self.address, self.port, self.id = match[1], int(match[2]), match[3]
        self.token = Path(match[4]).read_text().strip()

    @property
    def said(self):
        return os.pread(self.log.fileno(), 1 << 20, 0).decode(errors="replace")

    @property
    def url(self):
        return f"http://{self.address}/#t={self.token}"

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(DEADLINE)


class Page:
    """`dtrain page` on a terminal of its own, with the env of `job`. As root it sees the jobs of other tests, too: name the job."""

    started = []  # in the present test

    def __init__(self, job, *flags, **env):
        own, its = pty.openpty()
        self.own = own
        self.process = subprocess.Popen([BIN_DIR / "dtrain", "page", *flags], env={**job.env, **env}, stdin=its, stdout=its,
                                        stderr=subprocess.PIPE, start_new_session=True)
        os.close(its)
        os.set_blocking(own, False)
        self.said = ""
        self.started.append(self)

    def link(self):
        def read():
            try:
                self.said += os.read(self.own, 65536).decode()
            except BlockingIOError:
                pass
            except OSError:  # nobody has the terminal
                raise AssertionError(self.process.communicate()[1].decode()) from None
            return re.search(r"http://127\.0\.0\.1:(\d+)/#t=([0-9a-f]{64})\r?\n", self.said)
        match = wait_until(read, lambda: f"a link: {self.said!r}")
        return match[0].strip(), int(match[1]), match[2]

    def end(self, number=signal.SIGINT):
        if self.process.poll() is None:
            self.process.send_signal(number)
        err = self.process.communicate(timeout=DEADLINE)[1].decode()
        if self.own >= 0:
            os.close(self.own)
            self.own = -1
        return self.process.returncode, err


@pytest.fixture(autouse=True)
def pages_end():
    """Also those of a test that has failed."""
    yield
    for page in Page.started:
        if page.process.poll() is None:
            page.process.kill()
            page.process.wait()
    Page.started.clear()


@pytest.fixture
def start_job(tmp_path):
    jobs = []

    def start(script, **options):
        # Nobody can be sure that tmp_path is short enough for the name of a socket.
        folder = Path(tempfile.mkdtemp(prefix="dtp"))
        jobs.append((Job(folder, script, **options), folder))
        return jobs[-1][0]
    yield start
    for job, folder in jobs:
        job.end()
        job.log.close()
        subprocess.run(["rm", "-r", folder], check=True)


def ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


@pytest.fixture(scope="session")
def page():
    """The page as the binary has it, and its policy."""
    folder = Path(tempfile.mkdtemp(prefix="dtp"))
    job = Job(folder, "exec sleep 600", ranks=1)
    try:
        status, headers, body = ask(job.port, "/")
    finally:
        job.end()
        job.log.close()
        subprocess.run(["rm", "-r", folder], check=True)
    assert status == 200
    return body, headers["Content-Security-Policy"]


@pytest.fixture
def stand(page):
    servers = []

    def make(job):
        body, policy = page
        if "node" in job:
            body = body.replace(b'data-shows="job"', b'data-shows="node"')
        servers.append(stand_in.StandIn(body, policy, job))
        return servers[-1]
    yield make
    for server in servers:
        server.over.set()
        server.is_silent.set()
        with server.wake:
            server.wake.notify_all()
        server.shutdown()
        server.server_close()
