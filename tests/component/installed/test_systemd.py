# SPDX-License-Identifier: Apache-2.0
"""The units, as systemd reads them."""
import os
import re
import subprocess

import pytest
from conftest import BIN_DIR, SOURCE_DIR

UNITS = SOURCE_DIR / "deploy/systemd"
pytestmark = pytest.mark.needs("systemd-analyze")

# What workers, who inherit it of a spawner and of an agent of root, would notice; the unit of the latter says why
# none of it is there.
NOT_FOR_WORKERS = ("Protect", "Private", "ReadOnly", "ReadWrite", "Inaccessible", "TemporaryFile",
                   "Bind", "Root", "SystemCall", "MemoryDeny", "Restrict", "Lock", "IPAddress",
                   "Device", "UMask", "LimitCPU", "LimitAS", "Memory", "CPU")


@pytest.fixture
def verify(tmp_path):
    """Reads units as if the agent of this build were installed; what systemd complains of."""
    (tmp_path / "run").mkdir(mode=0o700)
    # Units would quote a path with spaces.
    (tmp_path / "bin").symlink_to(BIN_DIR)
    (tmp_path / "setup").symlink_to(UNITS / "setup")

    def run(*files, manager="--system", change=lambda text: text):
        paths = []
        for file in files:
            text = (change(file.read_text()).replace("/usr/libexec/dtrain/setup", f"{tmp_path}/setup")
                    .replace("/usr/libexec/dtrain/", f"{tmp_path}/bin/").replace("/usr/bin/", f"{tmp_path}/bin/"))
            paths.append(tmp_path / file.name)
            paths[-1].write_text(text)
        done = subprocess.run(
            ["systemd-analyze", manager, "--man=no", "verify", *paths], capture_output=True,
            text=True, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "run"),
                            "SYSTEMD_UNIT_PATH": f"{tmp_path}:"})
        complaints = done.stdout + done.stderr  # of most, the exit code says nothing
        assert done.returncode == 0 or complaints
        return complaints

    return run


def settings(path):
    lines = [line for line in path.read_text().splitlines() if "=" in line]
    return [line.split("=", 1) for line in lines if not line.startswith("#")]


