# SPDX-License-Identifier: Apache-2.0
"""deploy/pki/dtrain-pki run for real: what it makes, and what it refuses."""
import calendar
import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

PKI = Path(__file__).resolve().parents[3] / "deploy/pki/dtrain-pki"


def run(*args, stdin="", **kwargs):
    return subprocess.run([PKI, *map(str, args)], input=stdin, capture_output=True, text=True,
                          timeout=120, **kwargs)


def must(*args, **kwargs):
    done = run(*args, **kwargs)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*args, says, code=1, **kwargs):
    done = run(*args, **kwargs)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert re.search(says, done.stderr), done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("dtrain-pki: ") and done.stderr.count("\n") == 1, done.stderr


def text_of(certificate):
    return subprocess.run(["openssl", "x509", "-in", certificate, "-noout", "-text"],
                          capture_output=True, text=True, check=True).stdout


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def verified(ca, certificate, *more):
    return subprocess.run(["openssl", "verify", "-CAfile", ca, *more, certificate],
                          capture_output=True).returncode == 0


@pytest.fixture
def authority(tmp_path):
    directory = tmp_path / "an authority"
    must("init", directory, "--name", "lab")
    return directory


@pytest.fixture
def stand_in(tmp_path):
    """The environment of a run whose openssl does these lines of shell first."""
    def make(name, lines):
        folder = tmp_path / name
        folder.mkdir()
        program = folder / "openssl"
        program.write_text(f'#!/bin/sh\nreal={shutil.which("openssl")}\n{lines}\nexec "$real" "$@"\n')
        program.chmod(0o755)
        return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return make


@pytest.fixture
def request_of(tmp_path):
    def make(name):
        return must("csr", tmp_path / f"tls-{name}", name)
    return make


