# SPDX-License-Identifier: Apache-2.0
"""The packages' resident agent under a real systemd: the user dtrain, with root's spawner beside it; what an upgrade
from an agent that was root's does; nodes on which the spawner cannot work; what is left when they are removed."""
import re
import shutil
import subprocess
import types

import pytest

import hosts
import packages
from certificates import Authority
from launching import wait_until
from packages import agent, booted, built, clean, launch, processes, start_workers, workers  # noqa: F401

SYSLOG = f"{1 << 34:016x}"
# The kernel's tree, as it is where cgroups are of version 1 or Linux is old: without cgroup.kill.
OLD_NODE = "unshare -m sh -c 'mount -t tmpfs tmpfs /sys/fs/cgroup && {}'"


def end(job, text=None):
    """What a launch has printed at its end."""
    try:
        out, _ = job.communicate(text, timeout=60)
    finally:
        job.kill()
    return out


def journal(tree):
    return tree.run("journalctl -b --no-pager -o cat")


def test_the_agent_is_dtrain_and_workers_are_their_user(booted):
    booted.run("dtrain launch -np 1 -- true")  # root's launchers have a folder in /run, too, and others none in it
    booted.run("systemctl enable --now dtrain-agent")
    status = booted.run(f"cat /proc/{agent(booted)}/status")
    uid = booted.run("id -u dtrain").strip()
    assert f"\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n" in status and f"\nCapEff:\t{SYSLOG}\n" in status
    assert f"\nCapBnd:\t{SYSLOG}\n" in status and "\nNoNewPrivs:\t1\n" in status and "\nSeccomp:\t2\n" in status
    owner = booted.run("stat -c '%U %a' /run/dtrain-sockets /run/dtrain-spawner /run/dtrain-spawner/agent.sock"
                       " /run/dtrain-agent /usr/libexec/dtrain/dtrain-shepherd").splitlines()
    assert owner == ["root 755", "root 711", "dtrain 600", "dtrain 755", "root 711"]

    out = end(launch(booted, "-np 2 -- sh -c 'id -un; tail -n 1 /proc/self/cgroup; grep -E ^Seccomp:.0 /proc/self/status;"
                             " grep -E ^Cap[EP] /proc/self/status; touch /home/alice/$RANK /tmp/of-alice-$RANK'"))
    assert out.count("] alice\n") == 2 and out.count("Seccomp:\t0\n") == 2, out
    assert len(re.findall(r"0::/system.slice/dtrain-spawner.service/jobs/u\d+/dtrain-\w+\.0/workers/", out)) == 2, out
    assert len(re.findall(r"Cap(?:Prm|Eff):\s*0+\n", out)) == 4, out
    # Theirs is the machine's /tmp, the agent's is not.
    assert booted.run("ls /home/alice /tmp | grep -c -e '^[01]$' -e of-alice") == "4\n"

    nodes = booted.run("dtrain nodes --json", user="alice:alice")
    assert '"account": "dtrain"' in nodes and '"resident": true' in nodes and '"cores": 0' not in nodes
    assert '"memory_bytes": 0' not in nodes
    assert booted.try_run("systemctl reload dtrain-agent").returncode == 0
    wait_until(lambda: "configuration and certificates were reloaded" in journal(booted), 20, lambda: journal(booted))


def test_the_agent_sees_gpus_from_where_it_is_shut_in(booted):
    library = hosts.bin_dir().parent / "portable/lib/libnvidia-ml.so"  # a stand-in for the driver's
    shutil.copy(library, booted.path("/usr/local/lib"))
    booted.path("/usr/local/lib/nvml").write_text("driver 535.1\ngpu uuid=GPU-0 pci=00000000:3B:00.0\n")
    booted.run("mkdir /etc/systemd/system/dtrain-agent.service.d")
    booted.path("/etc/systemd/system/dtrain-agent.service.d/nvml.conf").write_text(
        "[Service]\nEnvironment=FAKE_NVML=/usr/local/lib/nvml DTRAIN_NVML_LIBRARY=/usr/local/lib/libnvidia-ml.so\n")
    booted.run("systemctl daemon-reload; systemctl start dtrain-agent")
    agent(booted)
    assert "GPU-0" in booted.run("dtrain nodes --json", user="alice:alice")
    out = end(launch(booted, "-np 1 -- printenv CUDA_VISIBLE_DEVICES"))
    assert out == "GPU-0\n", out


