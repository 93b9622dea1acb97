# SPDX-License-Identifier: Apache-2.0
"""Faults of group A: what can be wrong with the command line, the hostfile and the environment. Where a
parser refuses it, one input a fault is launched here; all of them are in unit/hosts, unit/cli and unit/plan."""
import hashlib
import json
import os
import pty
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import hosts
from launching import wait_until


def refused(cluster, args, *words, code=2, **options):
    """The launch is refused with `code`, and stderr holds all the words."""
    result = cluster.launch(args, **options)
    assert result.code == code, result
    for word in words:
        assert word in result.err, f"no {word!r} in {result}"
    assert "\x1b" not in result.err and "\0" not in result.err, "shown unescaped"
    return result


def refused_at_once(cluster, args, *words, **options):
    """Likewise by a parser: no host is connected to, and nothing runs."""
    before = connections(cluster)
    result = refused(cluster, [*args, "--", "touch", "/root/work/ran"], *words, **options)
    assert connections(cluster) == before, f"a host was asked: {result}"
    assert not any((host.base / "root/work/ran").exists() for host in cluster.hosts)
    return result


def connections(cluster):
    """How many each node has ever accepted."""
    def of(host):
        names, values = (line.split() for line in Path(f"/proc/{host.pid}/net/snmp").read_text().splitlines()
                         if line.startswith("Tcp:"))
        return int(values[names.index("PassiveOpens")])
    return [of(node) for node in cluster.nodes]


# A1
def test_a1_no_hosts_in_the_file(cluster):
    refused_at_once(cluster, ["--hostfile", cluster.hostfile("# only\n  # comments\n")], "no hosts", "hosts")


# A2
def test_a2_hostfile_that_is_no_text_file(cluster):
    work = cluster.work()
    os.mkfifo(work / "fifo")
    (work / "nul").write_bytes(b"node0\0node1\n")
    (work / "huge").write_bytes(b"# comment\n" * (1100 * 1024))
    for name in ("missing", "", "fifo", "nul", "huge"):
        refused(cluster, ["--hostfile", f"/root/work/{name}", "--", "true"], "/root/work", timeout=5)
    refused(cluster, ["--hostfile", "/dev/zero", "--", "true"], "/dev/zero", timeout=5)
    refused(cluster, ["--hostfile", "/dev/tty", "--", "true"], "/dev/tty", timeout=5)


# A3
def test_a3_host_that_looks_like_an_option(cluster):
    host = "-oProxyCommand=touch${IFS}/root/work/pwned"
    refused_at_once(cluster, ["--hostfile", cluster.hostfile(f"node0\n{host}\n")], "hosts:2")
    refused_at_once(cluster, [f"--hosts={host}"])
    assert not (cluster.work() / "pwned").exists()


# A4
def test_a4_dangerous_names_are_refused_and_shown_escaped(cluster):
    name = "a\x1b[31m;touch /root/work/pwned"
    refused_at_once(cluster, ["--hostfile", cluster.hostfile(f"node0\n{name}\n")], "hosts:2")
    refused_at_once(cluster, ["--rsh", "sh -c {host}", "-H", name])
    assert not (cluster.work() / "pwned").exists()


# A5
def test_a5_bad_numbers_name_field_and_line(cluster):
    refused_at_once(cluster, ["--hostfile", cluster.hostfile("# first\nnode0 slots=65536000000\n")],
                    "hosts:2", "slots")
    refused_at_once(cluster, ["--ssh-port=8x", "-H", "node0"], "ssh-port")


# A6
def test_a6_the_same_name_again_adds_its_slots(cluster):
    path = cluster.hostfile("node0 slots=1\nnode1\nnode0:2\n".replace("node1\n", "node1:1\n"))
    result = cluster.launch(["--hostfile", path, "--", "sh", "-c", "echo $(hostname)"])
    assert result.code == 0, result
    assert (result.out.count("node0"), result.out.count("node1")) == (3, 1)


# A6
def test_a6_two_names_for_one_machine_are_refused(cluster):
    result = cluster.launch(["-H", f"node0:1,{cluster.nodes[0].address}:1", "--", "true"])
    assert result.code in (2, 201), result
    assert "node0" in result.err and cluster.nodes[0].address in result.err, result


# A7
def test_a7_more_ranks_than_gpus_name_the_flag_that_allows_it(make_cluster):
    cluster = make_cluster(1)
    work = cluster.work(cluster.nodes[0])
    (work / "nvml").write_text("driver 535.1\ngpu uuid=GPU-0 pci=00000000:3B:00.0\n")
    library = hosts.bin_dir().parent / "lib/fake_nvml/libnvidia-ml.so.1"
    cluster.nodes[0].restart_sshd(setenv={"FAKE_NVML": "/root/work/nvml",
                                          "DTRAIN_NVML_LIBRARY": str(library)})
    refused(cluster, ["-H", "node0:2", "--", "true"], "node0", "GPU", "--oversubscribe")
    result = cluster.launch(["-H", "node0:2", "--oversubscribe", "--", "true"])
    assert result.code == 0, result