def all_files(directory):
    return {p.relative_to(directory): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_init(authority):
    assert mode(authority) == 0o700
    assert mode(authority / "ca.key") == 0o600
    text = text_of(authority / "ca.crt")
    assert "CA:TRUE, pathlen:0" in text and "O = lab" in text and "prime256v1" in text
    # A path with a space in it is an ordinary path.
    must("node", authority, "gpu01")


def test_init_leaves_what_is_there(authority, tmp_path):
    before = all_files(authority)
    refused("init", authority, says="already")
    assert all_files(authority) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    refused("init", tmp_path / "full", says="not an empty directory")
    refused("init", tmp_path / "new", "--name", "a/b", says="cluster's name", code=2)
    assert not (tmp_path / "new").exists()


def test_a_node_is_server_and_client_under_its_names(authority):
    must("node", authority, "gpu01", "--ip", "10.0.0.1", "--ip", "fe80::1", "--dns", "gpu01.lab.example")
    folder = authority / "nodes/gpu01"
    text = text_of(folder / "node.crt")
    assert "TLS Web Server Authentication, TLS Web Client Authentication" in text
    assert ("URI:dtrain:node:gpu01, DNS:gpu01, IP Address:10.0.0.1, "
            "IP Address:FE80:0:0:0:0:0:0:1, DNS:gpu01.lab.example") in text
    assert "CA:FALSE" in text
    assert mode(folder / "node.key") == 0o600
    assert verified(authority / "ca.crt", folder / "node.crt")


@pytest.mark.parametrize("flags, role", [([], "user"), (["--admin"], "admin"), (["--observer"], "observer")])
def test_a_user_is_a_client_only(authority, flags, role):
    must("user", authority, "alice", *flags)
    certificate = authority / "users/alice/user.crt"
    text = text_of(certificate)
    assert f"URI:dtrain:{role}:alice\n" in text
    assert "TLS Web Client Authentication" in text and "Server" not in text
    assert verified(authority / "ca.crt", certificate, "-purpose", "sslclient")
    assert not verified(authority / "ca.crt", certificate, "-purpose", "sslserver")


@pytest.mark.parametrize("name", ["", "-x", "../gpu", "a/b", "a b", "GPU", "a;id", "$(id)", "a\nb", "a,DNS:b",
                                  "a..b", "gpü", "x" * 64])
def test_bad_node_names(authority, name):
    before = all_files(authority)
    refused("node", authority, name, says="not a node's name", code=2)
    refused("token", authority, name, says="not a node's name", code=2)
    assert all_files(authority) == before


@pytest.mark.parametrize("flags", [["--ip", "1.2.3.256"], ["--ip", "1.2.3"], ["--ip", "x"], ["--dns", "a,b"],
                                   ["--dns", "-a"], ["--dns"], ["--days", "0"], ["--days", "9999"],
                                   ["--days", "1 2"], ["--admin"], ["--bogus"]])
def test_bad_options(authority, flags):
    refused("node", authority, "gpu01", *flags, says="", code=2)
    assert not (authority / "nodes/gpu01").exists()


def test_bad_users_and_commands(authority):
    refused("user", authority, "Alice Smith", says="not a user's name", code=2)
    refused("user", authority, "0root", says="not a user's name", code=2)
    refused("frobnicate", authority, says="no command", code=2)
    refused("node", says="takes a directory", code=2)
    assert "dtrain-pki" in must("help")


def test_one_certificate_for_a_name(authority):
    must("user", authority, "alice")
    refused("user", authority, "alice", "--admin", says="already has a certificate; renew it with")
    must("node", authority, "alice")
    refused("renew", authority, "alice", says="node:alice or user:alice", code=2)
    must("renew", authority, "user:alice")


def test_an_authority_that_others_can_read_is_not_used(authority):
    os.chmod(authority / "ca.key", 0o640)
    refused("node", authority, "gpu01", says="chmod 600")
    os.chmod(authority / "ca.key", 0o600)
    os.chmod(authority, 0o755)
    refused("node", authority, "gpu01", says="chmod 700")


def test_no_authority(tmp_path):
    refused("node", tmp_path / "none", "gpu01", says="dtrain-pki init")
    refused("list", tmp_path, says="dtrain-pki init")


def test_renewed_for_the_same_key(authority):
    must("node", authority, "gpu01", "--ip", "10.0.0.1", "--days", "5")
    certificate = authority / "nodes/gpu01/node.crt"
    before, key = text_of(certificate), (authority / "nodes/gpu01/node.key").read_bytes()
    must("renew", authority, "gpu01")
    after = text_of(certificate)
    serial = re.compile(r"Serial Number:\s+(\S+)")
    assert serial.search(before)[1] != serial.search(after)[1]
    assert "IP Address:10.0.0.1" in after
    assert before[before.index("pub:"):before.index("ASN1")] == after[after.index("pub:"):after.index("ASN1")]
    assert (authority / "nodes/gpu01/node.key").read_bytes() == key
    refused("renew", authority, "gpu02", says="no certificate of node gpu02")


def test_revoked_with_all_its_certificates(authority, tmp_path):
    must("user", authority, "alice")
    first = tmp_path / "first.crt"
    first.write_bytes((authority / "users/alice/user.crt").read_bytes())
    must("renew", authority, "alice")
    second = tmp_path / "second.crt"
    second.write_bytes((authority / "users/alice/user.crt").read_bytes())
    must("user", authority, "alice2")
    must("revoke", authority, "alice")
    crl = ["-crl_check", "-CRLfile", authority / "crl.pem"]
    assert not verified(authority / "ca.crt", first, *crl)
    assert not verified(authority / "ca.crt", second, *crl)
    assert verified(authority / "ca.crt", authority / "users/alice2/user.crt", *crl)
    assert [line.split()[2] for line in must("list", authority).splitlines()] == [
        "STATE", "revoked", "revoked", "valid"]
    must("user", authority, "alice")  # anew, with another key


# A node whose clock is slow takes it all the same, as it takes certificates.
def test_a_new_list_of_the_revoked_is_an_hour_old(authority, tmp_path):
    must("user", authority, "alice")
    must("revoke", authority, "user:alice")
    told = subprocess.run(["openssl", "crl", "-in", authority / "crl.pem", "-noout", "-lastupdate"],
                          check=True, capture_output=True, text=True).stdout
    begin = calendar.timegm(time.strptime(told.strip(), "lastUpdate=%b %d %H:%M:%S %Y GMT"))
    assert 3600 <= time.time() - begin < 3600 + 300, told


# Debian 11, Ubuntu 20.04 and RHEL 8 have 1.1.1.
def test_an_openssl_before_3_0(tmp_path, stand_in):
    env = stand_in("old", '''case " $* " in
  *" -help "*) "$real" "$@" 2>&1 | grep -v -e -crl_lastupdate >&2; exit ;;
  *" -crl_lastupdate "*) echo "ca: Unrecognized flag crl_lastupdate" >&2; exit 1 ;;
esac''')
    authority = tmp_path / "ca"
    must("init", authority, env=env)
    must("user", authority, "alice", env=env)
    certificate = tmp_path / "alice.crt"
    certificate.write_bytes((authority / "users/alice/user.crt").read_bytes())
    crl = ["-crl_check", "-CRLfile", authority / "crl.pem"]
    assert verified(authority / "ca.crt", certificate, *crl)
    must("revoke", authority, "alice", env=env)
    assert not verified(authority / "ca.crt", certificate, *crl)


def test_without_a_list_nothing_is_created_or_revoked(authority, tmp_path, stand_in):
    env = stand_in("full", '''case " $* " in *" -gencrl "*) echo "No space left on device" >&2; exit 1 ;; esac''')
    made = tmp_path / "made"
    refused("init", made, says=r"openssl failed \(No space left on device\); no authority was created", env=env)
    assert not (made / "ca.key").exists()
    refused("node", made, "gpu01", says="contains no authority")
    shutil.rmtree(made)
    must("init", made)
    must("user", authority, "alice")
    certificate = tmp_path / "alice.crt"
    certificate.write_bytes((authority / "users/alice/user.crt").read_bytes())
    before = (authority / "crl.pem").read_bytes()
    refused("revoke", authority, "alice", says="crl.pem is unchanged, and nodes still accept user alice", env=env)
    assert (authority / "crl.pem").read_bytes() == before
    must("revoke", authority, "alice")
    assert not verified(authority / "ca.crt", certificate, "-crl_check", "-CRLfile", authority / "crl.pem")
    assert not (authority / "users/alice").exists()


# By which OpenSSL tells the lists of two authorities of one name apart.
def test_a_list_names_the_key_of_its_authority(authority):
    def told(*words):
        return subprocess.run(["openssl", *words, "-noout", "-text"], check=True, capture_output=True, text=True).stdout
    [key] = re.findall(r"Subject Key Identifier: *\n\s*(\S+)", told("x509", "-in", authority / "ca.crt"))
    assert re.search(rf"Authority Key Identifier: *\n\s*(keyid:)?{key}\s", told("crl", "-in", authority / "crl.pem"))


# So that a node whose clock is slow believes the authority, too.
def test_a_new_authority_is_an_hour_old(authority):
    told = subprocess.run(["openssl", "x509", "-in", authority / "ca.crt", "-noout", "-startdate"],
                          check=True, capture_output=True, text=True).stdout
    begin = calendar.timegm(time.strptime(told.strip(), "notBefore=%b %d %H:%M:%S %Y GMT"))
    assert 3600 <= time.time() - begin < 3600 + 300, told
    assert must("list", authority).count("\n") <= 1, "it is none of those that it has issued"


def test_list(authority):
    must("node", authority, "gpu01")
    must("user", authority, "mon", "--observer", "--days", "30")
    lines = [line.split() for line in must("list", authority).splitlines()]
    assert lines[0] == ["KIND", "NAME", "STATE", "UNTIL", "SERIAL"]
    assert [line[:3] for line in lines[1:]] == [["node", "gpu01", "valid"], ["observer", "mon", "valid"]]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", lines[1][3]) and re.fullmatch("[0-9A-F]{38,40}", lines[1][4])


def test_list_shows_tokens_that_wait(authority, request_of):
    token = must("token", authority, "gpu01").strip()
    must("token", authority, "gpu02", "--ttl", "2d")
    lines = [line.split() for line in must("list", authority).splitlines()]
    assert sorted(line[:3] for line in lines[1:]) == [["token", "gpu01", "waiting"], ["token", "gpu02", "waiting"]]
    assert token not in must("list", authority)
    must("sign", authority, stdin=token + "\n" + request_of("gpu01"))
    lines = [line.split() for line in must("list", authority).splitlines()]
    assert [line[:3] for line in lines[1:]] == [["node", "gpu01", "valid"], ["token", "gpu02", "waiting"]]


def test_bundle(authority):
    must("user", authority, "alice")
    done = subprocess.run([PKI, "bundle", authority, "alice"], capture_output=True, timeout=120)
    members = {m.name: m.mode for m in tarfile.open(fileobj=io.BytesIO(done.stdout))}
    assert members == {"ca.crt": 0o644, "crl.pem": 0o644, "user.crt": 0o644, "user.key": 0o600}
    refused("bundle", authority, "bob", says="no certificate of node bob")


# ---- Joining ----

# I4
def test_a_token_is_good_once(authority, request_of, tmp_path):
    token = must("token", authority, "gpu02", "--ip", "10.0.0.2").strip()
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert not any(token.encode() in data for data in all_files(authority).values())
    assert not any(token in str(name) for name in all_files(authority))
    certificate = tmp_path / "node.crt"
    certificate.write_text(must("sign", authority, stdin=token + "\n" + request_of("gpu02")))
    assert "URI:dtrain:node:gpu02, DNS:gpu02, IP Address:10.0.0.2" in text_of(certificate)
    assert mode(tmp_path / "tls-gpu02/node.key") == 0o600
    refused("sign", authority, stdin=token + "\n" + request_of("gpu02"), says="already used, on 20")
    must("revoke", authority, "gpu02")
    refused("sign", authority, stdin=token + "\n" + request_of("gpu02"), says="already used")
    refused("bundle", authority, "gpu02", says="no certificate")


def test_a_token_is_good_once_for_many_who_come_at_once(authority, request_of, tmp_path):
    request = tmp_path / "request"
    request.write_text(must("token", authority, "gpu02") + request_of("gpu02"))
    many = [subprocess.Popen([PKI, "sign", authority], stdin=request.open(), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True) for _ in range(8)]
    answers = [one.communicate(timeout=120) for one in many]
    assert sorted(one.returncode for one in many) == [0] + [1] * 7
    assert sum("BEGIN CERTIFICATE" in out for out, _ in answers) == 1
    assert sum("already used" in err for _, err in answers) == 7
    assert len((authority / "index.txt").read_text().splitlines()) == 1


def test_a_key_that_never_left_its_node(authority, request_of):
    token = must("token", authority, "gpu02").strip()
    must("sign", authority, stdin=token + "\n" + request_of("gpu02"))
    refused("bundle", authority, "gpu02", says="never left the node")
    must("renew", authority, "gpu02")


def test_a_token_is_for_one_name(authority, request_of):
    token = must("token", authority, "gpu02").strip()
    refused("sign", authority, stdin=token + "\n" + request_of("gpu03"), says="by gpu03, but the token is for gpu02")
    # It was not used up by that.
    must("sign", authority, stdin=token + "\n" + request_of("gpu02"))


def test_an_expired_token(authority, request_of):
    token = must("token", authority, "gpu02", "--ttl", "1h").strip()
    (stored,) = (authority / "tokens").iterdir()
    lines = stored.read_text().splitlines()
    stored.write_text("\n".join([lines[0], str(int(lines[1]) - 3601), lines[2]]) + "\n")
    refused("sign", authority, stdin=token + "\n" + request_of("gpu02"), says="expired on 20")


def test_tokens_that_are_none(authority, request_of, tmp_path):
    request = request_of("gpu02")
    refused("sign", authority, stdin="0" * 64 + "\n" + request, says="unknown token")
    refused("sign", authority, stdin="../../ca.key\n" + request, says="not a token")
    refused("sign", authority, stdin=request, says="no request|not a token")
    refused("sign", authority, stdin="", says="no request")
    refused("sign", authority, stdin="x" * 100000, says="no request")
    refused("sign", authority, "--token", "0" * 64, stdin=request, says="no option", code=2)
    for ttl in ["0", "1y", "31d", "-1", "99999999"]:
        refused("token", authority, "gpu02", "--ttl", ttl, says="valid for 30d at most|--ttl", code=2)
    assert list((authority / "tokens").iterdir()) == []
    assert not list(authority.glob("work.*"))
    file = tmp_path / "token"
    file.write_text(must("token", authority, "gpu02"))
    must("sign", authority, "--token-file", file, stdin=request)


def test_a_request_that_asks_for_more(authority, tmp_path):
    """What a certificate says is decided by the authority, not by the request."""
    key = tmp_path / "k"
    csr = subprocess.run(
        ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
         "-subj", "/OU=admin/CN=gpu02", "-addext", "subjectAltName=URI:dtrain:admin:root,DNS:gpu01",
         "-addext", "basicConstraints=critical,CA:TRUE"], capture_output=True, text=True, check=True).stdout
    token = must("token", authority, "gpu02").strip()
    certificate = tmp_path / "c"
    certificate.write_text(must("sign", authority, stdin=token + "\n" + csr))
    text = text_of(certificate)
    assert "admin" not in text and "CA:TRUE" not in text and "gpu01" not in text
    assert "URI:dtrain:node:gpu02, DNS:gpu02" in text


