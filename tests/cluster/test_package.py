# SPDX-License-Identifier: Apache-2.0
"""The Debian packages, installed into a clean system, used there, and removed again."""
import json
import re
import shutil
import subprocess

import chroot
import hosts
import launching
import pytest

PACKAGES = ("dtrain", "dtrain-agent", "libdtrain0", "libdtrain-dev", "python3-dtrain")
# What any package leaves: what was fetched, written down or made of all packages, and bytecode of
# other packages.
OF_THE_SYSTEM = re.compile(
    r"/(var/(cache|log|lib/(apt|dpkg))|etc/(ld\.so\.cache|resolv\.conf))(/|$)|/__pycache__(/|$)")


@pytest.fixture(scope="module")
def built():
    """The packages of this build."""
    build = hosts.bin_dir().parent
    for command in (["cmake", "--build", build, "-j2", "--target", "portable", "dtrain_reference"],
                    [hosts.SOURCE_DIR / "tools/package", "--no-build", "--only", "deb", "--build", build,
                     "--out", build / "debs"]):
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout + done.stderr
    files = list((build / "debs").glob("*.deb"))
    assert len(files) == len(PACKAGES)
    return files


def test_cmake_installs_the_same_under_any_prefix(built, tmp_path):
    prefix = tmp_path / "prefix"
    subprocess.run(["cmake", "--install", hosts.bin_dir().parent, "--prefix", prefix], check=True,
                   stdout=subprocess.DEVNULL)
    done = subprocess.run([prefix / "bin/dtrain", "launch", "-np", "2", "--",
                           prefix / "bin/dtrain-allreduce", "--sizes", "4K", "--json"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done
    unit = (prefix / "lib/systemd/system/dtrain-agent.service").read_text()
    assert f"\nExecStart={prefix}/bin/dtrain-agent serve " in unit
    assert not (prefix / "etc").exists()  # a node's configuration is left alone


def dependencies(files):
    """What the packages need of others."""
    for file in files:
        line = subprocess.run(["dpkg-deb", "-f", file, "Depends"], capture_output=True, text=True,
                              check=True).stdout
        yield from (one for one in line.strip().split(", ") if one.split(" ")[0] not in PACKAGES)


def install(files, tree):
    """Installs the packages with what they say they need; the tree knows what it had before."""
    for file in files:
        shutil.copy(file, tree.path("/run"))
    needed = ", ".join(sorted(set(dependencies(files))))
    tree.run(f"apt-get satisfy -y --no-install-recommends '{needed}'")
    tree.before = tree.files()
    tree.run("dpkg -i /run/*.deb")


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


@pytest.fixture
def booted(built, tmp_path):
    """A clean system that systemd runs, with the packages."""
    if chroot.missing():
        pytest.skip(chroot.missing())
    if hosts.cgroup2_mount() is None:
        pytest.skip("there is no cgroup v2 tree")
    tree = chroot.Booted(tmp_path)
    try:
        install(built, tree)
        yield tree
    finally:
        tree.close()


def test_the_launcher_finds_the_agent_and_runs_a_job(system):
    assert system.run("dtrain --version").startswith("dtrain ")
    out = system.run("dtrain launch -np 2 -- echo hi")
    assert sorted(out.splitlines()) == ["[0] hi", "[1] hi"]


def test_an_ordinary_user_runs_a_job(system):
    out = system.run("dtrain launch -np 2 -- id -un", user="daemon:daemon")
    assert sorted(out.splitlines()) == ["[0] daemon", "[1] daemon"]
    assert not [name for name in system.programs() if name.startswith("dtrain")]


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
    assert not [name for name in system.programs() if name.startswith("dtrain")]


def test_installing_again_keeps_the_configuration(system):
    configuration = system.path("/etc/dtrain/agent.conf")
    packaged = configuration.read_text()
    configuration.write_text(packaged + "# ours\n")
    system.run("dpkg -i /run/dtrain-agent*.deb")
    assert configuration.read_text().endswith("# ours\n")
    configuration.write_text(packaged)


def agent(tree):
    """The process of the resident agent, once it serves."""
    launching.wait_until(lambda: "yes" in tree.run(
        "systemctl is-active -q dtrain-agent && test -S /run/dtrain-agent/agent.sock && echo yes"
        " || true"), 60, lambda: tree.run("systemctl status dtrain-agent || true"))
    return tree.run("systemctl show -P MainPID dtrain-agent").strip()


def workers(tree):
    """Process ids and start times of the workers, who run a-worker."""
    found = {}
    for stat in tree.run("cat /proc/[0-9]*/stat 2>/dev/null; true").splitlines():
        pid, rest = stat.split(" ", 1)
        if rest.startswith("(a-worker)"):
            found[pid] = rest.rpartition(")")[2].split()[19]
    return found


def test_jobs_go_on_while_the_agent_is_upgraded_or_killed(booted):
    assert booted.try_run("systemctl is-enabled dtrain-agent").stdout == "disabled\n"
    assert booted.try_run("systemctl is-active dtrain-agent").stdout == "inactive\n"
    booted.run("systemctl enable --now dtrain-agent.service")
    first = agent(booted)
    booted.run("cp /bin/cat /tmp/a-worker")
    job = subprocess.Popen(
        **booted.command("dtrain launch -np 2 --stdin all -- sh -c 'cat /proc/self/cgroup;"
                         " grep -E ^Cap[EP] /proc/self/status; exec ./a-worker'",
                         user="daemon:daemon"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        launching.wait_until(lambda: len(workers(booted)) == 2, 60, "the job does not run")
        before = workers(booted)

        # By a package, also one of the same version.
        booted.run("dpkg -i /run/dtrain-agent_*.deb")
        second = agent(booted)
        assert second != first
        assert workers(booted) == before

        booted.run(f"kill -9 {second}")
        launching.wait_until(lambda: agent(booted) not in (second, "0"), 60, "it is not restarted")
        assert workers(booted) == before
        out, _ = job.communicate("the end\n", timeout=60)
    finally:
        job.kill()
    assert job.returncode == 0, out
    for rank in "01":
        assert f"[{rank}] the end\n" in out
        # Below the unit, in the job's cgroup, and without any right.
        assert re.search(rf"\[{rank}\] 0::/system.slice/dtrain-agent.service/.*/dtrain-dtrain-\w+\.0\.0\n",
                         out)
    assert len(re.findall(r"Cap(?:Prm|Eff):\s*0+\n", out)) == 4
    booted.run("dpkg --purge dtrain dtrain-agent")
    assert not [path for path in booted.files()
                if "dtrain-agent" in path and path.startswith("/etc/")]
    assert not [name for name in booted.programs() if name.startswith("dtrain")]


# With a launcher elsewhere that would wait for its node for long.
def test_a_node_that_goes_down_does_not_wait_for_its_job(booted):
    booted.run("systemctl start dtrain-agent.service")
    agent(booted)
    booted.run("cp /bin/cat /tmp/a-worker")
    options = booted.command("exec dtrain launch -np 1 --lease 300s --stdin all -- ./a-worker",
                             user="daemon:daemon")
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
    assert sorted(named) == ["/etc/dtrain", "/etc/dtrain/agent.conf"]
    system.run(f"dpkg --purge {' '.join(PACKAGES)}")
    left = [path for path in system.files() - system.before if not OF_THE_SYSTEM.search(path)]
    assert left == []
    assert system.run("find / -xdev -name '*dtrain*' -not -path '/var/log/*' "
                      "-not -path '/var/cache/man/*'") == ""
