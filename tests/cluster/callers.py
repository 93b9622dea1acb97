# SPDX-License-Identifier: Apache-2.0
"""Calls of an agent's methods as no launcher makes them, by who has a certificate:
callers.py ADDRESS PORT TLS_DIR PATH=HEX...: calls each gRPC method with that one message, over a
connection of its own, and prints the status that ended it."""
import re
import socket
import ssl
import sys

from strangers import DATA, HEADERS, PREFACE, SETTINGS, frame, text, varint

PATIENCE = 60
END_STREAM, END_HEADERS = 1, 4


def message(**fields):
    """A protobuf message; names are f1, f2, … after the fields' numbers."""
    out = b""
    for name, value in fields.items():
        number = int(name[1:])
        if isinstance(value, bytes):
            out += varint(number << 3 | 2) + varint(len(value)) + value
        else:
            out += varint(number << 3) + varint(value)
    return out


def question(path, data):
    head = (b"\x83\x87\x04" + text(path.encode()) + b"\x01" + text(b"agent") + b"\x0f\x10" +
            text(b"application/grpc") + b"\x00" + text(b"te") + text(b"trailers"))
    return (PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, head) +
            frame(DATA, 0, 1, b"\0" + len(data).to_bytes(4, "big") + data))


def status(stream):
    """gRPC writes its trailers without compression."""
    while head := stream.read(9):
        payload = stream.read(int.from_bytes(head[:3], "big"))
        if head[3] == HEADERS and head[4] & END_STREAM:
            return re.search(rb"grpc-status.(\d+)", payload, re.S).group(1).decode()
    return "closed"


def main(address, port, folder, *calls):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(f"{folder}/ca.crt")
    context.load_cert_chain(f"{folder}/user.crt", f"{folder}/user.key")
    context.set_alpn_protocols(["h2"])
    for call in calls:
        path, _, data = call.partition("=")
        with socket.create_connection((address, int(port)), PATIENCE) as plain:
            with context.wrap_socket(plain, server_hostname=address) as connection:
                connection.sendall(question(path, bytes.fromhex(data)))
                with connection.makefile("rb") as stream:
                    print(status(stream))


if __name__ == "__main__":
    main(*sys.argv[1:])
