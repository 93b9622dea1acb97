# SPDX-License-Identifier: Apache-2.0
"""What one TCP connection carries in both directions at once: link.py listen ADDRESS PORT, and
link.py connect ADDRESS PORT SECONDS on the other host, which prints bytes per second one way."""
import socket
import sys
import threading
import time

BLOCK = 1 << 20


def receive(peer, totals, began):
    block = bytearray(BLOCK)
    while count := peer.recv_into(block):
        totals.append((time.monotonic() - began, count))


def pump(peer, seconds):
    began = time.monotonic()
    totals = []
    reader = threading.Thread(target=receive, args=(peer, totals, began))
    reader.start()
    block = bytes(BLOCK)
    while time.monotonic() - began < seconds:
        peer.sendall(block)
    peer.shutdown(socket.SHUT_WR)
    reader.join()
    inside = [count for at, count in totals if at < seconds]
    return sum(inside) / seconds


def main():
    role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "listen":
        with socket.create_server((address, port)) as server:
            print("ready", flush=True)
            peer, _ = server.accept()
            seconds = float(peer.recv(64).decode())
            peer.sendall(b"go")
            pump(peer, seconds)
            return
    peer = socket.create_connection((address, port), 10)
    peer.sendall(sys.argv[4].encode())
    peer.recv(2)
    print(pump(peer, float(sys.argv[4])))


main()