# A8
def test_a8_counts_out_of_range(cluster):
    refused_at_once(cluster, ["--ppn", "4294967295", "-N", "4294967295", *cluster.hosts_flag(2)], "4294967295")


# A9
def test_a9_unknown_flags_name_the_nearest(cluster):
    refused_at_once(cluster, ["--hostfil", "x"], "--hostfile")
    result = cluster.head.run([hosts.bin_dir() / "dtrain", "lanch"], check=False)
    assert result.returncode == 2 and "launch" in result.stderr


# A9: with each other, and with the list of hosts.
def test_a9_flags_that_contradict_each_other(cluster):
    refused_at_once(cluster, ["--hostfile", "/dev/null", "-H", "node0"], "contradict")
    refused(cluster, ["-N", "3", "-H", "node0:1,node1:1", "--", "true"], "2 nodes")


# A10
def test_a10_windows_line_ends_tabs_and_bom(cluster):
    path = cluster.hostfile(b"\xef\xbb\xbfnode0\tslots=1\r\n\r\n  node1\tslots = 1 # x\r\n"
                            .replace(b" = ", b"="))
    result = cluster.launch(["--hostfile", path, "--tag-output", "none", "--", "hostname"])
    assert result.code == 0 and sorted(result.lines) == ["node0", "node1"], result


# A10
def test_a10_a_line_of_a_mebibyte_and_ten_thousand_hosts(cluster):
    refused(cluster, ["--hostfile", cluster.hostfile("n" * (1 << 20)), "--dry-run", "--", "true"],
            timeout=5)
    many = "".join(f"host{index} slots=1\n" for index in range(10000))
    result = cluster.launch(["--hostfile", cluster.hostfile(many), "--dry-run", "--", "true"],
                            timeout=10)
    assert result.code == 0 and "host9999" in result.out


# A11
def test_a11_range_bombs(cluster):
    refused_at_once(cluster, ["--hostfile", cluster.hostfile("n[0-999999999]\n")], "hosts:1", timeout=5)
    refused_at_once(cluster, ["-H", "n[0-9999][0-9999]"], timeout=5)


# A12
def test_a12_variables_arrive_exactly(cluster):
    value = "line 1\nline 2\t'\"$HOME`id`\\ \udcff é="
    many = {f"V{index}": str(index) for index in range(5000)}
    script = ("import os, hashlib; e = os.environb;"
              "print(hashlib.sha256(e[b'ODD']).hexdigest(),"
              " all(e[b'V%d' % i] == b'%d' % i for i in range(5000)), len(e[b'BIG']))")
    result = cluster.launch(["-np", 1, "-H", "node1", "-x", f"BIG={'b' * 100000}", "--",
                             "/usr/bin/python3", "-I", "-c", script], env={"ODD": value, **many})
    digest = hashlib.sha256(os.fsencode(value)).hexdigest()
    assert result.code == 0 and result.out == f"{digest} True 100000\n", result


# A12
def test_a12_variables_that_cannot_be(cluster):
    refused(cluster, ["-x", "=v", "-H", "node0", "--", "true"], "-x")
    refused(cluster, ["-x", "NOT_SET_ANYWHERE", "-H", "node0", "--", "true"], "NOT_SET_ANYWHERE")
    config = cluster.hostfile(f"export = BIG={'b' * (10 << 20)}\n", "big.conf")
    refused(cluster, ["--config", config, "-H", "node0", "--", "true"], timeout=10)


# A13
def test_a13_working_directory_missing_on_one_host(cluster):
    for node in (cluster.nodes[0], cluster.nodes[2], cluster.nodes[3]):
        (cluster.work(node) / "only-some").mkdir(exist_ok=True)
    result = refused(cluster, ["--wdir", "/root/work/only-some", *cluster.hosts_flag(2), "--",
                               "sleep", "100"], "node1", code=127, timeout=15)
    assert result.err.count("/root/work/only-some") == 1, result


# A14
@pytest.mark.parametrize("program,code", [("/no/such/program", 127), ("no-such-program", 127),
                                          ("/usr", 126), ("/etc/passwd", 126)])
def test_a14_program_that_cannot_run_is_told_once(cluster, program, code):
    result = refused(cluster, [*cluster.hosts_flag(4), "--", program], "node0", program, code=code)
    assert result.err.count("node0") == 1, result


# A15: names that do not exist are a mistake of the hostfile, unless anything else failed too, or
# the name servers do not answer.
def test_a15_all_hosts_without_an_address_are_listed(make_cluster):
    cluster = make_cluster(2)
    names = cluster.base / "nsswitch.conf"
    names.write_text("hosts: files\n")
    cluster.head.run(["mount", "--bind", names, "/etc/nsswitch.conf"])
    nowhere = "nowhere1:1,node0:1,nowhere2:1,nowhere3:1"
    result = cluster.launch(["--connect-timeout", "1s", "-H", nowhere, "--", "true"], timeout=10)
    assert result.code == 2, result
    assert all(result.err.count(f"nowhere{index}") == 2 for index in (1, 2, 3)), result
    cluster.nodes[1].stop_sshd()
    result = cluster.launch(["--connect-timeout", "1s", "-H", nowhere + ",node1:1", "--", "true"], timeout=10)
    assert result.code == 200 and "node1" in result.err and "nowhere3" in result.err, result
    names.write_text("hosts: dns\n")
    result = cluster.launch(["-H", "nowhere1:1", "--connect-timeout", "2s", "--", "true"],
                            timeout=10)
    assert result.code == 200 and "nowhere1" in result.err, result


