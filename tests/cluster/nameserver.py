# SPDX-License-Identifier: Apache-2.0
"""A DNS server that does as it is told: nameserver.py FILE. FILE is JSON, read again for each question:
names (with their IPv4 addresses), and one of delay (seconds, or {name: seconds}), drop (true, or {name: how many of its first
questions}), fail (true: SERVFAIL). Prints each name that it is asked for."""
import collections
import json
import socket
import struct
import sys
import threading

A, IN = 1, 1
NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3


def answer(question, told):
    """The reply to one question, without compression but for the name."""
    end = question.index(b"\0", 12) + 5
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode())
        at += 1 + question[at]
    name = ".".join(labels).lower()
    kind = struct.unpack(">H", question[end - 4:end - 2])[0]
    addresses = told["names"].get(name)
    code = SERVER_FAILURE if told.get("fail") else NO_ERROR if addresses else NO_SUCH_NAME
    found = addresses if kind == A and code == NO_ERROR else []
    reply = question[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, len(found), 0, 0) + question[12:end]
    for address in found:
        reply += struct.pack(">HHHIH", 0xC00C, A, IN, 0, 4) + socket.inet_aton(address)
    return name, reply


def main(file):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    print("serves", flush=True)
    asked = collections.Counter()
    while True:
        question, peer = server.recvfrom(4096)
        with open(file, encoding="ascii") as told:
            told = json.load(told)
        name, reply = answer(question, told)
        print(name, flush=True)
        asked[name] += 1
        drop = told.get("drop", {})
        if drop is not True and asked[name] > drop.get(name, 0):
            delay = told.get("delay", 0)
            seconds = delay.get(name, 0) if isinstance(delay, dict) else delay
            threading.Timer(seconds, server.sendto, (reply, peer)).start()


if __name__ == "__main__":
    main(sys.argv[1])
