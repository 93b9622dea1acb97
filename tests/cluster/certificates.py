# SPDX-License-Identifier: Apache-2.0
"""Certificates of dtrain-pki for the hosts of a cluster and for who launches there."""
import subprocess

import hosts

PKI = hosts.SOURCE_DIR / "deploy/pki/dtrain-pki"


def pki(*words):
    return subprocess.run([str(PKI), *map(str, words)], check=True, capture_output=True).stdout


class Authority:
    """`nodes`: hosts, each of which gets a certificate for its name and address."""

    def __init__(self, folder, nodes):
        self.folder = folder / "ca"
        pki("init", self.folder, "--name", "test")
        for node in nodes:
            pki("node", self.folder, node.name, "--ip", node.address)

    def bundle(self, name, into):
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        subprocess.run(["tar", "-x", "-C", str(into)], input=pki("bundle", self.folder, name),
                       check=True)

    def user(self, name, *flags):
        pki("user", self.folder, name, *flags)


def agent_flags(port, folder="/root/work/tls"):
    """For an agent that listens with the bundle in `folder`."""
    return ["--listen", f"0.0.0.0:{port}", "--tls-ca", f"{folder}/ca.crt", "--tls-cert",
            f"{folder}/node.crt", "--tls-key", f"{folder}/node.key"]