def test_join_over_a_remote_shell(authority, tmp_path):
    # A remote shell as ssh is one: its last argument goes through a shell on the other side. It
    # writes down its arguments, among which the token must not be.
    plain = tmp_path / "ca"
    plain.symlink_to(authority)
    shell = tmp_path / "rsh"
    shell.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>"{tmp_path}/argv"\nPATH="{PKI.parent}:$PATH" exec sh -c "$3"\n')
    shell.chmod(0o755)
    token = must("token", authority, "gpu02").strip()
    tls = tmp_path / "etc tls"
    must("join", tls, "gpu02", "--ca", f"ops@host:{plain}", "--rsh", shell, stdin=token + "\n")
    assert {p.name: mode(p) for p in tls.iterdir()} == {
        "ca.crt": 0o644, "crl.pem": 0o644, "node.crt": 0o644, "node.key": 0o600}
    assert verified(tls / "ca.crt", tls / "node.crt")
    assert token not in (tmp_path / "argv").read_text()
    other = tmp_path / "other"
    done = run("join", other, "gpu03", "--ca", f"host:{plain}", "--rsh", shell, stdin=token + "\n")
    assert done.returncode == 1 and "already used" in done.stderr and "returned no certificate" in done.stderr
    assert [p.name for p in other.iterdir()] == ["node.key"]
    refused("join", tls, "gpu02", "--ca", f"host:{plain}", "--rsh", shell, stdin=token, says="already")
    refused("join", other, "gpu03", "--ca", f"host:{plain}", "--rsh", shell, says="no token on stdin", code=2)


