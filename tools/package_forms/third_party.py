# SPDX-License-Identifier: Apache-2.0
"""What of others is inside released programs: found from the linker's maps and the compiler's lists of
headers, named by Debian's packages, written as SPDX 2.3 beside the licences."""
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

# Debian source package: its licence. A library that is new here fails until a person has read its
# copyright file.
LICENCES = {
    "abseil": "Apache-2.0",
    "boost1.74": "BSL-1.0",
    "c-ares": "MIT",
    "cross-toolchain-base": "LGPL-2.1-or-later",  # glibc for another machine
    "cli11": "BSD-3-Clause",
    "fmtlib": "MIT",
    "gcc": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "glibc": "LGPL-2.1-or-later",
    "grpc": "Apache-2.0 AND BSD-3-Clause AND MIT",
    "libssh": "LGPL-2.1-or-later",
    "libyaml": "MIT",
    "nlohmann-json3": "MIT",
    "openssl": "Apache-2.0",
    "pmix": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "re2": "BSD-3-Clause",
    "spdlog": "MIT",
    "tomlplusplus": "MIT",
    "zlib": "Zlib",
}
# What the web page has inside: of npm's packages, the files in launcher/page/vendor.
SOURCE = Path(__file__).resolve().parents[2]
VENDOR = SOURCE / "launcher/page/vendor"
VENDORED = {"htm": ("3.1.1", "Apache-2.0"), "preact": ("10, as in htm 3.1.1", "MIT")}
# Declarations of the kernel's interface, which its licence leaves free to programs.
INTERFACES = {"linux"}
NOTICE = """\
dtrain is under the Apache License 2.0. Its programs and libraries hold parts of the packages that are
listed in the .spdx.json file here, as Debian builds them, and of htm and preact, as npm has them;
<package>.copyright has the licence of each, and common-licenses the texts that these refer to.

lib/dtrain/libdtrain-ssh.so is libssh {libssh} (LGPL 2.1 or later, with permission to link with OpenSSL),
unchanged, linked with OpenSSL and zlib. dtrain opens the system's libssh first, and you may replace this
file, or name another in the variable DTRAIN_LIBSSH. Its source is Debian's source package libssh
{libssh}: https://snapshot.debian.org/package/libssh/{libssh}/
"""


class PackagingError(Exception):
    pass


def _host_paths(path, machine):
    """Names that a file may have in this system: those of another machine lie in a folder of their own,
    unpacked from packages whose like for this machine is installed."""
    found = re.search(r"/usr/.*", path)
    path = found.group() if found else path
    return [path, path.replace(f"/{machine}-linux-gnu/", "/x86_64-linux-gnu/")]


class Debian:
    """Which package of this system has a file."""

    def __init__(self):
        self._owners = {}
        for file in Path("/var/lib/dpkg/info").glob("*.list"):
            for path in file.read_text(errors="replace").splitlines():
                if path.startswith(("/usr/", "/lib/")) and not path.startswith("/usr/share/"):
                    self._owners[path.removeprefix("/usr")] = file.stem
        lines = subprocess.run(
            ["dpkg-query", "-W", "-f", "${binary:Package}\t${source:Package}\t${source:Version}\n"],
            check=True, capture_output=True, text=True).stdout.splitlines()
        self._sources = {name: (source, version)
                         for name, source, version in (line.split("\t") for line in lines)}

    def package(self, paths):
        for path in paths:
            if path.removeprefix("/usr") in self._owners:
                return self._owners[path.removeprefix("/usr")]
        raise PackagingError(f"{paths[0]} is linked in, and no package of this system has it")

    def source(self, package):
        return self._sources.get(package) or self._sources[package.partition(":")[0]]


def _is_the_systems(path, build):
    """The sources and the build may lie below /usr, too."""
    return "/usr/" in path and not any(Path(build, path).is_relative_to(ours) for ours in (SOURCE, build))


def _linked(portable, name):
    """The archives and start files that the linker took something from."""
    map_file = portable / "maps" / f"{name}.map"
    if not map_file.exists():
        raise PackagingError(f"{map_file} is missing: build target portable")
    text = map_file.read_text(errors="replace")
    paths = set(re.findall(r"(/\S+\.a)\(\S+\.o\)", text))
    paths |= set(re.findall(r"^LOAD (/\S+\.o)$", text, re.MULTILINE))
    return {str(Path(path).resolve()) for path in paths if _is_the_systems(path, portable)}


def _ninja(build, *words):
    return subprocess.run(["ninja", "-C", build, "-t", *words], check=True, capture_output=True,
                          text=True).stdout.splitlines()


def _included(build, files):
    """The headers of the system that the objects of these files were compiled with."""
    objects = {line for line in _ninja(build, "inputs", *files) if line.endswith(".o")}
    headers, wanted = set(), False
    for line in _ninja(build, "deps"):
        if line[:1] not in (" ", ""):
            wanted = line.partition(":")[0] in objects
        elif wanted and _is_the_systems(line.strip(), build):
            headers.add(str((build / line.strip()).resolve()))
    if not headers:
        raise PackagingError(f"ninja knows no headers of {build}: build it here first")
    return headers


