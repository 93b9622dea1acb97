# SPDX-License-Identifier: Apache-2.0
"""The Debian packages, installed into a clean system, used there, and removed again."""
import json
import re
import subprocess

import chroot
import launching
import portable
import pytest
from packages import OF_THE_SYSTEM, PACKAGES, agent, booted, built, clean, install, launch, workers  # noqa: F401

def test_cmake_installs_the_same_under_any_prefix(built, tmp_path):
    prefix = tmp_path / "prefix"
    subprocess.run(["cmake", "--install", portable.BUILD, "--prefix", prefix], check=True,
                   stdout=subprocess.DEVNULL)
    done = subprocess.run([prefix / "bin/dtrain", "launch", "-np", "2", "--",
                           prefix / "bin/dtrain-allreduce", "--sizes", "4K", "--json"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done
    units = prefix / "lib/systemd/system"
    assert f"\nExecStart={prefix}/bin/dtrain-agent serve " in (units / "dtrain-agent.service").read_text()
    inside = f"{prefix}/libexec/dtrain"
    assert (f"\nExecStart={inside}/dtrain-spawner --shepherd {inside}/dtrain-shepherd --limit\n"
            in (units / "dtrain-spawner.service").read_text())
    assert (prefix / "libexec/dtrain/dtrain-shepherd").stat().st_mode & 0o777 == 0o711
    assert not (prefix / "etc").exists()  # a node's configuration is left alone


@pytest.fixture(scope="module")
def system(built, tmp_path_factory):
    """A clean system with the packages."""
    if chroot.missing():
        pytest.skip(chroot.missing())
    tree = chroot.Chroot(tmp_path_factory.mktemp("chroot"))
    try:
        install(built, tree)
        yield tree
    finally:
        tree.close()


def ours(system):
    """The names of dtrain's processes there."""
    return [name for name in system.programs() if name.startswith("dtrain")]


def test_the_launcher_finds_the_agent_and_runs_a_job(system):
    assert system.run("dtrain --version").startswith("dtrain ")
    out = system.run("dtrain launch -np 2 -- echo hi")
    assert sorted(out.splitlines()) == ["[0] hi", "[1] hi"]


def test_an_ordinary_user_runs_a_job(system):
    out = system.run("dtrain launch -np 2 -- id -un", user="daemon:daemon")
    assert sorted(out.splitlines()) == ["[0] daemon", "[1] daemon"]
    # The launcher does not wait for the end of its agent and shepherd.
    launching.wait_until(lambda: not ours(system), 10, lambda: ours(system))


def test_manual_pages_and_completion_are_found(system):
    for page in ("dtrain", "dtrain-launch", "dtrain-agent", "dtrain-allreduce"):
        assert f"/{page}." in system.run(f"man -w {page}")
    assert "start a job and wait for it to finish" in system.run("man dtrain-launch | cat")
    for file in ("bash-completion/completions/dtrain", "zsh/vendor-completions/_dtrain",
                 "fish/vendor_completions.d/dtrain.fish"):
        assert system.path(f"/usr/share/{file}").stat().st_size > 100


def test_a_c_program_is_compiled_and_run(system):
    system.run("gcc -O1 -Wall -Werror /usr/share/doc/dtrain/examples/allreduce.c "
               "$(pkg-config --cflags --libs dtrain) -o program")
    out = system.run("dtrain launch -np 2 -- ./program")
    assert len(re.findall(r"rank [01] of 2, .* sum of all ranks 1$", out, re.MULTILINE)) == 2


def test_the_bench_finds_its_worker_and_the_library(system):
    out = system.run("dtrain bench allreduce -np 2 --sizes 4K --iterations 3 --json")
    assert json.loads(out)


def test_the_python_package_works(system):
    program = "import dtrain; dtrain.init(); print(dtrain.rank(), dtrain.size())"
    out = system.run(f"dtrain launch -np 2 -- python3 -c '{program}'")
    assert sorted(out.splitlines()) == ["[0] 0 2", "[1] 1 2"]
    version = "import importlib.metadata as m; print(m.version('dtrain'))"
    assert system.run(f'python3 -c "{version}"') == system.run(
        "dpkg-query -W -f '${Version}' python3-dtrain | sed 's/-.*//'; echo")


def test_installing_enables_and_starts_nothing(system):
    enabled = [path for path in system.files() if path.startswith("/etc/systemd/")]
    assert not [path for path in enabled if "dtrain" in path]
    launching.wait_until(lambda: not ours(system), 10, lambda: ours(system))


def test_installing_again_keeps_the_configuration(system):
    configuration = system.path("/etc/dtrain/agent.conf")
    packaged = configuration.read_text()
    configuration.write_text(packaged + "# ours\n")
    system.run("dpkg -i /run/dtrain-agent*.deb")
    assert configuration.read_text().endswith("# ours\n")
    configuration.write_text(packaged)


# With a launcher elsewhere that would wait for its node for long.
def test_a_node_that_goes_down_does_not_wait_for_its_job(booted):
    booted.run("systemctl start dtrain-agent.service")
    agent(booted)
    booted.run("cp /bin/cat /tmp/a-worker")
    options = booted.command("exec dtrain launch -np 1 --lease 300s --stdin all -- ./a-worker", user="alice:alice")
    options["args"].remove("-p")  # not among the processes that end with the system
    job = subprocess.Popen(**options, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    try:
        launching.wait_until(lambda: len(workers(booted)) == 1, 60, "the job does not run")
        assert "dtrain-shepherd" in booted.programs()
        booted.go_down()
        # systemd itself kills what is left after 90 s.
        launching.wait_until(booted.is_down, 60, lambda: booted.programs())
    finally:
        job.kill()
        job.communicate(timeout=60)


# Last of all, since the system has no packages then.
def test_nothing_is_left_when_they_are_purged(system):
    system.run("rm -f /tmp/program; python3 -c 'import dtrain'")  # by root: leaves bytecode
    system.run(f"dpkg --remove {' '.join(PACKAGES)}")
    named = [path for path in system.files()
             if "dtrain" in path and not OF_THE_SYSTEM.search(path)]
    assert sorted(named) == ["/etc/dtrain", "/etc/dtrain/agent.conf", "/etc/dtrain/spawner.conf", "/etc/pam.d/dtrain"]
    system.run(f"dpkg --purge {' '.join(PACKAGES)}")
    left = [path for path in system.files() - system.before if not OF_THE_SYSTEM.search(path)]
    assert left == []
    assert system.run("find / -xdev -name '*dtrain*' -not -path '/var/log/*' "
                      "-not -path '/var/cache/man/*'") == ""