# An authority that was broken into sends what it likes; join runs as root.
@pytest.mark.parametrize("bad,kind", [
    ("ca.crt", tarfile.SYMTYPE), ("crl.pem", tarfile.SYMTYPE), ("node.crt", tarfile.LNKTYPE),
    ("crl.pem", tarfile.DIRTYPE), ("crl.pem", tarfile.FIFOTYPE)])
def test_join_takes_regular_files_only(authority, tmp_path, bad, kind):
    victim = tmp_path / "victim"
    must("node", authority, "gpu09")
    sources = {"ca.crt": authority / "ca.crt", "crl.pem": authority / "crl.pem",
               "node.crt": authority / "nodes/gpu09/node.crt"}
    victim.write_bytes(sources[bad].read_bytes())  # so that what it leads to fits together
    victim.chmod(0o600)
    archive = tmp_path / "sent.tar"
    with tarfile.open(archive, "w") as tar:
        for name, source in sources.items():
            if name != bad:
                tar.add(source, name)
        member = tarfile.TarInfo(bad)
        member.type, member.linkname = kind, str(victim)
        tar.addfile(member)
    shell = tmp_path / "rsh"
    shell.write_text(f'#!/bin/sh\ncat >/dev/null\nexec cat "{archive}"\n')
    shell.chmod(0o755)
    tls = tmp_path / "tls"
    done = run("join", tls, "gpu09", "--ca", "host:/ca", "--rsh", shell, stdin="0" * 64 + "\n")
    assert mode(victim) == 0o600
    assert done.returncode == 1, done
    assert [p.name for p in tls.iterdir()] == ["node.key"]


@pytest.mark.parametrize("where", ["-oProxyCommand=id:/d", "host:/d;id", "host:/$(id)", "host:d", "host", "h h:/d"])
def test_join_where_a_shell_would_be_misled(tmp_path, where):
    refused("join", tmp_path / "t", "gpu02", "--ca", where, says="join needs --ca", code=2)


# /etc/dtrain may not be there yet; the agent, who is not root, goes through it.
def test_only_the_last_folder_is_closed(tmp_path):
    must("csr", tmp_path / "etc/tls", "gpu02")
    assert mode(tmp_path / "etc") == 0o755 and mode(tmp_path / "etc/tls") == 0o700


def test_csr_leaves_a_node_that_has_joined_alone(tmp_path):
    tls = tmp_path / "t"
    must("csr", tls, "gpu02")
    key = (tls / "node.key").read_bytes()
    must("csr", tls, "gpu02")
    assert (tls / "node.key").read_bytes() == key
    (tls / "node.crt").touch()
    refused("csr", tls, "gpu02", says="already")
