# SPDX-License-Identifier: Apache-2.0
"""`dtrain-agent serve` as a service, by systemd's protocols without systemd: who is told that it lives, and
the socket that it is given. Under a real systemd it is in test_package.py."""
import os
import shutil
import signal
import socket
import threading

import pytest

import hosts
import leftovers
import residents
from launching import wait_until

LIVE = ["sh", "-c", "echo up; exec sleep 600"]
FOR_THE_AGENT_ALONE = (b"NOTIFY_SOCKET=", b"WATCHDOG_", b"LISTEN_")


class Manager:
    """Hears what an agent tells its service manager."""

    def __init__(self, cluster, host):
        self.variables = {"NOTIFY_SOCKET": "/root/work/notify"}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._path = cluster.work(host) / "notify"
        self._socket.bind(str(self._path))
        self._socket.settimeout(60)

    def next(self):
        return self._socket.recv(4096).decode()

    def next_but_signs_of_life(self):
        while (told := self.next()) == "WATCHDOG=1":
            pass
        return told

    def pending(self):
        """What has come and nobody has read."""
        told = []
        self._socket.setblocking(False)
        try:
            while True:
                told.append(self.next())
        except BlockingIOError:
            self._socket.settimeout(60)
            return told

    def close(self):
        self._socket.close()
        self._path.unlink()


@pytest.fixture
def managers(cluster):
    made = [Manager(cluster, node) for node in cluster.nodes[:2]]
    yield made
    for manager in made:
        manager.close()


def end(agent):
    # The shepherd leaves its cgroup a moment after its job's end, and one that ends meanwhile leaves it
    # to the agent that comes next.
    wait_until(lambda: not agent.jobs() and not agent.cgroups(), 10, lambda: agent.log)
    agent.signal(signal.SIGTERM)
    assert agent.process.wait(20) == 0, agent.log
    agent.process = None
    agent.stop()


def test_it_tells_when_it_is_ready_and_when_it_ends(cluster, managers):
    agent = residents.Resident(cluster.nodes[0], env=managers[0].variables).start()
    assert managers[0].next() == "READY=1"
    agent.signal(signal.SIGHUP)
    wait_until(lambda: "were reloaded" in agent.log, 20, lambda: agent.log)
    end(agent)
    # No sign of life without WATCHDOG_USEC.
    assert managers[0].pending() == ["STOPPING=1"]


# systemd restarts an agent that gives no sign of life. One that stands still gives none, while another
# gives many.
def test_signs_of_life_come_from_an_agent_that_is_alive(cluster, managers):
    first, second = (residents.Resident(node, env={**manager.variables, "WATCHDOG_USEC": "400000"}).start()
                     for node, manager in zip(cluster.nodes, managers))
    for manager in managers:
        assert manager.next() == "READY=1"
        for _ in range(3):
            assert manager.next() == "WATCHDOG=1"
    first.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, first.pid, os.WSTOPPED)
    managers[0].pending()
    for _ in range(10):
        assert managers[1].next() == "WATCHDOG=1"
    assert managers[0].pending() == []
    first.signal(signal.SIGCONT)
    for _ in range(3):
        assert managers[0].next() == "WATCHDOG=1"
    for agent, manager in zip((first, second), managers):
        end(agent)
        assert manager.next_but_signs_of_life() == "STOPPING=1"


# WATCHDOG_PID names the process that is meant.
def test_a_watchdog_of_another_process(cluster, managers):
    agent = residents.Resident(cluster.nodes[0], env={
        **managers[0].variables, "WATCHDOG_USEC": "400000", "WATCHDOG_PID": "999999"}).start()
    other = residents.Resident(cluster.nodes[1], env={
        **managers[1].variables, "WATCHDOG_USEC": "400000"}).start()
    assert managers[0].next() == managers[1].next() == "READY=1"
    for _ in range(5):
        assert managers[1].next() == "WATCHDOG=1"
    assert managers[0].pending() == []
    end(agent)
    end(other)


# What systemd says to the agent is for no shepherd and no worker.
def test_nobody_inherits_the_managers_variables(cluster, managers):
    agent = residents.Resident(cluster.nodes[0], env={
        **managers[0].variables, "WATCHDOG_USEC": "400000"}).start()
    launch = cluster.start_launch(["--grace", "1s", "-H", "node0:2", "--", *LIVE])
    launch.wait_for("up", count=2)

    def below():
        return [(pid, line) for pid, _, line in leftovers.processes(cluster.nodes[0])
                if line.endswith(" shepherd") or line == "sleep 600"]

    wait_until(lambda: len(below()) == 3, 20, lambda: leftovers.processes(cluster.nodes[0]))
    for pid, line in below():
        names = leftovers.environment_of(pid)
        assert not [name for name in FOR_THE_AGENT_ALONE if name in names], names
        assert names, line
    launch.signal(signal.SIGTERM)
    assert launch.wait(20).code == 143
    end(agent)


# Makes the sockets as systemd does, and begins with the agent when somebody has come.
ACTIVATE = """#!/usr/bin/python3 -I
import os, select, socket, sys
paths = {paths}
os.makedirs(os.path.dirname(paths[0]), mode=0o755)
listeners = [socket.socket(socket.AF_UNIX) for _ in paths]
for listener, path in zip(listeners, paths):
    listener.bind(path)
    listener.listen(16)
select.select(listeners, [], [])
for number, listener in enumerate(listeners, 3):
    assert listener.fileno() == number
    os.set_inheritable(number, True)
os.environ.update(LISTEN_FDS=str(len(paths)), LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="any")
os.execv("{agent}", ["{agent}", *sys.argv[1:]])
"""


HTTP = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        "s.sendall(b'GET /v1/node HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n'); print(s.recv(999).decode())")


# In the agent's own folder, and as its unit has it.
@pytest.mark.parametrize("paths", [[f"{residents.STATE}/agent.sock"],
                                   ["/run/dtrain-sockets/agent.sock", "/run/dtrain-sockets/http.sock"]])
def test_who_came_before_the_agent_is_served(cluster, paths):
    node = cluster.nodes[0]
    script = cluster.work(node) / "activate"
    script.write_text(ACTIVATE.format(paths=paths, agent=hosts.bin_dir() / "dtrain-agent"))
    script.chmod(0o755)
    agent = residents.Resident(node)
    agent.program = "/root/work/activate"
    starting = threading.Thread(target=agent.start)
    starting.start()
    path = node.path(paths[0])

    def come():
        early = socket.socket(socket.AF_UNIX)
        try:
            early.connect(str(path))
        except OSError:
            early.close()
            return None
        return early

    early = wait_until(come, 20, "no socket")
    early.settimeout(60)
    early.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    assert early.recv(9)[3:4] == b"\x04", "its settings"
    early.close()
    starting.join(30)
    result = cluster.launch(["-H", "node0:1", "--", "true"])
    assert result.code == 0 and path.is_socket(), result
    assert not agent.ended() and "serving on" in agent.log
    assert agent.log.count('audit: allowed who="admin:root"') == 1, agent.log
    # Older launchers and monitors look in the agent's folder.
    for listener in paths if len(paths) == 2 else []:
        assert os.readlink(node.path(f"{residents.STATE}/{os.path.basename(listener)}")) == listener
    asked = node.run(["/usr/bin/python3", "-c", HTTP, f"{residents.STATE}/http.sock"])
    assert asked.stdout.startswith("HTTP/1.0 200 "), asked
    end(agent)
    shutil.rmtree(node.path("/run/dtrain-sockets"), ignore_errors=True)