def test_who_may_run_jobs(booted):
    booted.run("systemctl start dtrain-agent")
    agent(booted)
    job = launch(booted, "-np 1 -- id -un", user="daemon:daemon")
    assert "below min-uid 1000" in end(job) and job.returncode == 206
    # Root needs nobody: its own bridge starts the job. Its questions go to the agent.
    job = launch(booted, "-np 1 -- tail -n 1 /proc/self/cgroup", user="root:root")
    out = end(job)
    assert job.returncode == 0 and "runs no jobs of root's, so the job runs without it" in out, out
    assert "dtrain-spawner" not in out and '"resident": true' in booted.run("dtrain nodes --json")
    booted.run("usermod --expiredate 1 alice")
    job = launch(booted, "-np 1 -- true")
    assert "PAM (service dtrain) refuses alice" in end(job) and job.returncode == 206
    booted.run("usermod --expiredate '' alice; echo 'allow-root = yes' >>/etc/dtrain/spawner.conf;"
               " systemctl restart dtrain-spawner")
    for user in ("root", "alice"):
        out = end(launch(booted, "-np 1 -- sh -c 'id -un; tail -n 1 /proc/self/cgroup'", user=f"{user}:{user}"))
        assert out.startswith(f"{user}\n0::/system.slice/dtrain-spawner.service/"), out


def test_jobs_go_on_while_agent_and_spawner_are_upgraded_or_killed(booted):
    assert booted.try_run("systemctl is-enabled dtrain-agent").stdout == "disabled\n"
    assert booted.try_run("systemctl is-active dtrain-agent").stdout == "inactive\n"
    booted.run("systemctl enable --now dtrain-agent.service")
    first = agent(booted), agent(booted, "dtrain-spawner")
    job, before = start_workers(booted, "-- a-worker")
    try:
        # By a package, also one of the same version.
        booted.run("dpkg -i /run/dtrain-agent_*.deb")
        second = agent(booted), agent(booted, "dtrain-spawner")
        assert second[0] != first[0] and second[1] != first[1]
        assert workers(booted) == before
        for number, unit in enumerate(("dtrain-agent", "dtrain-spawner")):
            booted.run(f"kill -9 {second[number]}")
            wait_until(lambda: agent(booted, unit) not in (second[number], "0"), 60, "it is not restarted")
            assert workers(booted) == before
    finally:
        out = end(job, "the end\n")
    assert job.returncode == 0 and "[0] the end\n" in out and "[1] the end\n" in out, out
    assert end(launch(booted, "-np 1 -- id -un")) == "alice\n"


# Since it began, a file has gone bad of which only its next start would tell.
def test_an_upgrade_leaves_an_agent_alone_that_would_not_start_again(booted, tmp_path):
    certify(booted, tmp_path)
    booted.run("systemctl enable --now dtrain-agent.service")
    first = agent(booted), agent(booted, "dtrain-spawner")
    job, before = start_workers(booted, "-- a-worker")
    try:
        for spoil, mend, why in (
                ("echo launcher_wait = 1 >>/etc/dtrain/agent.conf", "sed -i /launcher_wait/d /etc/dtrain/agent.conf",
                 "unknown key launcher_wait"),
                ("mv /etc/dtrain/tls/crl.pem /root", "mv /root/crl.pem /etc/dtrain/tls", "crl.pem, is missing")):
            booted.run(spoil)
            done = booted.try_run("dpkg -i /run/dtrain-agent_*.deb")
            assert done.returncode == 0 and why in done.stderr, done
            assert "nothing was restarted: dtrain-agent.service would not start" in done.stderr, done
            assert (agent(booted), agent(booted, "dtrain-spawner")) == first and workers(booted) == before
            booted.run(mend)
        booted.run("/usr/libexec/dtrain/setup upgrade")
        assert agent(booted) != first[0] and agent(booted, "dtrain-spawner") != first[1]
        assert workers(booted) == before
    finally:
        out = end(job, "the end\n")
    assert job.returncode == 0 and "[0] the end\n" in out and "[1] the end\n" in out, out


def test_a_crash_is_told_by_the_next_agent(booted):
    booted.run("systemctl start dtrain-agent")
    first = agent(booted)
    booted.run(f"kill -SEGV {first}")
    wait_until(lambda: "there was a crash: dtrain-agent" in journal(booted), 30, lambda: journal(booted))
    assert agent(booted) != first
    assert booted.run("stat -c %U /run/dtrain-agent/last_crash.told") == "dtrain\n"


