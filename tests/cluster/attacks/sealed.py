# SPDX-License-Identifier: Apache-2.0
"""The system call filter of dtrain-agent.service for agents that a test starts, read from the unit itself and made into
the kernel's form by libseccomp, as systemd does it. What else the unit takes away is tried under systemd, in
test_package_agent.py. An agent of root's has no filter, nor has dtrain-agent-root.service: its workers would inherit
it."""
import ctypes
import errno
import functools
import os
import re
import subprocess
import tempfile
from pathlib import Path

import hosts

UNIT = hosts.SOURCE_DIR / "deploy/systemd/dtrain-agent.service"
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # SCMP_ACT_ALLOW, SCMP_ACT_ERRNO(0)
SET_NO_NEW_PRIVS, SET_SECCOMP, MODE_FILTER = 38, 22, 2  # prctl(2)
INSTRUCTION = 8  # bytes

libc = ctypes.CDLL(None, use_errno=True)


class Program(ctypes.Structure):
    """sock_fprog: how many instructions, and where."""
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def parse_groups(listing):
    """{"@aio": calls, and groups}, of what systemd-analyze prints."""
    groups, members = {}, []
    for line in listing.splitlines():
        word = line.strip()
        if line.startswith("@"):
            members = groups[word] = []
        elif line.startswith(" ") and word and not word.startswith("#"):
            members.append(word)
    return groups


def calls_of(word, groups):
    """Those of a group, or the one that it names."""
    if not word.startswith("@"):
        return {word}
    return {call for member in groups[word] for call in calls_of(member, groups)}


def allowed(unit, groups):
    """The calls that the lines of a unit leave. They count in their order, and @default is always there."""
    calls = calls_of("@default", groups)
    lines = re.findall(r"^SystemCallFilter=(.+)$", unit, re.M)
    assert lines and not lines[0].startswith("~"), "not a list of what is allowed"
    for line in lines:
        named = {call for word in line.removeprefix("~").split() for call in calls_of(word, groups)}
        calls = calls - named if line.startswith("~") else calls | named
    return calls


def compile_filter(calls, error):
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(REFUSE | error))
    assert context, "seccomp_init"
    for call in sorted(calls):
        number = library.seccomp_syscall_resolve_name(call.encode())
        # Below 0 are those of other machines, and those that this libseccomp does not know.
        assert number < 0 or library.seccomp_rule_add(context, ALLOW, number, 0) == 0, call
    with tempfile.TemporaryFile() as file:
        assert library.seccomp_export_bpf(context, file.fileno()) == 0, "seccomp_export_bpf"
        file.seek(0)
        code = file.read()
    library.seccomp_release(context)
    return Program(len(code) // INSTRUCTION, code)


@functools.cache
def program():
    unit = UNIT.read_text()
    listing = subprocess.run(["systemd-analyze", "--no-pager", "syscall-filter"], check=True, stdout=subprocess.PIPE,
                             text=True).stdout
    error = getattr(errno, re.search(r"^SystemCallErrorNumber=(\w+)$", unit, re.M)[1])
    return compile_filter(allowed(unit, parse_groups(listing)), error)


def enter(filtered):
    """From here on this process, and all that it starts, is under the filter."""
    zeros = [ctypes.c_ulong(0)] * 3
    if (libc.prctl(SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *zeros) != 0 or
            libc.prctl(SET_SECCOMP, ctypes.c_ulong(MODE_FILTER), ctypes.byref(filtered)) != 0):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def seal(agent):
    """The same agent. From its next start on it is under the filter, as soon as it is the user that it runs as. Not in
    a build with AddressSanitizer, whose look for leaks traces the process: the unit forbids that."""
    if hosts.is_sanitized():
        return agent
    become, filtered = agent._options["before_exec"], program()

    def enter_as_systemd():
        become()
        enter(filtered)

    agent._options["before_exec"] = enter_as_systemd
    return agent


def filters(pid):
    """How many a process is under: a container in which the tests run may have one, too."""
    return int(re.search(r"^Seccomp_filters:\t(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.M)[1])