def exposure(unit, most):
    """What systemd says of it when it is above `most` tenths; empty otherwise."""
    done = subprocess.run(["systemd-analyze", "security", "--offline=yes", f"--threshold={most}", unit],
                          capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_system_units(verify):
    assert verify(*(UNITS / f"dtrain-{name}" for name in (
        "agent.service", "agent.socket", "spawner.service", "agent-root.service"))) == ""


# Whom everyone can talk to is shut in; the spawner, whose view of the machine workers inherit, is not.
def test_the_agent_is_shut_in():
    assert exposure(UNITS / "dtrain-agent.service", 24) == ""
    assert exposure(UNITS / "dtrain-agent-root.service", 25) != ""
    found = dict(settings(UNITS / "dtrain-agent.service"))
    assert found["User"] == "dtrain" and found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == "CAP_SYSLOG"


# Jobs end when their agent is silent for as long as a lease: one that hangs must be started anew before.
@pytest.mark.parametrize("unit", ["dtrain-agent.service", "dtrain-agent-root.service"])
def test_an_agent_that_hangs_is_ended_within_the_default_lease(unit):
    header = (SOURCE_DIR / "launcher/job/job_core.h").read_text()
    lease = int(re.search(r"Duration lease = std::chrono::seconds\((\d+)\);", header)[1])
    assert 0 < int(dict(settings(UNITS / unit))["WatchdogSec"]) < lease


# systemd reads the lines in their order, and a later one may give back what an earlier one took.
def test_the_agents_filter_drops_what_has_been_the_way_into_kernels():
    lines = [value for name, value in settings(UNITS / "dtrain-agent.service") if name == "SystemCallFilter"]
    assert lines[0] == "@system-service"
    dropped = set()
    for line in lines[1:]:
        calls = set(line.removeprefix("~").split())
        dropped = dropped | calls if line.startswith("~") else dropped - calls
    assert dropped == {"@privileged", "@resources", "@keyring", "io_uring_setup", "io_uring_enter",
                       "io_uring_register", "userfaultfd", "process_vm_readv", "process_vm_writev", "kcmp",
                       "setns", "unshare"}
    given_back = {call for line in lines[1:] if not line.startswith("~") for call in line.split()}
    assert given_back == {"sched_setscheduler", "sched_setattr", "setrlimit", "prlimit64"}


def test_the_unit_of_a_user(verify):
    assert verify(UNITS / "user/dtrain-agent.service", manager="--user") == ""


def test_the_unit_of_a_spawner(verify):
    unit = UNITS / "dtrain-spawner.service"
    assert verify(unit) == ""
    found = settings(unit)
    for wanted in ("KillMode=process", "Delegate=yes", "RuntimeDirectoryPreserve=yes", "OOMPolicy=continue",
                   "Restart=always", "StartLimitIntervalSec=0", "NoNewPrivileges=yes"):
        assert wanted.split("=") in found
    # Without the second it could not be restarted under the first.
    given = dict(found)
    assert given["ExecStart"].endswith(" --limit") and given["ExecStopPost"].endswith(" --unlimit")
    for name, _ in found:
        assert not name.startswith(NOT_FOR_WORKERS), name
    assert exposure(unit, 76) == ""


def test_a_mistake_would_be_found(verify):
    wrong = verify(UNITS / "dtrain-agent.service",
                   change=lambda text: text.replace("KillMode=", "KilMode="))
    assert "KilMode" in wrong
    missing = verify(UNITS / "dtrain-agent.service",
                     change=lambda text: text.replace("dtrain-agent serve", "no-agent serve"))
    assert "no-agent" in missing


@pytest.mark.parametrize("unit", ["dtrain-agent-root.service", "user/dtrain-agent.service"])
def test_jobs_outlive_the_agent_and_inherit_no_hardening_that_they_would_notice(unit):
    found = settings(UNITS / unit)
    for wanted in ("KillMode=process", "Delegate=yes", "RuntimeDirectoryPreserve=yes",
                   "OOMPolicy=continue", "Restart=always", "StartLimitIntervalSec=0"):
        assert wanted.split("=") in found
    for name, _ in found:
        assert not name.startswith(NOT_FOR_WORKERS), name


def test_the_example_configuration_has_flags_of_the_agent_alone():
    done = subprocess.run([BIN_DIR / "dtrain-agent", "--help"], capture_output=True, text=True)
    lines = (UNITS / "agent.conf").read_text().splitlines()
    names = [line[1:].split(" = ")[0] for line in lines if " = " in line and line[1] != " "]
    assert len(names) >= 5
    for name in names:
        assert f"--{name} " in done.stdout, name


def serve(folder, text, *flags):
    file = folder / "agent.conf"
    file.write_text(text)
    done = subprocess.run([BIN_DIR / "dtrain-agent", "serve", "--state-dir", folder / "state", "--config", file, *flags],
                          capture_output=True, text=True, timeout=60)
    assert not (folder / "state").exists(), done
    return done.returncode, done.stderr.replace(str(file), "FILE")


@pytest.mark.parametrize("text,told", [
    ("launcher-wait = \"2h\"\nlauncher-wait = \"3h\"\n", "FILE:2: "),
    ("launcher-wait = 2h\n", "FILE:1: .*needs quotes: launcher-wait = \"2h\""),
    ("\nlauncher_wait = \"2h\"\n", "FILE:2: unknown key launcher_wait; did you mean launcher-wait?"),
    ("launcher-wait = \"2y\"\n", "FILE:1: --launcher-wait: y unit not recognized"),
    ("launcher-wait = [1, 2]\n", "FILE:1: launcher-wait takes one value"),
    ("[serve]\nlauncher-wait = \"2h\"\n", r"FILE:2: unknown section \[serve\]"),
    ("config = \"x\"\n", "FILE:1: unknown key config"),
])
def test_a_mistake_in_the_agents_configuration_is_named_with_its_line(tmp_path, text, told):
    code, error = serve(tmp_path, text)
    assert code == 2 and re.search(f" error: {told}", error), error


def test_the_agents_configuration_file_must_be_there_and_the_command_line_is_stronger(tmp_path):
    done = subprocess.run([BIN_DIR / "dtrain-agent", "serve", "--config", tmp_path / "none"], capture_output=True, text=True)
    assert done.returncode == 2 and "none: No such file" in done.stderr, done
    # All lines of the example; what they name is missing here.
    text = "\n".join(re.findall("^#([a-z-]+ = .*)", (UNITS / "agent.conf").read_text(), re.M))
    assert text.count(" = ") >= 6
    code, error = serve(tmp_path, text)
    assert code == 206 and "--account-map: look at /etc/dtrain: No such file" in error, error
    code, error = serve(tmp_path, text, "--account-map", tmp_path / "mine")
    assert code == 206 and str(tmp_path / "mine") in error, error


# What an upgrade asks before it restarts an agent.
def test_a_check_serves_nobody_and_says_what_is_wrong(tmp_path):
    assert serve(tmp_path, 'launcher-wait = "2h"\n', "--check") == (0, "")
    code, error = serve(tmp_path, "launcher-wait = 2h\n", "--check")
    assert code == 2 and "FILE:1: " in error, error
    missing = tmp_path / "none"
    code, error = serve(tmp_path, f'listen = "127.0.0.1:0"\ntls-ca = "{missing}/ca.crt"\n', "--check")
    assert code == 206 and f"{missing}/crl.pem, is missing" in error, error
    code, error = serve(tmp_path, "check = true\n")
    assert code == 2 and "FILE:1: unknown key check" in error, error


def test_the_sockets_are_in_a_folder_of_no_service():
    service = dict(settings(UNITS / "dtrain-agent.service"))
    socket = settings(UNITS / "dtrain-agent.socket")
    assert [value for name, value in socket if name == "ListenStream"] == [
        "/run/dtrain-sockets/agent.sock", "/run/dtrain-sockets/http.sock"]
    assert service["RuntimeDirectory"] == "dtrain-agent" and dict(socket)["SocketMode"] == "0666"