def test_removing_ends_jobs_and_leaves_what_is_the_users(booted):
    booted.run("systemctl enable --now dtrain-agent")
    agent(booted)
    job, _ = start_workers(booted, "-- sh -c 'echo kept >/home/alice/of-$RANK; setsid sleep 1000 & exec a-worker'")
    booted.run("mkdir /etc/dtrain/tls && touch /etc/dtrain/tls/node.key")
    booted.run("dpkg --purge dtrain dtrain-agent")
    assert "the shepherd" in end(job) and job.returncode == 203
    assert processes(booted) == [] and "sleep" not in booted.programs()
    assert booted.run("cat /home/alice/of-*") == "kept\nkept\n"
    assert booted.run("find /run /etc /var/lib/dtrain* -name '*dtrain*' -not -name '*.deb' 2>/dev/null || true") == "/etc/dtrain\n"
    assert booted.run("find /etc/dtrain -type f") == "/etc/dtrain/tls/node.key\n"
    assert booted.run("find /sys/fs/cgroup -name 'dtrain*'") == ""


def certify(tree, tmp_path):
    """Certificates for the node, as root unpacks them, and for alice."""
    authority = Authority(tmp_path, [types.SimpleNamespace(name="vm", address="127.0.0.1")])
    authority.user("alice")
    for name, folder, owner in (("node:vm", "/etc/dtrain/tls", "root"), ("user:alice", "/home/alice/tls", "alice")):
        authority.bundle(name, tree.path(folder))
        tree.run(f"chown -R {owner}: {folder}")
    with tree.path("/etc/dtrain/agent.conf").open("a") as file:
        file.write('listen = "127.0.0.1:0"\n')
    return authority


def port(tree):
    return re.findall(r"serving with TLS on 127.0.0.1:(\d+)", journal(tree))[-1]


def by_tls(tree):
    return end(launch(tree, f"--agent tcp --agent-port {port(tree)} --tls-dir /home/alice/tls --bind none"
                            " -H 127.0.0.1:2 -- id -un"))


def test_the_nodes_key_becomes_the_agents(booted, tmp_path):
    certify(booted, tmp_path)
    booted.run("chmod 600 /etc/dtrain/tls/*.crt")  # as a careful administrator's umask leaves it
    assert booted.run("stat -c '%U %a' /etc/dtrain/tls /etc/dtrain/tls/node.key") == "root 700\nroot 600\n"
    booted.run("systemctl start dtrain-agent")
    agent(booted)
    assert booted.run("stat -c '%U %G %a' /etc/dtrain/tls /etc/dtrain/tls/node.key") == (
        "root dtrain 710\ndtrain dtrain 400\n")
    assert sorted(by_tls(booted).splitlines()) == ["[0] alice", "[1] alice"]
    booted.run("systemctl reload dtrain-agent")
    wait_until(lambda: "were reloaded" in journal(booted), 20, lambda: journal(booted))
    assert sorted(by_tls(booted).splitlines()) == ["[0] alice", "[1] alice"]
    # A folder that others can change stays as it is: they could have put a link there.
    booted.run("chown daemon /etc/dtrain/tls; chown root /etc/dtrain/tls/node.key; /usr/libexec/dtrain/setup tls dtrain")
    assert booted.run("stat -c %U /etc/dtrain/tls/node.key") == "root\n"


def test_where_nothing_can_be_changed_the_agent_starts_if_all_is_right(booted, tmp_path):
    certify(booted, tmp_path)
    booted.run("systemctl start dtrain-agent")
    first = agent(booted)
    booted.run("cd /etc/dtrain && mount --bind tls tls && mount -o remount,bind,ro tls &&"
               " systemctl restart dtrain-agent")
    assert agent(booted) != first
    assert "this failed" not in journal(booted)
    assert sorted(by_tls(booted).splitlines()) == ["[0] alice", "[1] alice"]
    booted.run("cd /etc/dtrain && umount tls && chmod 600 tls/node.key && mount --bind tls tls &&"
               " mount -o remount,bind,ro tls && systemctl restart dtrain-agent")
    agent(booted)
    assert "agent may be unable to start: chmod 400 /etc/dtrain/tls/node.key" in journal(booted)