def _id(*words):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "-".join(words))


def _find(portable, machine, files):
    """{(source, version): {"packages", "archives", "linked"}}, and by file the sources linked into it."""
    debian, found, inside = Debian(), {}, {}

    def add(path):
        package = debian.package(_host_paths(path, machine))
        source = debian.source(package)
        entry = found.setdefault(source, {"packages": set(), "archives": set()})
        entry["packages"].add(package)
        return source, entry

    for file, name in files.items():
        for path in sorted(_linked(portable, name)):
            source, entry = add(path)
            entry["archives"].add(Path(path).name)
            inside.setdefault(file, set()).add(source)
    for path in _included(portable.parent, [str(file.relative_to(portable.parent)) for file in files]):
        add(path)
    return {source: entry for source, entry in found.items() if source[0] not in INTERFACES}, inside


def _licence(source):
    name = re.sub(r"^(gcc)-\d+.*", r"\1", source)
    if name not in LICENCES:
        raise PackagingError(f"{source} is linked in, and its licence is not known: read "
                             "its copyright file and add it to tools/package_forms/third_party.py")
    return LICENCES[name]


def _copy_texts(found, out):
    common = set()
    for (source, _), entry in found.items():
        package = sorted(entry["packages"])[0].partition(":")[0]
        text = Path("/usr/share/doc", package, "copyright").read_bytes()
        (out / f"{source}.copyright").write_bytes(text)
        common |= set(re.findall(rb"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])", text))
    for name in VENDORED:
        shutil.copyfile(VENDOR / f"LICENSE.{name}", out / f"{name}.copyright")
    (out / "common-licenses").mkdir()
    for name in sorted(common):
        shutil.copyfile(Path("/usr/share/common-licenses", name.decode()), out / "common-licenses" / name.decode())


def write(portable, machine, version, created, out):
    """Fills the folder `out` for the files of `portable`."""
    # By the names of their targets.
    files = {portable / "bin/dtrain": "dtrain", portable / "bin/dtrain-agent": "dtrain-agent",
             portable / "bin/dtrain-spawner": "dtrain-spawner", portable / "bin/dtrain-shepherd": "dtrain-shepherd",
             portable / "bin/dtrain-allreduce": "dtrain-allreduce",
             portable / f"lib/libdtrain.so.{version}": "dtrain_runtime",
             portable / "lib/dtrain/libdtrain-ssh.so": "dtrain_libssh"}
    found, inside = _find(portable, machine, files)
    out.mkdir(parents=True)
    _copy_texts(found, out)
    libssh = next(version for source, version in found if source == "libssh")
    (out / "NOTICE").write_text(NOTICE.format(libssh=libssh))

    packages = [{"SPDXID": "SPDXRef-dtrain", "name": "dtrain", "versionInfo": version, "filesAnalyzed": False,
                 "downloadLocation": "NOASSERTION", "licenseConcluded": "Apache-2.0",
                 "licenseDeclared": "Apache-2.0", "copyrightText": "2026 the dtrain authors"}]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-dtrain")]
    for (source, source_version), entry in sorted(found.items()):
        licence, archives = _licence(source), sorted(entry["archives"])
        packages.append({
            "SPDXID": _id(source), "name": source, "versionInfo": source_version, "filesAnalyzed": False,
            "supplier": "Organization: Debian",
            "downloadLocation": f"https://snapshot.debian.org/package/{source}/{source_version}/",
            "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION",
            "comment": f"linked in: {', '.join(archives)}" if archives else "headers only",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:deb/debian/{source}@{source_version}?arch=source"}]})
        relations.append(("SPDXRef-dtrain", "CONTAINS", _id(source)))
    for name, (its_version, licence) in VENDORED.items():
        packages.append({
            "SPDXID": _id(name), "name": name, "versionInfo": its_version, "filesAnalyzed": False,
            "downloadLocation": f"https://registry.npmjs.org/{name}", "licenseConcluded": licence, "licenseDeclared": licence,
            "copyrightText": "NOASSERTION", "comment": "in the web page of bin/dtrain"})
        relations.append(("SPDXRef-dtrain", "CONTAINS", _id(name)))
    described, total = [], hashlib.sha256()
    for file in files:
        data, name = file.read_bytes(), str(file.relative_to(portable))
        total.update(data)
        described.append({"SPDXID": _id("file", name), "fileName": f"./{name}", "copyrightText": "NOASSERTION",
                          "licenseConcluded": "NOASSERTION",
                          "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
                                        {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()}]})
        relations.append(("SPDXRef-dtrain", "CONTAINS", _id("file", name)))
        for source, _ in sorted(inside.get(file, ())):
            relations.append((_id("file", name), "STATIC_LINK", _id(source)))
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"dtrain-{version}-{machine}",
        "documentNamespace": f"urn:dtrain:spdx:{version}:{machine}:{total.hexdigest()}",
        "creationInfo": {"created": created, "creators": ["Tool: dtrain tools/package"]},
        "packages": packages, "files": described,
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                          for a, kind, b in relations]}
    (out / f"dtrain-{version}-{machine}.spdx.json").write_text(json.dumps(document, indent=1) + "\n")
