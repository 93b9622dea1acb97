# SPDX-License-Identifier: Apache-2.0
"""Who has no certificate, or not the right one, at an agent's TLS port:
strangers.py ADDRESS PORT CA CERT KEY VERSION METHOD...: calls each method over a connection of its
own, by HTTP/1.1 when it begins with "GET ", else by gRPC, and prints what came of it: "closed", or
what was answered. CERT "-": none."""
import socket
import ssl
import sys

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, DATA = 4, 1, 0


def text(value):
    return bytes([len(value)]) + value


def frame(kind, flags, stream, payload=b""):
    return (len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") +
            payload)


def varint(value):
    """As protobuf has it."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def grpc(path):
    """A call whose message says that it is as long as no message may be."""
    head = (b"\x83\x86\x04" + text(path.encode()) + b"\x01" + text(b"agent") + b"\x0f\x10" +
            text(b"application/grpc") + b"\x00" + text(b"te") + text(b"trailers"))
    return (PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, head) +
            frame(DATA, 1, 1, b"\0\xff\xff\xff\xff"))


def call(address, port, context, method):
    http = method.startswith("GET ")
    context.set_alpn_protocols(["http/1.1" if http else "h2"])
    question = (f"{method} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() if http else grpc(method))
    try:
        with socket.create_connection((address, port), 20) as plain:
            with context.wrap_socket(plain, server_hostname=address) as connection:
                connection.sendall(question)
                answer = connection.recv(100)
                return repr(answer) if answer else "closed"
    except TimeoutError:
        raise
    except OSError:
        return "closed"


def main(address, port, ca, cert, key, version, *methods):
    for method in methods:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(ca)
        if cert != "-":
            context.load_cert_chain(cert, key)
        if version != "any":
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
        print(call(address, int(port), context, method))


if __name__ == "__main__":
    main(*sys.argv[1:])
