# SPDX-License-Identifier: Apache-2.0
"""A node whose agent is the user dtrain's and whose jobs root's dtrain-spawner starts (ADR 30). The agent is under the
system call filter of its unit (sealed.py). Its /etc is a copy of its own, so accounts and rules are whatever a test
needs. A test takes `guarded`, and `alices_job` to have her job count lines beside the attack."""
import os
import shutil
from pathlib import Path

import pytest

import sealed
import spawners
from certificates import Authority, agent_flags
from launching import wait_until
from mallory import DTRAIN, IDS, AlicesJob, Place

PORT = 9797
# No user with a uid of 999 or below is one whom min-uid admits; the others are of this run of tests alone.
SYSTEM = 999
UIDS = {**IDS, "dtrain": spawners.USERS["dtrain"], "late": 80_000_000 + os.getpid(),
        "shut": 90_000_000 + os.getpid(), "system": SYSTEM}
SHELLS = {"shut": "/usr/sbin/nologin"}
EXPIRED = {"late": "100"}  # days after 1970, as chage -E writes it
# What Debian's package asks; without common-account's other modules, which a machine may lack.
PAM = "account required pam_unix.so\n"


class Guarded(Place):
    def __init__(self, cluster, folder, **spawner):
        """`spawner`: of spawners.Spawner."""
        self.cluster = cluster
        self.node = cluster.nodes[0]
        self.ids = UIDS
        self.add_users()
        authority = Authority(folder, cluster.nodes)
        authority.bundle(f"node:{self.node.name}", self.node.path("/home/dtrain/tls"))
        self.node.run(["chown", "-R", str(UIDS["dtrain"]), "/home/dtrain/tls"])
        for user in UIDS:
            if user != "dtrain":
                authority.user(user)
                authority.bundle(f"user:{user}", cluster.work() / user)
        self.spawner = spawners.Spawner(self.node, ["--patience", "5"], **spawner)
        self.agent = sealed.seal(spawners.make_agent(self.node, agent_flags(PORT, "/home/dtrain/tls")))

    def etc(self, name):
        """A file of the node's /etc, which may be changed."""
        return self.node.base / "etc" / name

    def add_users(self):
        self.node.run(["cp", "-a", "/etc", self.etc("")])
        accounts = {"passwd": [], "group": [], "shadow": ["root:*:19000:0:99999:7:::\n"]}
        for name, uid in UIDS.items():
            shell = SHELLS.get(name, "/bin/sh")
            accounts["passwd"].append(f"{name}:x:{uid}:{uid}::/home/{name}:{shell}\n")
            accounts["group"].append(f"{name}:x:{uid}:\n")
            accounts["shadow"].append(f"{name}:*:19000:0:99999:7::{EXPIRED.get(name, '')}:\n")
        for file, lines in accounts.items():
            kept = [] if file == "shadow" else [
                line for line in Path(f"/etc/{file}").read_text().splitlines(True)
                if line.split(":")[2] != str(SYSTEM)]
            self.etc(file).write_text("".join(kept + lines))
        self.etc("pam.d/dtrain").write_text(PAM)
        self.etc("dtrain").mkdir(exist_ok=True)
        self.node.run(["mount", "--bind", self.etc(""), "/etc"])
        self.node.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/home"])
        for name, uid in UIDS.items():
            for folder in (f"/home/{name}", f"/home/{name}/run"):
                self.node.path(folder).mkdir(mode=0o700)
                os.chown(self.node.path(folder), uid, uid)

    def start(self):
        self.spawner.start()
        self.agent.start()
        return self

    def configure(self, text):
        """spawner.conf, from now on. Jobs go on."""
        self.etc("dtrain/spawner.conf").write_text(text)
        served = self.agent.log.count("dtrain-spawner serves on")
        self.spawner.kill()
        self.spawner.start()
        wait_until(lambda: self.agent.log.count("dtrain-spawner serves on") > served, 20, lambda: self.agent.log)

    def start_launch(self, *args, **options):
        """With a lease that lets a job wait until the agent is back."""
        return super().start_launch("--lease", "60s", *args, **options)

    def start_by_tls(self, user, *command, slots=1):
        """By ssh a bridge serves the launch itself if the agent is slow."""
        return self.cluster.start_launch(
            ["--agent", "tcp", "--tls-dir", f"/root/work/{user}", "--wdir", "/", "--bind", "none", "--grace", "1s",
             "-H", f"{self.node.address}:{slots}", "--", *command])

    def launch_by_tls(self, user, *command):
        return self.start_by_tls(user, *command).wait()

    def launch_there(self, user, *command, **options):
        """By a process of that user's on the node, at the agent's unix socket. Returns it with its output."""
        process = self.popen([DTRAIN, "launch", "--bind", "none", "-n", "1", "--", *command], user=user, **options)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def close(self):
        self.agent.stop()
        self.spawner.stop()
        for user in UIDS:
            shutil.rmtree(self.cluster.work() / user, ignore_errors=True)


@pytest.fixture
def guarded(make_cluster, tmp_path):
    made = Guarded(make_cluster(1), tmp_path).start()
    yield made
    made.close()


@pytest.fixture
def alices_job(guarded):
    job = AlicesJob(guarded)
    yield job
    job.check()