# A15: a name server that says nothing of one name, beside hosts whose names were answered.
def test_a15_a_name_that_nobody_answers_for(make_cluster):
    cluster = make_cluster(1)
    for name, text in (("nsswitch.conf", "hosts: files dns\n"),
                       ("resolv.conf", "nameserver 127.0.0.1\n")):
        (cluster.base / name).write_text(text)
        cluster.head.run(["mount", "--bind", cluster.base / name, "/etc/" + name])
    config = cluster.head.base / "root/.ssh/config"
    config.write_text("Host there\n  HostKeyAlias node0\n" + config.read_text())
    (cluster.work() / "names").write_text(
        json.dumps({"names": {"there": ["10.77.0.1"]}, "drop": {"nobody": 99}}))
    server = cluster.head.popen(["/usr/bin/python3", "-I", hosts.HERE / "nameserver.py", "/root/work/names"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline()
        result = cluster.launch(["-H", "there:1,NoBody:1", "--", "true"], timeout=30)
        assert result.code == 200 and "resolve the name NoBody" in result.err, result
        assert "did not answer within 3 s" in result.err and "nobody" not in result.err, result
    finally:
        server.kill()
        server.wait(10)
        server.stdout.close()


def test_ways_to_hosts_without_hosts_are_a_mistake(cluster):
    for flag in (["--rsh", "ssh {host}"], ["--ssh-port", "22"], ["--ssh-config", "/dev/null"]):
        refused(cluster, [*flag, "-np", 1, "--", "true"], flag[0], "no hosts")
    result = cluster.launch(["-np", 1, "--", "true"], env={"DTRAIN_SSH_PORT": "22"})
    assert result.code == 0, result


# A16
def test_a16_stdin_closed_or_empty(cluster):
    args = [*cluster.hosts_flag(1), "--", "cat"]
    assert cluster.launch(args, timeout=20).code == 0
    closed = cluster.head.popen(
        ["sh", "-c", 'exec "$@" <&-', "sh", hosts.bin_dir() / "dtrain", "launch", *args],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    assert closed.wait(20) == 0


# A16
def test_a16_background_terminal_neither_stops_nor_hangs(cluster):
    main, terminal = pty.openpty()
    # A shell with job control on the terminal starts the launcher in the background.
    shell = cluster.head.popen(
        ["bash", "--norc", "-c", 'set -m; "$@" & wait $!; echo "ended with $?"', "bash",
         hosts.bin_dir() / "dtrain", "launch", *cluster.hosts_flag(1), "--", "echo", "done"],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        before_exec=lambda: make_controlling_terminal(0))
    os.close(terminal)
    seen = bytearray()
    os.set_blocking(main, False)

    def ended():
        try:
            seen.extend(os.read(main, 65536))
        except OSError:
            pass
        return b"ended with" in seen

    try:
        wait_until(ended, 30, lambda: bytes(seen))
        assert b"ended with 0" in seen and seen.count(b"done") == 4, bytes(seen)
    finally:
        shell.send_signal(signal.SIGKILL)
        shell.wait(10)
        os.close(main)


def make_controlling_terminal(fd):
    import fcntl
    import termios
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)


# A17
def test_a17_bad_config_file_is_refused_as_a_whole(cluster):
    config = cluster.hostfile("# mine\nno-such-flag = 1\n", "dtrain.conf")
    refused_at_once(cluster, ["--config", config, "-H", "node0:1"], "dtrain.conf:2")


# A18: there is no resident agent yet; workers are whom ssh logged in as.
def test_a18_workers_run_as_the_user_ssh_authenticated(make_cluster):
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    home = node.base / "tmp/games"
    home.mkdir()
    os.chown(home, 5, 60)
    (node.base / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n"
                                      "sshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n"
                                      "games:x:5:60:games:/tmp/games:/bin/sh\n")
    with (node.base / "shadow").open("a") as shadow:
        shadow.write("games:*:19000:0:99999:7:::\n")
    node.run(["mount", "--bind", node.base / "passwd", "/etc/passwd"])
    node.restart_sshd()
    result = cluster.launch(["-H", "games@node0:1", "--wdir", "/", "--", "id", "-u"])
    assert result.code == 0 and result.out == "5\n", result
    shutil.rmtree(home)


# A19: text from outside is shown escaped, whatever it is the name of.
def test_a19_control_characters_in_names_are_shown_escaped(cluster):
    refused(cluster, [*cluster.hosts_flag(1), "--", "/no/\x1b[2Jprogram"], "program", code=127)
    refused(cluster, ["--hostfile", "/no/\x1b]0;title\x07file", "--", "true"], "file")
    refused(cluster, ["--\x1b[31mflag", "--", "true"], "flag")
