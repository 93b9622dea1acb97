# SPDX-License-Identifier: Apache-2.0
"""One command, several hosts: placement, environment, output, exit codes."""
import json
import os
import pty
import re
import signal

import pytest

import hosts
from launching import wait_until

SHOW = ["sh", "-c", 'echo "$RANK $LOCAL_RANK $(hostname)"']


def placed(result):
    """{rank: (local rank, host)} from workers that ran SHOW, tagged or not."""
    rows = [re.sub(r"^\[\d+\] ?", "", line).split() for line in result.lines]
    return {int(rank): (int(local), host) for rank, local, host in rows}


def launch_ok(cluster, args, **options):
    result = cluster.launch(args, **options)
    assert result.code == 0, result
    return result


def by_blocks(hosts_in_order, per_host):
    return {rank: (rank % per_host, hosts_in_order[rank // per_host])
            for rank in range(len(hosts_in_order) * per_host)}


def test_sixteen_ranks_run_on_four_hosts_in_hostfile_order(cluster):
    result = launch_ok(cluster, ["-np", 16, "--hostfile", cluster.hostfile(4), "--", *SHOW])
    assert placed(result) == by_blocks(["node0", "node1", "node2", "node3"], 4)


def test_hosts_flag_ranks_follow_its_order(cluster):
    result = launch_ok(cluster, ["-H", "node3:1,node1:2", "--", *SHOW])
    assert placed(result) == {0: (0, "node3"), 1: (0, "node1"), 2: (1, "node1")}


def test_np_takes_the_first_slots(cluster):
    result = launch_ok(cluster, ["-np", 5, *cluster.hosts_flag(4), "--", *SHOW])
    assert placed(result) == {**by_blocks(["node0"], 4), 4: (0, "node1")}


def test_ppn_and_nnodes(cluster):
    result = launch_ok(cluster, ["--ppn", 2, "-N", 2, *cluster.hosts_flag(4), "--", *SHOW])
    assert placed(result) == by_blocks(["node0", "node1"], 2)


def test_map_by_node_deals_ranks_round_robin(cluster):
    args = ["-np", 6, "--map-by", "node", *cluster.hosts_flag(2), "--", *SHOW]
    hosts_of = {rank: host for rank, (_, host) in placed(launch_ok(cluster, args)).items()}
    assert hosts_of == {rank: f"node{rank % 4}" for rank in range(6)}


def test_map_by_ppr(cluster):
    result = launch_ok(cluster, ["--map-by", "ppr:1:node", *cluster.hosts_flag(4), "--", *SHOW])
    assert placed(result) == by_blocks(["node0", "node1", "node2", "node3"], 1)


def test_rankfile_places_each_rank(cluster):
    rankfile = cluster.hostfile("rank 0=node2 slot=0\nrank 1=node0 slot=1\n", "ranks")
    result = launch_ok(cluster, ["--rankfile", rankfile, *cluster.hosts_flag(2), "--", *SHOW])
    assert {rank: host for rank, (_, host) in placed(result).items()} == {0: "node2", 1: "node0"}


def test_no_hosts_means_this_machine(cluster):
    assert placed(launch_ok(cluster, ["-np", 3, "--", *SHOW])) == by_blocks(["head"], 3)


def test_negative_np_means_this_machine(cluster):
    assert placed(launch_ok(cluster, ["-np", "-2", "--", *SHOW])) == by_blocks(["head"], 2)


def test_slots_come_from_the_cores_when_nobody_names_them(cluster):
    result = launch_ok(cluster, ["-H", "node0", "--", *SHOW])
    assert len(placed(result)) == len(os.sched_getaffinity(0))


def test_command_without_separator(cluster):
    result = launch_ok(cluster, ["-np", 1, "echo", "-n", "--", "x"])
    assert result.out == "-- x"


def test_workers_are_told_what_torchrun_tells(cluster):
    result = launch_ok(cluster, ["--tag-output", "none", *cluster.hosts_flag(2), "--",
                                 "sh", "-c", "env | sort | tr '\\n' '\\001'; echo"])
    seen = {}
    for line in result.lines:
        env = dict(entry.split("=", 1) for entry in line.split("\1") if "=" in entry)
        seen[int(env["RANK"])] = env
    assert sorted(seen) == list(range(8))
    for rank, env in seen.items():
        wanted = {"WORLD_SIZE": "8", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
                  "GROUP_RANK": str(rank // 2), "NODE_RANK": str(rank // 2),
                  "GROUP_WORLD_SIZE": "4", "MASTER_ADDR": "10.77.0.1",
                  "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0",
                  "TORCHELASTIC_RESTART_COUNT": "0", "PMI_RANK": str(rank), "PMI_SIZE": "8",
                  "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "8",
                  "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % 2), "OMP_NUM_THREADS": "1"}
        assert {name: env.get(name) for name in wanted} == wanted
        assert env["MASTER_PORT"] == seen[0]["MASTER_PORT"]


def test_environment_goes_along_and_outer_launchers_do_not(cluster):
    result = launch_ok(
        cluster, ["-np", 1, "-H", "node1", "-x", "GIVEN=a b", "-x", "NAMED", "--", "env"],
        env={"FORWARDED": "yes", "NAMED": "n", "SLURM_PROCID": "7", "PMI_RANK": "9",
             "OMPI_COMM_WORLD_RANK": "5", "HOROVOD_RANK": "4", "RANK": "3"})
    env = dict(line.split("=", 1) for line in result.lines if "=" in line)
    assert env["FORWARDED"] == "yes" and env["GIVEN"] == "a b" and env["NAMED"] == "n"
    assert "SLURM_PROCID" not in env
    assert env["RANK"] == env["PMI_RANK"] == env["OMPI_COMM_WORLD_RANK"] == "0"
    assert env.get("HOROVOD_RANK", "0") == "0"


def test_env_none_forwards_only_what_was_named(cluster):
    result = launch_ok(cluster, ["-np", 1, "-H", "node1", "--env", "none", "-x", "GIVEN=1", "--",
                                 "env"], env={"FORWARDED": "yes"})
    assert "FORWARDED" not in result.out and "GIVEN=1" in result.lines


def test_only_workers_may_interrupt_others(cluster):
    job = ["sh", "-c", "chrt -p $$; chrt -p $PPID"]
    out = launch_ok(cluster, [*cluster.hosts_flag(1, cluster.nodes[:1]), "--tag-output", "none", "--", *job]).out
    assert re.findall("policy: (.*)", out) == ["SCHED_OTHER", "SCHED_BATCH"]


def test_working_directory(cluster):
    result = launch_ok(cluster, ["-np", 1, "-H", "node0", "--wdir", "/usr/share", "--", "pwd"])
    assert result.out == "/usr/share\n"


# O3: the exit code tells the truth.
@pytest.mark.parametrize("script,code", [("exit 0", 0), ("exit 1", 1), ("exit 125", 125),
                                         ("kill -TERM $$", 143), ("kill -KILL $$", 137)])
def test_exit_code_is_the_workers(cluster, script, code):
    script = f'[ "$RANK" != 2 ] || {script}'
    result = cluster.launch([*cluster.hosts_flag(1), "--", "sh", "-c", script])
    assert result.code == code, result


def test_tags_name_rank_or_host_or_nothing(cluster):
    two = cluster.hosts_flag(1, cluster.nodes[:2])
    lines = {how: sorted(launch_ok(cluster, [*how, *two, "--", "echo", "x"]).lines)
             for how in ((), ("--tag-output", "rank"), ("--tag-output", "host"),
                         ("--tag-output", "none"))}
    assert [line.replace(" ", "") for line in lines[()]] == ["[0]x", "[1]x"]
    assert lines[()] == lines["--tag-output", "rank"]
    assert lines["--tag-output", "none"] == ["x", "x"]
    assert all(f"node{index}" in line
               for index, line in enumerate(lines["--tag-output", "host"]))


def test_one_rank_is_not_tagged_and_streams_stay_apart(cluster):
    result = launch_ok(cluster, ["-np", 1, "-H", "node1", "--", "sh", "-c", "echo o; echo e >&2"])
    assert result.out == "o\n" and result.err == "e\n"


def test_log_dir_keeps_a_file_for_each_rank_and_stream(cluster):
    work = cluster.work()
    launch_ok(cluster, ["--log-dir", "/root/work/logs", *cluster.hosts_flag(1), "--", "sh", "-c",
                        "echo out $RANK; echo err $RANK >&2"])
    kept = {path.read_text() for path in (work / "logs").rglob("*") if path.is_file()}
    assert kept >= {f"{kind} {rank}\n" for kind in ("out", "err") for rank in range(4)}


@pytest.mark.launcher_killed
@pytest.mark.parametrize("flags", [["--log-dir", "logs"], ["--output", "logs/%h-%r.log"]])
def test_files_of_output_belong_to_one_job_at_a_time(cluster, flags):
    work = cluster.work()
    first = cluster.start_launch([*flags, "--bind", "none", "-np", "1", "--", "sh", "-c",
                                  "echo first; while [ ! -e end ]; do sleep 0.05; done; echo end"], cwd="/root/work")
    wait_until(lambda: any("first" in path.read_text() for path in work.glob("logs/*")), 10, "no output")
    second = cluster.launch([*flags, "--bind", "none", "-np", "1", "--", "touch", "started"], cwd="/root/work")
    assert second.code == 200 and second.out == "", second
    assert re.search(r"job dtrain-\w+ \(process \d+ on \w+\) writes to these files in", second.err), second
    other = launch_ok(cluster, ["--output", "logs/%j.log", "--bind", "none", "-np", "1", "--", "echo", "other"],
                      cwd="/root/work")
    assert other.out == "other\n"
    assert not (work / "started").exists()
    assert [path.read_text() for path in work.glob("logs/*") if path.name[0] != "."].count("first\n") == 1
    (work / "end").touch()
    assert first.wait(10).code == 0
    assert "first\nend\n" in [path.read_text() for path in work.glob("logs/*")]
    assert not [path for path in work.glob("logs/.*")], "the lock stays"
    # A lock that a launcher has left which was killed is nobody's.
    (work / "end").unlink()
    third = cluster.start_launch([*flags, "--bind", "none", "-np", "1", "--", "sh", "-c", "echo third; sleep 300"],
                                 cwd="/root/work")
    third.wait_for("third")
    third.kill()
    launch_ok(cluster, [*flags, "--bind", "none", "-np", "1", "--", "echo", "fourth"], cwd="/root/work")


def test_stdin_goes_to_rank_0_or_all_or_none(cluster):
    worker = ["--tag-output", "rank", *cluster.hosts_flag(1), "--", "wc", "-c"]
    for who, counts in ((["--stdin", "0"], [9, 0, 0, 0]), ([], [9, 0, 0, 0]),
                        (["--stdin", "2"], [0, 0, 9, 0]), (["--stdin", "all"], [9] * 4),
                        (["--stdin", "none"], [0] * 4)):
        text = cluster.work() / "stdin"
        text.write_text("from here")
        with text.open("rb") as stdin:
            result = launch_ok(cluster, [*who, *worker], stdin=stdin)
        seen = dict(re.match(r"\[(\d)\] *(\d+)$", line).groups() for line in result.lines)
        assert [int(seen[str(rank)]) for rank in range(4)] == counts, who


def test_dry_run_needs_no_host_when_slots_are_named(cluster):
    result = launch_ok(cluster, ["--dry-run", "-H", "nowhere1:2,nowhere2:2", "--", "true"])
    assert result.out.count("nowhere1") == 2 and result.out.count("nowhere2") == 2


def test_numbers_that_cannot_fit_are_refused_before_any_host_is_asked(cluster):
    result = cluster.launch(["-N", "3", "-H", "nowhere1,nowhere2", "--", "true"])
    assert (result.code, result.err) == (2, "dtrain: -N 3: the host list has 2 nodes\n")


def test_result_file_tells_how_it_ended(cluster):
    cluster.launch(["--result-json", "/root/work/result.json", *cluster.hosts_flag(1), "--", "sh",
                    "-c", '[ "$RANK" != 1 ] || exit 9; sleep 60'])
    text = (cluster.work() / "result.json").read_text()
    assert json.loads(text)["exit_code"] == 9
    assert "node1" in text


def test_verbose_prints_the_times_of_the_phases(cluster):
    result = launch_ok(cluster, ["-v", *cluster.hosts_flag(1), "--", "true"])
    assert "connect" in result.err and re.search(r"\d ?m?s\b", result.err)


def test_live_line_on_a_terminal_names_who_is_missing(make_cluster):
    cluster = make_cluster(2)
    # Nobody is to say after three seconds that there is no such host: a busy machine takes longer to reach the other.
    cluster.head.network(f"neigh replace {cluster.nodes[1].address} lladdr 02:00:00:00:00:fe dev eth0 nud permanent\n")
    cluster.cut(cluster.nodes[1])
    main, terminal = pty.openpty()
    launcher = cluster.head.popen(
        [hosts.bin_dir() / "dtrain", "launch", "--start-timeout", "40s", "--connect-timeout", "40s",
         *cluster.hosts_flag(1), "--", "true"], env={"TERM": "xterm"}, stdin=terminal,
        stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    os.set_blocking(main, False)
    seen = bytearray()

    def read():
        try:
            seen.extend(os.read(main, 65536))
        except OSError:
            pass
        return b"node1" in seen and b"1/2" in seen

    wait_until(read, 40, lambda: bytes(seen))
    launcher.send_signal(signal.SIGINT)
    wait_until(lambda: read() is None or launcher.poll() is not None, 10, "its end")
    os.close(main)
    cluster.heal(cluster.nodes[1])


def test_config_file_and_environment_variables_are_flags_too(cluster):
    config = cluster.hostfile('tag-output = "host"\n', "dtrain.conf")
    result = launch_ok(cluster, ["--config", config, *cluster.hosts_flag(1), "--", "echo", "x"])
    assert "node3" in result.out
    result = launch_ok(cluster, [*cluster.hosts_flag(1), "--", "echo", "x"],
                       env={"DTRAIN_TAG_OUTPUT": "none"})
    assert result.out == "x\n" * 4


def test_second_launch_finds_the_agent_in_its_cache(make_cluster):
    cluster = make_cluster(1)
    cache = cluster.nodes[0].base / "root/.cache/dtrain"
    assert not cache.exists()
    launch_ok(cluster, [*cluster.hosts_flag(1), "--", "true"])
    pushed = list(cache.glob("agent-*/dtrain-agent"))
    assert len(pushed) == 1 and cache.stat().st_mode & 0o777 == 0o700
    before = pushed[0].stat()
    launch_ok(cluster, [*cluster.hosts_flag(1), "--", "true"])
    assert pushed[0].stat().st_ino == before.st_ino


def test_rsh_takes_any_command_that_gives_a_byte_stream(cluster):
    result = launch_ok(cluster, ["--rsh", "ssh -o BatchMode=yes {host}", *cluster.hosts_flag(2),
                                 "--", *SHOW])
    assert placed(result) == by_blocks(["node0", "node1", "node2", "node3"], 2)


def test_ssh_config_file_and_port(cluster):
    cluster.nodes[2].restart_sshd("Port 2222\n")
    try:
        known = (cluster.head.base / "root/.ssh/known_hosts").read_text()
        key = next(line.split(" ", 1)[1] for line in known.splitlines() if "node2" in line)
        (cluster.work() / "known").write_text(f"[10.77.0.3]:2222 {key}\n")
        (cluster.work() / "config").write_text(
            "Host there\n HostName 10.77.0.3\n Port 2222\n User root\n"
            " IdentityFile /root/.ssh/id_ed25519\n UserKnownHostsFile /root/work/known\n")
        result = launch_ok(cluster, ["--ssh-config", "/root/work/config", "-H", "there:1", "--",
                                     "hostname"])
        assert result.out == "node2\n"
    finally:
        cluster.nodes[2].restart_sshd()


@pytest.mark.parametrize("flags", [[], ["-q"]])
def test_on_end_runs_with_a_terminal_too(cluster, flags):
    work = cluster.work()
    hook = ('echo "$DTRAIN_JOB_ID $DTRAIN_EXIT_CODE" > /root/work/told; cp "$DTRAIN_SUMMARY" /root/work/summary; '
            'echo "hooked by $DTRAIN_SUMMARY"; exit 3')
    result = cluster.launch([*flags, "-H", "node0:1,node1:1", "--on-end", hook, "--", "sh", "-c", "exit 5"])
    assert result.code == 5 and "dtrain: warning: --on-end ended with 3\n" in result.err, result
    summary = json.loads((work / "summary").read_text())
    assert (work / "told").read_text() == f"{summary['job_id']} 5\n" and summary["exit_code"] == 5, summary
    place = result.out[result.out.index("hooked by ") + len("hooked by "):].strip()
    assert cluster.head.run(["ls", place], check=False).returncode != 0
    assert cluster.launch(["--dry-run", "-H", "node0:1", "--on-end", "echo hooked", "--", "true"]).out.count("hooked") == 0