def test_a_port_below_1024_needs_a_word_in_the_unit(booted, tmp_path):
    certify(booted, tmp_path)
    configuration = booted.path("/etc/dtrain/agent.conf")
    configuration.write_text(configuration.read_text().replace(":0", ":997"))
    assert booted.try_run("systemctl start dtrain-agent").returncode != 0
    assert "listen on 127.0.0.1:997: Permission denied" in journal(booted)
    booted.run("mkdir /etc/systemd/system/dtrain-agent.service.d")
    booted.path("/etc/systemd/system/dtrain-agent.service.d/port.conf").write_text(
        "[Service]\nAmbientCapabilities=CAP_NET_BIND_SERVICE\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\n")
    booted.run("systemctl daemon-reload; systemctl restart dtrain-agent")
    agent(booted)
    assert sorted(by_tls(booted).splitlines()) == ["[0] alice", "[1] alice"]


def test_an_agent_from_the_tarball(built, clean):  # noqa: F811
    for file in [*built[0].parent.glob("*linux-x86_64.tar.gz"), *built[0].parent.glob("[iS]*")]:
        shutil.copy(file, clean.path("/run"))
    setup = "/usr/local/libexec/dtrain/setup"
    clean.run(f"sh /run/install.sh --prefix /usr/local && {setup} user && install -d /etc/dtrain &&"
              " touch /etc/dtrain/agent.conf && systemctl daemon-reload && systemctl enable --now dtrain-agent")
    first = agent(clean)
    assert clean.run("stat -Lc %a /usr/local/libexec/dtrain/dtrain-shepherd") == "711\n"
    path = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    job, before = start_workers(clean, "-- sh -c 'tail -n 1 /proc/self/cgroup; exec a-worker'", **path)
    try:
        clean.run(f"{setup} upgrade")
        assert agent(clean) != first and workers(clean) == before
    finally:
        out = end(job, "the end\n")
    assert job.returncode == 0 and out.count("dtrain-spawner.service/jobs") == 2 and "[1] the end\n" in out, out
    clean.run(f"sh /run/install.sh --prefix /usr/local && {setup} upgrade")
    agent(clean)
    assert end(launch(clean, "-np 1 -- id -un", **path)) == "alice\n"
    clean.run(f"{setup} stop && sh /run/install.sh --prefix /usr/local --uninstall")
    assert processes(clean) == [] and clean.run("find /usr/local /etc/systemd -name '*dtrain*'") == ""


# ---- From an agent that was root's ----

@pytest.fixture(scope="module")
def of_root(built, tmp_path_factory):  # noqa: F811
    """The agent's package as it was before dtrain-spawner."""
    folder = tmp_path_factory.mktemp("of_root")
    [file] = [file for file in built if file.name.startswith("dtrain-agent_")]
    subprocess.run(["dpkg-deb", "-R", file, folder / "tree"], check=True)
    tree, units = folder / "tree", folder / "tree/usr/lib/systemd/system"
    text = (units / "dtrain-agent-root.service").read_text()
    (units / "dtrain-agent.service").write_text(
        re.sub(r"(?m)^(Conflicts|After=dtrain|ExecStartPre).*\n", "", text) + "Also=dtrain-agent.socket\n")
    socket = units / "dtrain-agent.socket"
    socket.write_text(re.sub(r"(?m)^ListenStream=.*http.sock\n", "", socket.read_text())
                      .replace("=/run/dtrain-sockets/", "=/run/dtrain-agent/"))
    for path in ("usr/libexec", "usr/lib/sysusers.d", "etc/pam.d"):
        shutil.rmtree(tree / path)
    for path in ("etc/dtrain/spawner.conf", "DEBIAN/postinst", "DEBIAN/prerm", "DEBIAN/postrm", "DEBIAN/md5sums"):
        (tree / path).unlink()
    for unit in ("dtrain-agent-root.service", "dtrain-spawner.service"):
        (units / unit).unlink()
    (tree / "DEBIAN/conffiles").write_text("/etc/dtrain/agent.conf\n")
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace("Version: ", "Version: 0~"))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, folder / file.name], check=True,
                   stdout=subprocess.DEVNULL)
    return folder / file.name


@pytest.fixture
def with_root(clean, built, of_root):  # noqa: F811
    """A system with an agent of root's, which serves; the new packages wait in /run/new."""
    packages.install([of_root, *(file for file in built if file.name.startswith("libdtrain0"))], clean)
    clean.run("dpkg -i --force-depends /run/*.deb; mkdir /run/new")
    for file in built:
        shutil.copy(file, clean.path("/run/new"))
    clean.run("dpkg -i --force-depends /run/new/dtrain_*.deb")
    return clean


UPGRADE = "dpkg -i /run/new/dtrain-agent_*.deb"


@pytest.mark.parametrize("first", ["dtrain-agent.socket", "dtrain-agent"])
def test_an_upgrade_from_an_agent_of_root_ends_its_jobs_with_words(with_root, tmp_path, first):
    certify(with_root, tmp_path)
    with_root.run(f"systemctl enable dtrain-agent; systemctl start {first}; systemctl start dtrain-agent")
    with_root.run("cd /run/dtrain-agent && touch withheld last_crash.told && chmod 600 withheld last_crash.told")
    assert "\nUid:\t0\t" in with_root.run(f"cat /proc/{agent(with_root)}/status")
    job, _ = start_workers(with_root, "-- sh -c 'setsid sleep 1000 & exec a-worker'")
    with_root.run(UPGRADE)
    assert not workers(with_root) and "sleep" not in with_root.programs()
    assert "\nUid:\t0\t" not in with_root.run(f"cat /proc/{agent(with_root)}/status")
    out = end(job)
    assert job.returncode == 203, out
    assert "its agent was restarted and could not take the job over" in out and "workers have been killed" in out, out
    wait_until(lambda: sorted(processes(with_root)) == ["dtrain-agent", "dtrain-spawner"], 10,
               lambda: with_root.programs())
    assert with_root.run("find /run/dtrain-agent ! -user dtrain; ls -A /run/dtrain-agent/jobs") == ""
    assert end(launch(with_root, "-np 1 -- id -un")) == "alice\n"
    assert sorted(by_tls(with_root).splitlines()) == ["[0] alice", "[1] alice"]
    assert with_root.run("systemctl is-active dtrain-agent.socket dtrain-spawner") == "active\nactive\n"
    assert with_root.run("systemctl is-enabled dtrain-agent") == "enabled\n"


def test_on_an_old_node_an_upgrade_leaves_the_agent_roots_and_jobs_go_on(with_root):
    with_root.run("systemctl enable dtrain-agent; systemctl start dtrain-agent.socket; systemctl start dtrain-agent")
    agent(with_root)
    job, before = start_workers(with_root, "-- a-worker")
    try:
        done = with_root.try_run(OLD_NODE.format(UPGRADE))
        assert done.returncode == 0 and "dtrain-agent-root.service takes the place of dtrain-agent.service" in done.stderr
        status = with_root.run(f"cat /proc/{agent(with_root, 'dtrain-agent-root')}/status")
        assert "\nUid:\t0\t" in status
        assert workers(with_root) == before
        assert with_root.try_run("systemctl is-enabled dtrain-agent dtrain-agent-root").stdout == "disabled\nenabled\n"
    finally:
        out = end(job, "the end\n")
    assert job.returncode == 0 and "[0] the end\n" in out and "[1] the end\n" in out, out
    assert end(launch(with_root, "-np 1 -- id -un", user="root:root")) == "root\n"
    with_root.run("dpkg --purge dtrain dtrain-agent")
    assert processes(with_root) == []


def test_where_the_spawner_cannot_work_it_says_what_to_do(booted):
    booted.run("mkdir /etc/systemd/system/dtrain-spawner.service.d")
    booted.path("/etc/systemd/system/dtrain-spawner.service.d/old.conf").write_text(
        "[Service]\nTemporaryFileSystem=/sys/fs/cgroup\n")
    booted.run("systemctl daemon-reload")
    assert booted.try_run("systemctl start dtrain-agent").returncode != 0
    said = journal(booted)
    assert re.search(r"cannot start: cgroup v2 is not mounted.*enable dtrain-agent-root instead of dtrain-agent", said), said
    assert "see systemctl status dtrain-spawner" in said, said
    booted.run("systemctl disable --now dtrain-agent dtrain-agent.socket; systemctl enable --now dtrain-agent-root")
    agent(booted, "dtrain-agent-root")
    assert end(launch(booted, "-np 1 -- id -un")) == "alice\n"
    assert booted.run("stat -c %U /run/dtrain-agent/agent.sock; ls -d /run/dtrain-sockets/agent.sock || true") == "root\n"
